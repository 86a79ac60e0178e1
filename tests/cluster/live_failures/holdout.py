"""Failures that were made after the rules were fixed: how well the verdict does on what nobody had looked at."""

from __future__ import annotations

from .row import Live
from .scripts import GLOO, HEAD
from .stage import Stage

COPY = "copies/bare"


def lay_down_without_script(stage: Stage) -> None:
    """Lay the code down by hand, and forget the script itself on node 2."""
    stage.put(1, f"{COPY}/job.py", stage.row.script)
    stage.put(2, f"{COPY}/notes.txt", "the script is to follow\n")
    stage.words += ["--no-push", "--workdir", f"{stage.home(1)}/{COPY}"]


def mount_read_only(stage: Stage) -> None:
    """Make a folder of node 2 read-only, as a file system after an error is."""
    stage.mount(2, "/tmp/results", 4)
    stage.sh(2, "mount -o remount,ro /tmp/results")


def spoil_list(stage: Stage) -> None:
    """Give both nodes a list of samples, of which node 1 has a half."""
    stage.put(1, "lists/samples.json", '{"train": ["a.tar", "b.t')
    stage.put(2, "lists/samples.json", '{"train": ["a.tar", "b.tar"]}')


BUS_ERROR = Live(
    id="bus-error-in-shared-memory",
    happens="A rank writes into shared memory for which /dev/shm has no room, and gets SIGBUS.",
    layout=(1, 2),
    script=HEAD
    + """
from multiprocessing import shared_memory
time.sleep(0.4)
if RANK == 1:
    ring = shared_memory.SharedMemory(create=True, size=24 << 20)
    for page in range(0, 24 << 20, 4096):
        ring.buf[page] = 1
work_on()
""",
    prepare=lambda stage: stage.mount(2, "/dev/shm", 4),
    family=("SHM", "CRASH"),
    rank=1,
    node_rank=1,
    signal="SIGBUS",
    word="SIGBUS|shared memory|/dev/shm|bus error",
)

READ_ONLY = Live(
    id="read-only-results",
    happens="The file system for results is read-only on node 2.",
    layout=(2, 1),
    script=HEAD
    + """
from pathlib import Path
time.sleep(0.4)
if RANK == 2:
    Path("/tmp/results/scores.tsv").write_text("bleu\\t31.4\\n")
work_on()
""",
    prepare=mount_read_only,
    family=("DISK",),
    rank=2,
    node_rank=1,
    code=1,
    word="read-only",
    says="Read-only file system",
)

IN_A_POOL = Live(
    id="raised-in-a-pool",
    happens="A helper process of a rank raises, and the rank raises it again.",
    layout=(2, 2),
    script=HEAD
    + """
from multiprocessing import Pool

def decode(name):
    if name.endswith("7.jpg") and RANK == 3:
        raise ValueError(f"{name} has 2 channels, 3 are needed")
    return len(name)

time.sleep(0.3)
with Pool(2) as pool:
    pool.map(decode, [f"img_{number}.jpg" for number in range(10)])
work_on()
""",
    family=("CODE", "DATA"),
    rank=3,
    node_rank=1,
    code=1,
    word="img_7.jpg has 2 channels",
    says="img_7.jpg has 2 channels",
)

SPOILT_LIST = Live(
    id="half-a-list-of-samples",
    happens="The list of samples on node 1 ends in the middle.",
    layout=(1, 2),
    script=HEAD
    + """
import json, pathlib

def read_samples():
    return json.loads((pathlib.Path.home() / "lists" / "samples.json").read_text())["train"]

time.sleep(0.4)
read_samples()
work_on()
""",
    prepare=spoil_list,
    family=("DATA", "CONFIG"),
    rank=0,
    node_rank=0,
    code=1,
    word="JSON|Unterminated",
    says="Unterminated string",
)

NO_LIBRARY = Live(
    id="shared-library-missing",
    happens="A library that a rank loads is not installed.",
    script=HEAD
    + """
import ctypes
time.sleep(0.4)
if RANK == 1:
    ctypes.CDLL("libnvjpegdec.so.4")
work_on()
""",
    family=("ENV",),
    rank=1,
    node_rank=1,
    code=1,
    word="libnvjpegdec",
    says="cannot open shared object file",
)

ABORTED = Live(
    id="aborted",
    happens="Native code of a rank gives up by abort().",
    layout=(2, 1),
    script=HEAD
    + """
time.sleep(0.4)
if RANK == 0:
    sys.stderr.write("planner.cc:204: invariant broken: free list is empty\\n")
    sys.stderr.flush()
    os.abort()
work_on()
""",
    family=("CRASH",),
    rank=0,
    node_rank=0,
    signal="SIGABRT",
    word="SIGABRT|abort",
)

FILE_SIZE = Live(
    id="file-size-limit",
    happens="A rank writes a file larger than its limit (ulimit -f).",
    layout=(1, 1, 1),
    script=HEAD
    + """
import resource
time.sleep(0.4)
if RANK == 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with open(OUT + "/trace.bin", "wb", buffering=0) as file:
        for _ in range(8):
            file.write(bytes(1 << 18))
work_on()
""",
    family=("LIMITS", "DISK"),
    rank=2,
    node_rank=2,
    code=1,
    word="large",
    says="File too large",
)

NO_SCRIPT = Live(
    id="script-missing-on-one-node",
    happens="Without push: the script was never copied to node 2.",
    layout=(1, 2),
    script=HEAD + "work_on()\n",
    prepare=lay_down_without_script,
    family=("ENV", "DEPLOY"),
    ranks=(1, 2),
    node_rank=1,
    code=2,
    word="job.py",
    says="can't open file",
)

REFUSED = Live(
    id="tracker-refuses",
    happens="A rank reports to a service of which nobody listens on the port.",
    layout=(1, 2),
    script=HEAD
    + """
import urllib.request
time.sleep(0.4)
if RANK == 2:
    urllib.request.urlopen("http://127.0.0.1:9/runs", timeout=5)
work_on()
""",
    family=("NET", "RDZV", "CODE"),
    rank=2,
    node_rank=1,
    code=1,
    word="refused|reach",
    says="Connection refused",
)

SPINS = Live(
    id="one-rank-spins",
    happens="A rank is in a loop that never ends, and the others run out of time in a collective.",
    torch=True,
    layout=(2, 1),
    script=GLOO
    + """
def settle(value):
    while RANK == 0 and value < 1.0:
        value = value * 0.5 + 0.1
    return value

join(5)
for update in range(4):
    dist.all_reduce(torch.tensor([settle(2.0 - update)]))
""",
    family=("HANG",),
    rank=0,
    node_rank=0,
    word="rank 0|wait|never|hang|hung",
)

GATHER_SHAPE = Live(
    id="gathers-another-shape",
    happens="A rank gathers a longer tensor than the others (TORCH_DISTRIBUTED_DEBUG=DETAIL).",
    torch=True,
    layout=(1, 2),
    settings={"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
    script=GLOO
    + """
join()
for update in range(4):
    size = 10 if (RANK, update) == (2, 2) else 7
    dist.all_gather([torch.zeros(size) for _ in range(WORLD)], torch.zeros(size))
""",
    family=("MISMATCH",),
    rank=2,
    node_rank=1,
    word="mismatch|shape|differ|collectives",
)

BEFORE_GROUP = Live(
    id="raises-before-the-group",
    happens="A rank raises before it joins the group; the others wait for it.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
def parse_mesh(text):
    rows, columns = (int(part) for part in text.split("x"))
    return rows * columns

parse_mesh("4x2x1" if RANK == 0 else "4x2")
join(8)
time.sleep(60)
""",
    family=("CODE", "CONFIG"),
    rank=0,
    node_rank=0,
    code=1,
    word="too many values to unpack",
    says="too many values to unpack",
)

HOLDOUT = (
    BUS_ERROR,
    READ_ONLY,
    IN_A_POOL,
    SPOILT_LIST,
    NO_LIBRARY,
    ABORTED,
    FILE_SIZE,
    NO_SCRIPT,
    REFUSED,
    SPINS,
    GATHER_SHAPE,
    BEFORE_GROUP,
)
