"""The answers of one connection: gathered in a turn of the event loop, sent together, and held back while the peer does
not read them.

Several buffers are sent with one system call. A transport of asyncio makes a call for each buffer. The first few bytes
of a large answer would go out alone: another call here, and the peer wakes up for less than it can use.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from bk_spark.protocol.entries.digest import Buffer
from bookie_server.net.common.fair_slots import HALF_LIFE_S, FairSlots, Share
from bookie_server.net.common.load import Load
from bookie_server.net.native.outbox import Outbox
from bookie_server.net.native.slices import SLICE_BYTES, Slices

#: Small buffers are joined, up to this size.
_JOINED_BYTES: Final = 128 * 1024
#: A larger buffer is written as it is, if one call can send many.
_COPIED_BYTES: Final = 16 * 1024
#: The kernel takes at most this many buffers in one call (IOV_MAX).
_MOST_BUFFERS: Final = 1024
#: The cost in bytes of each ledger of a round after the first.
_LEDGER_COST: Final = 8 * 1024
#: The smallest round of reads.
_LEAST_ROUND_BYTES: Final = 128 * 1024
#: Answers up to this size may be sent while larger ones wait for room.
LITTLE_BYTES: Final = 64 * 1024
#: A peer that reads less than this within the timeout counts as stalled.
_STALLED_BYTES: Final = 64 * 1024


class Answers:
    """Belongs to the event loop. Counts in ``load`` what the peer has not read."""

    def __init__(self, load: Load, read_slots: FairSlots, slices: Slices, outbox: Outbox, high_bytes: int) -> None:
        self._load = load
        self._read_slots = read_slots
        self._slices = slices
        self._outbox = outbox
        self._high_bytes = high_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._fd: int | None = None
        #: Larger buffers are written as they are.
        self._copied_bytes = _JOINED_BYTES
        self._out: list[Buffer] = []
        self._out_bytes = 0
        #: Whether :meth:`flush` will be called in this turn of the loop.
        self._is_flushed_now = False
        #: Whether the peer is known to read large answers. Until then they are handed over in slices.
        self._reads = False
        #: What is still to be handed over of answers that were sent.
        self._rest: deque[Buffer] = deque()
        self._rest_bytes = 0
        #: Whether the rest must be handed over although the peer does not read: it holds more memory than its own.
        self._rest_is_urgent = False
        self._sent_bytes = 0
        self._share = Share(HALF_LIFE_S)
        #: Answers that the peer has not read.
        self.unsent_bytes = 0
        #: Since when the peer does not read its answers, and how many bytes it had read then.
        self._stalled: tuple[float, int] | None = None
        self._taken = asyncio.Event()
        self._taken.set()

    def begin(self, transport: asyncio.Transport) -> None:
        """The connection is made."""
        self._transport = transport
        connected, tls = transport.get_extra_info("socket"), transport.get_extra_info("sslcontext")
        self._fd = None if connected is None or tls is not None else connected.fileno()
        self._copied_bytes = _JOINED_BYTES if self._fd is None else _COPIED_BYTES
        transport.set_write_buffer_limits(high=self._high_bytes)

    def end(self) -> None:
        """The connection is lost."""
        self._transport = self._fd = None
        self._drop_rest()
        self._note_unsent(0)
        self._out.clear()
        self._taken.set()

    def held_back(self) -> None:
        """The peer does not read what was sent."""
        self._taken.clear()
        self._stalled = self._loop.time(), self._taken_bytes()

    def go_on(self) -> None:
        """The peer has read nearly everything."""
        self._stalled = None
        self._note_unsent(self._held_bytes())
        if self._rest:
            self._slices.wait(self)
        else:
            self._taken.set()

    def has_read(self) -> None:
        """The peer has read large answers."""
        self._reads = True

    @property
    def are_taken(self) -> bool:
        """Whether the peer is known to read large answers."""
        return self._reads

    def gather(self) -> None:
        """:meth:`flush` follows, in this turn of the loop: until then nothing is sent."""
        self._is_flushed_now = True

    def send(self, *buffers: Buffer) -> None:
        """Send soon, together with other answers of this turn of the loop."""
        if self._transport is None:
            return
        if not self._out and not self._is_flushed_now:
            self._outbox.wait(self)
        self._out += buffers
        for buffer in buffers:
            self._out_bytes += len(buffer)

    def flush(self) -> None:
        """Send the gathered answers."""
        self._is_flushed_now = False
        out, self._out = self._out, []
        size_bytes, self._out_bytes = self._out_bytes, 0
        transport = self._transport
        if transport is None or transport.is_closing() or not out:
            return
        self._sent_bytes += size_bytes
        if self._rest or (size_bytes > SLICE_BYTES and not self._reads):
            self._keep_rest(out, size_bytes)
        elif len(out) == 1:
            transport.write(out[0])
        elif size_bytes <= self._copied_bytes:
            transport.write(b"".join(out))
        else:
            send_together(transport, self._fd, list(_joined(out, self._copied_bytes)))
        self._note_unsent(self._held_bytes())

    def finish(self) -> None:
        """Hand over all answers now."""
        self.flush()
        self._rest_is_urgent = True
        while self.send_slice():
            pass
        self._slices.forget(self)

    def send_slice(self) -> bool:
        """Hand over the next of the answers that are sent in slices. Return whether more can be handed over."""
        transport = self._transport
        if transport is None or transport.is_closing() or not self._rest:
            self._drop_rest()
            return False
        part: list[Buffer] = []
        part_bytes = 0
        while self._rest and part_bytes < SLICE_BYTES:
            buffer, most = self._rest.popleft(), SLICE_BYTES - part_bytes
            if len(buffer) > most:
                self._rest.appendleft(memoryview(buffer)[most:])
                buffer = memoryview(buffer)[:most]
            part.append(buffer)
            part_bytes += len(buffer)
        self._rest_bytes -= part_bytes
        send_together(transport, self._fd, list(_joined(part, self._copied_bytes)))
        self._note_unsent(self._held_bytes())
        if self._rest:
            return self._stalled is None or self._rest_is_urgent
        self._rest_is_urgent = False
        if self._stalled is None:
            self._taken.set()
        return False

    async def wait_taken(self) -> None:
        """Wait while the peer does not read its answers."""
        self.flush()
        await self._taken.wait()

    @property
    def all_taken(self) -> bool:
        """Whether the peer reads its answers."""
        return self._taken.is_set()

    @property
    def may_send_now(self) -> bool:
        """Whether few answers are gathered, and there is room for a small one."""
        return self._out_bytes < self._high_bytes and self._taken.is_set() and self._load.has_room_for_little.is_set()

    def fits_now(self, size_bytes: int) -> bool:
        """Whether an answer of so many bytes may be sent, given :attr:`may_send_now`."""
        return size_bytes <= LITTLE_BYTES or self._load.has_room.is_set()

    @asynccontextmanager
    async def round(self, wanted_bytes: int, ledgers: int = 1) -> AsyncIterator[int]:
        """Hold this while entries are in memory on their way from disk to the socket.

        Waits until this peer reads its answers, and until there is room for more answers to all peers. Yields how many
        of ``wanted_bytes`` to read. Each of the ``ledgers`` costs a search for its index file.
        """
        while True:
            await self.wait_taken()
            last_cost = self._share.last_cost
            asks_little = last_cost is not None and last_cost <= LITTLE_BYTES
            room = self._load.has_room_for_little if asks_little else self._load.has_room
            async with self._read_slots.slot(self._share, room) as slot:
                if self._taken.is_set() and room.is_set():
                    before_bytes = self._sent_bytes + self._out_bytes
                    yield self._load.round_bytes(wanted_bytes, _LEAST_ROUND_BYTES)
                    slot.bytes = (ledgers - 1) * _LEDGER_COST + self._sent_bytes + self._out_bytes - before_bytes
                    self.flush()
                    return

    def stalled_since(self, now: float) -> float | None:
        """Since when the peer reads hardly any of its answers. None if it reads them or has none."""
        self._note_unsent(self._held_bytes())
        if self._stalled is not None and self._taken_bytes() - self._stalled[1] >= _STALLED_BYTES:
            self._stalled = now, self._taken_bytes()
        return None if self._stalled is None else self._stalled[0]

    def _taken_bytes(self) -> int:
        return self._sent_bytes - self._held_bytes()

    def _held_bytes(self) -> int:
        """Bytes that were sent and wait here for the peer."""
        return 0 if self._transport is None else self._rest_bytes + self._transport.get_write_buffer_size()

    def _keep_rest(self, buffers: list[Buffer], size_bytes: int) -> None:
        """Hand ``buffers`` over in slices, the first one now. Those that are parts of larger memory do not wait here
        for the peer: the transport copies what the kernel does not take."""
        is_first = not self._rest
        self._rest += buffers
        self._rest_bytes += size_bytes
        self._rest_is_urgent |= any(map(_holds_more, buffers))
        if is_first:
            self._taken.clear()
            if self.send_slice():
                self._slices.wait(self)
        elif self._rest_is_urgent:
            self._slices.wait(self)

    def _drop_rest(self) -> None:
        self._rest.clear()
        self._rest_bytes = 0
        self._rest_is_urgent = False

    def _note_unsent(self, size_bytes: int) -> None:
        if size_bytes != self.unsent_bytes:
            before, self.unsent_bytes = self.unsent_bytes, size_bytes
            self._load.change_unsent(size_bytes - before)


def _holds_more(buffer: Buffer) -> bool:
    """Whether ``buffer`` is a small part of the memory that it keeps from being freed."""
    if not isinstance(buffer, memoryview) or buffer.obj is None:
        return False
    return memoryview(buffer.obj).nbytes > 2 * buffer.nbytes + _JOINED_BYTES


def _joined(buffers: Iterable[Buffer], copied_bytes: int) -> Iterator[Buffer]:
    """Yield the same bytes in few buffers. Those above ``copied_bytes`` are not copied."""
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        is_large = len(buffer) > copied_bytes
        if small and (is_large or len(buffer) + small_bytes > _JOINED_BYTES):
            yield b"".join(small)
            small, small_bytes = [], 0
        if is_large:
            yield buffer
        else:
            small.append(buffer)
            small_bytes += len(buffer)
    if small:
        yield b"".join(small)


def send_together(transport: asyncio.Transport, fd: int | None, buffers: Sequence[Buffer]) -> None:
    """Send ``buffers`` in order. What the kernel does not take at once is left to ``transport``.

    Parameters
    ----------
    transport
        The transport of the connection.
    fd
        The file descriptor of its socket. None if bytes do not go to the socket as they are; then the transport sends
        all of them.
    buffers
        The bytes. They must not change any more.
    """
    sent = 0
    if fd is not None and not transport.get_write_buffer_size():
        try:
            sent = os.writev(fd, buffers[:_MOST_BUFFERS])
        except OSError:
            sent = 0  # the kernel has no room, or the connection is broken: the transport finds out and acts
    for buffer in buffers:
        if transport.is_closing():
            return  # a write failed: asyncio warns of every further one
        if sent < len(buffer):
            transport.write(memoryview(buffer)[sent:] if sent else buffer)
        sent = max(0, sent - len(buffer))
