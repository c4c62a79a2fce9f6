"""TLS at the native front end, over real sockets. The peers use asyncio's own TLS, not the layer under test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.bookie.tls.settings import TlsSettings
from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.start_tls import hello_bytes, start_tls_request
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.settings.setting import settings_of
from bookie_server.net.common.entrance.front_tls import FrontTls, Greeting
from bookie_server.net.common.limits import NetConfig
from tests.support.bookie import add_frame
from tests.support.certificates import Identity, identity, write_pem
from tests.support.front import AUTH, MIB, Front, HeldBookie, Peer, front, reads, run, until, v3, v3_add

_REQUEST = bytes.fromhex("0000000b0a06080310091801d20600")
_GRANTED = bytes.fromhex("0000000d0a060803100918011000d20600")
_FIELDS = {setting.name: field for field, setting in settings_of(TlsSettings).items()}


def tls_settings(keys: dict[str, str]) -> TlsSettings:
    settings = settings_of(TlsSettings)
    return TlsSettings(**{_FIELDS[key]: settings[_FIELDS[key]].parse(text) for key, text in keys.items()})


def front_tls(directory: Path, own: Identity | None = None, *, required: bool = False, **keys: str) -> FrontTls:
    settings = tls_settings(write_pem(directory, own or identity("bookie")) | keys)
    return FrontTls(TlsContexts(settings, server_side=True), required=required)


def client_context(directory: Path, own: Identity | None = None, trusted: str = "ours") -> ssl.SSLContext:
    keys = write_pem(directory, own, trusted)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(keys["tlsTrustStore"])
    if own is not None:
        context.load_cert_chain(keys["tlsCertificatePath"], keys["tlsKeyStore"])
    return context


class TlsPeer:
    """A client over asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def body(self) -> bytes:
        async with asyncio.timeout(60):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)

    async def fails(self) -> BaseException:
        """Ask for something; how that fails."""
        self.send(reads((1, 1)))
        with pytest.raises((OSError, asyncio.IncompleteReadError)) as caught:
            await self.body()
        return caught.value


@contextlib.asynccontextmanager
async def connected(
    served: Front, context: ssl.SSLContext, host: str = "localhost", *, source: str = "127.0.0.1"
) -> AsyncIterator[TlsPeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(source, 0))
    try:
        writer.write(start_tls_request())
        assert await reader.readexactly(len(_GRANTED)) == _GRANTED
        await writer.start_tls(context, server_hostname=host)
        yield TlsPeer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_start_tls_is_apaches_byte_for_byte() -> None:
    """The frames of Apache's client and bookie 4.18.0, as captured."""
    assert start_tls_request() == _REQUEST


def test_the_first_record_of_a_handshake_is_awaited_whole() -> None:
    assert [hello_bytes(some) for some in (b"\0", b"GET /", b"\x15\x03\x01\x00\x02")] == [1, 1, 1]
    assert [hello_bytes(b"\x16\x03\x01\x02\x00"[:size]) for size in (1, 4, 5)] == [5, 5, 517]
    assert hello_bytes(b"\x16\x03\x01\x02\x00\x01\x00") == 517
    # Nobody waits for more than a hello has.
    assert hello_bytes(b"\x16\x03\x03\xff\xff") == 4096


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_of_both_protocols_are_served_inside_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async def test() -> None:
        bookie, context = HeldBookie(entry_bytes=3 * MIB), client_context(tmp_path / "client")
        context.minimum_version = context.maximum_version = version
        tls = front_tls(tmp_path, required=True)
        async with front(NetConfig(), bookie, tls=tls) as served:
            async with connected(served, context) as peer:
                # Frames that fill the common buffer many times, one that does not fit, and many small ones.
                sizes = [4 * MIB, *[100] * 3000, 64 * 1024, 1]
                peer.send(b"".join(add_frame(1, i, size=size) for i, size in enumerate(sizes)))
                await until(lambda: bookie.entries == len(sizes))
                assert sum(len(records.data) for records, _ in bookie.adds) > 4 * MIB
                bookie.answer()
                codes = [int.from_bytes((await peer.body())[4:8], "big") for _ in sizes]
                assert set(codes) == {0}
                peer.send(reads((1, 1), (1, 2), (1, 3)))
                for _ in range(3):
                    assert (await peer.body())[24:] == bookie.entry
            async with connected(served, context) as peer:
                peer.send(v3_add(7) + v3_add(8, 2 * MIB))
                await until(lambda: bookie.entries == 2)
                bookie.answer()
                for _ in range(2):
                    assert wire_v3.parse_response(await peer.body()).status == pb.EOK
            assert (tls.handshakes, tls.failed_handshakes, tls.refused_connections) == (2, 0, 0)

    run(test)


def test_the_clients_certificate_is_kept_on_its_connection(tmp_path: Path) -> None:
    async def test() -> None:
        client = identity("writer", client_only=True)
        tls = front_tls(tmp_path, tlsClientAuthentication="true")
        context = client_context(tmp_path / "client", client)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served, connected(served, context) as peer:
            peer.send(reads((1, 1)))
            await peer.body()
            (connection,) = served.connections
            assert connection.peer_certificate == client.der

    run(test)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (None, "CERTIFICATE_REQUIRED"),
        (identity("late", expired=True), "CERTIFICATE_EXPIRED"),
        (identity("stranger", signed_by="others"), "UNKNOWN_CA"),
    ],
    ids=["none", "expired", "unknown"],
)
def test_mutual_tls_refuses_other_certificates_and_tells_the_client_why(
    tmp_path: Path, client: Identity | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path, tlsClientAuthentication="true")
        async with front(NetConfig(), bookie, tls=tls) as served:
            async with connected(served, client_context(tmp_path / "client", client)) as peer:
                error = await peer.fails()
            assert isinstance(error, ssl.SSLError)
            assert says in str(error.reason)
            await until(lambda: tls.failed_handshakes == 1)
            assert bookie.reads == 0

    run(test)
    (line,) = [record.getMessage() for record in caplog.records if "handshake" in record.getMessage()]
    assert line.startswith("connection from ('127.0.0.1', ")
    assert "PRIVATE" not in line


def test_requests_in_clear_are_refused_where_tls_is_required(tmp_path: Path) -> None:
    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path, required=True)
        async with front(NetConfig(), bookie, tls=tls) as served:
            v2 = await served.connect()
            await v2.send(add_frame(1, 0, size=2 * MIB) + add_frame(1, 1) + reads((1, 1), (1, 2)))
            assert await v2.codes(4) == [Code.UNAUTHORIZED] * 4
            await v2.send(wire_v2.batch_read_request(1, 0, 9, 10, 1000))
            assert (await v2.body())[4:8] == Code.UNAUTHORIZED.to_bytes(4, "big")
            await v2.send(AUTH)
            assert await v2.closed()
            newer = await served.connect()
            await newer.send(v3_add(1) + v3(pb.GET_BOOKIE_INFO, 2, getBookieInfoRequest=pb.GetBookieInfoRequest()))
            # Too late: whoever began in clear stays in clear.
            await newer.send(v3(pb.START_TLS, 3))
            answers = [wire_v3.parse_response(await newer.body()) for _ in range(3)]
            assert [answer.status for answer in answers] == [pb.EUA] * 3
            assert [answer.header.txnId for answer in answers] == [1, 2, 3]
            assert (bookie.entries, bookie.reads, tls.refused_connections) == (0, 0, 2)

    run(test)


def test_hundreds_of_requests_in_clear_are_refused_in_turns(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path, required=True)) as served:
            peer = await served.connect()
            await peer.send(reads(*[(1, i) for i in range(300)]))
            assert set(await peer.codes(300)) == {Code.UNAUTHORIZED}

    run(test)


@pytest.mark.parametrize("required", [False, True])
def test_nothing_that_came_in_clear_behind_start_tls_is_obeyed(
    tmp_path: Path, required: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path, required=required)
        async with front(NetConfig(), bookie, tls=tls) as served:
            for behind in (reads((1, 1)), v3_add(1), AUTH, _REQUEST, b"\0"):
                peer = await served.connect()
                await peer.send(_REQUEST + behind)
                assert frame(await peer.body()) == _GRANTED
                if behind == b"\0":  # the beginning of nothing: the handshake waits for the rest
                    await peer.send(reads((1, 1)))
                await until_closed(peer)
            await until(lambda: served.server.connection_count == 0)
            assert (bookie.entries, bookie.reads) == (0, 0)
            assert tls.failed_handshakes == 5

    run(test)
    # What came is the reason, not that nothing more came.
    assert "TLS handshake failed" in caplog.text
    assert "it took too long" not in caplog.text


async def until_closed(peer: Peer) -> None:
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(peer.loop.sock_recv(peer.socket, 1 << 16), 60):
            pass  # an alert may come first; it is no frame


def test_start_tls_after_another_request_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            peer = await served.connect()
            await peer.send(v3(pb.READ_LAC, 1, readLacRequest=pb.ReadLacRequest(ledgerId=9)))
            await peer.body()
            await peer.send(_REQUEST)
            assert wire_v3.parse_response(await peer.body()).status == pb.EBADREQ
            await peer.send(reads((1, 1)))
            assert await peer.codes(1) == [0]

    run(test)


def test_start_tls_may_come_in_pieces(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            for i in range(len(_REQUEST)):
                assert served.server.connection_count <= 1
                writer.write(_REQUEST[i : i + 1])
                await asyncio.sleep(0.01)  # pieces are received apart
            assert await reader.readexactly(len(_GRANTED)) == _GRANTED
            await writer.start_tls(client_context(tmp_path / "client"), server_hostname="localhost")
            peer = TlsPeer(reader, writer)
            peer.send(reads((1, 1)))
            assert (await peer.body())[4:8] == bytes(4)
            writer.close()
            await writer.wait_closed()
            # A request in clear, too.
            plain = await served.connect()
            for piece in (reads((1, 1))[:3], reads((1, 1))[3:]):
                await plain.send(piece)
                await asyncio.sleep(0.01)  # as above
            assert await plain.codes(1) == [0]

    run(test)


def test_a_peer_that_hangs_up_in_the_middle_of_start_tls_is_forgotten(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            for size in (1, 3, 4, 10):
                peer = await served.connect()
                await peer.send(_REQUEST[:size])
                await until(lambda: served.server.connection_count == 1)
                peer.socket.close()
                await until(lambda: served.server.connection_count == 0)

    run(test)


def test_a_bookie_without_tls_says_so_and_goes_on() -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as served:
            peer = await served.connect()
            await peer.send(_REQUEST + reads((1, 1)))
            assert frame(await peer.body()) == bytes.fromhex("0000000b0a06080310091801109403")
            assert await peer.codes(1) == [0]

    run(test)


def test_a_handshake_without_start_tls_is_no_frame(tmp_path: Path) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path)) as served:
            with pytest.raises(OSError):
                await asyncio.open_connection(
                    "127.0.0.1", served.port, ssl=client_context(tmp_path / "client"), server_hostname="localhost"
                )

    run(test)


# Nothing, and a first record of a longer message: the bookie's task of the handshake has begun.
@pytest.mark.parametrize("some", [b"", b"\x16\x03\x01\x00\x0b\x01\x00\x01\xfc\x03\x03" + bytes(5)])
def test_an_unfinished_handshake_gives_way_to_a_newcomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some: bytes
) -> None:
    monkeypatch.setattr("bookie_server.net.common.entrance.front_tls._HANDSHAKE_TIMEOUT_S", 3600.0)
    begun: list[Greeting] = []
    secure = Greeting.secure

    async def note(greeting: Greeting, *arguments: Any) -> None:
        begun.append(greeting)
        await secure(greeting, *arguments)

    monkeypatch.setattr(Greeting, "secure", note)

    async def test() -> None:
        config = NetConfig(max_connections=2, idle_before_eviction_ms=0)
        async with front(config, HeldBookie(), tls=front_tls(tmp_path)) as served:
            stalled = [await served.connect() for _ in range(2)]
            for peer in stalled:
                await peer.send(_REQUEST)
                await peer.body()
                await peer.send(some)
            if some:
                await until(lambda: len(begun) == 2)
            newcomer = await served.connect()
            await newcomer.send(reads((1, 1)))
            assert await newcomer.codes(1) == [0]
            assert await stalled[0].closed()
            assert served.server.evicted_connections >= 1

    run(test)


def test_answers_that_a_peer_does_not_read_are_counted(tmp_path: Path) -> None:
    async def test() -> None:
        bookie = HeldBookie(entry_bytes=8 * 1024)  # a transport takes such answers whole, and waits for sockets
        context = client_context(tmp_path / "client")
        async with front(NetConfig(), bookie, tls=front_tls(tmp_path)) as served, connected(served, context) as peer:
            peer.writer.transport.pause_reading()
            count = 4000  # 32 MiB: more than sockets take
            peer.send(reads(*[(1, i) for i in range(count)]))
            load = served.server.load
            await until(lambda: load.unsent_bytes >= 64 * 1024)
            assert load.unsent_bytes < 8 * MIB
            peer.writer.transport.resume_reading()
            for _ in range(count):
                assert len(await peer.body()) == 24 + len(bookie.entry)

    run(test)


def test_changed_certificates_are_used_for_new_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        first, second = identity("bookie"), identity("bookie again")
        settings = tls_settings(write_pem(tmp_path, first))
        # Looked at whenever a connection is made.
        tls = FrontTls(TlsContexts(replace(settings, tls_refresh_ms=1), server_side=True), required=False)
        context = client_context(tmp_path / "client")

        async def served_with(peer: TlsPeer) -> bytes | None:
            peer.send(reads((1, 1)))
            await peer.body()
            return peer.writer.get_extra_info("ssl_object").getpeercert(True)  # type: ignore[no-any-return]

        async with front(NetConfig(), HeldBookie(), tls=tls) as served, connected(served, context) as old:
            assert await served_with(old) == first.der
            (tmp_path / "key.pem").write_bytes(second.key_pem())
            await asyncio.sleep(0.01)  # then the next look at the files is due
            async with connected(served, context) as peer:  # half of the change: the key without its certificate
                assert await served_with(peer) == first.der
            (tmp_path / "cert.pem").write_bytes(second.pem)
            await asyncio.sleep(0.01)  # as above
            async with connected(served, context) as peer:
                assert await served_with(peer) == second.der
            assert await served_with(old) == first.der

    caplog.set_level("INFO")
    run(test)
    text = caplog.text
    assert "the changed certificates are not used" in text
    assert "is not the key of the certificate" in text
    assert "the changed certificates are used" in text
    assert "PRIVATE" not in text
