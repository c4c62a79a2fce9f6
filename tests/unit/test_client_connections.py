"""Connections of both protocols over real sockets: limits, cancelled and lost requests, dead peers, hostile answers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import ConnectionLimits
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2, OpV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry, pack_lac
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    InvalidArgumentError,
    RequestRefusedError,
    UnauthorizedError,
)
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.entry_availability import encode_availability
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT, EntryPackagerV3
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native.server import NativeServer
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from tests.support import patient_loop
from tests.support.connections import assert_no_requests, count_writes
from tests.support.running_storage import Place, Running, running
from tests.support.served_bookie import ServedBookie

LEDGER = 7
KEY = master_key(b"pw")
DIGEST = digest_function(DigestType.CRC32C, b"pw")
COUNT = 2_000
Connection = BookieConnection | BookieConnectionV3
Kind = type[BookieConnection] | type[BookieConnectionV3]
KINDS: list[Kind] = [BookieConnection, BookieConnectionV3]


def stored_entry(entry_id: int) -> bytes:
    return pack_entry(LEDGER, entry_id, entry_id - 1, 0, b"%d" % entry_id, DIGEST)


async def connect(kind: Kind, port: int, **limits: Any) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: kind("b1", ConnectionLimits(**limits)), "127.0.0.1", port)
    return connection


Play = Callable[[ServedBookie, Connection], Coroutine[Any, Any, None]]


def with_bookie(**limits: Any) -> Callable[[Play], Callable[[Kind], None]]:
    """A test of either kind of connection to a bookie of :data:`COUNT` entries; nothing may be left at its end."""

    def decorate(play: Play) -> Callable[[Kind], None]:
        async def run(kind: Kind) -> None:
            bookie = ServedBookie("b1")
            bookie.entries = {entry_id: stored_entry(entry_id) for entry_id in range(COUNT)}
            await bookie.start()
            connection = await connect(kind, bookie.port, **limits)
            try:
                async with asyncio.timeout(60):
                    await play(bookie, connection)
                assert_no_requests(connection)
            finally:
                connection.close()
                await bookie.stop()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        @pytest.mark.parametrize("kind", KINDS)
        @functools.wraps(play)
        def test(kind: Kind) -> None:
            patient_loop.run(run(kind))

        del test.__wrapped__
        return test

    return decorate


@asynccontextmanager
async def front_end(bookie: Running) -> AsyncIterator[int]:
    """The port of the bookie's own front end."""
    front = NativeServer(bookie.bookie, disk_space=lambda: None, config=NetConfig())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        await front.start(listener)
        try:
            yield listener.getsockname()[1]
        finally:
            await front.close()


async def spin() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@asynccontextmanager
async def server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> AsyncIterator[int]:
    """A peer that does what ``serve`` does; its port."""
    tasks: list[asyncio.Task[None]] = []

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await serve(reader, writer)
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(run, "127.0.0.1", 0, limit=16 * 1024 * 1024)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()


async def next_body(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    return await reader.readexactly(size)


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes everything, answers nothing."""
    while await reader.read(65536):
        pass


# --- reads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_reads_of_a_bookie(tmp_path: Path, kind: Kind) -> None:
    patient_loop.run(reads_of_a_bookie(Place.make(tmp_path), kind))


async def reads_of_a_bookie(place: Place, kind: Kind) -> None:
    async with running(place) as bookie, front_end(bookie) as port:
        assert set(await bookie.add(*map(stored_entry, range(COUNT)), key=KEY)) == {Code.OK}
        connection = await connect(kind, port)
        try:
            async with asyncio.timeout(60):
                await read_ranges(connection)
                await read_singles(connection)
                await fence(bookie, connection)
            assert_no_requests(connection)
        finally:
            connection.close()


async def read_ranges(connection: Connection) -> None:
    for entry_ids in (range(1), range(3, 900), range(5, 50, 3), range(COUNT - 2, COUNT + 3)):
        answers = await connection.read(LEDGER, entry_ids)
        # A bookie tells errors first.
        assert sorted(answers) == list(entry_ids)
        for entry_id, answer in answers.items():
            wanted = (Code.OK, stored_entry(entry_id)) if entry_id < COUNT else (Code.NO_ENTRY, b"")
            assert (answer.ledger_id, answer.entry_id) == (LEDGER, entry_id)
            assert (answer.code, bytes(answer.stored)) == wanted


async def read_singles(connection: Connection) -> None:
    answers = await asyncio.gather(*(connection.read(LEDGER, range(i, i + 1)) for i in range(1_000)))
    assert [bytes(answer[i].stored) for i, answer in enumerate(answers)] == [stored_entry(i) for i in range(1_000)]


async def fence(bookie: Running, connection: Connection) -> None:
    ledger = bookie.bookie.descriptor(LEDGER)
    assert isinstance(ledger, LedgerDescriptor)
    assert not ledger.fenced
    flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY
    answers = await connection.read(LEDGER, range(LAST_ENTRY, 0), flags=flags, key=KEY)
    assert ledger.fenced
    assert answers[LAST_ENTRY].stored == stored_entry(COUNT - 1)
    assert answers[LAST_ENTRY].entry_id == LAST_ENTRY


@with_bookie()
async def test_cancelled_reads_leave_nothing_and_disturb_nobody(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    given_up = [asyncio.ensure_future(connection.read(LEDGER, range(i, i + 20))) for i in range(10)]
    kept = asyncio.ensure_future(connection.read(LEDGER, range(5, 40)))
    await spin()
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    assert connection.outstanding == 35
    bookie.silent = False
    await until(lambda: len(bookie.held) >= 11)
    bookie.answer_held()
    assert set(await kept) == set(range(5, 40))
    assert not connection.closed


@with_bookie()
async def test_fencing_reads_of_one_turn_go_with_one_call(bookie: ServedBookie, connection: Connection) -> None:
    """A recovery asks for one entry after the other. Other reads do not wait for the end of the turn."""
    calls = count_writes(connection)
    flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY
    for arguments, most in (({"flags": flags, "key": KEY}, 1), ({}, 5)):
        calls.clear()
        reads = [connection.read(LEDGER, range(i, i + 1), **arguments) for i in range(5)]  # type: ignore[arg-type]
        for entry_id, answers in enumerate(await asyncio.gather(*reads)):
            assert answers[entry_id].stored == stored_entry(entry_id)
        assert len(calls) == most


@with_bookie()
async def test_a_lost_connection_tells_everybody(bookie: ServedBookie, connection: Connection) -> None:
    told: list[str] = []

    def broken(bookie_id: str) -> None:
        raise RuntimeError("a listener that fails")

    connection.listen(1, lambda *_: None, broken)
    connection.listen(2, lambda *_: None, told.append)
    connection.listen(3, lambda *_: None, told.append)
    connection.unlisten(3)
    bookie.silent = True
    reads = [asyncio.ensure_future(connection.read(LEDGER, range(i, i + 3))) for i in range(5)]
    await until(lambda: len(bookie.held) >= 5)
    bookie.break_connections()
    for outcome in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(outcome, BookieUnavailableError)
        assert outcome.bookie_id == "b1"
    assert told == ["b1"]
    with pytest.raises(BookieUnavailableError):
        await connection.read(LEDGER, range(1))


# --- adds ---------------------------------------------------------------------------------------


@with_bookie()
async def test_adds_of_several_ledgers(bookie: ServedBookie, connection: Connection) -> None:
    packager = EntryPackager if isinstance(connection, BookieConnection) else EntryPackagerV3
    answered: dict[int, dict[int, int]] = {3: {}, 4: {}}
    for ledger_id in (3, 4):

        def on_answers(bookie_id: str, entry_ids: Any, codes: Any, ledger_id: int = ledger_id) -> None:
            assert bookie_id == "b1"
            answered[ledger_id].update(zip(entry_ids.tolist(), codes.tolist(), strict=True))

        connection.listen(ledger_id, on_answers, lambda _: None)
    bookie.refuse = 2
    for first in range(0, 1_000, 100):
        for ledger_id in (3, 4, 5):
            frames = packager(ledger_id, DigestType.CRC32C, b"pw").package(first, -1, 0, Payloads.of([b"x"] * 100))
            connection.send([frames.data])
    await until(lambda: all(len(codes) == 1_000 for codes in answered.values()))
    assert [code for code in answered[3].values() if code] == [Code.TOO_MANY_REQUESTS] * 2
    assert not any(answered[4].values())
    connection.unlisten(3)
    connection.send([packager(3, DigestType.CRC32C, b"pw").package(0, -1, 0, Payloads.of([b"x"])).data])
    await connection.read(LEDGER, range(1))
    assert len(bookie.seen) == 3_001


# --- limits -------------------------------------------------------------------------------------


@with_bookie(max_outstanding_requests=10)
async def test_requests_wait_for_others(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    first = asyncio.ensure_future(connection.read(LEDGER, range(40)))
    await spin()
    waiting = [asyncio.ensure_future(connection.read(LEDGER, range(i, i + 6))) for i in range(6)]
    cancelled = asyncio.ensure_future(connection.read(LEDGER, range(1)))
    await until(lambda: bool(bookie.held))
    await spin()
    assert connection.outstanding == 40, "one request may be larger than the limit"
    cancelled.cancel()
    bookie.silent = False
    bookie.answer_held()
    most = 0

    async def watch() -> None:
        nonlocal most
        while not all(task.done() for task in waiting):
            if first.done():
                most = max(most, connection.outstanding)
            await asyncio.sleep(0)

    await asyncio.gather(first, watch(), *waiting)
    assert 10 <= most <= 15
    assert [set(task.result()) for task in waiting] == [set(range(i, i + 6)) for i in range(6)]


@with_bookie(max_outstanding_requests=5, request_wait_ms=50)
async def test_the_wait_has_an_end(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    first = asyncio.ensure_future(connection.read(LEDGER, range(5)))
    await spin()
    with pytest.raises(BookieTimeoutError, match="5 on this connection are still unanswered") as raised:
        await connection.read(LEDGER, range(1))
    assert raised.value.retriable
    await until(lambda: bool(bookie.held))
    bookie.silent = False
    bookie.answer_held()
    await first
    assert list(await connection.read(LEDGER, range(1))) == [0]


@with_bookie(max_outstanding_requests=5)
async def test_a_lost_connection_tells_those_that_wait(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    reads = [asyncio.ensure_future(connection.read(LEDGER, range(5))) for _ in range(3)]
    await until(lambda: bool(bookie.held))
    connection.close()
    outcomes = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BookieUnavailableError] * 3


async def give_up_after(connection: Connection, bookie: ServedBookie, pause_s: float) -> None:
    """A read that is not answered, and given up this long after the bookie has it."""
    read = asyncio.ensure_future(connection.read(LEDGER, range(3)))
    await until(lambda: bool(bookie.held))
    await asyncio.sleep(pause_s)  # the bookie is silent
    read.cancel()
    await asyncio.gather(read, return_exceptions=True)


@with_bookie(silence_ms=50)
async def test_a_silent_peer_is_taken_for_dead(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    await give_up_after(connection, bookie, 0.06)
    assert connection.closed


@with_bookie(silence_ms=60_000)
async def test_a_peer_that_is_not_silent_for_long_is_not_taken_for_dead(
    bookie: ServedBookie, connection: Connection
) -> None:
    bookie.silent = True
    await give_up_after(connection, bookie, 0.06)
    assert not connection.closed


@with_bookie(silence_ms=300)
async def test_a_peer_that_answers_others_is_not_dead(bookie: ServedBookie, connection: Connection) -> None:
    bookie.silent = True
    hangs = asyncio.ensure_future(connection.read(LEDGER, range(3)))
    await until(lambda: bool(bookie.held))
    bookie.silent = False
    await asyncio.sleep(0.3)  # the bookie is silent
    await connection.read(LEDGER, range(10, 11))
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)
    assert not connection.closed


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_takes_nothing_is_taken_for_dead(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        begun = asyncio.Event()

        async def stopped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            begun.set()
            await asyncio.Event().wait()

        lost: list[str] = []
        async with server(stopped) as port, asyncio.timeout(60):
            connection = await connect(kind, port, silence_ms=100)
            connection.listen(LEDGER, lambda *_: None, lost.append)
            await begun.wait()
            piece = bytes(1024 * 1024)
            references = sys.getrefcount(piece)
            connection.send([piece] * 64)
            assert sys.getrefcount(piece) > references
            await until(lambda: connection.closed)
            # What waited in the connection has gone with it.
            await until(lambda: sys.getrefcount(piece) == references)
        assert lost == ["b1"]

    with caplog.at_level(logging.WARNING):
        patient_loop.run(run())
    assert "neither receives nor sends anything" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_peer_is_not_dead(kind: Kind) -> None:
    async def run() -> None:
        taken = 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            while data := await reader.read(256 * 1024):
                taken += len(data)
                await asyncio.sleep(0.02)

        async with server(slow) as port, asyncio.timeout(60):
            connection = await connect(kind, port, silence_ms=600)
            total = 14 * 1024 * 1024
            connection.send([bytes(1024 * 1024)] * 14)
            await until(lambda: taken == total or connection.closed)
            assert not connection.closed
            connection.close()

    patient_loop.run(run())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".org", "a\0b"])
def test_a_registered_host_that_is_no_name(kind: Kind, host: str) -> None:
    """The bookie is unavailable; what it wrote into its znode is no error of the program."""

    async def resolve(_: str) -> tuple[str, int]:
        return host, 3181

    async def run() -> None:
        pool: ConnectionPool[Any] = ConnectionPool(connects_by(kind, resolve), ClientConfig())
        with pytest.raises(BookieUnavailableError, match="cannot connect"):
            await pool.get("b1")
        await pool.close()

    patient_loop.run(run())


def test_limits_come_from_the_configuration() -> None:
    async def run() -> None:
        bookie = ServedBookie("b1")
        await bookie.start()

        async def resolve(bookie_id: str) -> tuple[str, int]:
            return "127.0.0.1", bookie.port

        config = ClientConfig(
            max_frame_bytes=10_000, max_outstanding_requests=5, read_timeout_ms=1_000, add_timeout_ms=500
        )
        for kind in KINDS:
            given: list[ConnectionLimits] = []

            async def connect_noted(
                bookie_id: str, limits: ConnectionLimits, kind: Kind = kind, given: list[ConnectionLimits] = given
            ) -> Any:
                given.append(limits)
                return await connects_by(kind, resolve)(bookie_id, limits)

            pool: ConnectionPool[Any] = ConnectionPool(connect_noted, config)
            connection = await pool.get("b1")
            assert given == [ConnectionLimits(10_128, 5, 1_000, 400)]
            await pool.close()
            assert connection.closed
        await bookie.stop()

    patient_loop.run(run())


# --- hostile and broken peers ---------------------------------------------------------------------


def answering(*pieces: bytes, then: str = "wait") -> Callable[..., Coroutine[Any, Any, None]]:
    """After the first request come ``pieces``, apart from one another; then silence, or the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next_body(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)  # pieces are received apart
        if then == "wait":
            await never(reader, writer)

    return serve


def v3_answer(txn_id: int = 1, version: pb.ProtocolVersion = pb.VERSION_THREE, **more: Any) -> bytes:
    header = pb.BKPacketHeader(version=version, operation=pb.READ_ENTRY, txnId=txn_id)
    body = pb.ReadResponse(status=pb.EOK, ledgerId=LEDGER, entryId=0, body=stored_entry(0))
    return frame(pb.Response(**{"header": header, "status": pb.EOK, "readResponse": body, **more}).SerializeToString())


def v2_answer() -> bytes:
    return b"".join(bytes(part) for part in wire_v2.read_answer(2, LEDGER, 0, stored_entry(0)))


BREAKS: list[tuple[Kind, list[bytes], str]] = [
    (BookieConnection, [v2_answer()[:30]], "end"),
    (BookieConnection, [struct.pack(">I", 64 * 1024 * 1024)], "wait"),
    (BookieConnection, [frame(struct.pack(">Iiqq", wire_v2.header_int(OpV2.READ, version=3), 0, LEDGER, 0))], "wait"),
    (BookieConnection, [frame(b"\x02\x09" + bytes(30))], "wait"),
    (BookieConnection, [v3_answer()], "wait"),
    (BookieConnectionV3, [v3_answer()[:30]], "end"),
    (BookieConnectionV3, [struct.pack(">I", 64 * 1024 * 1024)], "wait"),
    (BookieConnectionV3, [v3_answer(version=pb.VERSION_TWO)], "wait"),
    (BookieConnectionV3, [v2_answer()], "wait"),
    (BookieConnectionV3, [frame(b"\xff" * 30)], "wait"),
    (
        BookieConnectionV3,
        [v3_answer(readResponse=pb.ReadResponse(status=pb.EOK, ledgerId=LEDGER, entryId=5, body=stored_entry(5)))],
        "wait",
    ),
]


@pytest.mark.parametrize(("kind", "pieces", "then"), BREAKS, ids=itertools.count())
def test_nonsense_breaks_the_connection(kind: Kind, pieces: list[bytes], then: str) -> None:
    async def run() -> None:
        async with server(answering(*pieces, then=then)) as port, asyncio.timeout(60):
            connection = await connect(kind, port)
            with pytest.raises(BookieUnavailableError):
                await connection.read(LEDGER, range(1))
            assert connection.closed
            assert_no_requests(connection)

    patient_loop.run(run())


@pytest.mark.parametrize(
    ("kind", "answer"), [(BookieConnection, v2_answer()), (BookieConnectionV3, v3_answer())], ids=["v2", "v3"]
)
def test_answers_in_any_pieces(kind: Kind, answer: bytes) -> None:
    async def run() -> None:
        for size in (1, 7, len(answer) - 1):
            pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
            async with server(answering(*pieces)) as port, asyncio.timeout(60):
                connection = await connect(kind, port)
                answers = await connection.read(LEDGER, range(1))
                assert answers[0].stored == stored_entry(0)
                connection.close()

    patient_loop.run(run())


def test_answers_that_nobody_asked_for() -> None:
    async def run() -> None:
        header = wire_v3.request_header(pb.ADD_ENTRY, 77)
        unknown = frame(pb.Response(header=header, status=pb.EOK).SerializeToString())
        async with server(answering(v3_answer(5), v3_answer(6), unknown, v3_answer(1))) as port, asyncio.timeout(60):
            connection = await connect(BookieConnectionV3, port)
            assert (await connection.read(LEDGER, range(1)))[0].code is Code.OK
            connection.close()

    patient_loop.run(run())


# --- v3 only ------------------------------------------------------------------------------------


V3Play = Callable[[BookieConnectionV3, Callable[..., None]], Coroutine[Any, Any, None]]


def scripted(play: V3Play) -> Callable[[], None]:
    """A test with a v3 connection to a peer that answers each request with what the script's next function makes of
    it (a Response without header, which is added; or None for no answer)."""

    async def run() -> None:
        script: asyncio.Queue[Callable[[pb.Request], pb.Response | None]] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                request = wire_v3.parse_request(await next_body(reader))
                response = (await script.get())(request)
                if response is not None:
                    response.header.CopyFrom(wire_v3.answer_header(request.header))
                    writer.write(frame(response.SerializePartialToString()))

        async with server(serve) as port, asyncio.timeout(60):
            connection = await connect(BookieConnectionV3, port, silence_ms=80)
            assert isinstance(connection, BookieConnectionV3)
            await play(connection, script.put_nowait)
            assert_no_requests(connection)
            connection.close()

    @functools.wraps(play)
    def test() -> None:
        patient_loop.run(run())

    del test.__wrapped__  # type: ignore[attr-defined]
    return test


@scripted
async def test_forcing(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    body = pb.ForceLedgerResponse(status=pb.EOK, ledgerId=LEDGER)
    answer(lambda request: pb.Response(status=pb.EOK, forceLedgerResponse=body))
    assert await connection.force(LEDGER) is Code.OK
    answer(
        lambda request: pb.Response(
            status=pb.EOK, forceLedgerResponse=pb.ForceLedgerResponse(status=pb.EIO, ledgerId=1)
        )
    )
    assert await connection.force(LEDGER) is Code.IO_ERROR
    answer(lambda request: pb.Response(status=pb.EUA))
    assert await connection.force(LEDGER) is Code.UNAUTHORIZED


@scripted
async def test_explicit_lacs(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    packet = pack_lac(LEDGER, 41, DIGEST)

    def take(request: pb.Request) -> pb.Response:
        write = request.writeLacRequest
        assert (write.ledgerId, write.lac, write.masterKey, write.body) == (LEDGER, 41, KEY, packet)
        body = pb.WriteLacResponse(status=pb.EREADONLY, ledgerId=LEDGER)
        return pb.Response(status=pb.EOK, writeLacResponse=body)

    answer(take)
    assert await connection.write_lac(LEDGER, packet, KEY) is Code.READ_ONLY
    with pytest.raises(InvalidArgumentError, match="LAC packet"):
        await connection.write_lac(LEDGER + 1, packet, KEY)
    body = pb.ReadLacResponse(status=pb.EOK, ledgerId=LEDGER, lacBody=packet)
    answer(lambda request: pb.Response(status=pb.EOK, readLacResponse=body))
    assert (await connection.read_lac(LEDGER))[1] == packet


@scripted
async def test_long_polls(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    def reply(request: pb.Request) -> pb.Response:
        read = request.readRequest
        assert (read.ledgerId, read.entryId, read.previousLAC, read.timeOut) == (LEDGER, LAST_ENTRY, 4, 700)
        assert read.flag == pb.ReadRequest.ENTRY_PIGGYBACK
        body = pb.ReadResponse(status=pb.EOK, ledgerId=LEDGER, entryId=5, body=stored_entry(5), maxLAC=9)
        return pb.Response(status=pb.EOK, readResponse=body)

    answer(reply)
    got = await connection.long_poll(LEDGER, 4, 700)
    assert (got.code, got.entry_id, got.max_lac) == (Code.OK, 5, 9)
    assert got.stored == stored_entry(5)


@scripted
async def test_a_long_poll_may_be_silent_for_as_long_as_it_asked(
    connection: BookieConnectionV3, answer: Callable[..., None]
) -> None:
    answer(lambda request: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await connection.long_poll(LEDGER, 4, 5_000)
    assert not connection.closed
    answer(lambda request: None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.15):
            await connection.force(LEDGER)
    assert connection.closed


@scripted
async def test_bookie_info(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    body = pb.GetBookieInfoResponse(status=pb.EOK, totalDiskCapacity=100)
    answer(lambda request: pb.Response(status=pb.EOK, getBookieInfoResponse=body))
    info = await connection.bookie_info()
    assert (info.total_disk_bytes, info.free_disk_bytes) == (100, None)
    answer(lambda request: pb.Response(status=pb.EUA))
    with pytest.raises(UnauthorizedError, match="requires authentication.*bookie b1, code UNAUTHORIZED"):
        await connection.bookie_info()


@scripted
async def test_lists_of_entries(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    ids = np.array([1, 2, 5, 6, 9])
    body = pb.GetListOfEntriesOfLedgerResponse(
        status=pb.EOK, ledgerId=LEDGER, availabilityOfEntriesOfLedger=encode_availability(ids)
    )
    answer(lambda request: pb.Response(status=pb.EOK, getListOfEntriesOfLedgerResponse=body))
    assert list((await connection.list_entries(LEDGER)).lacking(range(10))) == [0, 3, 4, 7, 8]
    answer(lambda request: pb.Response(status=pb.EBADREQ))
    with pytest.raises(RequestRefusedError, match="list of entries: .*ledger 7, bookie b1, code BAD_REQUEST"):
        await connection.list_entries(LEDGER)


@scripted
async def test_reads_where_clients_must_authenticate(
    connection: BookieConnectionV3, answer: Callable[..., None]
) -> None:
    """Apache's bookie then sends an envelope without a body."""
    for _ in range(3):
        answer(lambda request: pb.Response(status=pb.EUA))
    answers = await connection.read(LEDGER, range(3))
    assert {one.code for one in answers.values()} == {Code.UNAUTHORIZED}


@scripted
async def test_adds_answered_without_a_body(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    got: list[tuple[int, int, int]] = []
    for ledger_id in (LEDGER, LEDGER + 1):

        def on_answers(bookie_id: str, entry_ids: Any, codes: Any, ledger_id: int = ledger_id) -> None:
            got.extend(
                (ledger_id, entry_id, code) for entry_id, code in zip(entry_ids.tolist(), codes.tolist(), strict=True)
            )

        connection.listen(ledger_id, on_answers, lambda _: None)
    for status in (pb.EOK, pb.EUA):
        answer(lambda request, status=status: pb.Response(status=status))
    connection.send([EntryPackagerV3(LEDGER + 1, DigestType.DUMMY, b"").package(5, -1, 0, Payloads.of([b""] * 2)).data])
    await until(lambda: len(got) == 2)
    assert got == [(LEDGER + 1, 5, Code.OK), (LEDGER + 1, 6, Code.UNAUTHORIZED)]
    assert not connection.closed


@pytest.mark.parametrize("entry_id", [5, 2**40 + 5])
def test_adds_answered_without_a_body_that_may_be_of_several_entries(entry_id: int) -> None:
    """Two ledgers, or two entries, that such an answer cannot tell apart: better no answer than a wrong one."""

    @scripted
    async def play(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
        got: list[Any] = []
        connection.listen(LEDGER, lambda *answers: got.append(answers), lambda _: None)
        if entry_id == 5:
            connection.listen(LEDGER + 2**22, lambda *answers: got.append(answers), lambda _: None)
        answer(lambda request: pb.Response(status=pb.EOK))
        packager = EntryPackagerV3(LEDGER, DigestType.DUMMY, b"")
        connection.send([packager.package(entry_id, -1, 0, Payloads.of([b""])).data])
        await until(lambda: connection.closed)
        assert not got

    play()


@scripted
async def test_keys_go_with_fences_only(connection: BookieConnectionV3, answer: Callable[..., None]) -> None:
    for arguments in ({"key": KEY}, {"flags": FlagV2.FENCING}):
        with pytest.raises(InvalidArgumentError):
            await connection.read(LEDGER, range(1), **arguments)  # type: ignore[arg-type]


@scripted
async def test_transaction_ids_of_requests_stay_below_those_of_adds(
    connection: BookieConnectionV3, answer: Callable[..., None]
) -> None:
    seen: list[int] = []

    def note(request: pb.Request) -> pb.Response:
        seen.append(request.header.txnId)
        return pb.Response(status=pb.EOK)

    for _ in range(6):
        answer(note)
    await connection.force(LEDGER)
    await connection.read(LEDGER, range(4))
    await connection.force(LEDGER)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert all(txn_id < ADD_TXN_BIT for txn_id in seen)
