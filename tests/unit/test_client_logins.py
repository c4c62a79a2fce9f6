"""The client's logins: pools of connections to our front end, and to peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.auth.providers import (
    BookieAuthProvider,
    BookieLogin,
    ClientAuthProvider,
    ClientLogin,
    LoginAnswer,
    Peer,
)
from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.auth.digest_md5 import DigestMd5Bookie
from bk_spark.protocol.errors import InvalidArgumentError, LoginError, UnauthorizedError
from bk_spark.protocol.wire.auth_frames import DISABLED, AuthMessage, auth_answer_v2, auth_answer_v3, auth_of
from bk_spark.protocol.wire.framing import Frames, frame, is_v3
from bk_spark.protocol.wire.v3.wire_v3 import parse_request
from bookie_server.config.access import AccessConfig
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.native.gate import Gate
from tests.support import patient_loop
from tests.support.certificates import write_pem
from tests.support.front import HeldBookie, front
from tests.support.jaas import client_keys, write_jaas
from tests.unit.test_net_tls import front_tls

KINDS = [BookieConnection, BookieConnectionV3]


def sasl_access(directory: Path) -> FrontAccess:
    jaas = write_jaas(directory / "bookie" / "jaas.conf")
    return FrontAccess(SaslBookie(jaas, "Bookie", re.compile(".*bookkeeper.*")))


def sasl_config(directory: Path, password: str = "golden", **keys: str) -> ClientConfig:
    jaas = write_jaas(directory / "client" / "jaas.conf", password=password, users={})
    return ClientConfig.from_properties(client_keys(jaas) | keys)


@contextlib.asynccontextmanager
async def pool_of(
    kind: Any, port: int, config: ClientConfig, login_timeout_s: float | None = None
) -> AsyncIterator[Any]:
    async def resolve(_: str) -> tuple[str, int]:
        return "127.0.0.1", port

    tls = ClientTls(config) if config.tls_enabled else None
    for_login = config if login_timeout_s is None else replace(config, read_timeout_ms=int(login_timeout_s * 1000))
    logins = Logins.of(for_login)
    pool = ConnectionPool(connects_by(kind, resolve, tls, logins), config)
    try:
        yield pool
    finally:
        await pool.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "tls"])
def test_a_client_logs_in_before_its_requests(
    tmp_path: Path, kind: Any, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Frames] = []
    handle = Gate.handle

    def note(gate: Gate, frames: Frames) -> Frames | None:
        checked.append(frames)
        return handle(gate, frames)

    monkeypatch.setattr(Gate, "handle", note)

    async def test() -> None:
        tls = front_tls(tmp_path / "tls", required=True) if encrypted else None
        keys = write_pem(tmp_path / "trust", None) if encrypted else {}
        config = sasl_config(tmp_path, **keys)
        access = sasl_access(tmp_path)
        async with (
            front(NetConfig(), HeldBookie(), tls=tls, access=access) as served,
            pool_of(kind, served.port, config) as pool,
        ):
            connection = await pool.get("b1")
            assert checked
            checked.clear()
            assert len(await connection.read(1, range(3))) == 3
            assert not checked  # nothing stands before the requests any more

    patient_loop.run(test())


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_an_error_that_says_so(tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        config = sasl_config(tmp_path, "not it")
        access = sasl_access(tmp_path)
        async with (
            front(NetConfig(), HeldBookie(), access=access) as served,
            pool_of(kind, served.port, config) as pool,
        ):
            with pytest.raises(LoginError) as refused:
                await pool.get("b1")
            assert str(refused.value).startswith("login failed: the bookie ")
            assert refused.value.bookie_id == "b1"

    with caplog.at_level(logging.DEBUG):
        patient_loop.run(test())
    assert "not it" not in caplog.text
    assert "golden" not in caplog.text


@contextlib.asynccontextmanager
async def peer_that(says: Callable[[AuthMessage, bytes], bytes | None]) -> AsyncIterator[int]:
    """A server that answers each AUTH as ``says`` does, given the message and its frame. None: it closes."""

    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                message = auth_of(body)
                assert message is not None
                answer = says(message, body)
                if answer is None:
                    break
                writer.write(answer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*filter(None, served))


def answered(body: bytes, plugin: str, payload: bytes) -> bytes:
    message = AuthMessage(plugin, payload)
    return auth_answer_v3(parse_request(body).header, message) if is_v3(body) else auth_answer_v2(message)


_STRAY = bytes.fromhex("0000000b0a0608031009180110f503")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("misbehaves", "says"),
    [
        ("does not know the password", "does not prove that it knows the password"),
        ("proves nothing", "does not prove that it knows the password"),
        ("sends no challenge", "a DIGEST-MD5 message that is not a list of directives"),
        ("names another way", "does not answer the login"),
        ("gives up in the middle", "does not answer the login"),
        ("says nothing", "no answer within 0.3 s; the user or the password may be wrong"),
        ("closes", "closed the connection; the user or the password may be wrong"),
        ("answers something else", "answers something other than AUTH"),
        ("sends too much", "sent more than the answers"),
        ("sends far too much", "closed the connection"),
        ("sends strays", "does not answer the login"),
    ],
)
def test_a_peer_that_is_no_bookie_of_ours(tmp_path: Path, kind: Any, misbehaves: str, says: str) -> None:
    def speak(message: AuthMessage, body: bytes) -> bytes | None:
        knows = "golden" if misbehaves == "sends too much" else "guess"
        bookie = DigestMd5Bookie({"bookkeeper": knows}, "nonce", "no password")
        if misbehaves == "closes":
            return None
        if misbehaves == "says nothing":
            return b""
        if misbehaves == "answers something else":
            return frame(b"\x02\x02\0\0" + bytes(20))
        if misbehaves == "names another way":
            return answered(body, "other", bookie.challenge())
        if misbehaves == "sends no challenge":
            return answered(body, "sasl", b"hello")
        if misbehaves == "sends far too much":
            return answered(body, "sasl", bookie.challenge()) * 10
        if misbehaves == "sends strays":
            return _STRAY * 2 + answered(body, "sasl", bookie.challenge())
        if not message.payload:
            return answered(body, "sasl", bookie.challenge())
        if misbehaves == "gives up in the middle":
            return answered(body, DISABLED, b"")
        if misbehaves == "sends too much":
            _, proof = bookie.check(message.payload)
            return answered(body, "sasl", proof) + answered(body, "sasl", b"more")
        return answered(body, "sasl", b"" if misbehaves == "proves nothing" else b"rspauth=" + b"0" * 32)

    async def test() -> None:
        config = sasl_config(tmp_path)
        timeout_s = 0.3 if misbehaves == "says nothing" else None
        async with peer_that(speak) as port, pool_of(kind, port, config, timeout_s) as pool:
            with pytest.raises(LoginError) as refused:
                await pool.get("b1")
            assert says in str(refused.value)
            assert pool.existing("b1") is None

    patient_loop.run(test())


@pytest.mark.parametrize("kind", KINDS)
def test_the_useless_answer_of_apaches_bookie_is_ignored(tmp_path: Path, kind: Any) -> None:
    """It sends it inside TLS, before its first answer or behind it."""

    async def test() -> None:
        bookie = DigestMd5Bookie({"bookkeeper": "golden"}, "nonce", "no password")

        def speak(message: AuthMessage, body: bytes) -> bytes:
            if not message.payload:
                return answered(body, "sasl", bookie.challenge()) + _STRAY
            return answered(body, "sasl", bookie.check(message.payload)[1])

        async with peer_that(speak) as port, pool_of(kind, port, sasl_config(tmp_path)) as pool:
            assert not (await pool.get("b1")).closed

    patient_loop.run(test())


def test_a_bookie_that_asks_nobody_to_log_in_is_used_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as served:
            for kind in KINDS:
                async with pool_of(kind, served.port, sasl_config(tmp_path)) as pool:
                    assert len(await (await pool.get("b1")).read(1, range(1))) == 1

    patient_loop.run(test())
    assert "bookie b1 asks nobody to log in" in caplog.text


# --- classes of a user's ---


class TokenLogin(ClientLogin):
    def __init__(self, token: bytes) -> None:
        self._token = token

    def answer(self, message: bytes | None) -> bytes | None:
        if message is None:
            return self._token
        if message != b"welcome":
            raise UnauthorizedError("it is not welcome")
        return None


class TokenClient(ClientAuthProvider):
    """Sends the content of a file."""

    plugin = "token"

    def __init__(self, file: str) -> None:
        self._token = Path(file).read_bytes()

    def begin(self, host: str) -> ClientLogin:
        assert host == "127.0.0.1"
        return TokenLogin(self._token)


class TokenCheck(BookieLogin):
    def __init__(self, token: bytes) -> None:
        self._token = token

    def answer(self, message: bytes) -> LoginAnswer:
        if message == b"broken":
            raise KeyError("a mistake in this class")
        if not hmac.compare_digest(message, self._token):
            raise UnauthorizedError("wrong token")
        return LoginAnswer(b"welcome", ("token:holder",))


class TokenBookie(BookieAuthProvider):
    plugin = "token"

    def __init__(self, file: str) -> None:
        self._token = Path(file).read_bytes()

    def begin(self, peer: Peer) -> BookieLogin:
        assert peer.address.startswith("('127.0.0.1', ")
        return TokenCheck(self._token)


class Nameless(ClientAuthProvider):
    pass


def _access(directory: Path, name: str) -> FrontAccess | None:
    config = AccessConfig(bookie_auth=f"{__name__}:{name}", auth_file=str(directory / "token"))
    return FrontAccess.of(config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", ["right", "wrong", "broken"])
def test_a_class_of_a_users_logs_in(tmp_path: Path, kind: Any, token: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "token").write_text("right")
    (tmp_path / "own").write_text(token)
    keys = {"clientAuthProviderFactoryClass": f"{__name__}:TokenClient", "authProviderFile": str(tmp_path / "own")}

    async def test() -> None:
        access = _access(tmp_path, "TokenBookie")
        config = ClientConfig.from_properties(keys)
        async with (
            front(NetConfig(), HeldBookie(), access=access) as served,
            pool_of(kind, served.port, config) as pool,
        ):
            if token == "right":
                assert len(await (await pool.get("b1")).read(1, range(1))) == 1
            else:
                with pytest.raises(LoginError):
                    await pool.get("b1")
                assert served.server.failed_logins == 1

    patient_loop.run(test())
    assert ("a mistake in this class" in caplog.text) == (token == "broken")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no.such.module:Thing", "cannot be imported: No module named"),
        (f"{__name__}:Nobody", "cannot be imported"),
        (f"{__name__}:TokenBookie", "is not a subclass of ClientAuthProvider"),
        (f"{__name__}:KINDS", "is not a subclass of ClientAuthProvider"),
        (f"{__name__}:Nameless", "has no name in its attribute plugin"),
    ],
)
def test_wrong_classes(name: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^clientAuthProviderFactoryClass: {re.escape(name)} {says}"):
        Logins.of(ClientConfig.from_properties({"clientAuthProviderFactoryClass": name}))
    with pytest.raises(InvalidArgumentError, match="must be org.apache.*SASLClientProviderFactory"):
        ClientConfig.from_properties({"clientAuthProviderFactoryClass": "org.example.Other"})


def test_wrong_files_and_settings_of_a_bookie(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="authorizedRoles is missing"):
        FrontAccess.of(AccessConfig(bookie_auth="org.apache.bookkeeper.tls.BookieAuthZFactory"))
    with pytest.raises(InvalidArgumentError, match=r"java.security.auth.login.config is missing"):
        FrontAccess.of(AccessConfig(bookie_auth="org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"))
    with pytest.raises(InvalidArgumentError, match="is not a subclass of BookieAuthProvider"):
        _access(tmp_path, "TokenClient")
    assert FrontAccess.of(AccessConfig()) is None
