"""The user's script of the benchmark: its first line tells the time; then it ends. Word: FOLDER."""

import time

NOW = time.time()

import os  # noqa: E402 - the time comes first
import sys  # noqa: E402

path = os.path.join(sys.argv[1], os.environ["RANK"])  # noqa: PTH118 - nothing more than needed is imported
with open(path + ".new", "w") as file:  # noqa: PTH123
    file.write(repr(NOW))
os.rename(path + ".new", path)  # noqa: PTH104
