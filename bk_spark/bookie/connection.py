"""One TCP connection to a bookie, speaking v2. Single event loop; nothing here blocks.

Answers are matched as v2 allows: adds by ledger (the writer counts its entries), batch reads by request
id, single reads by (ledger, entry) in the order in which they were asked.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, WireFormatError
from bk_spark.protocol.framing import Frames, ReceiveBuffer
from bk_spark.protocol.wire_v2 import (
    AddAnswers,
    BatchReadAnswer,
    ReadAnswer,
    batch_read_request,
    parse_answers,
    read_requests,
)

_LOG = logging.getLogger(__name__)
#: Pieces given to the transport at once. It copies what the socket does not take, so pieces stay small.
_SEND_BYTES: Final = 256 * 1024

#: Gets (bookie id, entry ids, codes) of the answers to one ledger's adds.
AddListener = Callable[[str, npt.NDArray[np.int64], npt.NDArray[np.int32]], None]
#: Gets the bookie id when the connection is gone.
LossListener = Callable[[str], None]


class FramedConnection(asyncio.BufferedProtocol):
    """Frames in and out of one socket: zero-copy receive, bounded copying on send."""

    def __init__(self, bookie_id: str, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self.bookie_id = bookie_id
        self.closed = False
        self._receive = ReceiveBuffer(max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[memoryview] = deque()
        self._paused = False

    def send(self, buffers: Iterable[memoryview | bytes]) -> None:
        """Queue ``buffers``, which must not change any more. Ignored on a closed connection."""
        if self.closed:
            return
        self._queue.extend(memoryview(buffer) for buffer in buffers)
        self._feed()

    def close(self) -> None:
        """Close at once; outstanding requests fail."""
        if self._transport is not None:
            self._transport.abort()
        self._lost()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._feed()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._receive.received(nbytes)
            if frames is not None:
                self._on_frames(frames)
        except WireFormatError as error:
            _LOG.warning("closing connection to bookie %s: %s", self.bookie_id, error)
            self.close()

    def _on_frames(self, frames: Frames) -> None:
        raise NotImplementedError

    def _on_lost(self) -> None:
        raise NotImplementedError

    def _lost(self) -> None:
        if not self.closed:
            self.closed = True
            self._queue.clear()
            self._on_lost()

    def _feed(self) -> None:
        transport, queue = self._transport, self._queue
        while queue and not self._paused and transport is not None:
            piece = queue.popleft()
            if len(piece) > _SEND_BYTES:
                queue.appendleft(piece[_SEND_BYTES:])
                piece = piece[:_SEND_BYTES]
            elif queue and len(piece) + len(queue[0]) <= _SEND_BYTES:
                size, small = len(piece), [piece]
                while queue and size + len(queue[0]) <= _SEND_BYTES:
                    size += len(queue[0])
                    small.append(queue.popleft())
                piece = memoryview(b"".join(small))
            transport.write(piece)


class _ReadGroup:
    """Reads asked together, answered together."""

    __slots__ = ("answers", "future", "missing")

    def __init__(self, count: int, future: asyncio.Future[dict[int, ReadAnswer]]) -> None:
        self.missing = count
        self.answers: dict[int, ReadAnswer] = {}
        self.future = future


class BookieConnection(FramedConnection):
    """Adds, reads and batch reads over v2."""

    def __init__(self, bookie_id: str, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(bookie_id, max_frame_bytes)
        self._add_listeners: dict[int, AddListener] = {}
        self._loss_listeners: dict[int, LossListener] = {}
        self._reads: dict[tuple[int, int], deque[_ReadGroup]] = {}
        self._batches: dict[int, asyncio.Future[BatchReadAnswer]] = {}
        self._request_id = 0
        #: True once the bookie answered a batch read.
        self.knows_batch_read = False

    def listen(self, ledger_id: int, on_answers: AddListener, on_loss: LossListener) -> None:
        """Route answers to adds of ``ledger_id``; one writer per ledger and connection."""
        self._add_listeners[ledger_id] = on_answers
        self._loss_listeners[ledger_id] = on_loss

    def unlisten(self, ledger_id: int) -> None:
        self._add_listeners.pop(ledger_id, None)
        self._loss_listeners.pop(ledger_id, None)

    async def read(
        self, ledger_id: int, entry_ids: range, *, flags: int = 0, key: bytes | None = None
    ) -> dict[int, ReadAnswer]:
        """One answer per entry id. Raises BookieUnavailableError if the connection breaks."""
        self._check()
        group = _ReadGroup(len(entry_ids), asyncio.get_running_loop().create_future())
        for entry_id in entry_ids:
            self._reads.setdefault((ledger_id, entry_id), deque()).append(group)
        self.send([read_requests(ledger_id, np.arange(entry_ids.start, entry_ids.stop, entry_ids.step), flags, key)])
        try:
            return await group.future
        finally:
            if group.missing:
                self._forget(ledger_id, entry_ids, group)

    async def batch_read(self, ledger_id: int, first: int, count: int, max_size_bytes: int) -> BatchReadAnswer:
        """Up to ``count`` entries from ``first`` on. Raises BookieUnavailableError, which is also what a
        bookie without batch reads amounts to: it closes the connection."""
        self._check()
        self._request_id += 1
        request_id = self._request_id
        future: asyncio.Future[BatchReadAnswer] = asyncio.get_running_loop().create_future()
        self._batches[request_id] = future
        self.send([batch_read_request(ledger_id, first, request_id, count, max_size_bytes)])
        try:
            return await future
        finally:
            self._batches.pop(request_id, None)

    def _check(self) -> None:
        if self.closed:
            raise self._broken()

    def _broken(self) -> BookKeeperError:
        return BookieUnavailableError("connection to the bookie broke", bookie_id=self.bookie_id)

    def _forget(self, ledger_id: int, entry_ids: range, group: _ReadGroup) -> None:
        for entry_id in entry_ids:
            groups = self._reads.get((ledger_id, entry_id))
            if groups is not None and group in groups:
                groups.remove(group)
                if not groups:
                    del self._reads[ledger_id, entry_id]

    def _on_frames(self, frames: Frames) -> None:
        for answer in parse_answers(frames):
            if isinstance(answer, ReadAnswer):
                self._on_read(answer)
            elif isinstance(answer, AddAnswers):
                self._on_adds(answer)
            else:
                self.knows_batch_read = True
                future = self._batches.pop(answer.request_id, None)
                if future is not None and not future.done():
                    future.set_result(answer)

    def _on_read(self, answer: ReadAnswer) -> None:
        groups = self._reads.get((answer.ledger_id, answer.entry_id))
        if not groups:
            return
        group = groups.popleft()
        if not groups:
            del self._reads[answer.ledger_id, answer.entry_id]
        group.answers[answer.entry_id] = answer
        group.missing -= 1
        if group.missing == 0 and not group.future.done():
            group.future.set_result(group.answers)

    def _on_adds(self, answers: AddAnswers) -> None:
        first = int(answers.ledger_ids[0])
        if bool((answers.ledger_ids == first).all()):
            parts = [(first, slice(None))]
        else:
            parts = [(int(ledger_id), answers.ledger_ids == ledger_id) for ledger_id in np.unique(answers.ledger_ids)]
        for ledger_id, rows in parts:
            listener = self._add_listeners.get(ledger_id)
            if listener is not None:
                listener(self.bookie_id, answers.entry_ids[rows], answers.codes[rows])

    def _on_lost(self) -> None:
        groups = {id(group): group for waiting in self._reads.values() for group in waiting}
        self._reads.clear()
        futures = [group.future for group in groups.values()] + list(self._batches.values())
        self._batches.clear()
        for future in futures:
            if not future.done():
                future.set_exception(self._broken())
        for listener in list(self._loss_listeners.values()):
            try:
                listener(self.bookie_id)
            except Exception:
                # The others must hear of it all the same.
                _LOG.exception("after the loss of the connection to bookie %s", self.bookie_id)
