"""Connections that have not sent anything: bare sockets, until their first byte comes.

A connection's buffers and handlers cost more to make than to accept, and most peers of a flood never speak. So
thousands of them can be accepted, kept and closed beside others' requests.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger(__name__)
#: Connections that the kernel may keep until they are accepted. It drops what comes beyond, and the peer tries again
#: only after a second. The kernel's own limit is net.core.somaxconn.
_BACKLOG: Final = 4096
#: Connections accepted in one turn of the event loop.
_ACCEPTED_AT_ONCE: Final = 16
#: How long nothing is accepted where the process or the system has no room for another file.
_NO_ROOM_PAUSE_S: Final = 0.1
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Newcomer:
    """A connection that has not sent anything."""

    __slots__ = ("_loop", "socket")
    #: Nothing is done for it.
    busy: Final = False

    def __init__(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket) -> None:
        self._loop = loop
        self.socket = accepted

    def abort(self) -> None:
        """Close at once."""
        self._loop.remove_reader(self.socket.fileno())
        self.socket.close()


class Newcomers:
    """Accepts on ``listener``.

    Parameters
    ----------
    listener
        A bound socket. It is closed by :meth:`close`.
    came
        Told of each newcomer. Returns False where there is no room for it; it is closed then.
    spoke
        Told when the newcomer's first bytes are there to be received. From now on the socket is the callee's.
    left
        Told when the peer has hung up without a word.
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
        self._came, self._spoke, self._left = came, spoke, left
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept. Raises OSError."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # mostly a peer that is gone already
                if error.errno in _NO_ROOM:
                    self._pause_for_room(error)
                    return
                continue
            accepted.setblocking(False)
            newcomer = Newcomer(self._loop, accepted)
            if self._came(newcomer):
                self._loop.add_reader(accepted.fileno(), self._readable, newcomer)
            else:
                accepted.close()

    def _readable(self, newcomer: Newcomer) -> None:
        try:
            if newcomer.socket.recv(1, socket.MSG_PEEK):
                self._loop.remove_reader(newcomer.socket.fileno())
                self._spoke(newcomer)
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # the peer has reset the connection
        self._left(newcomer)
        newcomer.abort()

    def _pause_for_room(self, error: OSError) -> None:
        _LOG.error("no connection can be accepted for now: %s; raise the limit of open files (ulimit -n)", error)
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(
            _NO_ROOM_PAUSE_S, self._loop.add_reader, self._listener.fileno(), self._accept
        )
