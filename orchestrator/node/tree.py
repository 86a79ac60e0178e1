"""The program that keeps the code folder of a node for one launch: looks, fills it when nobody uses it, proves it.

The first act stands in the request, further ones come as orders. With the order keep it ends and leaves the ticket for
the supervisor; with the launch host's end of the channel it ends as if it had never been there, and also when nothing
was heard for SILENCE_S: a link that broke keeps nobody out of the folder.
"""

from __future__ import annotations

import binascii
import errno
import gc
import os
import select
import zlib

from orchestrator.node import tree_change, tree_state
from orchestrator.node.claim import Claim
from orchestrator.node.fastjson import loads
from orchestrator.node.tree_look import Look

TYPE_CHECKING = False  # the module typing costs more than all of this
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from orchestrator.node.tree_rows import Row
    from orchestrator.node.wire import Wire

READABLE = ("ours", "launch-host")
SILENCE_S = 60.0
"""The launch host lets hear from itself at least every 10 s while it works on the folder."""


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Give one answer to every act, until the launch host has no more."""
    del modules
    gc.disable()  # thousands of rows and nothing that refers to itself
    keeper = Keeper(request)
    orders: Optional[List[Dict[str, Any]]] = [request]
    kept = False
    try:
        while orders is not None and not kept:
            for order in orders:
                if order["act"] == "keep":
                    kept = True
                    keeper.claim.renew()
                if order["act"] not in ("beat", "keep"):
                    wire.send(keeper.answer(order))
            orders = orders if kept else wait_orders(wire)
    finally:
        if not kept:
            keeper.claim.withdraw()


def wait_orders(wire: Wire) -> Optional[List[Dict[str, Any]]]:
    """Wait for the next orders; None when the launch host is gone or silent."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return wire.ready_orders() if poll.poll(SILENCE_S * 1000) else None


def remedy_of(error: OSError, workdir: str) -> str:
    """Say what helps against an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space there, or name another folder with --workdir"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "make %s writable for this user, or name another folder with --workdir" % workdir
    return ""


def unpack(text: str) -> List[Row]:
    """Read the manifest of a request."""
    rows: List[Row] = loads(zlib.decompress(binascii.a2b_base64(text)))
    return rows


class Keeper:
    """One launch's view of the code folder."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        self.rows: Optional[List[Row]] = None
        self.look: Optional[Look] = None
        self.moved = False
        self.workdir = tree_state.choose_folder(request)
        self.claim = Claim(self.workdir, request["run_id"], request["node_rank"])

    def choose(self, order: Dict[str, Any]) -> None:
        """Choose the folder anew: while we waited, another project of this name may have come first."""
        self.moved = self.moved or bool(order.get("move"))
        chosen = tree_state.expand(self.request["other"]) if self.moved else tree_state.choose_folder(self.request)
        if chosen != self.workdir:
            self.claim.release()
            self.claim.withdraw()
            self.workdir = chosen
            self.claim = Claim(chosen, self.request["run_id"], self.request["node_rank"])

    def answer(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Do one act."""
        if "manifest" in order:
            self.rows = unpack(order["manifest"])
        acts = {
            "find": self.find,
            "inspect": self.inspect,
            "fill": self.fill,
            "prepare": self.prepare,
            "put": self.put,
            "seen": self.seen,
            "leave": self.leave,
        }
        try:
            answer = acts[order["act"]](order)
        except OSError as error:
            what = "%s: %s" % (error.filename or self.workdir, error.strerror)
            answer = {"error": what, "remedy": remedy_of(error, self.workdir)}
        other = self.workdir != tree_state.expand(self.request["workdir"])
        return {"workdir": self.workdir, "other": other, "without": self.claim.without, **answer}

    def find(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Say whether the folder is there: all that is asked when nothing is pushed."""
        self.choose(order)
        if (filler := self.claim.look()) is not None:
            return {"busy": filler}
        self.claim.use()
        return {"exists": os.path.isdir(self.workdir), "taken": self.is_taken()}

    def is_taken(self) -> bool:
        """Tell whether another run, of this second and the same chance, has this run's id here."""
        home = os.path.expanduser("~")
        if not os.path.isdir(os.path.join(home, ".aorta", "runs", self.request["run_id"])):
            return False
        from orchestrator.node import runfolder  # noqa: PLC0415 - it costs as much as all the rest, and is hardly ever asked

        return bool(runfolder.folders_of(self.request["run_id"], home))

    def inspect(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Say whose folder it is and how it differs; after a push, note what is there now."""
        finished = order.get("token")
        if not finished:
            self.choose(order)
            if (filler := self.claim.look()) is not None:
                return {"busy": filler}
        state, inside = tree_state.read_state(self.workdir, self.request["nonce"], self.request["project"])
        owner = tree_state.read_owner(self.workdir) if state == "inside" else state
        answer: Dict[str, Any] = {"state": state, "owner": owner, "inside": inside, "taken": self.is_taken()}
        if owner not in READABLE:
            return answer
        look, tree_hash = self.look_at(owner), self.request["tree_hash"]
        if self.rows is None and look.tree_hash != tree_hash:
            return {"need": "manifest"}
        answer.update(look.compare(tree_hash, self.rows))
        answer.update(look.look_beside(tree_hash, self.rows))
        answer["marker"] = tree_state.read_marker(self.workdir)
        if owner == "launch-host":
            answer["stale"] = []
        elif finished:
            tree_change.remove_nonces(self.workdir, finished)
        if not answer["missing"] and not answer["different"]:
            self.settle(look, answer["stale"] if finished and owner == "ours" else None)
        return answer

    def settle(self, look: Look, stale: Optional[List[List[str]]]) -> None:
        """Leave the ticket in a folder that is right, and note what is in it; after a push with what is left of others."""
        self.claim.use()
        tree_hash = self.request["tree_hash"]
        if stale is not None and self.rows is not None:
            pushed = {row[0]: row[1] for row in self.rows}
            pushed.update(dict(stale))
            if tree_change.note_pushed(self.workdir, tree_state.read_pushed(self.workdir), pushed):
                look.look_beside(tree_hash, self.rows)
        look.remember(tree_hash, self.rows)

    def look_at(self, owner: str) -> Look:
        """Give what is known of the folder; in the launch host's own nothing of ours lies that could know more."""
        if self.look is None or self.look.workdir != self.workdir:
            self.look = Look(self.workdir, remember=owner == "ours")
        return self.look

    def fill(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Have the folder alone, or say why not."""
        del order
        if self.is_lost():
            return self.lost()
        return self.claim.fill()

    def leave(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Let others have the folder."""
        del order
        self.claim.release()
        self.claim.withdraw()
        return {}

    def prepare(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Make the folder ours, remove what is gone on the launch host, and leave a sign for nodes that share it."""
        if self.rows is None:
            return {"need": "manifest"}
        os.makedirs(self.workdir, exist_ok=True)
        if self.is_lost():
            return self.lost()
        tree_change.mark(self.workdir, order["marker"], {row[0]: row[1] for row in self.rows})
        removed: List[str] = []
        if order["remove"]:
            removed = tree_change.remove(self.workdir, order["remove"], tree_state.names_of(self.rows)[1])
        tree_change.write_nonce(self.workdir, order["token"], self.request["node_rank"])
        space = os.statvfs(self.workdir)
        free_bytes = space.f_bavail * space.f_frsize
        behind = self.rows if self.look is None or self.look.behind is None else self.look.behind
        blocked = tree_state.find_blocked(self.workdir, behind)
        return {"removed": removed, "blocked": blocked, "free_bytes": free_bytes}

    def put(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """Put into the folder what came with the order."""
        from orchestrator.node import tree_put  # noqa: PLC0415 - mostly nothing is brought

        tree_put.put(self.workdir, order["packed"])
        return {}

    def is_lost(self) -> bool:
        """Look once more whose the folder is, in the same breath as the first write."""
        if tree_state.read_owner(self.workdir) == "foreign":
            return True
        return tree_state.read_state(self.workdir, self.request["nonce"], "/")[0] == "launch-host"

    def lost(self) -> Dict[str, Any]:
        """Say that the folder must not be written."""
        return {"error": "%s is not ours any more" % self.workdir, "remedy": "name another folder with --workdir"}

    def seen(self, order: Dict[str, Any]) -> Dict[str, Any]:
        """List the nodes whose signs stand in this folder."""
        return {"seen": tree_change.read_nonces(self.workdir, order["token"])}
