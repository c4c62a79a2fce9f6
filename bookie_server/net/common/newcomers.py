"""Connections that have not sent anything: bare sockets until their first bytes arrive.

A connection's buffers and handlers cost more to create than to accept, and most peers of a flood never send anything.
So thousands of sockets can be accepted, kept and closed beside other clients' requests. The numbers that are accepted,
and that become connections, in one turn of the event loop are bounded.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)
#: Connections that the kernel keeps until they are accepted. It drops further ones, and their peers try again only
#: after a second. The kernel's own limit is net.core.somaxconn.
_BACKLOG: Final = 4096
#: Connections accepted in one turn of the event loop.
_ACCEPTED_AT_ONCE: Final = 16
#: Sockets whose first bytes are handled in one turn. Each becomes a connection, which takes about 0.2 ms.
_HEARD_AT_ONCE: Final = 4
#: Pause before accepting again when the process or the system has no room for another file.
_NO_ROOM_PAUSE_S: Final = 0.1
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Newcomer:
    """A connection that has not sent anything."""

    __slots__ = ("_silent", "socket")
    #: The bookie does nothing for it.
    busy: Final = False

    def __init__(self, accepted: socket.socket, silent: _Silent) -> None:
        self.socket = accepted
        self._silent = silent
        silent.add(self)

    def leave(self) -> None:
        """Stop waiting for its first bytes."""
        self._silent.remove(self)

    def abort(self) -> None:
        """Close at once."""
        self.leave()
        self.socket.close()


class _Silent:
    """The newcomers, in an epoll object of their own. The event loop sees only one file descriptor, and one turn of it
    takes as many ready sockets as it likes."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._newcomers: dict[int, Newcomer] = {}

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, newcomer: Newcomer) -> None:
        fd = newcomer.socket.fileno()
        self._newcomers[fd] = newcomer
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, newcomer: Newcomer) -> None:
        fd = newcomer.socket.fileno()
        del self._newcomers[fd]
        if not self.closed:
            self._epoll.unregister(fd)

    def ready(self, count: int) -> list[Newcomer]:
        """Up to ``count`` newcomers that have sent something or hung up."""
        return [self._newcomers[fd] for fd, _ in self._epoll.poll(0, count)]

    def close(self) -> None:
        self._epoll.close()


class Newcomers:
    """Accepts connections on ``listener``.

    Parameters
    ----------
    listener
        A bound socket. :meth:`close` closes it.
    came
        Called with each newcomer. Returns False if there is no room for it; then it is closed.
    spoke
        Called when the newcomer's first bytes can be received. From then on the socket belongs to the callee.
    left
        Called when the peer has hung up without sending anything.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        came: Callable[[Newcomer], bool],
        spoke: Callable[[Newcomer], None],
        left: Callable[[Newcomer], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._silent = _Silent()
        self._came, self._spoke, self._left = came, spoke, left
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept. Raises OSError."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._loop.add_reader(self._silent.fileno(), self._hear)

    def close(self) -> None:
        """Accept no more, and forget the newcomers without closing them."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if not self._silent.closed:
            self._loop.remove_reader(self._silent.fileno())
        self._silent.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # usually a peer that is already gone
                if error.errno in _NO_ROOM:
                    self._pause_for_room(error)
                    return
                continue
            accepted.setblocking(False)
            newcomer = Newcomer(accepted, self._silent)
            if not self._came(newcomer):
                newcomer.abort()

    def _hear(self) -> None:
        for newcomer in self._silent.ready(_HEARD_AT_ONCE):
            try:
                first = newcomer.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            except OSError:
                first = b""  # the peer has reset the connection
            if first:
                newcomer.leave()
                self._spoke(newcomer)
            else:
                self._left(newcomer)
                newcomer.abort()

    def _pause_for_room(self, error: OSError) -> None:
        _LOG.error("no connection can be accepted now: %s; raise the limit of open files (ulimit -n)", error)
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(
            _NO_ROOM_PAUSE_S, self._loop.add_reader, self._listener.fileno(), self._accept
        )
