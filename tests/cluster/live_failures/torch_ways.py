"""What goes wrong around a process group: its backend, its interface, its store, its data loader, its files."""

from __future__ import annotations

from .row import Live
from .scripts import GLOO
from .stage import Stage

PORT = 29861


def serve_pages(stage: Stage) -> None:
    """Run a web server on the port at which the script looks for its store."""
    stage.start_beside(1, ["python3", "-m", "http.server", str(PORT)])


WORKER_KILLED = Live(
    id="loader-worker-killed",
    happens="SIGKILL of a worker process of a rank's data loader.",
    torch=True,
    script="""
import os, signal, time
from torch.utils.data import DataLoader, Dataset
RANK = int(os.environ["RANK"])

class Clips(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if RANK == 1 and index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(index)

def main():
    for batch in DataLoader(Clips(), batch_size=4, num_workers=1):
        print(batch.sum().item(), flush=True)
        time.sleep(0.1)
    time.sleep(300)

main()
""",
    family=("DATA", "KILLED"),
    rank=1,
    node_rank=1,
    code=1,
    word="worker",
    says="killed by signal",
)

WRONG_INTERFACE = Live(
    id="wrong-interface",
    happens="GLOO_SOCKET_IFNAME of node 2 names an interface that it does not have.",
    torch=True,
    lines={2: "env.GLOO_SOCKET_IFNAME=bond7"},
    script=GLOO + "join(20)\ntime.sleep(30)\n",
    family=("NET",),
    rank=1,
    node_rank=1,
    code=1,
    word="bond7|interface",
    says="bond7",
    long=True,
)

NO_NCCL = Live(
    id="nccl-on-a-cpu-build",
    happens="The script asks for NCCL, and the build of torch has none.",
    torch=True,
    script=GLOO + 'join(backend="nccl")\n',
    family=("ENV",),
    ranks=(0, 1),
    node_rank=None,
    code=1,
    word="NCCL",
    says="NCCL",
    long=True,
)

STORE_GONE = Live(
    id="store-gone",
    happens="A store that rank 0 keeps for its own messages goes away while the others ask it.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + f"""
store = dist.TCPStore(os.environ["MASTER_ADDR"], {PORT}, WORLD, is_master=RANK == 0, timeout=datetime.timedelta(seconds=20))
store.set(f"here{{RANK}}", "yes")
for other in range(WORLD):
    store.get(f"here{{other}}")
print("ready", flush=True)
if RANK == 0:
    time.sleep(1)
    del store
    time.sleep(300)
while True:
    store.add("steps", 1)
    time.sleep(0.02)
""",
    family=("RDZV", "NET"),
    ranks=(0, 1, 2),
    node_rank=None,
    knowable=False,
    word="store|connection|recv|peer|broken",
    long=True,
)

WEB_ON_PORT = Live(
    id="web-server-on-the-stores-port",
    happens="A web server answers on the port at which the script looks for its store: nobody says a word until the time limit.",
    torch=True,
    words=("--timeout", "14s"),
    script=GLOO
    + f"""
limit = datetime.timedelta(seconds=6)
store = dist.TCPStore(os.environ["MASTER_ADDR"], {PORT}, WORLD, is_master=False, timeout=limit, wait_for_workers=False)
store.set("here", "yes")
store.get("nobody")
""",
    prepare=serve_pages,
    family=("TIME_LIMIT", "PORT", "HANG"),
    ranks=(0, 1),
    node_rank=None,
    state="timed out",
    exit_code=124,
    word="time limit",
    long=True,
)

CUT_ARCHIVE = Live(
    id="torch-checkpoint-cut-short",
    happens="torch.load of a file of which the end is missing, on one rank.",
    torch=True,
    layout=(2,),
    script="""
import os, time, torch
RANK = int(os.environ["RANK"])
path = os.path.join(os.environ["AORTA_OUTPUT_DIR"], f"latest_{RANK}.pt")
torch.save({"w": torch.zeros(400, 400)}, path)
time.sleep(0.5)
if RANK == 1:
    os.truncate(path, os.path.getsize(path) // 2)
    torch.load(path)
time.sleep(300)
""",
    family=("CKPT",),
    rank=1,
    node_rank=0,
    code=1,
    word="checkpoint|zip|archive|truncated|damaged",
    says="central directory",
    long=True,
)

TORCH_WAYS = (
    WORKER_KILLED,
    WRONG_INTERFACE,
    NO_NCCL,
    STORE_GONE,
    WEB_ON_PORT,
    CUT_ARCHIVE,
)
