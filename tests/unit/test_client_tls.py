"""The client's TLS: pools of connections to our front end, and to peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError, InvalidArgumentError, TlsError
from bk_spark.protocol.wire.start_tls import start_tls_answer
from bookie_server.net.common.entrance.front_tls import FrontTls
from bookie_server.net.common.limits import NetConfig
from tests.support import patient_loop
from tests.support.bookie import add_frame
from tests.support.certificates import PASSWORD, Identity, authority, identity, write_pem
from tests.support.front import MIB, HeldBookie, front, reads, until, v3_add
from tests.support.instances import instances

KINDS = [BookieConnection, BookieConnectionV3]


def server_tls(directory: Path, own: Identity | None = None, *, mutual: bool = False) -> FrontTls:
    keys = write_pem(directory / "bookie", own or identity("bookie"))
    config = ClientConfig.from_properties(keys | {"tlsClientAuthentication": str(mutual)})
    return FrontTls(TlsContexts(config, server_side=True), required=True)


def client_config(directory: Path, own: Identity | None = None, trusted: str = "ours", **keys: str) -> ClientConfig:
    given = write_pem(directory / "client", own, trusted)
    return ClientConfig.from_properties(given | {"tlsClientAuthentication": str(own is not None)} | keys)


@contextlib.asynccontextmanager
async def pool_of(kind: Any, port: int, config: ClientConfig, host: str = "127.0.0.1") -> AsyncIterator[Any]:
    async def resolve(_: str) -> tuple[str, int]:
        return host, port

    pool = ConnectionPool(connects_by(kind, resolve, ClientTls(config) if config.tls_enabled else None), config)
    try:
        yield pool
    finally:
        await pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
def test_adds_and_reads_go_through_tls(tmp_path: Path, kind: Any, mutual: bool) -> None:
    async def test() -> None:
        bookie, tls = HeldBookie(entry_bytes=2 * MIB), server_tls(tmp_path, mutual=mutual)
        config = client_config(tmp_path, identity("client") if mutual else None)
        async with front(NetConfig(), bookie, tls=tls) as served, pool_of(kind, served.port, config) as pool:
            connection = await pool.get("b1")
            # More than the socket takes at once.
            answered: list[int] = []
            connection.listen(1, lambda _, ids, codes: answered.extend(codes.tolist()), lambda _: None)
            is_v2 = kind is BookieConnection
            connection.send([add_frame(1, i, size=MIB) if is_v2 else v3_add(i, MIB) for i in range(20)])
            await until(lambda: bookie.entries == 20)
            bookie.answer()
            answers = await connection.read(1, range(5))
            assert {bytes(answer.stored) for answer in answers.values()} == {bookie.entry}
            await until(lambda: len(answered) == 20)
            assert set(answered) == {0}
            (there,) = served.connections
            assert there.peer_certificate == (identity("client").der if mutual else None)

    patient_loop.run(test())


@pytest.mark.parametrize(
    ("bookie", "trusted", "host", "says"),
    [
        (
            identity("late", expired=True),
            "ours",
            "127.0.0.1",
            "certificate has expired",
        ),
        (identity("bookie"), "others", "127.0.0.1", "unable to get local issuer certificate"),
        (identity("named", hosts=("bookie.example",)), "ours", "127.0.0.1", "IP address mismatch"),
        (identity("numbered", hosts=("127.0.0.1",)), "ours", "localhost", "Hostname mismatch"),
        (identity("client", client_only=True), "ours", "127.0.0.1", "unsuitable certificate purpose"),
    ],
    ids=["expired", "unknown", "other host", "address only", "a client's"],
)
def test_a_bookie_with_a_wrong_certificate_is_refused(
    tmp_path: Path, bookie: Identity, trusted: str, host: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        held, tls = HeldBookie(), server_tls(tmp_path, bookie)
        config = client_config(tmp_path, trusted=trusted)
        async with front(NetConfig(), held, tls=tls) as served, pool_of(KINDS[0], served.port, config, host) as pool:
            with pytest.raises(TlsError) as caught:
                await pool.get("b1")
            assert str(caught.value).startswith("no TLS connection: the certificate of the peer is refused: ")
            assert says in str(caught.value)
            assert caught.value.bookie_id == "b1"
            # The bookie learns why, too.
            await until(lambda: tls.failed_handshakes == 1)

    with caplog.at_level(logging.WARNING):
        patient_loop.run(test())
    assert "TLS handshake failed: the peer does not accept it: " in caplog.text
    assert says in caplog.text


def test_the_host_is_not_checked_if_that_is_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        tls = server_tls(tmp_path, identity("named", hosts=("bookie.example",)))
        config = client_config(tmp_path, tlsHostnameVerificationEnabled="false")
        async with front(NetConfig(), HeldBookie(), tls=tls) as served, pool_of(KINDS[0], served.port, config) as pool:
            assert len(await (await pool.get("b1")).read(1, range(1))) == 1

    patient_loop.run(test())
    assert "tlsHostnameVerificationEnabled=false: whoever has a certificate" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("own", "says"),
    [
        (None, "it requires a certificate, and none was sent"),
        (identity("late client", expired=True), "the certificate has expired"),
        (identity("stranger", signed_by="others"), "the certificate is not from an authority that it trusts"),
    ],
    ids=["none", "expired", "unknown"],
)
def test_a_client_that_the_bookie_refuses_says_why(tmp_path: Path, kind: Any, own: Identity | None, says: str) -> None:
    """With TLS 1.3 the client's handshake has succeeded by then."""

    async def test() -> None:
        tls = server_tls(tmp_path, mutual=True)
        config = client_config(tmp_path, own)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served, pool_of(kind, served.port, config) as pool:
            with pytest.raises(TlsError) as caught:
                await (await pool.get("b1")).read(1, range(3))
            text = str(caught.value)
            assert says in text or "perhaps because it requires a certificate" in text

    patient_loop.run(test())


def test_a_client_in_clear_is_told_that_the_bookie_requires_tls(tmp_path: Path) -> None:
    async def test() -> None:
        bookie, tls = HeldBookie(), server_tls(tmp_path)
        async with front(NetConfig(), bookie, tls=tls) as served:
            for kind in KINDS:
                async with pool_of(kind, served.port, ClientConfig()) as pool:
                    answers = await (await pool.get("b1")).read(1, range(2))
                    assert {answer.code for answer in answers.values()} == {Code.UNAUTHORIZED}
        assert bookie.reads == 0

    patient_loop.run(test())


def test_a_bookie_without_tls_is_not_asked_in_clear(tmp_path: Path) -> None:
    async def test() -> None:
        bookie, config = HeldBookie(), client_config(tmp_path)
        async with front(NetConfig(), bookie) as served, pool_of(KINDS[0], served.port, config) as pool:
            with pytest.raises(TlsError, match="the bookie does not offer TLS"):
                await pool.get("b1")
        assert bookie.reads == 0

    patient_loop.run(test())


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(answer: bytes, *, closes: bool = False) -> Serve:
    """A peer that answers START_TLS with ``answer``, and then waits or closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(15)
        writer.write(answer)
        if not closes:
            await reader.read()
        writer.close()

    return serve


_GRANTED = start_tls_answer(1)


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        # Somebody on the way could pass these off as the bookie's answers.
        (answering(_GRANTED + reads((1, 1))), "the bookie sent bytes in clear after its answer"),
        (answering(_GRANTED + b"\x00"), "the bookie sent bytes in clear after its answer"),
        (answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "the peer's answer is not a bookie's"),
        (answering(bytes.fromhex("00000002ffff")), "the peer's answer is not a bookie's"),
        (answering(b"", closes=True), "the bookie closed the connection when TLS was asked for"),
        (answering(_GRANTED, closes=True), "the peer closed the connection during the handshake"),
    ],
)
def test_wrong_answers_to_start_tls_end_the_connection(tmp_path: Path, serve: Serve, says: str) -> None:
    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1")
        async with server, pool_of(KINDS[0], server.sockets[0].getsockname()[1], client_config(tmp_path)) as pool:
            with pytest.raises(TlsError) as caught:
                await pool.get("b1")
            assert says in str(caught.value)

    patient_loop.run(test())


def test_bytes_in_clear_in_place_of_the_handshake_end_the_connection(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(15)
        writer.write(_GRANTED)
        await reader.read(10)  # the handshake has begun
        writer.write(reads((1, 1)) * 3)
        await reader.read()
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1")
        async with server, pool_of(KINDS[0], server.sockets[0].getsockname()[1], client_config(tmp_path)) as pool:
            with pytest.raises(TlsError, match="the peer sent bytes in clear where the handshake was expected"):
                await pool.get("b1")

    patient_loop.run(test())


@pytest.mark.parametrize("answer", [b"", _GRANTED], ids=["no answer", "no handshake"])
def test_a_peer_that_stalls_is_given_up(tmp_path: Path, answer: bytes) -> None:
    async def test() -> None:
        config = client_config(tmp_path, clientConnectTimeoutMillis="100")
        server = await asyncio.start_server(answering(answer), "127.0.0.1")
        async with server, pool_of(KINDS[0], server.sockets[0].getsockname()[1], config) as pool:
            with pytest.raises(BookieUnavailableError):
                await pool.get("b1")

    patient_loop.run(test())


def test_keys_of_the_client_win_over_the_common_ones(tmp_path: Path) -> None:
    common = write_pem(tmp_path / "common", identity("common"), "others")
    own = identity("own")
    (tmp_path / "own.p12").write_bytes(own.pkcs12(PASSWORD))
    (tmp_path / "trusted.pem").write_bytes(authority("ours").pem)
    (tmp_path / "password").write_text(PASSWORD)
    config = ClientConfig.from_properties(
        common
        | {
            "tlsClientAuthentication": "true",
            "clientKeyStoreType": "PKCS12",
            "clientKeyStore": str(tmp_path / "own.p12"),
            "clientKeyStorePasswordPath": str(tmp_path / "password"),
            "clientTrustStore": str(tmp_path / "trusted.pem"),
        }
    )

    async def test() -> None:
        tls = server_tls(tmp_path, mutual=True)
        async with front(NetConfig(), HeldBookie(), tls=tls) as served, pool_of(KINDS[0], served.port, config) as pool:
            await (await pool.get("b1")).read(1, range(1))
            (there,) = served.connections
            assert there.peer_certificate == own.der

    patient_loop.run(test())
    (tmp_path / "password").write_text("wrong")
    with pytest.raises(InvalidArgumentError) as caught:
        ClientTls(config)
    assert str(caught.value).startswith(f"clientKeyStore: {tmp_path}/own.p12 cannot be read")
    assert "wrong" not in str(caught.value).replace("is wrong", "")


def test_settings_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("# the client\naddEntryTimeoutSec = 7\ntlsTrustStore=/ca.pem\n")
    config = ClientConfig.from_file(path)
    assert (config.add_timeout_ms, config.tls_trust_store, config.tls_enabled) == (7000, "/ca.pem", False)
    for text, says in (
        ("tlsTrustStor=/x", f"{path}: client configuration has no key 'tlsTrustStor'; did you mean tlsTrustStore?"),
        ("words", f"{path} line 1 is not of the form key=value"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError) as caught:
            ClientConfig.from_file(path)
        assert str(caught.value) == says
    with pytest.raises(InvalidArgumentError, match="cannot read configuration file"):
        ClientConfig.from_file(tmp_path / "none")


def test_no_secret_is_in_a_text_about_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = instances(monkeypatch, TlsContexts)
    own = identity("client")
    config = client_config(tmp_path, own)
    tls = ClientTls(config)
    texts = [repr(config), str(config), repr(tls), repr(contexts), repr(config.key_store())]
    key = own.key_pem().decode().splitlines()[1]
    assert not any(key in text or "PRIVATE" in text for text in texts)


def test_numbers_of_the_writers_are_those_of_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces wait in the connection while the peer takes nothing, and not in the layer of TLS."""
    transports: list[asyncio.Transport] = []
    paused = asyncio.Event()
    made, pause = BookieConnection.connection_made, BookieConnection.pause_writing

    def note_made(connection: BookieConnection, transport: asyncio.Transport) -> None:
        transports.append(transport)
        made(connection, transport)

    def note_pause(connection: BookieConnection) -> None:
        paused.set()
        pause(connection)

    monkeypatch.setattr(BookieConnection, "connection_made", note_made)
    monkeypatch.setattr(BookieConnection, "pause_writing", note_pause)

    async def test() -> None:
        bookie, config, tls = HeldBookie(), client_config(tmp_path), server_tls(tmp_path)
        async with front(NetConfig(), bookie, tls=tls) as served, pool_of(KINDS[0], served.port, config) as pool:
            connection = await pool.get("b1")
            (there,) = served.connections
            there.pause(1)
            frames = [np.frombuffer(add_frame(1, i, size=MIB), np.uint8) for i in range(64)]
            sent = [weakref.ref(frame) for frame in frames]
            connection.send([memoryview(frame) for frame in frames])  # type: ignore[arg-type]
            del frames
            await paused.wait()
            assert transports[-1].get_write_buffer_size() <= 512 * 1024
            assert sum(one() is not None for one in sent) > 32  # the connection holds them
            there.resume(1)
            ids: list[int] = []

            def all_arrived() -> bool:
                ids.extend(entry_id for records, _ in bookie.adds for entry_id in records.entry_ids.tolist())
                bookie.answer()  # unanswered adds are bounded
                return len(ids) == 64

            await until(all_arrived)
            assert ids == list(range(64))

    patient_loop.run(test())
