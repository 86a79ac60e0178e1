"""Runs as `sitecustomize` in every Python below an agent, and arms the ranks: their stacks and errors can be had.

It runs in the Python of the ranks, which has nothing of ours, and before the program: it imports next to nothing, costs
a millisecond, and whatever goes wrong in it is swallowed. The file lies in <run folder>/hook.
"""

# ruff: noqa: PLC0415, BLE001, S110 - imports wait until they are needed, contextlib is one, and no error counts

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than all the rest
if TYPE_CHECKING:
    from types import TracebackType

FOLDER = os.path.dirname(os.path.abspath(__file__))
MARK = "AORTA_RANK_HOOK"
"""The pid of the process that is armed: what it starts carries it on, and does nothing."""
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = (1 << 64) - 1
SETTLE_S = 1.0
"""By then the program has imported what we need as well; one that is over before never pays for it."""
DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


class Rank:
    """This process, when it is a rank."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.rank = int(os.environ["RANK"])
        self.room = os.path.join(os.path.dirname(FOLDER), "diagnosis", "stacks")
        self.before = sys.excepthook
        os.makedirs(self.room, mode=0o700, exist_ok=True)

    def path(self, ending: str) -> str:
        """Name one of this rank's files."""
        return os.path.join(self.room, "rank_%d.%s" % (self.rank, ending))

    def arm(self) -> None:
        """Let this process give its stack on a signal, whatever its main thread is stuck in."""
        import _signal  # type: ignore[import-not-found]  # signal itself imports enum
        import faulthandler

        number = _signal.SIGRTMAX - 4
        if _signal.getsignal(number) != _signal.SIG_DFL:
            return
        handle = os.open(self.path("txt"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        faulthandler.register(number, file=handle, all_threads=True, chain=False)
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        write(self.path("armed"), b"%d %d %d %d\n" % (self.pid, ticks, number, handle))

    def note_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Write what ends this rank where its agent looks for it, as @record does, and go on as before."""
        try:
            if os.getpid() == self.pid and issubclass(kind, Exception):
                write_error(kind, error, trace)
        except BaseException:
            pass
        self.before(kind, error, trace)

    def listen(self) -> None:
        """Start to wait for requests, in a thread that holds nothing and ends with the program."""
        import _thread

        pipe = self.path("ask")
        try:
            os.unlink(pipe)
        except FileNotFoundError:
            pass
        os.mkfifo(pipe, 0o600)
        # With an end of its own to write into, it never reads an end of file.
        handle = os.open(pipe, os.O_RDWR)
        _thread.start_new_thread(self.answer, (handle,))

    def answer(self, handle: int) -> None:
        """Let debuggers in after a moment, and give the flight recorder to whoever asks."""
        import select

        try:
            select.select([handle], [], [], SETTLE_S)
            allow_tracing()
            while os.read(handle, 4096):
                self.give_flight()
        except BaseException:
            pass

    def give_flight(self) -> None:
        """Write the flight recorder, or why there is none."""
        try:
            data = read_flight()
        except BaseException as error:
            write(self.path("flight.why"), encode("%s: %s" % (type(error).__name__, error)))
            return
        write(self.path("flight.json"), data)


def write(path: str, data: bytes) -> None:
    """Replace a file in one step."""
    temporary = "%s.new.%d" % (path, os.getpid())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while data:
            data = data[os.write(handle, data) :]
    finally:
        os.close(handle)
    os.replace(temporary, path)


def encode(text: str) -> bytes:
    """Give the bytes of a text, whatever is in it."""
    return text.encode("utf-8", "backslashreplace")


def write_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write the error file of torchelastic, unless somebody has done it better."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or (os.path.exists(path) and os.path.getsize(path) > 0):
        return
    import json
    import time
    import traceback

    told = "".join(traceback.format_exception(kind, error, trace))
    extra = {"py_callstack": told, "timestamp": str(int(time.time()))}
    message = {"message": "%s: %s" % (kind.__name__, error), "extraInfo": extra}
    write(path, encode(json.dumps({"message": message})))


def read_flight() -> bytes:
    """Read torch's flight recorder, if this program uses torch at all; NCCL has one, all else another."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise LookupError("the program has not imported torch")
    library = sys.modules.get("torch._C._distributed_c10d")
    found = [getattr(library, name) for name in DUMPS if hasattr(library, name)]
    if not found:
        raise LookupError("torch %s has no flight recorder" % getattr(torch, "__version__", "?"))
    return max((bytes(dump()) for dump in found), key=len)


def allow_tracing() -> None:
    """Let py-spy look where Yama would only let an ancestor."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)


def begin() -> None:
    """Arm this process if it is a rank itself: no agent, and no child of a rank."""
    if not all(name in os.environ for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")):
        return
    # A rank that replaces itself by another program is still one.
    if os.environ.get(MARK, str(os.getpid())) != str(os.getpid()):
        return
    os.environ[MARK] = str(os.getpid())
    rank = Rank()
    sys.excepthook = rank.note_error
    for step in (rank.arm, rank.listen):
        try:
            step()
        except BaseException:
            pass


def run_hidden() -> None:
    """Run the sitecustomize that would have been found without ours; what it raises is its own affair."""
    places = [place for place in sys.path if os.path.abspath(place or ".") != FOLDER]
    # importlib.machinery has the same class, and costs more than all of this.
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec("sitecustomize", places)
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        begin()
    except BaseException:
        pass
    run_hidden()
