"""The program that keeps the code folder of a node for one launch: looks, fills it when nobody uses it, proves it.

The first act stands in the request, further ones come as orders. With the order keep it ends and leaves the ticket for
the supervisor; with the launch host's end of the channel it ends as if it had never been there, and also when nothing
was heard for SILENCE_S: a link that broke keeps nobody out of the folder.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import zlib
from typing import Any, Dict, List, Optional

from orchestrator.node import runfolder, tree_change, tree_state
from orchestrator.node.claim import Claim
from orchestrator.node.tree_rows import Row
from orchestrator.node.wire import Wire

READABLE = ("ours", "launch-host")
SILENCE_S = 60.0
"""The launch host lets hear from itself at least every 10 s while it works on the folder."""


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Give one answer to every act, until the launch host has no more."""
    del modules
    keeper = Keeper(request)
    orders: Optional[List[Dict[str, Any]]] = [request]
    kept = False
    try:
        while orders is not None and not kept:
            for order in orders:
                kept = kept or order["act"] == "keep"
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
    rows: List[Row] = json.loads(zlib.decompress(base64.b64decode(text)))
    return rows


class Keeper:
    """One launch's view of the code folder."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        self.rows = unpack(request["manifest"]) if "manifest" in request else []
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
        acts = {
            "find": self.find,
            "inspect": self.inspect,
            "fill": self.fill,
            "prepare": self.prepare,
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
        return bool(runfolder.folders_of(self.request["run_id"], os.path.expanduser("~")))

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
        answer.update(tree_state.compare(self.workdir, self.rows))
        answer["extra"] = tree_state.find_extra(self.workdir, self.rows)
        answer["stale"] = [] if owner == "launch-host" else tree_state.find_stale(self.workdir, self.rows)
        answer["marker"] = tree_state.read_marker(self.workdir)
        equal = not answer["missing"] and not answer["different"]
        if finished and owner == "ours":
            tree_change.remove_nonces(self.workdir, finished)
            if equal:
                pushed = {row[0]: row[1] for row in self.rows}
                pushed.update(dict(answer["stale"]))
                tree_change.write_json(os.path.join(self.workdir, tree_state.PUSHED), pushed)
        if equal:
            self.claim.use()
        return answer

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
        os.makedirs(self.workdir, exist_ok=True)
        if self.is_lost():
            return self.lost()
        pushed = {**tree_state.read_pushed(self.workdir), **{row[0]: row[1] for row in self.rows}}
        tree_change.mark(self.workdir, order["marker"], pushed)
        keep = tree_state.names_of(self.rows)[1]
        removed = tree_change.remove(self.workdir, order["remove"], keep)
        tree_change.write_nonce(self.workdir, order["token"], self.request["node_rank"])
        space = os.statvfs(self.workdir)
        free_bytes = space.f_bavail * space.f_frsize
        blocked = tree_state.find_blocked(self.workdir, self.rows)
        return {"removed": removed, "blocked": blocked, "free_bytes": free_bytes}

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
