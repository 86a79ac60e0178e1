"""The program that knows the code folder of a node: inspects it, prepares it for a push, proves it afterwards."""

from __future__ import annotations

import base64
import errno
import json
import os
import zlib
from typing import Any, Dict, List

from orchestrator.node import tree_change, tree_state
from orchestrator.node.tree_rows import Row
from orchestrator.node.wire import Wire

READABLE = ("ours", "launch-host")


def main(request: Dict[str, Any], wire: Wire, modules: Dict[str, str]) -> None:
    """Do the one act that is asked for and give its single answer."""
    del modules
    acts = {"inspect": inspect, "prepare": prepare, "seen": seen, "find": find}
    workdir = tree_state.expand(request["workdir"])
    try:
        answer = acts[request["act"]](workdir, request)
    except OSError as error:
        answer = {"error": "%s: %s" % (error.filename or workdir, error.strerror), "remedy": remedy_of(error, workdir)}
    wire.send({"workdir": workdir, **answer})


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


def find(workdir: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Say whether the folder is there: all that is asked when nothing is pushed."""
    del request
    return {"exists": os.path.isdir(workdir)}


def inspect(workdir: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Say whose folder it is and how it differs; after a push, note what is there now."""
    rows = unpack(request["manifest"])
    state, inside = tree_state.read_state(workdir, request["nonce"], request["project"])
    owner = tree_state.read_owner(workdir) if state == "inside" else state
    answer: Dict[str, Any] = {"state": state, "owner": owner, "inside": inside}
    if owner not in READABLE:
        return answer
    answer.update(tree_state.compare(workdir, rows))
    answer["extra"] = tree_state.find_extra(workdir, rows)
    answer["stale"] = [] if owner == "launch-host" else tree_state.find_stale(workdir, rows)
    answer["marker"] = tree_state.read_json(os.path.join(workdir, tree_state.MARKER))
    if request.get("token") and owner == "ours":
        tree_change.remove_nonces(workdir, request["token"])
        if not answer["missing"] and not answer["different"]:
            pushed = {row[0]: row[1] for row in rows}
            pushed.update(dict(answer["stale"]))
            tree_change.write_json(os.path.join(workdir, tree_state.PUSHED), pushed)
    return answer


def prepare(workdir: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the folder ours, remove what is gone on the launch host, and leave a sign for nodes that share it."""
    rows = unpack(request["manifest"])
    os.makedirs(workdir, exist_ok=True)
    # Asked once more, in the same breath as the first write.
    if (
        tree_state.read_owner(workdir) == "foreign"
        or tree_state.read_state(workdir, request["nonce"], "/")[0] == "launch-host"
    ):
        return {"error": "%s is not ours any more" % workdir, "remedy": "name another folder with --workdir"}
    pushed = {**tree_state.read_pushed(workdir), **{row[0]: row[1] for row in rows}}
    tree_change.mark(workdir, request["marker"], pushed)
    keep = tree_state.names_of(rows)[1]
    removed = tree_change.remove(workdir, request["remove"], keep)
    tree_change.write_nonce(workdir, request["token"], request["index"])
    space = os.statvfs(workdir)
    free_bytes = space.f_bavail * space.f_frsize
    return {"removed": removed, "blocked": tree_state.find_blocked(workdir, rows), "free_bytes": free_bytes}


def seen(workdir: str, request: Dict[str, Any]) -> Dict[str, Any]:
    """List the nodes whose signs stand in this folder."""
    return {"seen": tree_change.read_nonces(workdir, request["token"])}
