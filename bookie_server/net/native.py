"""The native front end: Apache's wire protocols v2 and v3 over TCP, on one port.

Requests are handled a receive at a time and answered a group at a time: one write per connection and batch.
What a peer can make the bookie hold is bounded: adds in flight over all connections, reads waiting per
connection, answers not taken per connection. At a bound the bookie stops reading from the socket.
Bytes that are no frame of the protocol close the connection, nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, cast

import numpy as np

from bk_spark.protocol import wire_v3
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.framing import LENGTH_BYTES, Frames, ReceiveBuffer
from bookie_server.bookie import Bookie
from bookie_server.net.large_frames import LargeFrames
from bookie_server.net.requests_v2 import RequestsV2
from bookie_server.net.requests_v3 import RequestsV3

_LOG: Final = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
#: Adds accepted and not answered, over all connections: reading stops above the first, goes on below the second.
ADDS_HIGH_BYTES: Final = 24 * _MIB
_ADDS_LOW_BYTES: Final = 8 * _MIB
#: Answers not taken by a peer, per connection, before its requests are no longer read.
_ANSWERS_HIGH_BYTES: Final = 64 * 1024
#: Read requests waiting, per connection.
_MAX_WAITING_READS: Final = 20_000
_BACKLOG: Final = 1024
#: Rounds of reads, over all connections, whose entries are in memory at once.
_READ_SLOTS: Final = 8
#: Answers not taken by their peers, over all connections: the nearer to it, the smaller rounds of reads get.
_UNSENT_BYTES: Final = 64 * _MIB
_LEAST_ROUND_BYTES: Final = 128 * 1024

_PAUSED_BY_ADDS: Final = 1
_PAUSED_BY_READS: Final = 2
_PAUSED_BY_ANSWERS: Final = 4
_PAUSED_BY_FRAMES: Final = 8
_PAUSED_BY_END: Final = 16


class NativeServer:
    """Serves ``bookie``. ``ledger_directory`` is asked for its disk's capacity."""

    def __init__(
        self, bookie: Bookie, *, ledger_directory: str, max_frame_bytes: int, max_batch_read_bytes: int
    ) -> None:
        self.bookie = bookie
        self.ledger_directory = ledger_directory
        self.max_frame_bytes = max_frame_bytes
        self.max_batch_read_bytes = max_batch_read_bytes
        self._connections: set[NativeConnection] = set()
        self._server: asyncio.Server | None = None
        self._full = False
        self.read_slots = asyncio.Semaphore(_READ_SLOTS)
        self.large_frames = LargeFrames()
        #: Bytes of answers in this process that peers have not taken.
        self.unsent_bytes = 0

    async def start(self, listener: socket.socket) -> None:
        """Accept on ``listener``, a bound socket. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: NativeConnection(self), sock=listener, backlog=_BACKLOG)

    async def close(self) -> None:
        """Take no more connections and requests, answer the adds that were accepted, and hang up."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.pause(_PAUSED_BY_END)
        await self.bookie.force()
        for connection in list(self._connections):
            connection.hang_up()
        if self._server is not None:
            await self._server.wait_closed()

    def joined(self, connection: NativeConnection) -> None:
        self._connections.add(connection)
        if self._full:
            connection.pause(_PAUSED_BY_ADDS)

    def left(self, connection: NativeConnection) -> None:
        self._connections.discard(connection)

    def round_bytes(self, wanted_bytes: int) -> int:
        """How much of ``wanted_bytes`` to read in one round: less the more is waiting to be taken."""
        return min(wanted_bytes, max(_LEAST_ROUND_BYTES, (_UNSENT_BYTES - self.unsent_bytes) // _READ_SLOTS))

    def adds_changed(self) -> None:
        """Stop or resume reading by the bytes of adds in flight."""
        outstanding = self.bookie.outstanding_bytes
        if not self._full and outstanding > ADDS_HIGH_BYTES:
            self._full = True
            for connection in self._connections:
                connection.pause(_PAUSED_BY_ADDS)
        elif self._full and outstanding < _ADDS_LOW_BYTES:
            self._full = False
            for connection in list(self._connections):
                connection.resume(_PAUSED_BY_ADDS)


class NativeConnection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, server: NativeServer) -> None:
        self.server = server
        self._receive = ReceiveBuffer(server.max_frame_bytes, reuse=True)
        self._chunk_bytes = self._capacity_bytes = self._receive.capacity_bytes
        self._v2 = RequestsV2(self, server.bookie, server.max_batch_read_bytes, server.adds_changed)
        self._v3 = RequestsV3(self, server.bookie, server.ledger_directory, server.adds_changed)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._paused = 0
        self._out: list[Buffer] = []
        self._unsent_bytes = 0
        self._reads: deque[tuple[int, Callable[[], Awaitable[None]]]] = deque()
        self._waiting_reads = 0
        self._reader: asyncio.Task[None] | None = None
        self._polls: set[asyncio.Task[None]] = set()
        self._answers_taken = asyncio.Event()
        self._answers_taken.set()

    # --- asyncio's side ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_ANSWERS_HIGH_BYTES)
        self._peer = str(self._transport.get_extra_info("peername"))
        self.server.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._note_unsent(0)
        self.server.left(self)
        if self._capacity_bytes > self._chunk_bytes:
            self.server.large_frames.end(self)
        # Connection and handlers know each other, so this object may outlive its use; its buffer must not.
        self._receive = ReceiveBuffer(chunk_bytes=LENGTH_BYTES)
        self._answers_taken.set()
        self._reads.clear()
        self._out.clear()
        if self._reader is not None:
            self._reader.cancel()
        for poll in self._polls:
            poll.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._receive.received(nbytes)
            if self._receive.capacity_bytes != self._capacity_bytes:
                self._note_capacity()
            if frames is not None:
                self._handle(frames)
        except WireFormatError as error:
            _LOG.warning("connection from %s closed: %s", self._peer, error)
            self.abort()
        except Exception:
            _LOG.exception("connection from %s closed: its request could not be handled", self._peer)
            self.abort()

    def pause_writing(self) -> None:
        self._answers_taken.clear()
        self.pause(_PAUSED_BY_ANSWERS)

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._note_unsent(self._transport.get_write_buffer_size())
        self._answers_taken.set()
        self.resume(_PAUSED_BY_ANSWERS)

    # --- for the handlers of requests --------------------------------------------------------------

    def send(self, *buffers: Buffer) -> None:
        """Send soon, together with what else comes up in this turn of the loop."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out += buffers

    def flush(self) -> None:
        """Send what waits to be sent, in one write."""
        out, self._out = self._out, []
        if self._transport is None or self._transport.is_closing() or not out:
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        self._note_unsent(self._transport.get_write_buffer_size())

    @property
    def read_slots(self) -> asyncio.Semaphore:
        """To be held while entries are in memory on their way from disk to a socket."""
        return self.server.read_slots

    def round_bytes(self, wanted_bytes: int) -> int:
        """How much of ``wanted_bytes`` to read in one round."""
        return self.server.round_bytes(wanted_bytes)

    @property
    def reads_waiting(self) -> bool:
        """Whether reads that came before are not answered yet."""
        return self._reader is not None

    async def answers_taken(self) -> None:
        """Wait while the peer does not take its answers."""
        self.flush()
        await self._answers_taken.wait()

    def read_later(self, count: int, job: Callable[[], Awaitable[None]]) -> None:
        """Run ``job``, which answers ``count`` reads, after the reads that came before on this connection."""
        self._reads.append((count, job))
        self._waiting_reads += count
        if self._waiting_reads > _MAX_WAITING_READS:
            self.pause(_PAUSED_BY_READS)
        if self._reader is None:
            self._reader = self._loop.create_task(self._run_reads())

    def poll(self, job: Awaitable[None]) -> None:
        """Run ``job`` beside everything else: it may wait for long."""

        async def run() -> None:
            await job

        task = self._loop.create_task(run())
        self._polls.add(task)
        task.add_done_callback(self._polls.discard)

    @property
    def poll_count(self) -> int:
        return len(self._polls)

    def hold_frame(self) -> None:
        """Read no more of a large frame until there is room for it."""
        self.pause(_PAUSED_BY_FRAMES)

    def go_on(self) -> None:
        self.resume(_PAUSED_BY_FRAMES)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Close after what was sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def pause(self, reason: int) -> None:
        """Read no more requests until every reason is gone."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        before, self._paused = self._paused, self._paused & ~reason
        if before and not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- inside ------------------------------------------------------------------------------------

    def _note_unsent(self, size_bytes: int) -> None:
        self.server.unsent_bytes += size_bytes - self._unsent_bytes
        self._unsent_bytes = size_bytes

    def _note_capacity(self) -> None:
        """The buffer was exchanged for one of another size."""
        before, self._capacity_bytes = self._capacity_bytes, self._receive.capacity_bytes
        if before > self._chunk_bytes:
            self.server.large_frames.end(self)
        if self._capacity_bytes > self._chunk_bytes:
            self.server.large_frames.begin(self, self._capacity_bytes)

    def _handle(self, frames: Frames) -> None:
        """Hand runs of frames of one protocol to its handler. Each frame tells its protocol by its first byte."""
        if int(frames.lengths.min()) < 1:
            raise WireFormatError("empty frame")
        data = np.frombuffer(frames.data, np.uint8)
        is_v3 = data[frames.starts] == wire_v3.FIRST_BYTE
        if not is_v3.any():
            self._v2.handle(frames)
        elif is_v3.all():
            self._v3.handle(frames)
        else:
            cuts = (np.flatnonzero(is_v3[1:] != is_v3[:-1]) + 1).tolist()
            for a, b in zip([0, *cuts], [*cuts, len(frames)], strict=True):
                part = Frames(frames.data, frames.starts[a:b], frames.lengths[a:b])
                (self._v3 if is_v3[a] else self._v2).handle(part)

    async def _run_reads(self) -> None:
        try:
            while self._reads:
                count, job = self._reads.popleft()
                await job()
                self._waiting_reads -= count
                if self._paused & _PAUSED_BY_READS and self._waiting_reads <= _MAX_WAITING_READS // 2:
                    self.resume(_PAUSED_BY_READS)
                await self.answers_taken()
        except Exception:
            _LOG.exception("connection from %s closed: a read failed unexpectedly", self._peer)
            self.abort()
        finally:
            self._reader = None
