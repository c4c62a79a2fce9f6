"""One connection to a bookie over gRPC. Single event loop. Nothing here blocks. Messages: bookie.proto.

Adds and reads have a stream each, opened at first use. Handles send v2 ADD frames; what has gathered while a message
was on its way becomes the next batch. Answers are matched by the numbers of batches and requests.

The caller limits the wait for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from bk_spark.bookie.connection.grpc_reads import PendingBatchRead, PendingRead
from bk_spark.bookie.connection.grpc_streams import MessageStream
from bk_spark.bookie.connection.http2.call import CallError
from bk_spark.bookie.connection.http2.channel import Channel
from bk_spark.bookie.connection.interface import BatchReads, ConnectionLimits, ControlConnection
from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.codes import NO_ENTRY, Code, FlagV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import PIECE_BYTES, pieces
from bk_spark.protocol.errors import BookieUnavailableError, InvalidArgumentError, TlsError, WireFormatError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.answers_v2 import BatchReadAnswer, ReadAnswer
from bk_spark.protocol.wire.batches import (
    SERVICE,
    OutgoingBatch,
    batch_of_frames,
    kind_of_frames,
    parse_with_records,
    record_offsets,
)
from bk_spark.protocol.wire.code_errors import error_of
from bk_spark.protocol.wire.entry_availability import EntryAvailability, checked_groups
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo, LongPollAnswer

_LOG: Final = logging.getLogger(__name__)
#: A batch is this large if as much waits, and entries are not larger.
_BATCH_BYTES: Final = PIECE_BYTES
_BATCH_ENTRIES: Final = 4_000
#: Entries that one read may ask for at most.
_MOST_READ: Final = 10_000
_MAX_UINT32: Final = 2**32 - 1
#: A bookie ends requests that take longer, unless they wait for entries. It is told so for the sake of proxies, and of
#: bookies whose client is gone without a word. Callers have shorter limits.
_MOST_ANSWER_MS: Final = 60_000

_A = TypeVar("_A", bound=Message)
_T = TypeVar("_T")


class GrpcConnection(ControlConnection, BatchReads):
    """All requests, over one channel, which belongs to the connection."""

    def __init__(self, bookie_id: str, limits: ConnectionLimits, channel: Channel) -> None:
        super().__init__(bookie_id, limits)
        self.channel = channel
        #: What each call shows: the session, after a login.
        self.metadata: tuple[tuple[str, bytes], ...] = ()
        self.knows_batch_read = True
        self._loop = asyncio.get_running_loop()
        self._frames: deque[memoryview] = deque()
        self._adds = MessageStream(
            self, "Add", self._next_batches, self._on_add, lambda: bool(self._frames or self._batches)
        )
        self._requests: deque[bytes] = deque()
        self._reads = MessageStream(self, "Read", self._next_requests, self._on_read, lambda: bool(self._waiting))
        self._batches: dict[int, OutgoingBatch] = {}
        self._waiting: dict[int, PendingRead | PendingBatchRead] = {}
        self._last_id = 0
        #: How many messages are on their way, and the watch over them.
        self._senders = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

    # --- requests ---

    def send(self, buffers: Iterable[memoryview | bytes], *, soon: bool = False) -> None:
        """Queue v2 ADD frames. What waits together becomes one batch."""
        if self.closed:
            return
        self._frames.extend(memoryview(buffer) for buffer in buffers)
        if self._frames:
            self._adds.wake()

    async def read(
        self, ledger_id: int, entry_ids: range, *, flags: int = 0, key: bytes | None = None
    ) -> dict[int, ReadAnswer]:
        """See :meth:`LedgerConnection.read`. Raises InvalidArgumentError if there are more entries than one
        request may ask for."""
        if bool(flags & FlagV2.FENCING) != (key is not None):
            raise InvalidArgumentError("a fencing read needs the master key, and other reads must not have it")
        if len(entry_ids) > _MOST_READ or entry_ids.step < 0:
            raise InvalidArgumentError(f"one read asks for at most {_MOST_READ} entries, in ascending order")
        request = pb.ReadRequest(
            ledger_id=ledger_id, first_entry_id=entry_ids.start, count=len(entry_ids), step=entry_ids.step
        )
        if key is not None:
            request.fence_key = key
        future: asyncio.Future[dict[int, ReadAnswer]] = self._loop.create_future()
        return await self._wait_for(request, PendingRead(ledger_id, entry_ids, future), len(entry_ids), future)

    async def batch_read(self, ledger_id: int, first: int, count: int, max_size_bytes: int) -> BatchReadAnswer:
        """See :meth:`BatchReads.batch_read`. Every bookie with gRPC has batch reads."""
        request = pb.ReadRequest(
            ledger_id=ledger_id,
            first_entry_id=first,
            count=min(count, _MOST_READ),
            max_bytes=min(max_size_bytes, _MAX_UINT32),
        )
        future: asyncio.Future[BatchReadAnswer] = self._loop.create_future()
        return await self._wait_for(request, PendingBatchRead(ledger_id, first, future), 1, future)

    async def _wait_for(
        self, request: pb.ReadRequest, waiting: PendingRead | PendingBatchRead, count: int, future: asyncio.Future[_T]
    ) -> _T:
        await self._enter(count)
        self._last_id += 1
        request_id = request.request_id = self._last_id
        asked_at = self._loop.time()
        try:
            self._check()
            self._waiting[request_id] = waiting
            self._requests.append(request.SerializeToString())
            self._reads.wake()
            return await future
        finally:
            self._leave(count)
            if not future.done() or future.cancelled():
                self._given_up(asked_at)

    async def read_lac(self, ledger_id: int) -> tuple[Code, bytes | None, bytes | None]:
        """Call GetLastAddConfirmed. See :meth:`ControlConnection.read_lac`."""
        request = pb.GetLastAddConfirmedRequest(ledger_id=ledger_id)
        answer = await self.ask("GetLastAddConfirmed", request, pb.GetLastAddConfirmedAnswer)
        packet = answer.explicit_packet if answer.HasField("explicit_packet") else None
        last = answer.last_entry if answer.HasField("last_entry") else None
        return Code.from_v3(answer.code), packet, last

    async def write_lac(self, ledger_id: int, packet: bytes, master_key: bytes) -> Code:
        """Call SetLastAddConfirmed. See :meth:`ControlConnection.write_lac`."""
        request = pb.SetLastAddConfirmedRequest(ledger_id=ledger_id, master_key=master_key, packet=packet)
        return Code.from_v3((await self.ask("SetLastAddConfirmed", request, pb.SetLastAddConfirmedAnswer)).code)

    async def force(self, ledger_id: int) -> Code:
        """Call Force. See :meth:`ControlConnection.force`."""
        answer = await self.ask("Force", pb.ForceRequest(ledger_id=ledger_id), pb.ForceAnswer)
        return Code.from_v3(answer.code)

    async def long_poll(self, ledger_id: int, previous_lac: int, timeout_ms: int) -> LongPollAnswer:
        """Call Tail. See :meth:`ControlConnection.long_poll`."""
        request = pb.TailRequest(ledger_id=ledger_id, previous_last_add_confirmed=previous_lac, timeout_ms=timeout_ms)
        answer = await self.ask("Tail", request, pb.TailAnswer, timeout_ms)
        code = Code.from_v3(answer.code)
        max_lac = answer.last_add_confirmed if code is Code.OK else None
        if code is not Code.OK or not answer.HasField("entry"):
            return LongPollAnswer(code, NO_ENTRY, None, max_lac)
        return LongPollAnswer(code, previous_lac + 1, memoryview(answer.entry), max_lac)

    async def bookie_info(self) -> BookieInfo:
        """Call GetInfo. See :meth:`ControlConnection.bookie_info`."""
        answer = await self.ask("GetInfo", pb.GetInfoRequest(), pb.GetInfoAnswer)
        self._check_code(answer.code, "bookie info", None)
        return BookieInfo(answer.total_disk_bytes, answer.free_disk_bytes)

    async def list_entries(self, ledger_id: int) -> EntryAvailability:
        """Call ListEntries. See :meth:`ControlConnection.list_entries`."""
        answer = await self.ask("ListEntries", pb.ListEntriesRequest(ledger_id=ledger_id), pb.ListEntriesAnswer)
        self._check_code(answer.code, "list of entries", ledger_id)
        columns = zip(
            *((group.first_start, group.last_start, group.size, group.period) for group in answer.groups), strict=True
        )
        arrays = [np.array(column, np.int64) for column in columns] or [np.empty(0, np.int64)] * 4
        return checked_groups(*arrays)

    async def ask(self, method: str, request: Message, kind: type[_A], answer_takes_ms: int = 0) -> _A:
        """Call a method with one request. Raises BookieUnavailableError, BookieTimeoutError."""
        await self._enter(1)
        expected_at = self._loop.time() + answer_takes_ms / 1000
        answered = False
        try:
            self._check()
            timeout_ms = max(_MOST_ANSWER_MS, self._limits.silence_ms) + answer_takes_ms
            data = await self.channel.ask(
                f"/{SERVICE}/{method}", request.SerializeToString(), self.metadata, timeout_ms
            )
            answered = True
            self.heard()
            return kind.FromString(data)
        except CallError as error:
            answered = True
            raise (self._broken() if self.closed else self.failed(error)) from None
        except DecodeError:
            raise BookieUnavailableError(f"the answer to {method} is malformed", bookie_id=self.bookie_id) from None
        finally:
            self._leave(1)
            if not answered:
                self._given_up(expected_at)

    async def probe(self) -> None:
        """Find out whether there is a bookie that obeys this client. Raises BookieUnavailableError."""
        try:
            # Any answer will do: a client that may not ask for this may do other things.
            await self.channel.ask(f"/{SERVICE}/GetInfo", pb.GetInfoRequest().SerializeToString(), self.metadata)
        except CallError as error:
            raise self.failed(error) from None

    def _check_code(self, number: int, operation: str, ledger_id: int | None) -> None:
        code = Code.from_v3(number)
        if code is not Code.OK:
            raise error_of(code, operation, ledger_id=ledger_id, bookie_id=self.bookie_id)

    def failed(self, error: CallError) -> BookieUnavailableError:
        """Return the error of this package that says what the error of a call says."""
        if error.is_about_tls:
            return TlsError(error.reason, bookie_id=self.bookie_id)
        return BookieUnavailableError(
            f"gRPC: {error.status}: {error.reason or 'no reason given'}", bookie_id=self.bookie_id
        )

    # --- messages of streams ---

    def _next_batches(self) -> Iterator[bytes]:
        """Yield what waits as batches, as large as is useful."""
        while self._frames:
            frames = self._next_frames()
            offsets = record_offsets(frames, len(frames))
            for first, last in pieces(offsets, _BATCH_ENTRIES):
                self._last_id += 1
                batch = batch_of_frames(self._last_id, frames, offsets[first : last + 1])
                self._batches[self._last_id] = batch
                yield batch.message

    def _next_frames(self) -> memoryview:
        """Take what waits first, joined with what may share its batch."""
        first = self._frames.popleft()
        size, parts, kind = len(first), [first], kind_of_frames(first)
        while self._frames and size + len(self._frames[0]) <= _BATCH_BYTES and kind_of_frames(self._frames[0]) == kind:
            size += len(self._frames[0])
            parts.append(self._frames.popleft())
        return first if len(parts) == 1 else memoryview(b"".join(parts))

    def _on_add(self, data: Buffer) -> None:
        answer = _parsed(pb.AddAnswer, data)
        batch = self._batches.pop(answer.batch_id, None)
        if batch is None:
            raise WireFormatError("an answer to a batch that was not sent")
        count = len(batch.entry_ids)
        if answer.codes:
            codes = np.array([Code.from_v3(code) for code in answer.codes], np.int32)
        else:
            codes = np.full(count, int(Code.from_v3(answer.code)), np.int32)
        if len(codes) != count:
            raise WireFormatError("an answer to a batch has other codes than the batch has entries")
        if answer.problem:
            _LOG.error("bookie %s refused a batch: %s", self.bookie_id, answer.problem)
        listener = self._add_listeners.get(batch.ledger_id)
        if listener is not None:
            listener(self.bookie_id, batch.entry_ids, codes)

    def _next_requests(self) -> Iterator[bytes]:
        while self._requests:
            yield self._requests.popleft()

    def _on_read(self, data: Buffer) -> None:
        answer, records = parse_with_records(pb.ReadAnswer, data)
        waiting = self._waiting.get(answer.request_id)
        if waiting is None:
            raise WireFormatError("an answer to a read that was not sent")
        if waiting.on_answer(answer, records):
            del self._waiting[answer.request_id]

    # --- the life of the connection ---

    def begin(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a stream. The connection ends if it fails."""
        for one in work:
            task = self._loop.create_task(self._run(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def heard(self) -> None:
        """Note that something came from the bookie."""
        self._heard_at = self._loop.time()

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """A message is on its way. If the bookie takes nothing and sends nothing, the connection ends."""
        self._senders += 1
        if self._senders == 1:
            self._watch()
        try:
            yield
        finally:
            self._senders -= 1
            # It has taken a message. Others may still be on their way.
            self._watch()

    def _watch(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = None
        if self._senders and not self.closed:
            self._stalled = self._loop.call_later(self._limits.silence_ms / 1000, self._on_stalled)

    def _on_stalled(self) -> None:
        heard_until = self._heard_at + self._limits.silence_ms / 1000
        if heard_until > self._loop.time():
            self._stalled = self._loop.call_at(heard_until, self._on_stalled)
            return
        _LOG.warning("bookie %s neither receives nor sends anything: closing the connection", self.bookie_id)
        self.close()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        is_broken = True
        try:
            await work
            is_broken = False
        except CallError as error:
            if not self.closed:
                _LOG.warning("connection to bookie %s broke: %s", self.bookie_id, self.failed(error).message)
        except WireFormatError as error:
            if not self.closed:
                _LOG.warning("closing connection to bookie %s: %s", self.bookie_id, error.message)
        finally:
            if is_broken:
                self.close()

    def close(self) -> None:
        """Let requests under way fail. The channel is closed in the background."""
        self._lost()

    async def wait_closed(self) -> None:
        """Wait until the calls have ended and the channel is closed."""
        if self._ending is not None:
            await shielded(self._ending)

    def _release(self) -> None:
        self._frames.clear()
        self._requests.clear()
        self._batches.clear()
        self.channel.close()
        if not self._loop.is_closed():
            self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.channel.wait_closed()

    def _on_lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.future.done():
                one.future.set_exception(self._broken())
        super()._on_lost()


def _parsed(kind: type[_A], data: Buffer) -> _A:
    try:
        return kind.FromString(bytes(data))
    except DecodeError as error:
        raise WireFormatError(f"this is not a {kind.DESCRIPTOR.full_name}") from error
