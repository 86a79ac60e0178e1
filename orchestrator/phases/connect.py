"""Phase connect: one link a node, all at once, every trouble told together."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import AortaError, LinkError, UsageError, bundle
from orchestrator.transport import Link
from orchestrator.transport.fanout import nobody, try_all, try_each
from orchestrator.transport.isself import is_own_address
from orchestrator.transport.local import LocalLink
from orchestrator.transport.ssh_dial import Deadline, Resolved, resolve
from orchestrator.transport.sshasked import Asked
from orchestrator.transport.sshconfig import SSH_PORT, SshHost, ask_ssh, parse_jump
from orchestrator.values import Node

if TYPE_CHECKING:
    from orchestrator.transport.ssh import Connection, Session

ASK_WIDTH = 8
"""`ssh -G` processes at once; one takes 9 ms."""
HOPS = 8
"""More jump hosts in a row than this go round in a circle."""

Chain = tuple[SshHost, ...]
"""Jump hosts, the first one first."""


class ConnectSettings(Protocol):
    """The settings that decide how nodes are reached."""

    @property
    def user(self) -> str | None: ...  # noqa: D102 - see settings.Settings
    @property
    def ssh_port(self) -> int | None: ...  # noqa: D102
    @property
    def identity(self) -> str | Path | None: ...  # noqa: D102
    @property
    def connect_timeout_s(self) -> float: ...  # noqa: D102
    @property
    def fanout(self) -> int: ...  # noqa: D102
    @property
    def accept_new_host_keys(self) -> bool: ...  # noqa: D102
    @property
    def origins(self) -> Mapping[str, str]: ...  # noqa: D102


def connect(nodes: Sequence[Node], settings: ConnectSettings, done: Callable[[int], None] = nobody) -> list[Link]:
    """Open a link to every node; when one cannot be reached, close the others and tell all that failed.

    Raises:
        LinkError: one node could not be reached.
        Several: more than one could not.
    """
    ways, errors = find_ways(nodes, settings)
    if errors:
        raise bundle([errors[place] for place in sorted(errors)])
    links, errors, jumps = _dial(nodes, ways, settings, done)
    if not errors:
        return [links[place] for place in range(len(nodes))]
    for link in links.values():
        link.close()
    for connection in jumps:
        connection.close()
    raise bundle([errors[place] for place in sorted(errors)])


def connect_each(
    nodes: Sequence[Node], settings: ConnectSettings, done: Callable[[int], None] = nobody
) -> tuple[dict[int, Link], dict[int, AortaError]]:
    """Open a link to every node that can be reached; give links and errors by place in the list."""
    ways, unknown = find_ways(nodes, settings)
    for place in unknown:
        done(place)
    links, errors, _ = _dial(nodes, ways, settings, done)
    return links, {**unknown, **errors}


def close_links(links: Iterable[Link]) -> None:
    """Close whatever links there are by then."""
    for link in links:
        link.close()


def find_ways(
    nodes: Sequence[Node], settings: ConnectSettings
) -> tuple[dict[int, tuple[SshHost, Chain]], dict[int, AortaError]]:
    """Find out how each node is reached; give ways and errors by place in the list."""
    ask = Asked().ask

    def find(node: Node) -> tuple[SshHost, Chain]:
        host = find_host(node, settings, ask)
        return host, find_chain(host, ask)

    return try_all(find, nodes, ASK_WIDTH)


def _dial(
    nodes: Sequence[Node],
    ways: Mapping[int, tuple[SshHost, Chain]],
    settings: ConnectSettings,
    done: Callable[[int], None],
) -> tuple[dict[int, Link], dict[int, AortaError], list[Connection]]:
    # Whoever looks at runs and has nobody to ask need not wait until paramiko is loaded.
    from orchestrator.transport.ssh import Session  # noqa: PLC0415

    session = Session(accept_new=settings.accept_new_host_keys)
    jumps, broken = open_jumps([chain for _, chain in ways.values()], session, settings)

    def reach(place: int) -> Link:
        host, chain = ways[place]
        if (error := next((broken[c] for c in _prefixes(chain) if c in broken), None)) is not None:
            what = f"the jump host {error.where} is not reached: {error.what}"
            raise type(error)(what=what, where=nodes[place].name, remedy=error.remedy)
        link = open_link(nodes[place], host, session, settings, jumps.get(chain))
        # Other nodes are still being dialled, and most of what we ask for needs this; nobody waits for its round trips.
        threading.Thread(target=link.prepare, name="prepare", daemon=True).start()
        return link

    links, failed = try_each(reach, sorted(ways), settings.fanout, done)
    errors = {place: _with_note(error, ways[place][0]) for place, error in failed.items()}
    return links, errors, list(jumps.values())


def _with_note(error: AortaError, host: SshHost) -> AortaError:
    if not host.asked:
        error.remedy = f"{error.remedy}; OpenSSH is not installed on this machine, so ssh_config was not read".lstrip(
            "; "
        )
    return error


def find_host(node: Node, settings: ConnectSettings, ask: Callable[..., SshHost] = ask_ssh) -> SshHost:
    """Put together how a node is reached: node list over flags over ssh_config."""
    try:
        host = ask(node.host, user=node.user or settings.user, port=node.port or settings.ssh_port)
    except AortaError as error:
        error.where = node.where if isinstance(error, UsageError) else node.name
        raise
    key = node.key or settings.identity
    if key:
        host = replace(host, named_key=str(Path(key).expanduser()))
    if node.jump == "none":
        host = replace(host, proxy_jump=(), proxy_command="")
    elif node.jump:
        host = replace(host, proxy_jump=tuple(node.jump.split(",")), proxy_command="")
    return host


def find_chain(host: SshHost, ask: Callable[..., SshHost] = ask_ssh) -> Chain:
    """Find the jump hosts before a node; the first of them may need one itself, as ssh_config says."""
    chain: list[SshHost] = []
    hops = host.proxy_jump
    while hops:
        hosts = []
        for hop in hops:
            name, user, port = parse_jump(hop.strip())
            hosts.append(ask(name, user=user, port=port))
        chain = hosts + chain
        if len(chain) > HOPS:
            remedy = "look at ProxyJump in ssh_config and jump= in the node list"
            raise LinkError(what="its jump hosts go round in a circle", where=host.alias, step="jump", remedy=remedy)
        hops = chain[0].proxy_jump
    # What stands in the chain is the whole way; only the first hop keeps a ProxyCommand of its own.
    return tuple(
        replace(hop, proxy_jump=(), proxy_command="" if i else hop.proxy_command) for i, hop in enumerate(chain)
    )


def _prefixes(chain: Chain) -> list[Chain]:
    return [chain[: length + 1] for length in range(len(chain))]


def open_jumps(
    chains: Sequence[Chain], session: Session, settings: ConnectSettings
) -> tuple[dict[Chain, Connection], dict[Chain, AortaError]]:
    """Open each jump host once, before the nodes behind it are dialled; from the outside in."""
    from orchestrator.transport.ssh import Connection  # noqa: PLC0415 - as above

    opened: dict[Chain, Connection] = {}
    broken: dict[Chain, AortaError] = {}

    def open_one(chain: Chain) -> Connection:
        connection = Connection(chain[-1], chain[-1].alias, session, opened.get(chain[:-1]))
        connection.open(Deadline.after(time_for(chain[-1], settings)))
        return connection

    for depth in range(1, 1 + max((len(chain) for chain in chains), default=0)):
        wanted = dict.fromkeys(chain[:depth] for chain in chains if len(chain) >= depth)
        layer = [chain for chain in wanted if depth == 1 or chain[:-1] in opened]
        done, failed = try_all(open_one, layer, settings.fanout)
        opened.update({layer[place]: connection for place, connection in done.items()})
        broken.update({layer[place]: error for place, error in failed.items()})
    return opened, broken


def time_for(host: SshHost, settings: ConnectSettings) -> float:
    """Choose the time for one host: ssh_config's ConnectTimeout stands unless somebody set ours."""
    if host.connect_timeout_s and settings.origins.get("connect_timeout_s", "default") == "default":
        return host.connect_timeout_s
    return settings.connect_timeout_s


def open_link(node: Node, host: SshHost, session: Session, settings: ConnectSettings, jump: Connection | None) -> Link:
    """Open the link to one node, by SSH or not, as its address says."""
    if node.local:
        return LocalLink(node)
    timeout_s = time_for(host, settings)
    deadline = Deadline.after(timeout_s)
    addresses: list[Resolved] | None = None
    if jump is None and not host.proxy_command:
        addresses = resolve(host, node.name, deadline)
        if node.local is None and _is_here(host, addresses, port_given=bool(node.port or settings.ssh_port)):
            return LocalLink(node)
    from orchestrator.transport.ssh import Connection  # noqa: PLC0415 - as above
    from orchestrator.transport.ssh_link import SshLink  # noqa: PLC0415

    connection = Connection(host, node.name, session, jump)
    connection.open(deadline, addresses)
    return SshLink(node, connection, timeout_s)


def _is_here(host: SshHost, addresses: Sequence[Resolved], *, port_given: bool) -> bool:
    """Say whether a node is this machine: its sshd would be the machine's own, and let in the very user we are.

    A loopback address with a port is somebody's tunnel or test node.
    """
    if host.port != SSH_PORT or host.user != getpass.getuser():
        return False
    numbers = [str(address[0]) for _, address in addresses]
    if port_given and any(number.startswith("127.") or number == "::1" for number in numbers):
        return False
    return all(is_own_address(number) for number in numbers)
