"""Checks of the variables that the session on a node brings along."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from orchestrator.checks.check import Check
from orchestrator.checks.packages import shorten
from orchestrator.checks.remedies import on_node
from orchestrator.checks.seen import Seen, ok, unknown, warn
from orchestrator.facts import Facts
from orchestrator.plan.environment import CLEARED
from orchestrator.settings import Settings
from orchestrator.values import Node

Nodes = Sequence[Node]
AllFacts = Sequence[Facts]
FILES = "~/.bashrc ~/.bash_profile ~/.profile ~/.zshenv ~/.ssh/environment ~/.pam_environment /etc/environment"
HARMLESS = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONIOENCODING", "PYTHONUTF8")
OWN = ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX")
"""What is meant to differ: it names something of this very machine."""
UNSET = "not set"


def compare_session(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """Variables of the session that reach the ranks are the same everywhere; what would mislead torchrun is removed."""
    del settings
    kept = [_reaching(fact) for fact in facts]
    names = sorted({name for table in kept if table is not None for name in table})
    usual = {name: _usual([table.get(name, UNSET) for table in kept if table is not None]) for name in names}
    seen: list[Seen] = []
    for node, fact, table in zip(nodes, facts, kept, strict=True):
        if table is None:
            seen.append(unknown(fact.why_unknown("project") or "the node did not say"))
            continue
        odd = [name for name in names if table.get(name, UNSET) != usual[name]]
        if odd:
            told = [f"{name} is {table.get(name, UNSET)}, elsewhere {usual[name]}" for name in odd]
            seen.append(warn(shorten(told), _where_set(node, odd)))
            continue
        removed = sorted(name for name in fact.project.session or {} if _is_cleared(name))
        if removed:
            seen.append(ok(f"{shorten(removed)} of the session are kept from the run"))
        else:
            seen.append(
                ok(f"{len(table)} variables, the same everywhere" if table else "nothing that reaches the ranks")
            )
    return seen


def _reaching(facts: Facts) -> dict[str, str] | None:
    if facts.project.session is None:
        return None
    return {
        name: value
        for name, value in facts.project.session.items()
        if not _is_cleared(name) and name not in (*HARMLESS, *OWN)
    }


def _is_cleared(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in CLEARED)


def _usual(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _where_set(node: Node, names: Sequence[str]) -> str:
    pattern = shlex.quote(r"\b(" + "|".join(names) + r")=")
    return on_node(node, f"grep -snE {pattern} {FILES} /etc/profile.d/*")


def compare_proxies(nodes: Nodes, facts: AllFacts, settings: Settings) -> list[Seen]:
    """All nodes reach the outside in the same way."""
    del settings
    tables = [fact.project.proxies for fact in facts]
    said = [None if table is None else _render(table) for table in tables]
    usual = _usual([text for text in said if text is not None]) if any(text is not None for text in said) else ""
    seen: list[Seen] = []
    for node, fact, text in zip(nodes, facts, said, strict=True):
        if text is None:
            seen.append(unknown(fact.why_unknown("project") or "the node did not say"))
        elif text != usual:
            seen.append(warn(f"{text}, elsewhere {usual}", _where_set(node, ("https?_proxy", "HTTPS?_PROXY"))))
        elif text != NO_PROXY and not (fact.project.proxies or {}).get("no_proxy"):
            seen.append(ok(f"{text}; no_proxy is not set: HTTP between nodes goes through it too"))
        else:
            seen.append(ok(text))
    return seen


NO_PROXY = "no proxy"


def _render(table: object) -> str:
    assert isinstance(table, dict)
    proxies = sorted({value for name, value in table.items() if name != "no_proxy"})
    return f"proxy {', '.join(proxies)}" if proxies else NO_PROXY


CHECKS = (
    Check(
        name="session-env",
        looks_at="the session's variables of Python, torch, NCCL, CUDA, ROCm and the linker",
        why="the ranks of one node would run under other switches than all others",
        warns="one of them differs from most nodes; RANK and its like are removed and do no harm",
        across=compare_session,
    ),
    Check(
        name="proxy",
        looks_at="http_proxy, https_proxy and all_proxy of the session",
        why="downloads and trackers work on some nodes and hang on others",
        warns="a node has another proxy than most, or alone has one",
        across=compare_proxies,
    ),
)
