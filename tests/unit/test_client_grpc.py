"""The client's connection over gRPC to a real bookie's front end, and to peers that answer wrongly or not at all."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.grpc import GrpcConnection
from bk_spark.bookie.connection.grpc_connects import grpc_connects
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.reading.read_access import read_settings
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.codes import Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry, pack_lac
from bk_spark.protocol.errors import BookieUnavailableError, InvalidArgumentError, TlsError, UnauthorizedError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.batches import SERVICE
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.rights import Authorization
from tests.support import patient_loop
from tests.support.certificates import identity, write_pem
from tests.support.front import HeldBookie
from tests.support.grpc_front import grpc_front
from tests.support.running_storage import Place, running

LEDGER = 7
PASSWORD = b"pw"
KEY = master_key(PASSWORD)
DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
COUNT = 3_000


def stored_entry(entry_id: int) -> bytes:
    return pack_entry(LEDGER, entry_id, entry_id - 1, 0, b"%d" % entry_id, DIGEST)


@asynccontextmanager
async def pool(port: int, **settings: Any) -> AsyncIterator[ConnectionPool[GrpcConnection]]:
    config = ClientConfig(**settings)

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return "127.0.0.1", port

    one = ConnectionPool(grpc_connects(resolve, ClientTls(config) if config.tls_enabled else None), config)
    try:
        yield one
    finally:
        await one.close()


class Listener:
    """Codes of adds, by entry; and whether the connection was lost."""

    def __init__(self, connection: GrpcConnection) -> None:
        self.codes: dict[int, int] = {}
        self.lost = False
        connection.listen(LEDGER, self._on_answers, self._on_loss)

    def _on_answers(self, bookie_id: str, entry_ids: Any, codes: Any) -> None:
        self.codes.update(zip(entry_ids.tolist(), codes.tolist(), strict=True))

    def _on_loss(self, bookie_id: str) -> None:
        self.lost = True


def frames(first: int, payloads: list[bytes], password: bytes = PASSWORD, flags: FlagV2 = FlagV2.NONE) -> memoryview:
    return EntryPackager(LEDGER, DigestType.CRC32C, password, flags).package(first, first - 1, 0, payloads).data


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await play
        # Tasks of gRPC's server may still be ending.
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith(("GrpcConnection", "ConnectionPool", "_Stream"))]

    patient_loop.run(bounded())


def test_adds_and_reads_of_a_bookie(tmp_path: Path) -> None:
    async def play() -> None:
        async with running(place) as bookie, grpc_front(bookie.bookie) as front, pool(front.port) as one:
            connection = await one.get("b1")
            assert await one.get("b1") is connection
            listener = Listener(connection)
            payloads = [b"%d" % i for i in range(COUNT)]
            connection.send([frames(0, payloads[:10])])
            connection.send([frames(i, payloads[i : i + 1]) for i in range(10, 500)])
            connection.send([frames(500, payloads[500:])])
            large = [bytes([i]) * 700_000 for i in range(5)]
            connection.send([frames(COUNT, large)])
            await until(lambda: len(listener.codes) == COUNT + 5)
            assert set(listener.codes.values()) == {Code.OK}
            for entry_ids in (range(1), range(3, 900), range(5, 50, 3), range(COUNT + 3, COUNT + 8)):
                answers = await connection.read(LEDGER, entry_ids)
                assert list(answers) == list(entry_ids)
                for entry_id, answer in answers.items():
                    assert (answer.ledger_id, answer.entry_id) == (LEDGER, entry_id)
                    assert answer.code is (Code.OK if entry_id < COUNT + 5 else Code.NO_ENTRY)
            stored = bytes((await connection.read(LEDGER, range(10, 11)))[10].stored)
            assert stored[-2:] == b"10"
            singles = await asyncio.gather(*(connection.read(LEDGER, range(i, i + 1)) for i in range(300)))
            assert [bytes(answer[i].stored)[36:] for i, answer in enumerate(singles)] == payloads[:300]
            batch = await connection.batch_read(LEDGER, 2_990, 100_000, 100_000)
            assert (batch.code, batch.first_entry_id) == (Code.OK, 2_990)
            assert bytes(batch.records).count(b"299") == 10
            assert (await connection.batch_read(LEDGER, 9_999, 1, 100)).code is Code.NO_ENTRY
            assert connection.outstanding == 0

    place = Place.make(tmp_path)
    run(play())


def test_the_other_requests(tmp_path: Path) -> None:
    async def play() -> None:
        async with running(place) as bookie, grpc_front(bookie.bookie) as front, pool(front.port) as one:
            assert set(await bookie.add(*map(stored_entry, range(5)), key=KEY)) == {Code.OK}
            connection = await one.get("b1")
            assert (await connection.bookie_info()).total_disk_bytes == 2
            assert await connection.force(LEDGER) is Code.OK
            packet = pack_lac(LEDGER, 4, DIGEST)
            assert await connection.write_lac(LEDGER, packet, bytes(20)) is Code.UNAUTHORIZED
            assert await connection.write_lac(LEDGER, packet, KEY) is Code.OK
            assert await connection.read_lac(LEDGER) == (Code.OK, packet, stored_entry(4))
            assert await connection.read_lac(99) == (Code.NO_LEDGER, None, None)
            polled = await connection.long_poll(LEDGER, 2, 1_000)
            assert (polled.code, polled.entry_id, polled.max_lac) == (Code.OK, 3, 4)
            assert polled.stored is not None
            listed = await connection.list_entries(LEDGER)
            assert list(listed.ranges()) == [range(5)]
            with pytest.raises(InvalidArgumentError, match="needs the master key"):
                await connection.read(LEDGER, range(1), flags=FlagV2.FENCING)
            answers = await connection.read(LEDGER, range(1), flags=FlagV2.FENCING, key=bytes(20))
            assert answers[0].code is Code.UNAUTHORIZED
            answers = await connection.read(LEDGER, range(-1, 0), flags=FlagV2.FENCING, key=KEY)
            assert bytes(answers[-1].stored) == stored_entry(4)
            listener = Listener(connection)
            connection.send([frames(5, [b"x", b"y"]), frames(7, [b"z"], flags=FlagV2.RECOVERY_ADD)])
            await until(lambda: len(listener.codes) == 3)
            assert listener.codes == {5: Code.FENCED, 6: Code.FENCED, 7: Code.OK}

    place = Place.make(tmp_path)
    run(play())


def test_a_client_that_may_only_write(tmp_path: Path) -> None:
    """It is told so, and keeps its connection."""

    async def play() -> None:
        async with (
            running(place) as bookie,
            grpc_front(bookie.bookie, access=access) as front,
            pool(front.port) as one,
        ):
            connection = await one.get("b1")
            listener = Listener(connection)
            connection.send([frames(0, [b"x"])])
            assert (await connection.read(LEDGER, range(2)))[1].code is Code.UNAUTHORIZED
            connection.send([frames(1, [b"y"]), frames(2, [b"z"], flags=FlagV2.RECOVERY_ADD)])
            await until(lambda: len(listener.codes) == 3)
            assert listener.codes == {0: Code.OK, 1: Code.OK, 2: Code.UNAUTHORIZED}
            with pytest.raises(UnauthorizedError, match="authorizationFile"):
                await connection.bookie_info()
            assert not connection.closed

    (tmp_path / "table").write_text("write anonymous")
    access = FrontAccess(authorization=Authorization.load(str(tmp_path / "table")))
    place = Place.make(tmp_path / "bookie")
    run(play())


def test_a_lost_bookie_fails_everything_that_waits() -> None:
    async def play() -> None:
        bookie = HeldBookie()
        async with pool_of_lost(bookie) as (connection, front):
            listener = Listener(connection)
            connection.send([frames(0, [b"x"])])
            await until(lambda: bookie.entries == 1)
            reading = asyncio.create_task(connection.long_poll(1, 0, 60_000))
            await until(lambda: front.load.polls == 1)
            await front.server.close()
            with pytest.raises(BookieUnavailableError):
                await reading
            await until(lambda: listener.lost)
            assert connection.closed
            with pytest.raises(BookieUnavailableError, match="connection to the bookie broke"):
                await connection.read(1, range(1))

    @asynccontextmanager
    async def pool_of_lost(bookie: HeldBookie) -> AsyncIterator[Any]:
        async with grpc_front(bookie) as front, pool(front.port) as one:
            yield await one.get("b1"), front
            bookie.answer()

    run(play())


def test_nobody_there_and_somebody_else() -> None:
    async def play() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            async with pool(taken.getsockname()[1]) as one:
                with pytest.raises(BookieUnavailableError, match="gRPC: UNAVAILABLE"):
                    await one.get("b1")
            taken.listen()
            async with pool(taken.getsockname()[1], connect_timeout_ms=300) as one:
                with pytest.raises(BookieUnavailableError):
                    await one.get("b1")
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with pool(port) as one:
            with pytest.raises(BookieUnavailableError, match="gRPC: UNIMPLEMENTED"):
                await one.get("b1")
        await server.stop(None)

    run(play())


# --- peers that answer wrongly ------------------------------------------------------------------

Answer = Callable[[pb.AddBatch | pb.ReadRequest], bytes]


@asynccontextmanager
async def peer(answer: Answer | None) -> AsyncIterator[int]:
    """Answers each message with what ``answer`` returns. None: not at all."""

    def stream(kind: Any) -> Any:
        async def serve(_: object, context: Any) -> None:
            while (data := await context.read()) is not grpc.aio.EOF:
                if answer is not None:
                    await context.write(answer(kind.FromString(data)))

        return grpc.stream_stream_rpc_method_handler(serve)

    async def info(data: bytes, context: Any) -> bytes:
        return b""

    methods = {
        "Add": stream(pb.AddBatch),
        "Read": stream(pb.ReadRequest),
        "GetInfo": grpc.unary_unary_rpc_method_handler(info),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def _read(**fields: Any) -> Answer:
    return lambda request: pb.ReadAnswer(request_id=request.request_id, **fields).SerializeToString()  # type: ignore[union-attr]


WRONG_READS = {
    "no message": lambda request: b"\xff\xff",
    "another request": lambda request: pb.ReadAnswer(request_id=99).SerializeToString(),
    "too many entries": _read(count=9),
    "too few": _read(count=1, codes=[pb.CODE_NO_ENTRY], last=True),
    "codes that are missing": _read(count=2, codes=[pb.CODE_NO_ENTRY]),
    "entries that are missing": _read(count=2, last=True),
    "lengths that do not add up": _read(count=2, last=True, records=b"\0\0\0\x01a\0\0\0\x09b"),
}


@pytest.mark.parametrize("answer", WRONG_READS.values(), ids=WRONG_READS)
def test_wrong_answers_to_reads_end_the_connection(answer: Answer) -> None:
    async def play() -> None:
        async with peer(answer) as port, pool(port) as one:
            connection = await one.get("b1")
            with pytest.raises(BookieUnavailableError, match="connection to the bookie broke"):
                await connection.read(LEDGER, range(2))
            assert connection.closed

    run(play())


WRONG_ADDS = {
    "no message": lambda batch: b"\xff\xff",
    "another batch": lambda batch: pb.AddAnswer(batch_id=99).SerializeToString(),
    "too few codes": lambda batch: pb.AddAnswer(batch_id=batch.batch_id, codes=[0]).SerializeToString(),
}


@pytest.mark.parametrize("answer", WRONG_ADDS.values(), ids=WRONG_ADDS)
def test_wrong_answers_to_adds_end_the_connection(answer: Answer) -> None:
    async def play() -> None:
        async with peer(answer) as port, pool(port) as one:
            connection = await one.get("b1")
            listener = Listener(connection)
            connection.send([frames(0, [b"x", b"y"])])
            await until(lambda: listener.lost)
            assert connection.closed
            assert listener.codes == {}

    run(play())


def test_a_bookie_that_is_silent_is_given_up() -> None:
    async def play() -> None:
        async with peer(None) as port, pool(port, read_timeout_ms=300, add_timeout_ms=300) as one:
            connection = await one.get("b1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await connection.read(LEDGER, range(1))
            assert connection.closed
            connection = await one.get("b1")
            assert not connection.closed

    run(play())


# --- TLS ----------------------------------------------------------------------------------------


def test_certificates(tmp_path: Path) -> None:
    """Of the bookie's authority and of another, with a certificate of the client's own and without."""

    async def play() -> None:
        async with grpc_front(HeldBookie(), tls=contexts) as front:
            for trusted, own, works in (("ours", True, True), ("others", True, False), ("ours", False, False)):
                name = f"{trusted}-{own}"
                identity_ = identity("client", client_only=True) if own else None
                keys = write_pem(tmp_path / name, identity_, trusted) | {"tlsClientAuthentication": str(own).lower()}
                settings = ClientConfig.from_properties(keys | {"transport": "grpc"})
                async with pool_with(front.port, settings) as one:
                    if works:
                        assert (await (await one.get("b1")).bookie_info()).free_disk_bytes == 1
                    else:
                        with pytest.raises(BookieUnavailableError):
                            await one.get("b1")
            async with pool(front.port) as one:
                with pytest.raises(BookieUnavailableError):
                    await one.get("b1")

    keys = write_pem(tmp_path / "bookie", identity("bookie")) | {"tlsClientAuthentication": "true"}
    contexts = TlsContexts(ClientConfig.from_properties(keys), server_side=True)
    run(play())


@asynccontextmanager
async def pool_with(port: int, config: ClientConfig) -> AsyncIterator[ConnectionPool[GrpcConnection]]:
    async def resolve(bookie_id: str) -> tuple[str, int]:
        return "127.0.0.1", port

    one = ConnectionPool(grpc_connects(resolve, ClientTls(config)), config)
    try:
        yield one
    finally:
        await one.close()


def test_a_port_of_tls_without_http2_is_named_as_such(tmp_path: Path) -> None:
    """At once: it would wait for what its own clients say."""

    async def play() -> None:
        server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0, ssl=context)
        async with pool_with(server.sockets[0].getsockname()[1], config) as one:
            with pytest.raises(TlsError, match="ALPN"):
                await one.get("b1")
        for writer in writers:
            writer.transport.abort()
        server.close()
        await server.wait_closed()

    writers: list[asyncio.StreamWriter] = []
    keys = ClientConfig.from_properties(write_pem(tmp_path / "bookie", identity("bookie")))
    context = TlsContexts(keys, server_side=True).context
    config = ClientConfig.from_properties(write_pem(tmp_path / "client") | {"transport": "grpc"})
    run(play())


def test_a_bookie_that_is_not_trusted_is_named_as_such(tmp_path: Path) -> None:
    async def play() -> None:
        async with grpc_front(HeldBookie(), tls=contexts) as front:
            config = ClientConfig.from_properties(write_pem(tmp_path / "client", trusted="others"))
            async with pool_with(front.port, config) as one:
                with pytest.raises(TlsError, match="no TLS connection"):
                    await one.get("b1")

    contexts = TlsContexts(
        ClientConfig.from_properties(write_pem(tmp_path / "bookie", identity("bookie"))), server_side=True
    )
    run(play())


@pytest.mark.parametrize(
    ("keys", "works"),
    [
        ({"tlsEnabledProtocols": "TLSv1.3"}, True),
        ({"tlsEnabledProtocols": "TLSv1.2", "tlsEnabledCipherSuites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, True),
        ({"tlsHostnameVerificationEnabled": "true"}, False),
        ({"tlsHostnameVerificationEnabled": "false"}, True),
    ],
)
def test_settings_of_tls_are_obeyed(tmp_path: Path, keys: dict[str, str], works: bool) -> None:
    """The bookie's certificate is for another host in the last two."""

    async def play() -> None:
        async with grpc_front(HeldBookie(), tls=contexts) as front:
            config = ClientConfig.from_properties(write_pem(tmp_path / "client") | {"transport": "grpc"} | keys)
            async with pool_with(front.port, config) as one:
                if works:
                    assert (await (await one.get("b1")).bookie_info()).free_disk_bytes == 1
                else:
                    with pytest.raises(TlsError, match="certificate of the peer is refused"):
                        await one.get("b1")

    hosts = ("elsewhere.example",) if any("Hostname" in key for key in keys) else ("127.0.0.1",)
    files = write_pem(tmp_path / "bookie", identity("bookie", hosts=hosts))
    contexts = TlsContexts(ClientConfig.from_properties(files), server_side=True)
    run(play())


def test_a_transport_that_is_none() -> None:
    with pytest.raises(InvalidArgumentError, match="must be one of native, grpc"):
        ClientConfig(transport="grcp")
    with pytest.raises(InvalidArgumentError, match="did you mean"):
        ClientConfig.from_properties({"transport": "grcp"})


def test_calls_that_are_idle_end_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not while an answer is owed. The bookie sees no call then."""

    async def play() -> None:
        bookie = HeldBookie()
        async with grpc_front(bookie) as front, pool(front.port) as one:
            connection = await one.get("b1")
            places, without_calls = front.server.gate.places, len(asyncio.all_tasks())
            for _ in range(2):
                assert len(await connection.read(1, range(3))) == 3
                while len(places):
                    await asyncio.sleep(0.005)
            listener = Listener(connection)
            connection.send([frames(0, [b"x"])])
            while not bookie.entries:
                await asyncio.sleep(0.005)
            calls = front.server.gate.counters.calls
            for _ in range(10):
                await asyncio.sleep(0.02)  # all of them: four times as long as an idle call lives
                assert len(places) == 1
            connection.send([frames(1, [b"y"])])
            while bookie.entries < 2:
                await asyncio.sleep(0.005)
            assert front.server.gate.counters.calls == calls  # the same one took it
            bookie.answer()
            while len(places):
                await asyncio.sleep(0.005)
            assert (list(listener.codes), listener.lost, connection.closed) == ([0, 1], False, False)
            while len(asyncio.all_tasks()) > without_calls:
                await asyncio.sleep(0.005)

    monkeypatch.setattr("bk_spark.bookie.connection.grpc_streams._IDLE_S", 0.05)
    run(play())


@pytest.mark.parametrize(
    ("variables", "tuned"),
    [({}, "True"), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, "False"), ({"GLIBC_TUNABLES": ""}, "False")],
)
def test_freed_memory_is_kept_unless_the_environment_says_otherwise(variables: dict[str, str], tuned: str) -> None:
    """In a process of its own, since it is about the whole process."""
    mark = "import resource; faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt"
    use = "before = faults(); [bytes(1_500_000) for _ in range(50)]; print(tuned, faults() - before < 5_000)"
    script = (
        f"from bk_spark.bookie.connection.allocator import keep_freed_memory as keep; {mark}; tuned = keep(); {use}"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=own | variables, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split()[0] == tuned, done
    assert tuned == "False" or done.stdout.split()[1] == "True", done


def test_requests_over_grpc_are_larger_and_as_many_bytes_are_asked_ahead() -> None:
    native = read_settings(ClientConfig())
    over_grpc = read_settings(ClientConfig(transport="grpc"))
    assert over_grpc.request_bytes > native.request_bytes
    for one in (native, over_grpc):
        assert one.requests_ahead * one.request_bytes <= ClientConfig().read_ahead_bytes
    # No answer is larger than a frame.
    assert read_settings(ClientConfig(transport="grpc", max_frame_bytes=2_000_000)).request_bytes == 2_000_000
