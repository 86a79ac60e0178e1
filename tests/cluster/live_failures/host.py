"""What the machine does to a rank: signals, memory, disks, limits."""

from __future__ import annotations

import signal

from .memory import fill_neighbour, limit_memory
from .row import Live
from .scripts import HEAD
from .stage import Act, Stage

WAITS = HEAD + "wait_for_go()\nwork_on()\n"


def kill_rank(rank: int, number: int) -> Act:
    """Signal a rank from outside once all are ready."""

    def inject(stage: Stage) -> None:
        stage.wait_said()
        stage.kill(rank, number)

    return inject


def ready_go(stage: Stage) -> None:
    """Let all ranks go on."""
    stage.wait_said()
    stage.go()


def kill_beside_oom(stage: Stage) -> None:
    """Have a neighbour's process killed for want of memory, then kill a rank by hand."""
    stage.wait_said()
    fill_neighbour(stage)
    stage.kill(1)


KILLED = Live(
    id="rank-killed",
    happens="SIGKILL of a rank by somebody else.",
    layout=(2, 2),
    script=WAITS,
    inject=kill_rank(1, signal.SIGKILL),
    family=("KILLED",),
    rank=1,
    node_rank=0,
    signal="SIGKILL",
    word="SIGKILL",
)

TERMINATED = Live(
    id="rank-terminated",
    happens="SIGTERM of a rank by somebody else, which looks like what an agent does to the siblings of a failed rank.",
    layout=(1, 2),
    script=WAITS,
    inject=kill_rank(2, signal.SIGTERM),
    family=("KILLED", "SESSION"),
    rank=2,
    node_rank=1,
    signal="SIGTERM",
    word="SIGTERM",
    long=True,
)

SEGFAULT = Live(
    id="segmentation-fault",
    happens="A rank reads where nothing is.",
    layout=(1, 2),
    script=HEAD
    + """
import ctypes
time.sleep(0.4)
if RANK == 2:
    ctypes.string_at(0)
work_on()
""",
    family=("CRASH",),
    rank=2,
    node_rank=1,
    signal="SIGSEGV",
    word="SIGSEGV|segmentation fault",
)

ADDRESS_SPACE = Live(
    id="memory-limit-of-the-process",
    happens="A rank asks for more memory than its limit (ulimit -v) allows.",
    layout=(2, 1),
    script=HEAD
    + """
import resource

def build_cache(entries):
    return [bytearray(4 << 20) for _ in range(entries)]

time.sleep(0.4)
if RANK == 1:
    resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
build_cache(150 if RANK == 1 else 2)
work_on()
""",
    family=("OOM_HOST",),
    rank=1,
    node_rank=0,
    code=1,
    word="memory",
    says="MemoryError",
)

MEMORY_GROUP = Live(
    id="out-of-memory-in-a-control-group",
    happens="The kernel kills a rank because its node's memory group is full, as in a container.",
    script=HEAD
    + """
wait_for_go()
held = []
while RANK == 1:
    held.append(os.urandom(1 << 20) * 8)
work_on()
""",
    prepare=lambda stage: limit_memory(stage, 2, 160),
    inject=ready_go,
    family=("OOM_HOST",),
    rank=1,
    node_rank=1,
    signal="SIGKILL",
    word="memory",
)

FOREIGN_OOM = Live(
    id="killed-beside-a-neighbours-oom",
    happens="SIGKILL of a rank by hand, a moment after the kernel has killed a neighbour's process for want of memory.",
    script=WAITS,
    inject=kill_beside_oom,
    family=("KILLED",),
    rank=1,
    node_rank=1,
    signal="SIGKILL",
    word="SIGKILL",
    long=True,
)

FULL_SHM = Live(
    id="shared-memory-full",
    happens="/dev/shm of node 2 is smaller than what its data loader hands over.",
    torch=True,
    script="""
import os, torch
rank = int(os.environ["RANK"])
from torch.utils.data import DataLoader, Dataset

class Frames(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.zeros(1024, 1024, 4)

batches = DataLoader(Frames(), batch_size=2, num_workers=1)
for round_ in range(400):
    for number, batch in enumerate(batches):
        print("batch", number, float(batch.sum()), flush=True)
""",
    prepare=lambda stage: stage.mount(2, "/dev/shm", 8),
    family=("SHM",),
    rank=1,
    node_rank=1,
    word="shared memory|/dev/shm|bus error",
    long=True,
)

FULL_DISK = Live(
    id="disk-full",
    happens="The file system for checkpoints on node 2 is full.",
    layout=(2, 2),
    script=HEAD
    + """
def keep(path):
    with open(path, "wb") as file:
        for _ in range(64):
            file.write(b"\\0" * (1 << 20))

time.sleep(0.4)
os.makedirs("/tmp/keep", exist_ok=True)
if RANK in (1, 3):
    keep(f"/tmp/keep/shard{RANK}.bin" if RANK == 3 else "/dev/null")
work_on()
""",
    prepare=lambda stage: stage.mount(2, "/tmp/keep", 12),
    family=("DISK",),
    rank=3,
    node_rank=1,
    code=1,
    where="in keep",
    word="no space|disk",
    says="No space left on device",
)

FULL_DISK_TORCH = Live(
    id="disk-full-in-torch-save",
    happens="The same in torch.save, whose words do not speak of space.",
    torch=True,
    script="""
import os, time, torch
time.sleep(0.5)
rank = int(os.environ["RANK"])
model = torch.nn.Linear(2400, 2400)
if rank == 1:
    torch.save({"net": model.state_dict()}, "/tmp/ckpt/net_at_9.pt")
time.sleep(600)
""",
    prepare=lambda stage: stage.mount(2, "/tmp/ckpt", 6),
    family=("DISK",),
    rank=1,
    node_rank=1,
    code=1,
    word="disk|space|written to its end",
    long=True,
)

NOT_PERMITTED = Live(
    id="output-not-permitted",
    happens="A rank may not write where its output goes.",
    layout=(1, 1, 1),
    script=HEAD
    + """
folder = OUT + "/locked"
os.mkdir(folder)
os.chmod(OUT, 0o755)
os.chmod(folder, 0o555)
time.sleep(0.4)
if RANK == 2:
    for part in range(len(OUT.split("/"))):
        os.chmod("/".join(OUT.split("/")[: part + 1]) or "/", 0o755)
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    open(folder + "/samples.csv", "w")
work_on()
""",
    family=("DISK", "CONFIG", "ENV", "LIMITS"),
    rank=2,
    node_rank=2,
    code=1,
    word="permission",
    says="samples.csv",
    long=True,
)

OPEN_FILES = Live(
    id="too-many-open-files",
    happens="A rank opens more files than its limit allows.",
    layout=(1, 2),
    script=HEAD
    + """
import resource
time.sleep(0.4)
if RANK == 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
parts = [open(__file__) for _ in range(90 if RANK == 1 else 3)]
work_on()
""",
    family=("LIMITS",),
    rank=1,
    node_rank=1,
    code=1,
    word="open files",
    says="Too many open files",
    long=True,
)

THREADS = Live(
    id="no-more-threads",
    happens="A rank may not start another thread (ulimit -u).",
    layout=(2, 1),
    script=HEAD
    + """
import resource, threading
time.sleep(0.4)
if RANK == 0:
    if os.geteuid() == 0:
        os.setuid(64111)
    resource.setrlimit(resource.RLIMIT_NPROC, (6, 6))
    for number in range(40):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
work_on()
""",
    family=("LIMITS",),
    rank=0,
    node_rank=0,
    code=1,
    word="thread",
    says="can't start new thread",
    long=True,
)

HOST = (
    KILLED,
    SEGFAULT,
    ADDRESS_SPACE,
    MEMORY_GROUP,
    FULL_DISK,
    TERMINATED,
    FOREIGN_OOM,
    FULL_SHM,
    FULL_DISK_TORCH,
    NOT_PERMITTED,
    OPEN_FILES,
    THREADS,
)
