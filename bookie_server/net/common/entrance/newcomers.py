"""Connections that have not sent anything: bare sockets until their first bytes arrive.

A connection's buffers and handlers cost more to create than to accept, and most peers of a flood never send anything.
So thousands of sockets can be accepted, kept and closed beside other clients' requests. The number that is accepted in
one turn of the event loop is bounded, and one becomes a connection: if more came than a turn handles, a line of them
would grow, and everybody would wait for its end. The newest and the oldest come in turn. So whoever comes after a burst
does not wait for its end, and whoever came before others still comes.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
import select
import socket
import sys
import termios
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fcntl import ioctl
from typing import Final

_LOG: Final = logging.getLogger(__name__)
#: Connections that the kernel keeps until they are accepted. It drops further ones, and their peers try again only
#: after a second. The kernel's own limit is net.core.somaxconn.
_BACKLOG: Final = 4096
#: Connections accepted in one turn of the event loop.
_ACCEPTED_AT_ONCE: Final = 8
#: Sockets that are noticed to have something to read in one turn.
_NOTICED_AT_ONCE: Final = 1024
#: The first bytes of one socket are handled in so many turns. It becomes a connection, and its first requests are
#: handled in the turns after, in up to a millisecond. If others were heard meanwhile, each turn would have all of that.
_TURNS_EACH: Final = 2
#: Sockets that have sent too little, or hung up, are looked at in one turn. Each takes some 10 µs.
_LOOKED_AT_ONCE: Final = 4
#: Pause before accepting again when the process or the system has no room for another file.
_NO_ROOM_PAUSE_S: Final = 0.1
#: A socket is noticed once, when it has something to read, or when its peer will send nothing more.
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
_HUNG_UP: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: Bytes of a newcomer that are looked at.
LOOKED_AT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Wait:
    """What a newcomer waits for.

    Parameters
    ----------
    spoke
        Called when the bytes that are wanted can be received. From then on the socket belongs to the callee.
    left
        Called when the peer has hung up before. Then the socket is closed.
    wanted_bytes
        Given the next bytes of the newcomer, at most ``looked_at_bytes``: how many there must be. None: one.
    looked_at_bytes
        How many bytes are looked at.
    """

    spoke: Callable[[Newcomer], None]
    left: Callable[[Newcomer], None]
    wanted_bytes: Callable[[bytes], int] | None = None
    looked_at_bytes: int = LOOKED_AT_BYTES


class Newcomer:
    """A connection that has not sent what it has to begin with."""

    __slots__ = ("_silent", "has_hung_up", "number", "ready", "socket", "wait", "was_heard")
    #: The bookie does nothing for it.
    busy: Final = False

    def __init__(self, accepted: socket.socket, silent: _Silent, wait: Wait) -> None:
        self.socket = accepted
        self.wait = wait
        #: Whether it has sent something, or hung up, and waits for its turn.
        self.ready = False
        #: Whether it will send nothing more.
        self.has_hung_up = False
        #: Whether its bytes were looked at before, and there were too few.
        self.was_heard = False
        #: A later one has a higher number.
        self.number = 0
        self._silent = silent
        silent.add(self)

    def leave(self) -> None:
        """Stop waiting for its first bytes."""
        self._silent.remove(self)

    def leave_early(self) -> None:
        """Stop waiting, though it has not sent all that it should. What it sent can be received."""
        self.leave()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def abort(self) -> None:
        """Close at once."""
        self.leave()
        self.socket.close()


class _Silent:
    """The newcomers, in an epoll object of their own. The event loop sees only one file descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._newcomers: dict[int, Newcomer] = {}
        #: Those that have sent something or hung up, in this order.
        self._ready: OrderedDict[int, Newcomer] = OrderedDict()
        #: Negative number and descriptor of each of these, and of some that are no longer among them. A heap.
        self._newest: list[tuple[int, int]] = []
        self._newest_next = False
        self._number = 0
        #: How many of those that are ready were not heard before.
        self.ready_first = 0

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def add(self, newcomer: Newcomer) -> None:
        fd = newcomer.socket.fileno()
        self._number += 1
        newcomer.number = self._number
        self._newcomers[fd] = newcomer
        self._epoll.register(fd, _EVENTS)

    def remove(self, newcomer: Newcomer) -> None:
        fd = newcomer.socket.fileno()
        del self._newcomers[fd]
        if self._ready.pop(fd, None) is not None:
            self._unready(newcomer)
        if not self.closed:
            self._epoll.unregister(fd)

    def notice(self) -> None:
        """Note which newcomers have sent something or hung up since the last call. Each is noted once."""
        for fd, events in self._epoll.poll(0, _NOTICED_AT_ONCE):
            newcomer = self._ready[fd] = self._newcomers[fd]
            newcomer.ready, newcomer.has_hung_up = True, bool(events & _HUNG_UP)
            self.ready_first += not newcomer.was_heard
            heapq.heappush(self._newest, (-newcomer.number, fd))
        if len(self._newest) > 2 * len(self._ready) + _NOTICED_AT_ONCE:
            self._newest = [(-newcomer.number, fd) for fd, newcomer in self._ready.items()]
            heapq.heapify(self._newest)

    def next_ready(self) -> Newcomer:
        """Return one that is ready: in turn the one that connected last, and the one that has been ready longest.

        So a peer that connects and speaks at once does not wait for many that connected before and speak together.
        """
        self._newest_next = not self._newest_next
        while not self._newest_next:
            number, fd = heapq.heappop(self._newest)
            newcomer = self._ready.get(fd)
            if newcomer is not None and newcomer.number == -number:
                del self._ready[fd]
                return self._unready(newcomer)
        return self._unready(self._ready.popitem(last=False)[1])

    def _unready(self, newcomer: Newcomer) -> Newcomer:
        self.ready_first -= not newcomer.was_heard
        return newcomer

    def wait_again(self, newcomer: Newcomer) -> None:
        """It had nothing to read yet, or too little."""
        newcomer.ready, newcomer.was_heard = False, True
        self._epoll.modify(newcomer.socket.fileno(), _EVENTS)

    def close(self) -> None:
        self._epoll.close()
        self._ready.clear()
        self._newest.clear()


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
    wanted_bytes
        Given the first bytes of a newcomer, at most ``looked_at_bytes``: how many there must be before ``spoke`` is
        called. None: one.
    looked_at_bytes
        How many bytes are looked at.
    most_ready
        While this many have sent something and wait to be heard for the first time, others wait in the kernel. None: no
        limit.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        came: Callable[[Newcomer], bool],
        spoke: Callable[[Newcomer], None],
        left: Callable[[Newcomer], None],
        wanted_bytes: Callable[[bytes], int] | None = None,
        looked_at_bytes: int = LOOKED_AT_BYTES,
        most_ready: int | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._silent = _Silent()
        self._came = came
        self._first_wait = Wait(spoke, left, wanted_bytes, looked_at_bytes)
        self._most_ready = most_ready
        self._pause: asyncio.TimerHandle | None = None
        self._hears_soon = False
        #: In how many turns the next one is heard.
        self._heard_in = 0

    def start(self) -> None:
        """Begin to accept. Raises OSError."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._loop.add_reader(self._silent.fileno(), self._notice)

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

    def wait_for_more(self, newcomer: Newcomer, wait: Wait) -> None:
        """Wait for further bytes of a newcomer that spoke, and whose first ones were taken. It stays a bare socket."""
        newcomer.wait, newcomer.ready, newcomer.was_heard = wait, False, False
        self._silent.add(newcomer)

    def _accept(self) -> None:
        self._accept_some()
        self._notice()  # many have sent something already

    def _accept_some(self) -> None:
        if self._most_ready is not None and self._silent.ready_first >= self._most_ready:
            return
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
            newcomer = Newcomer(accepted, self._silent, self._first_wait)
            if not self._came(newcomer):
                newcomer.abort()

    def _notice(self) -> None:
        self._silent.notice()
        if not self._hears_soon:
            self._hear()

    def _hear(self) -> None:
        """Hear some now and then, while there are any, until one becomes a connection."""
        self._hears_soon = self._silent.ready_count > 0
        if not self._hears_soon:
            self._heard_in = 0
            return
        self._loop.call_soon(self._hear)
        if self._heard_in > 0:
            self._heard_in -= 1
            return
        for _ in range(min(_LOOKED_AT_ONCE, self._silent.ready_count)):
            if self._hear_one(self._silent.next_ready()):
                self._heard_in = _TURNS_EACH - 1
                return

    def _hear_one(self, newcomer: Newcomer) -> bool:
        """Return whether it becomes a connection."""
        wait, connected = newcomer.wait, newcomer.socket
        looked_at_bytes = 1 if wait.wanted_bytes is None else wait.looked_at_bytes
        try:
            first = connected.recv(looked_at_bytes, socket.MSG_PEEK)
        except BlockingIOError:
            self._silent.wait_again(newcomer)
            return False
        except OSError:
            first = b""  # the peer has reset the connection
        if first and wait.wanted_bytes is not None:
            wanted = wait.wanted_bytes(first)
            received = len(first) if len(first) < looked_at_bytes else _received_bytes(connected)
            is_whole = received >= wanted
            # The kernel reports the socket again when that many have arrived, or when the peer hangs up.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 if is_whole else wanted)
            if not is_whole:
                if not newcomer.has_hung_up:
                    self._silent.wait_again(newcomer)
                    return False
                first = b""
        if first:
            newcomer.leave()
            wait.spoke(newcomer)
        else:
            wait.left(newcomer)
            newcomer.abort()
        return bool(first)

    def _pause_for_room(self, error: OSError) -> None:
        _LOG.error("no connection can be accepted now: %s; raise the limit of open files (ulimit -n)", error)
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(
            _NO_ROOM_PAUSE_S, self._loop.add_reader, self._listener.fileno(), self._accept
        )


def _received_bytes(connected: socket.socket) -> int:
    """How many bytes can be received now."""
    return int.from_bytes(ioctl(connected.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)
