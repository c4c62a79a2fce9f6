"""Logins: messages of DIGEST-MD5, AUTH frames, a connection that must log in, files of users and rights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.bookie.auth.jaas import options_of
from bk_spark.bookie.auth.providers import BookieAuthProvider, BookieLogin, Peer
from bk_spark.bookie.auth.sasl import _BookieLogin
from bk_spark.protocol.auth.digest_md5 import DigestMd5Bookie, DigestMd5Client, directives
from bk_spark.protocol.errors import InvalidArgumentError, UnauthorizedError, WireFormatError
from bk_spark.protocol.proto import sessions_pb2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import AuthMessage, auth_answer_of, auth_of, auth_request
from bookie_server.net.common.access.certificates import names_in, role_in
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.rights import ALL, Authorization
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.grpc.access.logins import LoginService
from bookie_server.net.grpc.access.sessions import Sessions
from tests.fuzz.damage import hostile, pieces
from tests.fuzz.front import Owner, serve
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.support.certificates import identity
from tests.support.front import HeldBookie, v3_add
from tests.support.jaas import MODULE

_USERS: Final = {"bookkeeper": "golden", "ü": 'a "b" \\ c'}
_CHALLENGE: Final = DigestMd5Bookie({}, "nonce", "no password").challenge()
_TEXT: Final = st.text(max_size=20)
_RESPONSE: Final = st.builds(
    lambda user, password, cnonce: DigestMd5Client(user, password, cnonce).respond(_CHALLENGE),
    st.sampled_from([*_USERS]) | _TEXT,
    st.sampled_from([*_USERS.values()]) | _TEXT,
    _TEXT,
)
#: What a digest is made of.
_SIGNED: Final = ("username", "realm", "nonce", "cnonce", "nc", "qop", "digest-uri", "authzid", "response")


@fuzz(150, message=hostile(_RESPONSE))
def test_a_response_is_right_or_refused(message: bytes) -> None:
    """Who is let in has proved it: with what the message says, the user's password gives the same digest."""
    result = outcome(
        lambda: DigestMd5Bookie(_USERS, "nonce", "no password").check(message),
        UnauthorizedError,
        WireFormatError,
        max_text=500,
    )
    if isinstance(result, Refused):
        assert not any(password in str(result.error) for password in _USERS.values())
        return
    user, proof = result
    given = directives(message)
    client = DigestMd5Client(user, _USERS[user], given["cnonce"])
    expected = directives(client.respond(_CHALLENGE))
    client.check(proof)
    if "authzid" in given:
        assert {name: given.get(name, expected[name]) for name in _SIGNED} == {name: expected[name] for name in _SIGNED}


@fuzz(100, challenge=hostile(st.just(_CHALLENGE)), proof=hostile(st.just(b"rspauth=" + b"0" * 32)))
def test_a_client_reads_any_challenge_and_proof(challenge: bytes, proof: bytes) -> None:
    client = DigestMd5Client("bookkeeper", "golden", "cnonce")
    response = outcome(lambda: client.respond(challenge), WireFormatError)
    if not isinstance(response, Refused):
        assert b"golden" not in response
    assert isinstance(outcome(lambda: client.check(proof), UnauthorizedError, WireFormatError), Refused)


_AUTH: Final = st.builds(
    lambda plugin, payload, v2: auth_request(AuthMessage(plugin, payload), v2=v2)[4:],
    st.sampled_from(["sasl", "AuthDisabledPlugin", ""]) | _TEXT,
    st.binary(max_size=40) | _RESPONSE,
    st.booleans(),
)


@fuzz(150, body=hostile(_AUTH), v2=st.booleans())
def test_frames_of_logins(body: bytes, v2: bool) -> None:
    outcome(lambda: auth_of(body), WireFormatError)
    outcome(lambda: auth_answer_of(body, v2=v2), WireFormatError, UnauthorizedError)


class _Sasl(BookieAuthProvider):
    plugin = "sasl"

    def __init__(self) -> None:
        super().__init__("")

    def begin(self, peer: Peer) -> BookieLogin:
        return _BookieLogin(_USERS, re.compile(".*"))


_REQUESTS: Final = st.sampled_from(
    [v3_add(1), wire_v2.read_requests(1, [1]), wire_v2.batch_read_request(1, 0, 9, 1, 9)]
)
_FRAME: Final = _AUTH.map(lambda body: len(body).to_bytes(4, "big") + body)
_STREAM: Final[SearchStrategy[bytes]] = st.builds(b"".join, st.lists(_FRAME | _REQUESTS, min_size=1, max_size=5))


@fuzz(100, stream=hostile(_STREAM), sizes=pieces((1, 3, 4, 60, 1000)))
def test_nothing_is_done_for_who_has_not_logged_in(
    stream: bytes, sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Nonces are new each time, so no login can succeed."""
    bookie = HeldBookie()
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        config = NetConfig(max_frame_bytes=64 * 1024)
        asyncio.run(serve(bookie, stream, sizes, Owner(silent=True), config=config, access=FrontAccess(_Sasl())))
    assert not caplog.records, caplog.text
    # Each add would have left its priority.
    assert (bookie.priorities, bookie.reads) == ([], 0)


class _Call:
    """A call of LogIn, given its messages."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self.answers: list[bytes] = []
        self.status: grpc.StatusCode | None = None
        self.message_s: float | None = 1.0

    def peer(self) -> str:
        return "somebody"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def read(self) -> Any:
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.answers.append(message)

    async def abort(self, status: grpc.StatusCode, _: str) -> None:
        self.status = status
        raise grpc.aio.AbortError


_MESSAGE: Final = st.builds(
    lambda plugin, payload: sessions_pb2.LogInMessage(plugin=plugin, payload=payload).SerializeToString(),
    st.sampled_from(["sasl", "sasl", "sasl", "other"]),
    st.just(b"") | hostile(_RESPONSE),
)


@fuzz(100, messages=st.lists(hostile(_MESSAGE), max_size=5))
def test_no_session_begins_without_a_login(messages: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    """Over gRPC. Nonces are new each time, so no login can succeed."""
    sessions, call = Sessions(9), _Call(list(messages))
    caplog.clear()
    with caplog.at_level(logging.ERROR), contextlib.suppress(grpc.aio.AbortError):
        log_in = LoginService(FrontAccess(_Sasl()), sessions).methods()["LogIn"].stream_stream
        asyncio.run(log_in(None, call))
    assert not caplog.records, caplog.text
    assert call.status in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
    assert len(sessions) == 0
    assert not any(sessions_pb2.LogInAnswer.FromString(answer).session for answer in call.answers)


_JAAS: Final = st.builds(
    lambda section, user, password: f'{section} {{ {MODULE} required user_{user}="{password}"; }};\n'.encode(),
    st.sampled_from(["Bookie", "Auditor"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["hidden-1", 'hidden-2 \\" x']),
)


@fuzz(150, data=hostile(st.builds(b"".join, st.lists(_JAAS, max_size=3))))
def test_files_of_users(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "jaas")
        path.write_bytes(data)
        path.chmod(0o600)
        result = outcome(lambda: options_of(str(path), "Bookie", "key"), InvalidArgumentError, names=str(path))
    if isinstance(result, Refused):
        assert "hidden" not in str(result.error)


_TABLE: Final = st.builds(
    lambda rights, name: f"{rights} {name}\n".encode(),
    st.sampled_from(["read", "read,write", "all", "none", ","]),
    st.sampled_from(["*", "user:*", "anonymous", "subject:CN=a b,O=c*", "x", "user:" + "*a" * 20]),
)


@fuzz(100, data=hostile(st.builds(b"".join, st.lists(_TABLE, max_size=4))), name=_TEXT)
def test_tables_of_rights(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "table")
        path.write_bytes(data)
        result = outcome(lambda: Authorization.load(str(path)), InvalidArgumentError, names=str(path))
    if not isinstance(result, Refused):
        assert 0 <= result.rights_of((f"user:{name}",)) <= ALL


@fuzz(60, der=hostile(st.just(identity("fuzz", units=("0:writers",)).der)))
def test_names_in_certificates(der: bytes) -> None:
    """OpenSSL has verified them before; another reader must not fail nevertheless."""
    names, role = outcome(lambda: (names_in(der), role_in(der)))  # type: ignore[misc]
    assert role is None or f"role:{role}" in names
