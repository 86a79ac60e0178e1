"""The login on a connection whose host key is judged: which keys are shown, and what a refusal means."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from orchestrator.errors import LinkError, LoginError, SilentError
from orchestrator.transport.ssh_base import paramiko
from orchestrator.transport.ssh_dial import Deadline, DroppedError
from orchestrator.transport.ssh_keys import Agent, KeyFile, KeyStore, Offer, offers
from orchestrator.transport.sshconfig import SshHost

AGENT_WIDTH = threading.BoundedSemaphore(8)
"""An agent asked from dozens of threads at once drops some of them."""


class KeyLogin(paramiko.auth_strategy.AuthStrategy):
    """Shows one key after the other; paramiko calls it once the host key is accepted."""

    def __init__(self, host: SshHost, where: str, store: KeyStore, deadline: Deadline) -> None:
        self.host = host
        self.where = where
        self.deadline = deadline
        self.accepted: Offer | None = None
        self._store = store
        self._shown: list[str] = []
        self._problems: list[KeyFile] = []

    def get_sources(self) -> Iterator[paramiko.auth_strategy.AuthSource]:
        """Give nothing: authenticate() does all itself, to know what a refusal means."""
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> None:  # type: ignore[override] # we read no AuthResult
        """Log in, or say in words why not."""
        if not self.host.agent:
            self._log_in(transport, None)
            return
        with AGENT_WIDTH:
            agent = Agent(self.host.agent)
            try:
                self._log_in(transport, agent)
            finally:
                agent.close()

    def _log_in(self, transport: paramiko.Transport, agent: Agent | None) -> None:
        more: list[str] = []
        for offer in offers(self.host, self._store, agent, self._problems):
            if self._named_key_failed():
                break
            self._shown.append(offer.name)
            transport.auth_timeout = self.deadline.left_s
            try:
                more = transport.auth_publickey(self.host.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                raise self._no_keys_wanted(error.allowed_types) from error
            except (paramiko.SSHException, EOFError, OSError) as error:
                if not transport.is_active():
                    raise self._hung_up(error) from error
                if self.deadline.over:
                    raise self._slow() from error
                continue
            if not more:
                self.accepted = offer
                return
            if "publickey" not in more:
                raise self._second_factor(more)
        raise self._refused(transport)

    def _named_key_failed(self) -> bool:
        """A key that somebody named and that cannot be used is told, not replaced by luck."""
        return bool(self.host.named_key) and any(
            problem.problem.startswith(f"{self.host.named_key} ") for problem in self._problems
        )

    def _refused(self, transport: paramiko.Transport) -> LoginError:
        user = self.host.user
        troubles = "; ".join(problem.problem for problem in self._problems)
        if self._named_key_failed() or not self._shown:
            remedy = (
                self._problems[0].remedy
                if self._problems
                else "name one with key=, --identity or ssh_config, or start an agent"
            )
            return self._error(f"there is no key to log in with as {user}: {troubles or 'none was found'}", remedy)
        allowed = self._allowed(transport)
        if allowed and "publickey" not in allowed:
            return self._no_keys_wanted(allowed)
        what = f"the node refuses user {user} with every key shown ({', '.join(self._shown)})"
        if troubles:
            what += f"; not shown: {troubles}"
        if allowed:
            what += f"; it allows {', '.join(allowed)}"
        remedy = (
            self._problems[0].remedy
            if self._problems
            else f"is {user} right, and is the key there: ssh-copy-id? (user=, key= in the node list)"
        )
        return self._error(what, remedy)

    def _allowed(self, transport: paramiko.Transport) -> list[str]:
        """Ask which methods the server takes; only worth a round trip when all has failed."""
        transport.auth_timeout = self.deadline.left_s
        try:
            transport.auth_none(self.host.user)
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError):
            return []
        return []

    def _no_keys_wanted(self, allowed: list[str]) -> LoginError:
        return self._error(
            f"the node takes no keys from user {self.host.user}, only {', '.join(allowed)}",
            "allow publickey in its sshd_config: passwords, GSSAPI and host-based logins are not supported",
        )

    def _second_factor(self, more: list[str]) -> LoginError:
        return self._error(
            f"the key is right, but the node wants {' or '.join(more)} as well",
            "allow logins by key alone for this user (AuthenticationMethods), or go through a jump host that is inside",
        )

    def _hung_up(self, error: BaseException) -> LinkError:
        shown = len(self._shown)
        if shown > 1:
            return self._error(
                f"the node ends the login after {shown} keys: too many authentication failures ({', '.join(self._shown)})",
                "name the one key (key= in the node list, --identity) or set IdentitiesOnly yes in ssh_config",
            )
        what = f"the node ends the connection during the login ({error or type(error).__name__})"
        return DroppedError(what=what, where=self.where, step="login", remedy="look at sshd's log on the node")

    def _slow(self) -> SilentError:
        what = f"the node does not answer the login within {self.deadline.total_s:g} s"
        remedy = "is it overloaded, or does its sshd wait for DNS or LDAP? --connect-timeout gives more time"
        return SilentError(what=what, where=self.where, step="login", remedy=remedy)

    def _error(self, what: str, remedy: str) -> LoginError:
        return LoginError(what=what, where=self.where, remedy=remedy)
