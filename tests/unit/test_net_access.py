"""Who may use the native front end, over real sockets: roles in certificates, and logins."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509

from bk_spark.bookie.auth.providers import Peer
from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.protocol.auth.digest_md5 import DigestMd5Client
from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import DISABLED, AuthMessage, auth_answer_of, auth_request
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.start_tls import start_tls_request
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.net.common.access import pauses
from bookie_server.net.common.access.certificates import names_in
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.pauses import FailedLately, RefusalPauses, RefusalsByPeer, Spread
from bookie_server.net.common.limits import NetConfig
from tests.support.bookie import add_frame
from tests.support.certificates import identity
from tests.support.front import AUTH, Front, HeldBookie, Peer as ClearPeer, front, reads, run, until, v3, v3_add
from tests.support.jaas import write_jaas
from tests.unit.test_net_tls import TlsPeer, client_context, connected, front_tls

_ROLES = frozenset({"role-a", "role-b"})
GRANTED = bytes.fromhex("0000000d0a060803100918011000d20600")
#: The first messages of Apache's client 4.18.0.
FIRST_V3 = bytes.fromhex("000000130a06080310051802b206080a047361736c1200")
FIRST_V2 = bytes.fromhex("0000000c020300000a047361736c1200")
#: What is no beginning of a login, or more than one.
NO_BEGINNINGS = (
    FIRST_V3 + FIRST_V3,
    FIRST_V3 + reads((1, 1)),
    auth_request(AuthMessage("sasl", b"token"), v2=False),
    auth_request(AuthMessage("other", b""), v2=True),
    reads((1, 1)),
    v3_add(1),
)
_DISABLED_V3 = bytes.fromhex("000000230a060803100518021000b206160a12417574684469") + b"sabledPlugin\x12\x00"
#: The version in a certificate (RFC 5280, 4.1).
_VERSION = bytes.fromhex("a003020102")
_INFO = v3(pb.GET_BOOKIE_INFO, 2, getBookieInfoRequest=pb.GetBookieInfoRequest())


def roles() -> FrontAccess:
    return FrontAccess(roles=_ROLES)


def access_by_sasl(directory: Path) -> FrontAccess:
    jaas = write_jaas(directory / "jaas.conf")
    return FrontAccess(SaslBookie(jaas, "Bookie", re.compile(".*bookkeeper.*")))


@pytest.fixture
def sasl(tmp_path: Path) -> FrontAccess:
    return access_by_sasl(tmp_path)


class Talk:
    """Logs a peer in over either protocol."""

    def __init__(self, peer: ClearPeer | TlsPeer, *, v2: bool) -> None:
        self.peer, self.v2 = peer, v2

    async def send(self, data: bytes) -> None:
        if isinstance(self.peer, TlsPeer):
            self.peer.send(data)
        else:
            await self.peer.send(data)

    async def say(self, payload: bytes, plugin: str = "sasl") -> AuthMessage | None:
        await self.send(auth_request(AuthMessage(plugin, payload), v2=self.v2))
        return await self.hear()

    async def hear(self) -> AuthMessage | None:
        return auth_answer_of(await self.peer.body(), v2=self.v2)

    async def response(self, challenge: AuthMessage | None, user: str, password: str) -> bytes:
        assert challenge is not None
        return DigestMd5Client(user, password, "cnonce").respond(challenge.payload)

    async def log_in(self, user: str = "bookkeeper", password: str = "golden") -> None:
        response = await self.response(await self.say(b""), user, password)
        answer = await self.say(response)
        assert answer is not None
        assert answer.payload.startswith(b"rspauth=")


# --- roles in certificates ---


@pytest.mark.parametrize(
    ("units", "allowed"),
    [
        (("0:role-a;1:cluster-x",), True),
        (("0: role-a ,x",), True),
        (("0:role-a", "0:role-z"), True),
        (("0:role-z;0:role-b",), True),  # of two, the last
        (("0:role-z, role-a",), False),
        (("1:c; 0: role-a",), False),
        (("0:role-z", "0:role-a"), False),
        (("0:ROLE-A",), False),
        (("0:role-a\n",), True),
        (("0:",), False),
        (("plain",), False),
        ((), False),
    ],
)
def test_roles_are_found_where_apaches_bookie_finds_them(units: tuple[str, ...], allowed: bool) -> None:
    shown = identity("writer", client_only=True, units=units).der
    access = roles().begin(Peer("here", shown))
    assert (access.is_allowed, access.awaits_login) == (allowed, False)
    assert access.names[0].startswith("subject:CN=writer,")
    assert not roles().begin(Peer("here")).is_allowed
    assert not roles().begin(Peer("here", b"no certificate")).is_allowed
    assert names_in(b"no certificate") == ()
    # The version of X.509 is 2 for the third one.
    assert shown.count(_VERSION) == 1
    assert names_in(shown.replace(_VERSION, _VERSION[:-1] + b"\x03")) == ()


def test_a_certificate_that_is_shown_again_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, parsed = identity("again", client_only=True, units=("0:role-a",)).der, []
    load = x509.load_der_x509_certificate
    monkeypatch.setattr(x509, "load_der_x509_certificate", lambda der: parsed.append(der) or load(der))
    for _ in range(3):
        assert roles().begin(Peer("here", shown)).is_allowed
    assert parsed == [shown]


def test_requests_of_other_roles_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        bookie, access = HeldBookie(), roles()
        tls = front_tls(tmp_path, tlsClientAuthentication="true")
        async with front(NetConfig(), bookie, tls=tls, access=access) as served:
            good = client_context(tmp_path / "good", identity("good", client_only=True, units=("0:role-a",)))
            bad = client_context(tmp_path / "bad", identity("bad", client_only=True, units=("0:role-z",)))
            async with connected(served, bad) as v2, connected(served, bad) as v3:
                v2.send(reads((1, 1)) + add_frame(1, 0))
                v3.send(v3_add(1))
                assert [(await v2.body())[4:8] for _ in range(2)] == [Code.UNAUTHORIZED.to_bytes(4, "big")] * 2
                # Apache's bookie answers the same bytes.
                assert frame(await v3.body()) == bytes.fromhex("0000000b0a0608031002180110f603")
            clear = await served.connect()
            await clear.send(reads((1, 1)))
            assert await clear.codes(1) == [Code.UNAUTHORIZED]
            assert (bookie.reads, bookie.entries) == (0, 0)
            async with connected(served, good) as peer:
                peer.send(reads((1, 1)))
                assert (await peer.body())[4:8] == bytes(4)
            assert served.server.refused_roles == 3

    run(test)
    assert "'subject:CN=bad,OU=0:role-z,O=tests' has the role 'role-z', and authorizedRoles does not" in caplog.text
    assert caplog.text.count("has the role") == 1  # of each kind one line a second


# --- logins ---


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_a_login_as_apaches_client_does_it(sasl: FrontAccess, v2: bool) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie, access=sasl) as served:
            peer = await served.connect()
            talk = Talk(peer, v2=v2)
            assert auth_request(AuthMessage("sasl", b""), v2=v2) == (FIRST_V2 if v2 else FIRST_V3)
            challenge = await talk.say(b"")
            assert challenge is not None
            assert re.fullmatch(
                rb'realm="bookkeeper",nonce="[\w-]{40}",charset=utf-8,algorithm=md5-sess', challenge.payload
            )
            response = await talk.response(challenge, "bookkeeper", "golden")
            request = reads((1, 1)) if v2 else v3_add(1)
            # All in one segment: the request behind the login is obeyed.
            last = auth_request(AuthMessage("sasl", b""), v2=v2)
            await peer.send(auth_request(AuthMessage("sasl", response), v2=v2) + last + request)
            assert (await talk.hear() or challenge).payload.startswith(b"rspauth=")
            assert await talk.hear() == AuthMessage(DISABLED, b"")
            if v2:
                assert await peer.codes(1) == [0]
                await peer.send(v3_add(1))  # it speaks v2 for ever
                assert await peer.closed()
            else:
                await until(lambda: bookie.entries == 1)
            assert served.server.failed_logins == 0

    run(test)


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
@pytest.mark.parametrize(
    ("user", "password"), [("bookkeeper", "brass"), ("nobody", "golden"), ("visitor", "silver")]
)  # the last is not in saslJaasClientAllowedIds
def test_a_wrong_login_is_answered_and_the_connection_closed(
    sasl: FrontAccess, v2: bool, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie, access=sasl) as served:
            peer = await served.connect()
            talk = Talk(peer, v2=v2)
            response = await talk.response(await talk.say(b""), user, password)
            # What comes behind it is not obeyed.
            await peer.send(auth_request(AuthMessage("sasl", response), v2=v2) + (reads((1, 1)) if v2 else v3_add(1)))
            if not v2:
                assert frame(await peer.body()) == bytes.fromhex("0000000b0a0608031005180210f603")
            assert await peer.closed()
            assert (bookie.reads, bookie.entries, served.server.failed_logins) == (0, 0, 1)

    run(test)
    assert "login failed: " in caplog.text
    assert password not in caplog.text


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_n1_a_wrong_login_is_answered_after_a_while(sasl: FrontAccess, v2: bool) -> None:
    """Whoever guesses passwords and waits for each answer costs little."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), access=sasl) as served:
            peer = await served.connect()
            talk = Talk(peer, v2=v2)
            response = await talk.response(await talk.say(b""), "bookkeeper", "brass")
            begun = time.monotonic()
            await peer.send(auth_request(AuthMessage("sasl", response), v2=v2))
            if not v2:
                await peer.body()
                assert time.monotonic() - begun >= 0.5
            assert await peer.closed()
            assert time.monotonic() - begun >= 0.5

    run(test)


def test_n1_pauses_after_failed_logins_are_spread() -> None:
    """Guesses that came together do not come together again."""
    spread = Spread()
    numbers = sorted(spread.failure_s() for _ in range(100))
    assert numbers[0] >= 0.5
    assert numbers[-1] <= 1.5
    assert max(b - a for a, b in itertools.pairwise(numbers)) < 0.04


def test_pauses_after_refused_requests_become_longer_and_are_forgotten() -> None:
    refusals = RefusalPauses(Spread())
    numbers = [refusals.next_s(100.0 + number) for number in range(12)]
    for number, pause_s in enumerate(numbers):
        assert 0.5 <= pause_s / min(1.0, 0.05 * 2**number) <= 1.5
    assert 0.5 <= refusals.next_s(111.0 + 9.9) <= 1.5
    assert refusals.next_s(120.9 + 10.1) <= 0.075


def test_of_too_many_peers_that_were_refused_the_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_MOST_REMEMBERED", 2)
    refusals = RefusalsByPeer()
    for _ in range(8):
        refusals.next_s("a", 1.0)
    refusals.next_s("b", 1.0)
    assert refusals.next_s("a", 1.0) > 0.4
    refusals.next_s("c", 1.0)  # "b" goes, which was refused longest ago
    assert refusals.next_s("a", 1.0) > 0.4
    refusals.next_s("d", 1.0)
    refusals.next_s("e", 1.0)
    assert refusals.next_s("a", 1.0) <= 0.075


def test_whose_handshakes_failed_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_MOST_REMEMBERED", 2)
    failed = FailedLately()
    assert not failed.includes("10.0.0.1", 0.0)
    failed.note("10.0.0.1", 100.0)
    failed.note("2001:db8:0:7::1", 101.0)
    assert failed.includes("10.0.0.1", 109.9)
    assert failed.includes("::ffff:10.0.0.1", 109.9)
    assert not failed.includes("10.0.0.1", 110.0)
    assert not failed.includes("10.0.0.2", 101.0)
    # Whoever has one address of IPv6 has all of its network.
    assert failed.includes("2001:db8:0:7:8:9:a:b%eth0", 102.0)
    assert not failed.includes("2001:db8:0:8::1", 102.0)
    assert not failed.includes("?", 102.0)
    failed.note("10.0.0.1", 102.0)
    failed.note("10.0.0.3", 103.0)  # the network goes, which failed longest ago
    assert failed.includes("10.0.0.1", 103.0)
    assert failed.includes("10.0.0.3", 103.0)
    assert not failed.includes("2001:db8:0:7::1", 103.0)


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_n1_who_is_refused_and_asks_again_at_once_is_answered_less_and_less_often(v2: bool) -> None:
    """Because of its role here. Without the right: ``test_net_authorization.py``."""

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), access=roles()) as served:
            peer = await served.connect()
            begun = time.monotonic()
            assert await answers_in(0.1, peer, reads((1, 1)) if v2 else _INFO) == 1
            assert time.monotonic() - begun >= 0.5  # so it gains nothing by another connection
            assert await answers_in(0.5, peer, reads((1, 1)) if v2 else _INFO) <= 8

    run(test)


async def answers_in(seconds: float, peer: ClearPeer, request: bytes) -> int:
    """How many answers a peer gets that asks again as soon as it is answered."""
    count, end = 0, time.monotonic() + seconds  # the loop's own clock stands still while the processor is busy
    while time.monotonic() < end:
        await peer.send(request)
        await peer.body()
        count += 1
    return count


def test_nothing_is_obeyed_before_a_login(sasl: FrontAccess) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        async with front(NetConfig(), bookie, access=sasl) as served:
            v2 = await served.connect()
            await v2.send(add_frame(1, 0, size=200_000) + reads((1, 1)))
            assert await v2.codes(2) == [Code.UNAUTHORIZED] * 2
            await v2.send(wire_v2.batch_read_request(1, 0, 9, 10, 1000))
            assert (await v2.body())[4:8] == Code.UNAUTHORIZED.to_bytes(4, "big")
            await Talk(v2, v2=True).log_in()  # it is not too late
            await v2.send(reads((1, 1)))
            assert await v2.codes(1) == [0]
            newer = await served.connect()
            before = bookie.reads
            await newer.send(v3_add(1) + _INFO + v3(pb.START_TLS, 3))
            answers = [wire_v3.parse_response(await newer.body()) for _ in range(3)]
            # Java's client must not take the bookie for one that cannot be reached.
            assert [answer.status for answer in answers] == [pb.EUA, pb.EUA, pb.EBADREQ]
            assert await Talk(newer, v2=False).say(b"") is not None
            await newer.send(v3_add(1))  # half of a login is none
            assert wire_v3.parse_response(await newer.body()).status == pb.EUA
            assert (bookie.entries, bookie.reads) == (0, before)

    run(test)


def test_logins_of_other_kinds(sasl: FrontAccess) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), access=sasl) as served:
            newer = await served.connect()
            await newer.send(auth_request(AuthMessage("kerberos", b"x"), v2=False))
            assert wire_v3.parse_response(await newer.body()).status == pb.EUA
            await Talk(newer, v2=False).log_in()  # the connection is kept, as Apache's bookie does
            v2 = await served.connect()
            await v2.send(auth_request(AuthMessage("kerberos", b"x"), v2=True))
            assert await v2.closed()
            for broken in (AUTH, frame(b"\x02\x03\0\0\xff"), b"\0\0\0\x00"):
                peer = await served.connect()
                await peer.send(broken)
                assert await peer.closed()

    run(test)


def test_a_login_without_end_is_given_up(sasl: FrontAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_server.net.native.admission.LOGIN_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), access=sasl) as served:
            slow, good = await served.connect(), await served.connect()
            await Talk(good, v2=True).log_in()
            await Talk(slow, v2=True).say(b"")
            assert await slow.closed()
            silent = await served.connect()
            await silent.send(reads((1, 1)))  # it does not even begin
            assert await silent.closed()
            await until(lambda: served.server.failed_logins == 2)
            await good.send(reads((1, 1)))
            assert await good.codes(1) == [0]

    run(test)


def test_others_go_on_beside_logins_that_fail_again_and_again(sasl: FrontAccess) -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), access=sasl) as served:
            good = await served.connect()
            await Talk(good, v2=True).log_in()

            async def guess(number: int) -> None:
                while not done.is_set():
                    peer = await served.connect()
                    talk = Talk(peer, v2=True)
                    response = await talk.response(await talk.say(b""), "bookkeeper", f"guess {number}")
                    await peer.send(auth_request(AuthMessage("sasl", response), v2=True))
                    assert await peer.closed()
                    peer.socket.close()

            done = asyncio.Event()
            guessing = [asyncio.ensure_future(guess(number)) for number in range(20)]
            while served.server.failed_logins < 20:
                await good.send(reads((1, 1)))
                assert await good.codes(1) == [0]
            newcomer = await served.connect()
            await Talk(newcomer, v2=False).log_in()
            done.set()
            await asyncio.gather(*guessing)

    run(test)


def test_a_connection_that_has_not_logged_in_gives_way(sasl: FrontAccess) -> None:
    async def test() -> None:
        config = NetConfig(max_connections=2, idle_before_eviction_ms=3_600_000)
        async with front(config, HeldBookie(), access=sasl) as served:
            good, half = await served.connect(), await served.connect()
            await Talk(half, v2=True).say(b"")
            await Talk(good, v2=True).log_in()
            newcomer = await served.connect()
            await Talk(newcomer, v2=True).log_in()
            assert await half.closed()
            await good.send(reads((1, 1)))
            assert await good.codes(1) == [0]

    run(test)


# --- logins inside TLS ---


@contextlib.asynccontextmanager
async def early(served: Front, tmp_path: Path, sent: list[bytes], then: list[bytes]) -> AsyncIterator[TlsPeer]:
    """A client that begins its login in clear, as Java's does. It sends pieces until TLS is granted, then others."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)

    async def send(pieces: list[bytes]) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)  # pieces are received apart

    try:
        await send(sent)
        assert await reader.readexactly(len(GRANTED)) == GRANTED
        await send(then)
        await writer.start_tls(client_context(tmp_path / "client"), server_hostname="localhost")
        yield TlsPeer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def in_bytes(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


async def finish_login(peer: TlsPeer, bookie: HeldBookie, *, v2: bool) -> None:
    """Finish inside TLS what began in clear, and see that a request is obeyed."""
    talk = Talk(peer, v2=v2)
    answer = await talk.say(await talk.response(await talk.hear(), "bookkeeper", "golden"))
    assert answer is not None
    assert answer.payload.startswith(b"rspauth=")
    peer.send(reads((1, 1)) if v2 else v3_add(1))
    if v2:
        assert (await peer.body())[4:8] == bytes(4)
    else:
        await until(lambda: bookie.entries == 1)


@pytest.mark.parametrize("apart", [False, True], ids=["together", "in pieces"])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_a_login_may_begin_in_clear_behind_start_tls(sasl: FrontAccess, tmp_path: Path, v2: bool, apart: bool) -> None:
    async def test() -> None:
        bookie = HeldBookie()
        tls = front_tls(tmp_path, required=True)
        async with front(NetConfig(), bookie, tls=tls, access=sasl) as served:
            first = FIRST_V2 if v2 else FIRST_V3
            sent, then = ([start_tls_request()], in_bytes(first)) if apart else ([start_tls_request() + first], [])
            async with early(served, tmp_path, sent, then) as peer:
                await finish_login(peer, bookie, v2=v2)
            async with connected(served, client_context(tmp_path / "client")) as peer:  # inside, as ours does
                await Talk(peer, v2=v2).log_in()
            assert (tls.failed_handshakes, served.server.failed_logins) == (0, 0)

    run(test)


def test_nothing_else_may_come_in_clear_behind_start_tls(
    sasl: FrontAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What came is the reason, not that nothing more came.
    monkeypatch.setattr("bookie_server.net.common.entrance.front_tls._HANDSHAKE_TIMEOUT_S", 3600.0)
    behind = [*NO_BEGINNINGS, bytes(8)]

    async def test() -> None:
        bookie, tls = HeldBookie(), front_tls(tmp_path)
        async with front(NetConfig(), bookie, tls=tls, access=sasl) as served:

            async def send(data: bytes) -> None:
                peer = await served.connect()
                await peer.send(start_tls_request() + data)
                assert frame(await peer.body()) == GRANTED
                with contextlib.suppress(ConnectionError):
                    while await asyncio.wait_for(peer.loop.sock_recv(peer.socket, 1 << 16), 60):
                        pass

            await asyncio.gather(*map(send, behind))
            await until(lambda: tls.failed_handshakes == len(behind))
            assert (bookie.entries, bookie.reads) == (0, 0)

    run(test)


def test_who_stops_between_start_tls_and_the_handshake_is_forgotten(
    sasl: FrontAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bookie_server.net.common.entrance.front_tls._HANDSHAKE_TIMEOUT_S", 0.2)

    async def test() -> None:
        async with front(NetConfig(), HeldBookie(), tls=front_tls(tmp_path), access=sasl) as served:
            for some in (b"", FIRST_V3[:10], FIRST_V3):
                peer = await served.connect()
                await peer.send(start_tls_request() + some)
                assert frame(await peer.body()) == GRANTED
                assert await peer.closed()
                peer = await served.connect()
                await peer.send(start_tls_request() + some)
                await peer.body()
                peer.socket.close()
                await until(lambda: served.server.connection_count == 0)

    with caplog.at_level(logging.WARNING):
        run(test)


def test_a_bookie_without_logins_tells_so() -> None:
    async def test() -> None:
        async with front(NetConfig(), HeldBookie()) as served:
            peer = await served.connect()
            await peer.send(FIRST_V3)
            assert frame(await peer.body()) == _DISABLED_V3

    run(test)
