"""Takes those who connect, by the half of the socket module that is written in C."""

from __future__ import annotations

import _socket  # what socket lays over it costs as much as a start of Python

TYPE_CHECKING = False  # the module typing costs as much again
if TYPE_CHECKING:
    from typing import Any, Tuple


def take(listener: _socket.socket) -> _socket.socket:
    """Take the connection of the next visitor, whoever it is.

    Raises:
        OSError: there is none, or no further file can be opened here.
    """
    return _take(listener)[0]


def accept(listener: _socket.socket) -> Tuple[_socket.socket, str]:
    """Take the next visitor: its connection, and the address that it comes from.

    Raises:
        OSError: there is none, or no further file can be opened here.
    """
    visitor, peer = _take(listener)
    return visitor, str(peer[0])


def _take(listener: _socket.socket) -> Tuple[_socket.socket, Any]:
    handle, peer = listener._accept()  # type: ignore[attr-defined] # noqa: SLF001 - socket's own accept calls it too
    return _socket.socket(listener.family, _socket.SOCK_STREAM, 0, handle), peer
