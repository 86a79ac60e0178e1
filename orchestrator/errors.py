"""The errors of aorta-launch as one tree; text for people is made at the edge, from their fields."""

from __future__ import annotations

from dataclasses import field

from orchestrator.light_dataclass import dataclass


@dataclass
class AortaError(Exception):
    """One thing that is wrong: what, where, and what to do about it."""

    what: str
    where: str = ""
    remedy: str = ""
    exit_code: int = field(default=1, kw_only=True)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}"


@dataclass
class UsageError(AortaError):
    """Bad words on the command line, in the config or in the node list; nothing was contacted."""

    exit_code: int = field(default=2, kw_only=True)


@dataclass
class NodeListError(UsageError):
    """A node list that cannot be read as one; `where` is file:line."""


@dataclass
class ConfigError(UsageError):
    """A config or a setting that is not right; `where` is file:line, a flag or a variable."""


@dataclass
class NotReadyError(AortaError):
    """The nodes cannot run together as asked; nothing was started."""

    exit_code: int = field(default=3, kw_only=True)


@dataclass
class LinkError(NotReadyError):
    """No SSH connection to one node; `where` is the node, `step` how far it came."""

    step: str = field(default="connect", kw_only=True)


@dataclass
class HostKeyError(LinkError):
    """The node's host key is unknown, changed or revoked."""

    step: str = field(default="host key", kw_only=True)


@dataclass
class LoginError(LinkError):
    """The node refuses the user or every key that was offered."""

    step: str = field(default="login", kw_only=True)


@dataclass
class SilentError(LinkError):
    """The node took the connection and said nothing, or a packet hole took it all."""

    step: str = field(default="answer", kw_only=True)


@dataclass
class LinkLostError(LinkError):
    """A link that was open is gone or silent."""

    step: str = field(default="link", kw_only=True)


@dataclass
class NodeError(NotReadyError):
    """A program of ours on a node ended with an error instead of an answer."""


@dataclass
class PushError(NotReadyError):
    """The code did not arrive as it is here."""


@dataclass
class CollectError(AortaError):
    """What the run wrote on a node did not come back, or not all of it."""


class Several(AortaError):  # noqa: N818 - it is a bundle of errors, not one more kind
    """The errors of several nodes, told together."""

    def __init__(self, errors: list[AortaError]) -> None:
        super().__init__(
            what="; ".join(str(error) for error in errors),
            exit_code=max((error.exit_code for error in errors), default=1),
        )
        self.errors = errors


def bundle(errors: list[AortaError]) -> AortaError:
    """Make one error of those of several nodes; one alone stays what it is."""
    return errors[0] if len(errors) == 1 else Several(errors)
