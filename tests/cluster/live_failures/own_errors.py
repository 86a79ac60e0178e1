"""What a script does to itself: exceptions, exit codes, words on the command line, what it finds or does not find."""

from __future__ import annotations

from .row import Live
from .scripts import HEAD
from .stage import Stage


def go(stage: Stage) -> None:
    """Let all ranks go on at the same time."""
    stage.wait_said()
    stage.go()


def give_resume_to_node_1(stage: Stage) -> None:
    """Put the checkpoint where node 1 alone has it."""
    stage.put(1, "resume/model_000400.pt", "weights")


ONE_RAISES = Live(
    id="one-rank-raises",
    happens="An exception on one of four ranks, deep in the script, while another one is being dealt with.",
    layout=(2, 2),
    script=HEAD
    + """
class OddWindow(Exception):
    pass

def cut(tokens, width):
    try:
        return {8: tokens[:8]}[width]
    except KeyError as error:
        raise OddWindow(f"window of {width} tokens on stream {RANK}") from error

def epoch():
    for width in (8, 8, 11 if RANK == 2 else 8):
        cut(list(range(40)), width)
        time.sleep(0.3)

epoch()
work_on()
""",
    family=("CODE",),
    rank=2,
    node_rank=1,
    code=1,
    where="in cut",
    word="OddWindow: window of 11 tokens on stream 2",
    says="OddWindow: window of 11 tokens on stream 2",
)

ALL_RAISE = Live(
    id="all-ranks-raise",
    happens="The same exception on all ranks at the same moment.",
    layout=(2, 2),
    script=HEAD
    + """
wait_for_go()
warmup, total = 400, 400
rate = 3e-4 * 200 / (total - warmup)
work_on()
""",
    inject=go,
    family=("CODE",),
    together=True,
    ranks=(0, 1, 2, 3),
    node_rank=None,
    code=1,
    word="division by zero",
    says="ZeroDivisionError",
)

EXITS_7 = Live(
    id="exits-with-7",
    happens="A rank gives up with an exit code of its own, and says why on stdout alone.",
    script=HEAD
    + """
time.sleep(0.4)
if RANK == 1:
    print("tokenizer table is from another vocabulary, giving up", flush=True)
    sys.exit(7)
work_on()
""",
    family=("CODE", "UNKNOWN"),
    rank=1,
    node_rank=1,
    code=7,
    word="exit code 7|another vocabulary",
    long=True,
)

NAN_STOP = Live(
    id="nan-stop",
    happens="The script stops because its loss is no number.",
    script=HEAD
    + """
value = 2.5
for update in range(40):
    value = value * value if RANK == 0 else 0.7
    if value != value or value == float("inf"):
        sys.exit(f"update {update}: loss: {value}, nothing to gain from going on")
    time.sleep(0.04)
work_on()
""",
    family=("CODE",),
    rank=0,
    node_rank=0,
    code=1,
    word="nan|inf|finite|diverge",
    says="loss: inf",
)

WRONG_ARGUMENT = Live(
    id="wrong-argument",
    happens="A word on the command line that the script does not know: argparse ends all ranks with 2.",
    layout=(2, 1),
    script=HEAD
    + """
import argparse
wait_for_go()
parser = argparse.ArgumentParser(prog="pretrain")
parser.add_argument("--width", type=int, default=256)
parser.parse_args()
work_on()
""",
    args=("--width", "512", "--depht", "12"),
    inject=go,
    family=("CONFIG",),
    together=True,
    ranks=(0, 1, 2),
    node_rank=None,
    code=2,
    word="unrecognized arguments: --depht|--depht",
    says="--depht",
    long=True,
)

SYNTAX_ERROR = Live(
    id="syntax-error",
    happens="A module of the project that Python cannot read, found once the ranks import it.",
    layout=(1, 2),
    script=HEAD
    + """
import importlib, pathlib
wait_for_go()
folder = pathlib.Path(OUT) / f"gen{RANK}"
folder.mkdir()
(folder / "schedule.py").write_text("def rate(step):\\n    return 1e-3 if step < 10 else (2e-3\\n\\nprint(rate(3)\\n")
sys.path.insert(0, str(folder))
importlib.import_module("schedule")
work_on()
""",
    inject=go,
    family=("CODE",),
    together=True,
    ranks=(0, 1, 2),
    node_rank=None,
    code=1,
    word="SyntaxError",
    says="SyntaxError",
    long=True,
)

NO_CHECKPOINT = Live(
    id="checkpoint-on-one-node-only",
    happens="The checkpoint to go on from lies on node 1 alone.",
    layout=(1, 2),
    script=HEAD
    + """
def resume(path):
    with open(path, "rb") as file:
        return file.read()

time.sleep(0.4)
resume(os.path.expanduser("~/resume/model_000400.pt"))
work_on()
""",
    prepare=give_resume_to_node_1,
    family=("CKPT", "DATA"),
    ranks=(1, 2),
    node_rank=1,
    code=1,
    where="in resume",
    word=r"model_000400\.pt",
    says="model_000400.pt",
)

TRUNCATED_CHECKPOINT = Live(
    id="checkpoint-cut-short",
    happens="A pickled checkpoint that was not written to its end, on one rank.",
    layout=(2, 1),
    script=HEAD
    + """
import pickle
state = pickle.dumps({"weights": [0.5] * 5000, "epoch": 3})
path = f"{OUT}/epoch3_shard{RANK}.ckpt"
with open(path, "wb") as file:
    file.write(state if RANK != 1 else state[:1200])
time.sleep(0.4)
with open(path, "rb") as file:
    pickle.load(file)
work_on()
""",
    family=("CKPT", "DATA"),
    rank=1,
    node_rank=0,
    code=1,
    word="pickle data was truncated|checkpoint",
    says="pickle data was truncated",
    long=True,
)

WRAPPED_137 = Live(
    id="wrapper-tells-137",
    happens="The rank is a wrapper: what it had started was killed, and it ends with 128 + 9 as a shell does.",
    layout=(2, 2),
    script=HEAD
    + """
import signal, subprocess
time.sleep(0.4)
seconds = 600 if RANK != 3 else 0.3
inner = subprocess.Popen([sys.executable, "-c", f"import os, signal, time; time.sleep({seconds}); os.kill(os.getpid(), signal.SIGKILL)"])
code = inner.wait()
sys.exit(128 - code if code < 0 else code)
""",
    family=("KILLED",),
    rank=3,
    node_rank=1,
    code=137,
    word="137|SIGKILL|killed",
    knowable=False,
    long=True,
)

OWN_ERRORS = (
    ONE_RAISES,
    ALL_RAISE,
    EXITS_7,
    NAN_STOP,
    NO_CHECKPOINT,
    WRONG_ARGUMENT,
    SYNTAX_ERROR,
    TRUNCATED_CHECKPOINT,
    WRAPPED_137,
)
