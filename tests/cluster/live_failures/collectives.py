"""Ranks that fall out with each other in a process group: real torchrun, real torch, gloo."""

from __future__ import annotations

from .row import Live
from .scripts import GLOO

DETAIL = {"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}

NAMED_SHAPE = Live(
    id="other-shape-with-details",
    happens="A rank reduces a tensor of another shape; torch compares the calls of all ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL).",
    torch=True,
    layout=(1, 2),
    settings=DETAIL,
    script=GLOO
    + """
join()
for update in range(6):
    rows = 48 if (RANK, update) != (1, 4) else 40
    dist.all_reduce(torch.full((rows, 16), 0.5))
dist.destroy_process_group()
""",
    family=("MISMATCH",),
    rank=1,
    node_rank=1,
    word="mismatch|shape|differ",
)

SHAPE = Live(
    id="other-shape",
    happens="The same without details: gloo aborts where the sizes do not fit, and that need not be the odd one.",
    torch=True,
    layout=(1, 2),
    script=NAMED_SHAPE.script,
    family=("MISMATCH",),
    ranks=(0, 1, 2),
    node_rank=None,
    knowable=False,
    word="mismatch|shape|size|differ",
    long=True,
)

ORDER = Live(
    id="other-order",
    happens="A rank broadcasts where the others reduce; the call is in a branch of its own, so its line is another.",
    torch=True,
    layout=(2, 1),
    script=GLOO
    + """
join(6)
totals = torch.ones(64)

def share():
    dist.broadcast(totals, src=2)

def add_up():
    dist.all_reduce(totals)

for update in range(5):
    if (RANK, update) == (2, 3):
        share()
        add_up()
    else:
        add_up()
        if update == 3:
            share()
time.sleep(20)
""",
    family=("MISMATCH", "HANG"),
    ranks=(2,),
    node_rank=1,
    word="mismatch|other|order|differ|wait|time",
    knowable=False,
    long=True,
)

SKIP = Live(
    id="one-call-skipped",
    happens="A rank leaves out one reduction, and gathers while the others reduce for the last time.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
join(6)
grads = torch.ones(32)
for update in range(8):
    if (RANK, update) == (2, 5):
        continue
    dist.all_reduce(grads)
parts = [torch.zeros(32) for _ in range(WORLD)]
dist.all_gather(parts, grads)
time.sleep(20)
""",
    family=("MISMATCH", "HANG"),
    ranks=(2,),
    node_rank=1,
    word="mismatch|other|differ|wait|time|size",
    knowable=False,
    long=True,
)

SLEEPS = Live(
    id="one-rank-sleeps",
    happens="A rank sleeps before a collective until the others run out of time.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
def fetch_more(update):
    if (RANK, update) == (1, 3):
        time.sleep(300)

join(5)
for update in range(6):
    fetch_more(update)
    dist.all_reduce(torch.ones(128))
""",
    family=("HANG",),
    rank=1,
    node_rank=1,
    word="rank 1|wait|never|hang|hung",
)

LOCKED = Live(
    id="dead-locked",
    happens="A rank takes a lock that it holds already; the others run out of time in a collective.",
    torch=True,
    layout=(2, 1),
    script=GLOO
    + """
import threading
guard = threading.Lock()

def log_row(update):
    with guard:
        if (RANK, update) == (2, 2):
            flush_rows()

def flush_rows():
    with guard:
        pass

join(5)
for update in range(6):
    log_row(update)
    dist.all_reduce(torch.ones(16, 16))
""",
    settings={"rank_hook": True},
    family=("HANG",),
    rank=2,
    node_rank=1,
    where="in flush_rows",
    word="rank 2|wait|never|hang|hung",
    long=True,
)

NEVER_JOINS = Live(
    id="never-joins",
    happens="A rank is still busy with its data when the others form the group, and they run out of time.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
if RANK == 2:
    time.sleep(120)
join(together=6)
""",
    family=("HANG", "RDZV"),
    rank=2,
    node_rank=1,
    word="rank 2|never|wait|join",
    long=True,
)

LEAVES_EARLY = Live(
    id="leaves-early",
    happens="A rank has less data than the others and ends with 0 in the middle of the epoch.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
join(8)
batches = range(4 if RANK == 2 else 9)
for batch in batches:
    dist.all_reduce(torch.ones(256))
print("epoch is through", flush=True)
os._exit(0)
""",
    family=("EARLY_EXIT",),
    rank=2,
    node_rank=1,
    code=0,
    word="left|early|exit code 0|ended",
)

KILLED_IN_GROUP = Live(
    id="killed-in-a-collective",
    happens="A rank dies of SIGKILL while all are in collectives: the others see their connections close.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
import signal
join(8)
for update in range(2000):
    if (RANK, update) == (1, 60):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(512))
    time.sleep(0.005)
""",
    family=("KILLED",),
    rank=1,
    node_rank=1,
    signal="SIGKILL",
    word="SIGKILL",
    long=True,
)

RAISES_IN_GROUP = Live(
    id="raises-between-collectives",
    happens="A rank raises between two collectives; the others fail because of it, with words of their own.",
    torch=True,
    layout=(2, 1),
    script=GLOO
    + """
join(8)
vocabulary = {"the": 0, "cat": 1, "sat": 2}
for update in range(2000):
    word = "on" if (RANK, update) == (1, 40) else "cat"
    ids = torch.tensor([float(vocabulary[word])])
    dist.all_reduce(ids)
    time.sleep(0.005)
""",
    family=("CODE",),
    rank=1,
    node_rank=0,
    code=1,
    word="KeyError: 'on'|'on'",
    says="KeyError: 'on'",
    long=True,
)

OTHER_MODEL = Live(
    id="ddp-other-shape",
    happens="A rank builds its model of another width, and DDP compares.",
    torch=True,
    layout=(1, 2),
    script=GLOO
    + """
join(8)
from torch.nn.parallel import DistributedDataParallel
DistributedDataParallel(torch.nn.Linear(24, 6 if RANK != 1 else 5))
print("wrapped", flush=True)
""",
    family=("MISMATCH", "CODE"),
    rank=1,
    node_rank=1,
    where="job.py",
    word="param|shape|size|model",
    long=True,
)

COLLECTIVES = (
    NAMED_SHAPE,
    SLEEPS,
    LEAVES_EARLY,
    SHAPE,
    ORDER,
    SKIP,
    LOCKED,
    NEVER_JOINS,
    KILLED_IN_GROUP,
    RAISES_IN_GROUP,
    OTHER_MODEL,
)
