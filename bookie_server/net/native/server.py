"""The native front end: Apache's wire protocols v2 and v3 over TCP, on one port.

The requests of one receive are handled together and answered together, with one write per connection and batch.
Limits (limits.py) bound what each peer, and all peers together, can make the bookie hold. At a limit the bookie stops
reading from sockets. Requests that it has already received are answered with TOO_MANY_REQUESTS. No valid request closes
a connection. Bytes that are not a valid frame do, and so do failed logins and the limits of peers that send nothing or
read nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from bk_spark.protocol.wire.start_tls import hello_bytes, wanted_bytes
from bookie_server.bookie import Bookie
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.connections import Connections
from bookie_server.net.common.entrance.awaited import Awaited
from bookie_server.net.common.entrance.front_tls import (
    GREETING_BYTES,
    LOGIN_ALONE_S,
    FrontTls,
    Greeting,
    wanted_behind_login,
)
from bookie_server.net.common.entrance.newcomers import LOOKED_AT_BYTES, Newcomer, Newcomers
from bookie_server.net.common.limits import FEW_CONNECTIONS, NetConfig, NoRequestTimes, RequestTimes, connection_limit
from bookie_server.net.common.load import Load
from bookie_server.net.common.loop_delay import LoopDelay
from bookie_server.net.native.connection import PAUSED_BY_LOAD, NativeConnection
from bookie_server.net.native.shared import HeldBack, Shared

_LOG: Final = logging.getLogger(__name__)
#: How often to look for stalled peers.
_LOOK_INTERVAL_S: Final = 0.5
#: Stalled connections that are closed in one turn of the event loop.
_CLOSED_AT_ONCE: Final = 2
#: Peers that were granted TLS and did not begin a handshake, closed in one turn. They are bare sockets.
_LATE_AT_ONCE: Final = 16
#: How long peers may take to read their last answers.
_HANG_UP_TIMEOUT_S: Final = 5.0
#: One in this many refused connections is logged.
_TELL_EVERY: Final = 1000


class NativeServer:
    """Serves ``bookie``.

    Parameters
    ----------
    disk_space
        Returns free and total bytes of the ledgers' disks. None if they are unknown.
    config
        The limits.
    times
        Told of each group of requests when it is answered.
    on_loop_delay
        Called with the number of seconds by which the event loop is late.
    tls
        What connections need to become TLS. None: they cannot.
    access
        Who may use the bookie. None: everybody.
    """

    def __init__(
        self,
        bookie: Bookie,
        *,
        disk_space: Callable[[], tuple[int, int] | None],
        config: NetConfig,
        times: RequestTimes | None = None,
        on_loop_delay: Callable[[float], None] = lambda seconds: None,
        tls: FrontTls | None = None,
        access: FrontAccess | None = None,
    ) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._access = access
        self.load = Load(config, self._load_changed, self._close_stalled, lambda: bookie.excess_bytes)
        bookie.on_room(self.load.look)
        self.shared = Shared(bookie, config, self.load, times or NoRequestTimes(), disk_space, access)
        bookie.on_answered(self.shared.outbox.flush)
        self._loop_delay = LoopDelay(on_loop_delay)
        #: Connections that were refused, and those that were closed for new ones.
        self.rejected_connections = 0
        self.evicted_connections = 0
        self._connections: Connections[NativeConnection] = Connections(
            connection_limit(config.max_connections), config.idle_before_eviction_ms / 1000
        )
        self._newcomers: Newcomers | None = None
        #: Those that were granted TLS and have not begun their handshake, and those that began with a login.
        self._hellos: Awaited | None = None
        self._logins: Awaited | None = None
        self._joining: set[asyncio.Task[object]] = set()
        self._look: asyncio.TimerHandle | None = None
        #: Stalled connections that are being closed, some in each turn of the event loop.
        self._stalled: deque[HeldBack] = deque()
        #: No new connection is taken; then, all connections are being closed.
        self._ending = self._closing = False
        self._all_left = asyncio.Event()

    @property
    def connection_count(self) -> int:
        """Open connections, with those that have not sent anything."""
        return len(self._connections)

    @property
    def handshakes(self) -> int:
        """TLS handshakes that succeeded."""
        return 0 if self._tls is None else self._tls.handshakes

    @property
    def failed_handshakes(self) -> int:
        """TLS handshakes that failed."""
        return 0 if self._tls is None else self._tls.failed_handshakes

    @property
    def refused_in_clear(self) -> int:
        """Connections in clear that were refused, because TLS is required."""
        return 0 if self._tls is None else self._tls.refused_connections

    @property
    def failed_logins(self) -> int:
        """Logins that failed or were not finished."""
        return 0 if self._access is None else self._access.failed_logins

    @property
    def refused_roles(self) -> int:
        """Connections that were refused because of their certificates' roles."""
        return 0 if self._access is None else self._access.refused_roles

    @property
    def refused_requests(self) -> int:
        """Requests, or groups of them, that their peers had no right to."""
        return 0 if self._access is None else self._access.refused_requests

    async def start(self, listener: socket.socket) -> None:
        """Accept on ``listener``, a bound socket. Raises OSError."""
        if self._connections.limit < FEW_CONNECTIONS:
            _LOG.warning(
                "only %d connections at a time, because few files may be open; raise the limit (ulimit -n)",
                self._connections.limit,
            )
        self._newcomers = Newcomers(
            listener,
            came=self._came,
            spoke=self._spoke,
            left=self._connections.remove,
            wanted_bytes=None if self._tls is None else wanted_bytes,
        )
        if self._tls is not None:
            self._hellos = Awaited(
                self._newcomers,
                self._tls.handshake_timeout_s,
                hello_bytes,
                LOOKED_AT_BYTES,
                came=self._begin_handshake,
                left=self._left_before_handshake,
                late=self._late_for_handshake,
                late_at_once=_LATE_AT_ONCE,
            )
            self._logins = Awaited(
                self._newcomers,
                LOGIN_ALONE_S,
                wanted_behind_login,
                GREETING_BYTES,
                came=lambda newcomer, _: self._spoke(newcomer),
                left=lambda newcomer, _: self._connections.remove(newcomer),
                late=self._begin_in_clear,
                late_at_once=1,
            )
        self._newcomers.start()
        self._loop_delay.start()
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_LOOK_INTERVAL_S, self._look_around)

    async def close(self) -> None:
        """Take no more connections and requests, answer the accepted adds, and close all connections."""
        self._ending = True
        if self._look is not None:
            self._look.cancel()
        self._loop_delay.stop()
        if self._newcomers is not None:
            self._newcomers.close()
        for awaited in (self._hellos, self._logins):
            if awaited is not None:
                awaited.close()
        for newcomer in self._connections.newcomers:
            self._connections.remove(newcomer)
            newcomer.abort()
        for connection in self._connections:
            connection.read_no_more()
        self.shared.recovery_adds.store()
        try:
            await asyncio.wait_for(self.load.adds_answered(), self._config.close_timeout_ms / 1000)
        except TimeoutError:
            _LOG.warning(
                "%d adds are unanswered after %d ms; their clients will retry them",
                self.load.adds,
                self._config.close_timeout_ms,
            )
        self._closing = True
        for connection in self._connections:
            connection.hang_up()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), _HANG_UP_TIMEOUT_S)
            for connection in self._connections:  # these do not read their answers
                connection.abort()
        if self._tls is not None:
            await self._tls.close()

    def joins(self, connection: NativeConnection) -> bool:
        """Whether the connection, whose transport now exists, was not given up meanwhile."""
        return not self._ending and connection in self._connections

    def active(self, connection: NativeConnection) -> None:
        """Note that ``connection`` is in use."""
        self._connections.active(connection, self._loop.time())

    def left(self, connection: NativeConnection) -> None:
        """Note that ``connection`` is lost."""
        self._connections.remove(connection)
        if not self._connections and self._closing:
            self._all_left.set()

    def _came(self, newcomer: Newcomer) -> bool:
        if not self._has_room():
            return False
        self._connections.add_newcomer(newcomer)
        return True

    def _spoke(self, newcomer: Newcomer) -> None:
        self._connections.remove(newcomer)
        if self._tls is None:
            self._begin_in_clear(newcomer, None)
            return
        greeting = Greeting(self._tls, newcomer.socket, logs_in=self._takes_logins)
        if greeting.asks_for_tls:
            self._grant(newcomer, greeting)
        elif greeting.may_ask_for_tls:
            assert self._logins is not None
            self._connections.add_newcomer(newcomer)
            self._logins.wait_for(newcomer, greeting)
        else:
            self._begin_in_clear(newcomer, greeting)

    @property
    def _takes_logins(self) -> bool:
        return self._access is not None and self._access.logins is not None

    def _begin_in_clear(self, newcomer: Newcomer, greeting: Greeting | None) -> None:
        self._connections.remove(newcomer)
        connection = self._connection(refuses=greeting is not None and greeting.refuse_in_clear())
        loop = asyncio.get_running_loop()
        joining = loop.create_task(loop.connect_accepted_socket(lambda: connection, newcomer.socket))
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    def _grant(self, newcomer: Newcomer, greeting: Greeting) -> None:
        """Let the handshake begin, as soon as the peer has sent its first message."""
        assert self._hellos is not None
        if greeting.grant():
            self._connections.add_newcomer(newcomer)
            self._hellos.wait_for(newcomer, greeting)
        else:
            newcomer.socket.close()

    def _left_before_handshake(self, newcomer: Newcomer, greeting: Greeting) -> None:
        greeting.failed(ConnectionResetError("the peer closed the connection during the handshake"))
        self._connections.remove(newcomer)

    def _late_for_handshake(self, newcomer: Newcomer, greeting: Greeting) -> None:
        greeting.failed(TimeoutError())
        self._connections.remove(newcomer)
        newcomer.socket.close()

    def _begin_handshake(self, newcomer: Newcomer, greeting: Greeting) -> None:
        self._connections.remove(newcomer)
        connection = self._connection(refuses=False)
        connection.joining = asyncio.get_running_loop().create_task(self._join(greeting, connection))
        connection.joining.add_done_callback(lambda _: self._handshake_ended(connection, newcomer.socket))

    def _connection(self, *, refuses: bool) -> NativeConnection:
        """Return a connection that has no transport yet."""
        connection = NativeConnection(self.shared, self, refuses=refuses)
        self._connections.add(connection)
        if self.load.full:
            connection.pause(PAUSED_BY_LOAD)
        return connection

    async def _join(self, greeting: Greeting, connection: NativeConnection) -> None:
        """Let a connection become TLS."""
        if not self._takes_logins:
            await greeting.secure(connection)
            return

        def logs_in(early: bytes) -> None:
            connection.early_login = early

        await greeting.secure(connection, logs_in)

    def _handshake_ended(self, connection: NativeConnection, connected: socket.socket) -> None:
        connection.joining = None
        if not connection.is_made:
            connected.close()
            self.left(connection)

    def _has_room(self) -> bool:
        """Whether one more connection may be taken, if necessary in place of an idle one."""
        if not self._connections.full or self._evict():
            return True
        if self.rejected_connections % _TELL_EVERY == 0:
            _LOG.warning(
                "a new connection was closed: %d others are in use; raise the limit of open files (ulimit -n)",
                self._connections.limit,
            )
        self.rejected_connections += 1
        return False

    def _evict(self) -> bool:
        """Close the idlest connection, if one is idle."""
        idlest = self._connections.idlest(asyncio.get_running_loop().time())
        if idlest is None:
            return False
        if self.evicted_connections % _TELL_EVERY == 0:
            _LOG.warning("an idle connection was closed for a new one, because there were %d", self._connections.limit)
        self.evicted_connections += 1
        self._connections.remove(idlest)
        for awaited in (self._hellos, self._logins):
            if awaited is not None and isinstance(idlest, Newcomer):
                awaited.forget(idlest)
        idlest.abort()
        return True

    def _load_changed(self) -> None:
        for connection in self._connections:
            if self.load.full:
                connection.pause(PAUSED_BY_LOAD)
            else:
                connection.resume(PAUSED_BY_LOAD)

    def _close_stalled(self) -> None:
        """Close connections whose peers do not read their answers.

        If others' reads wait for room, this happens soon: the longest stalled peers go first, until there will be room.
        If so many reads wait that others' may be refused, all stalled peers go.
        """
        if self._stalled:
            return  # until these are closed, nobody knows whether others must be
        now, config = asyncio.get_running_loop().time(), self._config
        wanted_bytes = 0 if self.load.has_room.is_set() else self.load.unsent_bytes - config.max_unsent_bytes // 2
        crowded = self.load.reads_bytes * 2 > config.max_waiting_reads_bytes
        stalled = [(connection.answers.stalled_since(now), connection) for connection in self.shared.held_back]
        for since, connection in sorted(((s, c) for s, c in stalled if s is not None), key=lambda one: one[0]):
            in_the_way = (crowded or wanted_bytes > 0) and now - since >= config.stalled_in_the_way_timeout_ms / 1000
            if in_the_way or now - since >= config.stalled_peer_timeout_ms / 1000:
                wanted_bytes -= connection.answers.unsent_bytes
                self._stalled.append(connection)
        self._close_some()

    def _close_some(self) -> None:
        """To close a connection takes longer than to choose it: what it holds is freed."""
        for _ in range(min(_CLOSED_AT_ONCE, len(self._stalled))):
            self._stalled.popleft().abort_stalled()
        if self._stalled:
            asyncio.get_running_loop().call_soon(self._close_some)

    def _look_around(self) -> None:
        """Close connections that do not finish their frames, and stalled ones if others wait for them.

        Also look at the load: when flushes begin to fail, adds are refused and no longer wait for memory, but nothing
        reports that there is room.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.shared.half_frames.expire(now)
        self.shared.large_frames.look(now)
        self.load.look()
        if self.load.pressing:
            self._close_stalled()
        self._look = loop.call_later(_LOOK_INTERVAL_S, self._look_around)
