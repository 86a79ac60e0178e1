"""A rank that writes many lines, and knows what it wrote. Words: FOLDER LINES LINES_PER_S (0: as fast as it can).

It says in FOLDER that it is up, begins when `go` is there, tells what it wrote, and ends when `done` is there.
"""

import hashlib
import json
import os
import sys
import time

BLOCK = 1000
"""Lines that are written at once; the first of them tells the time."""
LINE = b"step 000123 loss 1.234567 lr 3.0e-04 tokens/s 51234 gpu 61 GiB\n"
STAMP = b"at %17.6f " + LINE[21:]


def wait_for(path: str) -> None:
    """Wait until a file is there."""
    while not os.path.exists(path):  # noqa: PTH110 - small, because 32 ranks share two cores
        time.sleep(0.02)


def write_all(data: bytes) -> None:
    """Write to the end, also into a pipe that takes a part."""
    while data:
        data = data[os.write(1, data) :]


def main(folder: str, lines: int, lines_per_s: float) -> None:
    """Write the lines."""
    own = os.path.join(folder, os.environ["RANK"])  # noqa: PTH118
    seen = hashlib.sha256()
    rest = LINE * (BLOCK - 1)
    with open(own + ".up", "w"):  # noqa: PTH123
        pass
    wait_for(os.path.join(folder, "go"))  # noqa: PTH118
    began = time.time()
    for number in range(lines // BLOCK):
        if lines_per_s:
            time.sleep(max(0.0, began + number * BLOCK / lines_per_s - time.time()))
        data = STAMP % time.time() + rest
        seen.update(data)
        write_all(data)
    told = {"began": began, "ended": time.time(), "sha256": seen.hexdigest(), "bytes": lines * len(LINE)}
    with open(own + ".new", "w") as file:  # noqa: PTH123
        json.dump(told, file)
    os.rename(own + ".new", own + ".json")  # noqa: PTH104
    wait_for(os.path.join(folder, "done"))  # noqa: PTH118


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
