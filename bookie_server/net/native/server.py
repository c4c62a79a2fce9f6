"""The native front end: Apache's wire protocols v2 and v3 over TCP, on one port.

Requests are handled a receive at a time and answered a group at a time: one write per connection and batch.
What peers can make the bookie hold is bounded, each in itself and all together (limits.py). At a bound the bookie
stops reading from sockets; what has come nevertheless is answered with TOO_MANY_REQUESTS.
Bytes that are no frame of the protocol close the connection, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from bookie_server.bookie import Bookie
from bookie_server.net.common.connections import Connections
from bookie_server.net.common.fair_slots import FairSlots
from bookie_server.net.common.half_frames import HalfFrames
from bookie_server.net.common.large_frames import LargeFrames
from bookie_server.net.common.limits import FEW_CONNECTIONS, NetConfig, NoRequestTimes, RequestTimes, connection_limit
from bookie_server.net.common.load import Load
from bookie_server.net.common.loop_delay import LoopDelay
from bookie_server.net.common.newcomers import Newcomer, Newcomers
from bookie_server.net.common.receiving import CommonBuffer
from bookie_server.net.common.turns import Turns
from bookie_server.net.native.connection import PAUSED_BY_END, PAUSED_BY_LOAD, NativeConnection
from bookie_server.net.native.fences import Fences

_LOG: Final = logging.getLogger(__name__)
#: How often peers that do not move are looked for.
_LOOK_INTERVAL_S: Final = 0.5
#: How long peers may take for their last answers.
_HANG_UP_TIMEOUT_S: Final = 5.0
#: Refused connections are told of once in so many.
_TELL_EVERY: Final = 1000


class NativeServer:
    """Serves ``bookie``. ``disk_space()`` gives free and total bytes of the ledgers' disks, None where they are not
    known; ``times`` is told of each group of requests that was answered, ``on_loop_delay`` by how many seconds the
    event loop is late."""

    def __init__(
        self,
        bookie: Bookie,
        *,
        disk_space: Callable[[], tuple[int, int] | None],
        config: NetConfig,
        times: RequestTimes | None = None,
        on_loop_delay: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.bookie = bookie
        self.disk_space = disk_space
        self.config = config
        self.times: RequestTimes = times or NoRequestTimes()
        self.load = Load(config, self._load_changed, self._close_stalled, lambda: bookie.excess_bytes)
        bookie.on_room(self.load.look)
        self.turns = Turns()
        self._loop_delay = LoopDelay(on_loop_delay)
        self.read_slots = FairSlots(config.read_slots)
        self.fences = Fences(bookie)
        #: One list of entries, which may be long, is made at a time.
        self.list_slot = asyncio.Semaphore(1)
        self.common_buffer = CommonBuffer(config.max_frame_bytes)
        self.large_frames = LargeFrames(config.max_large_frames_bytes, config.stalled_frame_timeout_ms / 1000)
        self.half_frames = HalfFrames(config.max_half_frames_bytes, config.frame_timeout_ms / 1000)
        #: Requests that were answered with TOO_MANY_REQUESTS, connections that were not taken, and those that made way.
        self.rejected_adds = 0
        self.rejected_reads = 0
        self.rejected_connections = 0
        self.evicted_connections = 0
        #: Connections that were closed since others waited for what they held.
        self.stalled_peers = 0
        self._connections: Connections[NativeConnection] = Connections(
            connection_limit(config.max_connections), config.idle_before_eviction_ms / 1000
        )
        self._newcomers: Newcomers | None = None
        self._joining: set[asyncio.Task[object]] = set()
        self._look: asyncio.TimerHandle | None = None
        #: No connection is taken any more; then, every one is hung up on.
        self._ending = self._closing = False
        self._all_left = asyncio.Event()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, listener: socket.socket) -> None:
        """Accept on ``listener``, a bound socket. Raises OSError."""
        if self._connections.limit < FEW_CONNECTIONS:
            _LOG.warning(
                "only %d connections at a time: the limit of open files (ulimit -n) is low", self._connections.limit
            )
        self._newcomers = Newcomers(listener, came=self._came, spoke=self._spoke, left=self._connections.remove)
        self._newcomers.start()
        self._loop_delay.start()
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_LOOK_INTERVAL_S, self._look_around)

    async def close(self) -> None:
        """Take no more connections and requests, answer the adds that were accepted, and hang up."""
        self._ending = True
        if self._look is not None:
            self._look.cancel()
        self._loop_delay.stop()
        if self._newcomers is not None:
            self._newcomers.close()
        for newcomer in self._connections.newcomers:
            self._connections.remove(newcomer)
            newcomer.abort()
        for connection in self._connections:
            connection.pause(PAUSED_BY_END)
        try:
            await asyncio.wait_for(self.load.adds_answered(), self.config.close_timeout_ms / 1000)
        except TimeoutError:
            _LOG.warning("%d adds were not answered in time", self.load.adds)
        self._closing = True
        for connection in self._connections:
            connection.hang_up()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_left.wait(), _HANG_UP_TIMEOUT_S)
            for connection in self._connections:  # these do not take their answers
                connection.abort()

    def joins(self, connection: NativeConnection) -> bool:
        """Whether the connection, whose transport is there now, was not given up meanwhile."""
        return not self._ending and connection in self._connections

    def active(self, connection: NativeConnection) -> None:
        """``connection`` is in use."""
        self._connections.active(connection, asyncio.get_running_loop().time())

    def left(self, connection: NativeConnection) -> None:
        self._connections.remove(connection)
        self.half_frames.end(connection)
        self.large_frames.end(connection)
        self.fences.forget(connection)
        if not self._connections and self._closing:
            self._all_left.set()

    def _came(self, newcomer: Newcomer) -> bool:
        if not self._has_room():
            return False
        self._connections.add_newcomer(newcomer)
        return True

    def _spoke(self, newcomer: Newcomer) -> None:
        connection = NativeConnection(self)
        self._connections.remove(newcomer)
        self._connections.add(connection)
        if self.load.full:
            connection.pause(PAUSED_BY_LOAD)
        loop = asyncio.get_running_loop()
        joining = loop.create_task(loop.connect_accepted_socket(lambda: connection, newcomer.socket))
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    def _has_room(self) -> bool:
        """Whether one more connection may be taken, if need be in the place of an idle one."""
        if not self._connections.full or self._evict():
            return True
        if self.rejected_connections % _TELL_EVERY == 0:
            _LOG.warning("a connection was closed at once: %d others are in use", self._connections.limit)
        self.rejected_connections += 1
        return False

    def _evict(self) -> bool:
        """Close the idlest connection, if one is idle."""
        idlest = self._connections.idlest(asyncio.get_running_loop().time())
        if idlest is None:
            return False
        if self.evicted_connections % _TELL_EVERY == 0:
            _LOG.warning("an idle connection was closed for a new one: there were %d already", self._connections.limit)
        self.evicted_connections += 1
        self._connections.remove(idlest)
        idlest.abort()
        return True

    def _load_changed(self) -> None:
        for connection in self._connections:
            if self.load.full:
                connection.pause(PAUSED_BY_LOAD)
            else:
                connection.resume(PAUSED_BY_LOAD)

    def _close_stalled(self) -> None:
        """Hang up on peers that do not take their answers. Where reads of others wait for room, soon: on who stalls
        longest first, until there will be room; where so many reads wait that others' may be refused, on all."""
        now, config = asyncio.get_running_loop().time(), self.config
        wanted_bytes = 0 if self.load.has_room.is_set() else self.load.unsent_bytes - config.max_unsent_bytes // 2
        crowded = self.load.reads_bytes * 2 > config.max_waiting_reads_bytes
        stalled = [(connection.answers.stalled_since(now), connection) for connection in self._connections]
        for since, connection in sorted(((s, c) for s, c in stalled if s is not None), key=lambda one: one[0]):
            in_the_way = (crowded or wanted_bytes > 0) and now - since >= config.stalled_in_the_way_timeout_ms / 1000
            if in_the_way or now - since >= config.stalled_peer_timeout_ms / 1000:
                wanted_bytes -= connection.answers.unsent_bytes
                connection.abort_stalled()

    def _look_around(self) -> None:
        """Hang up on peers that begin frames and do not finish them; and, where they are in the way of others, on
        those that do not take their answers. And see whether there is room where nobody says it: since flushes fail,
        adds are refused and memory is not waited for."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.half_frames.expire(now)
        self.large_frames.look(now)
        self.load.look()
        if self.load.pressing:
            self._close_stalled()
        self._look = loop.call_later(_LOOK_INTERVAL_S, self._look_around)
