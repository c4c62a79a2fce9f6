"""The service of logs: append rows, read, follow, list. For callers that know neither ZooKeeper nor ledgers.

The bookie is a client of the cluster here, with its own rights. It works in threads, one for each call under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.shielded import shielded
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.log import Log
from bk_spark.log.reader import LogBlock
from bk_spark.log.store import LogStore
from bk_spark.log.writer import LogWriter
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError
from bk_spark.protocol.proto import logs_pb2 as pb
from bk_spark.protocol.quorum import Quorum
from bookie_server.net.common.access.rights import FENCE, READ, WRITE
from bookie_server.net.grpc.access.admission import admit
from bookie_server.net.grpc.calls import Call, Context, Stuck
from bookie_server.net.grpc.statuses import status_of
from bookie_server.net.native.shared import Shared

#: Calls under way. Each holds a thread while it works or waits for rows.
_MAX_CALLS: Final = 64
#: A message with rows ends with the row that reaches this size. Clients accept 4 MiB if they are not told otherwise.
_MESSAGE_BYTES: Final = 1024 * 1024
#: How long a thread waits for rows before it looks whether the caller is still there.
_WAIT_MS: Final = 1_000
_MAX_SIZE: Final = 64

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)


class LogService:
    """Belongs to the event loop.

    Parameters
    ----------
    shared, stuck
        What bounds the calls of all services.
    connect
        Returns a client of the cluster, at first use. Blocks.
    root
        The znode that holds the logs.
    """

    name = "bk_spark.v1.Logs"

    def __init__(self, shared: Shared, stuck: Stuck, connect: Callable[[], BlockingClient], root: str) -> None:
        self._shared, self._stuck = shared, stuck
        self._connect, self._root = connect, root
        self._threads = ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="grpc-logs")
        self._connecting = asyncio.Lock()
        self._client: BlockingClient | None = None
        self._calls = 0

    async def close(self) -> None:
        """End the client. The calls have ended before."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
        self._threads.shutdown(wait=False)

    def methods(self) -> dict[str, Any]:
        """Return the handlers of the service, by name."""
        return {
            "List": grpc.unary_unary_rpc_method_handler(self._list),
            "Create": grpc.unary_unary_rpc_method_handler(self._create),
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Append": grpc.stream_stream_rpc_method_handler(self._append),
            "Read": grpc.unary_stream_rpc_method_handler(self._read),
            "Follow": grpc.unary_stream_rpc_method_handler(self._follow),
        }

    # --- methods -----------------------------------------------------------------------------------

    async def _list(self, data: bytes, context: Context) -> bytes:
        async with self._call(context, READ) as call:
            await call.parse(pb.ListLogsRequest, data)
            store = await self._store()
            names = await self._run(store.list_logs)
            return pb.ListLogsAnswer(names=names).SerializeToString()
        raise AssertionError  # an error has ended the call

    async def _create(self, data: bytes, context: Context) -> bytes:
        async with self._call(context, WRITE) as call:
            request = await call.parse(pb.CreateLogRequest, data)
            store = await self._store()
            await self._run(_create, store, request)
            return pb.CreateLogAnswer().SerializeToString()
        raise AssertionError

    async def _describe(self, data: bytes, context: Context) -> bytes:
        async with self._call(context, READ) as call:
            request = await call.parse(pb.DescribeLogRequest, data)
            log = await self._open(request.log, request.password)
            first, end = await self._run(_readable, log)
            return pb.DescribeLogAnswer(first_offset=first, end_offset=end).SerializeToString()
        raise AssertionError

    async def _append(self, _: object, context: Context) -> None:
        context.message_s = None  # a writer may be idle; there are few of these calls
        async with self._call(context, READ | WRITE | FENCE) as call:
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            request = await call.parse(pb.AppendRequest, data)
            log = await self._open(request.log, request.password)
            async with self._writer(log, take_over=request.take_over) as writer:
                while data is not grpc.aio.EOF:
                    offsets = await self._run(_append, writer, list(request.rows))
                    answer = pb.AppendAnswer(batch_id=request.batch_id, first_offset=offsets.start, count=len(offsets))
                    await call.send(answer.SerializeToString())
                    data = await context.read()
                    if data is not grpc.aio.EOF:
                        request = await call.parse(pb.AppendRequest, data)

    async def _read(self, data: bytes, context: Context) -> None:
        async with self._call(context, READ) as call:
            request = await call.parse(pb.ReadRowsRequest, data)
            if request.start_offset > request.end_offset:
                raise InvalidArgumentError(
                    f"start_offset {request.start_offset} is after end_offset {request.end_offset}"
                )
            log = await self._open(request.log, request.password)
            reader = log.open_reader()
            blocks = await self._run(reader.read, request.start_offset, request.end_offset)
            await self._send_blocks(call, blocks)

    async def _follow(self, data: bytes, context: Context) -> None:
        async with self._call(context, READ) as call:
            request = await call.parse(pb.FollowRequest, data)
            log = await self._open(request.log, request.password)
            reader, offset = log.open_reader(), request.start_offset
            while True:
                blocks = reader.follow(offset, max_wait_ms=_WAIT_MS)
                offset = await self._send_blocks(call, blocks) or offset

    # --- inside ------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _call(self, context: Context, needed: int) -> AsyncIterator[Call]:
        """One call. An error of a log ends it with its status."""
        await admit(self._shared, context, needed)
        call = Call(self._shared, self._stuck, context)
        if self._calls >= _MAX_CALLS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MAX_CALLS} calls of logs are under way")
        self._calls += 1
        status, text = None, ""
        try:
            await call.check_room()
            yield call
        except BookKeeperError as error:
            status, text = status_of(error), str(error)
        finally:
            self._calls -= 1
            call.end()
        if status is not None:
            await context.abort(status, text)

    async def _run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _store(self) -> LogStore:
        async with self._connecting:
            if self._client is None:
                self._client = await self._run(self._connect)
        return LogStore.of(self._client, self._root)

    async def _open(self, name: str, password: bytes) -> Log:
        store = await self._store()
        log: Log = await self._run(lambda: store.open_log(name, password=password))
        if log.settings.entry_format is not EntryFormat.RAW:
            raise InvalidArgumentError(f"log {name} holds Arrow batches: only raw logs are served over gRPC")
        return log

    @contextlib.asynccontextmanager
    async def _writer(self, log: Log, *, take_over: bool) -> AsyncIterator[LogWriter]:
        """Hold the log. The end of the call seals the tail; an error leaves that to the next writer."""
        opening: Future[LogWriter] = self._threads.submit(lambda: log.open_writer(take_over=take_over))
        try:
            writer = await shielded(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            opening.add_done_callback(_abandon_opened)
            raise
        try:
            yield writer
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the bookie stops
                self._threads.submit(writer.abandon)
            raise
        await self._run(writer.close)

    async def _send_blocks(self, call: Call, blocks: Generator[LogBlock, None, None]) -> int | None:
        """Send the rows of ``blocks``. Return the offset after the last, None if there are none."""
        end = None
        taking: asyncio.Future[LogBlock | None] | None = None
        try:
            while True:
                taking = asyncio.get_running_loop().run_in_executor(self._threads, next, blocks, None)
                block = await shielded(taking)
                if block is None:
                    return end
                for message in _messages(block):
                    await call.send(message)
                end = block.end_offset
        except asyncio.CancelledError:
            # A thread may still wait for the next block.
            if taking is not None:
                taking.add_done_callback(lambda taken: self._end(blocks, taken))
            raise

    def _end(self, blocks: Generator[LogBlock, None, None], taken: asyncio.Future[LogBlock | None]) -> None:
        """End a generator that nobody wants any more."""
        if not taken.cancelled():
            taken.exception()  # nobody else asks for it
        with contextlib.suppress(RuntimeError):  # the bookie stops
            self._threads.submit(blocks.close)


def _create(store: LogStore, request: pb.CreateLogRequest) -> None:
    ensemble = request.ensemble_size or 3
    write = request.write_quorum_size or ensemble
    sizes = ensemble, write, request.ack_quorum_size or write // 2 + 1
    if max(sizes) > _MAX_SIZE:
        raise InvalidArgumentError(f"sizes of a quorum are at most {_MAX_SIZE}, not {sizes}")
    settings = LogSettings.create(Quorum(*sizes), DigestType.CRC32C, EntryFormat.RAW, request.password)
    store.create_log(request.log, settings, request.password)


def _readable(log: Log) -> tuple[int, int]:
    snapshot = log.snapshot()
    return snapshot.first_offset, log.open_reader().readable_end(snapshot)


def _append(writer: LogWriter, rows: list[bytes]) -> range:
    """Append rows durably. Without rows: an empty range at the end."""
    if not rows:
        return range(writer.next_offset, writer.next_offset)
    offsets = writer.append_many(rows)
    writer.flush()
    return offsets


def _abandon_opened(opening: Future[LogWriter]) -> None:
    if opening.exception() is None:
        opening.result().abandon()


def _messages(block: LogBlock) -> Generator[bytes, None, None]:
    rows: list[bytes] = []
    first = offset = block.base_offset
    size = 0
    for payload in block.payloads:
        rows.append(bytes(payload))
        offset += 1
        size += len(payload)
        if size >= _MESSAGE_BYTES:
            yield pb.Rows(first_offset=first, rows=rows).SerializeToString()
            rows, first, size = [], offset, 0
    if rows:
        yield pb.Rows(first_offset=first, rows=rows).SerializeToString()
