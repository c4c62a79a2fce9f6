"""What each peer may do: the table in a file, and the requests of all front ends compared with it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bk_spark.bookie.auth.providers import Peer
from bk_spark.bookie.auth.sasl import SaslBookie
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.proto import bookie_pb2 as calls
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.bookie import AddDone
from bookie_server.config.access import AccessConfig
from bookie_server.net.common.access import pauses
from bookie_server.net.common.access.front_access import ConnectionAccess, FrontAccess
from bookie_server.net.common.access.pauses import RefusalsByPeer
from bookie_server.net.common.access.rights import ADMIN, ALL, FENCE, READ, WRITE, Authorization
from bookie_server.net.common.limits import NetConfig
from bookie_server.net.grpc import gate
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.records import Records
from tests.support import patient_loop
from tests.support.bookie import KEY, add_frame, stored
from tests.support.certificates import identity
from tests.support.front import HeldBookie, front, reads, run, v3, v3_add
from tests.support.grpc_front import batch, caller, grpc_front
from tests.support.jaas import write_jaas
from tests.unit.test_net_access import Talk, answers_in


class ReadyBookie(HeldBookie):
    """Does everything at once."""

    def add(self, records: Records, master_key: bytes, *, recovery: bool, high_priority: bool, done: AddDone) -> None:
        done(Code.OK)

    def fence(self, ledger_id: int, master_key: bytes, *, urgent: bool = True) -> asyncio.Future[Code]:
        return _now(Code.OK)

    def force(self, ledger_id: int) -> asyncio.Future[Code]:
        return _now(Code.OK)

    def write_lac(self, packet: bytes, master_key: bytes) -> asyncio.Future[Code]:
        return _now(Code.OK)

    async def read_batch(
        self, ledger_id: int, first_entry_id: int, max_count: int, limit_bytes: int, *, taken: bool = False
    ) -> tuple[Code, list[StoredEntries]]:
        return Code.NO_ENTRY, []

    async def list_entries(self, ledger_id: int) -> tuple[Code, Int64s]:
        return Code.OK, np.arange(3)


def _now(code: Code) -> asyncio.Future[Code]:
    future: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    future.set_result(code)
    return future


def _v3_read(**fields: object) -> bytes:
    return v3(pb.READ_ENTRY, 9, readRequest=pb.ReadRequest(ledgerId=1, entryId=0, **fields))  # type: ignore[arg-type]


def _recovery_add() -> bytes:
    body = pb.AddRequest(ledgerId=1, entryId=1, masterKey=KEY, body=stored(1, 1, 60), flag=pb.AddRequest.RECOVERY_ADD)
    return v3(pb.ADD_ENTRY, 9, addRequest=body)


#: Each request, how many answers it has, and the rights it needs.
_V2 = {
    "add": (add_frame(1, 0, size=60), 1, WRITE),
    "adds": (b"".join(add_frame(1, i, size=60) for i in range(20)), 20, WRITE),
    "add of a recovery": (add_frame(1, 0, flags=FlagV2.RECOVERY_ADD, size=60), 1, FENCE),
    "read": (reads((1, 1)), 1, READ),
    "reads": (reads(*[(1, i) for i in range(20)]), 20, READ),
    "fencing read": (wire_v2.read_requests(1, [0], FlagV2.FENCING, KEY), 1, READ | FENCE),
    "batch read": (wire_v2.batch_read_request(1, 0, 9, 10, 1000), 1, READ),
}
_V3 = {
    "add": (v3_add(1), 1, WRITE),
    "adds": (b"".join(map(v3_add, range(30, 60))), 30, WRITE),
    "add of a recovery": (_recovery_add(), 1, FENCE),
    "read": (_v3_read(), 1, READ),
    "reads": (wire_v3.read_requests(1, 1, np.arange(30)), 30, READ),
    "fencing read": (_v3_read(flag=pb.ReadRequest.FENCE_LEDGER, masterKey=KEY), 1, READ | FENCE),
    "long poll": (wire_v3.long_poll_request(9, 1, -1, 1), 1, READ),
    "read LAC": (v3(pb.READ_LAC, 9, readLacRequest=pb.ReadLacRequest(ledgerId=1)), 1, READ),
    "write LAC": (
        v3(pb.WRITE_LAC, 9, writeLacRequest=pb.WriteLacRequest(ledgerId=1, lac=0, masterKey=KEY, body=bytes(40))),
        1,
        WRITE,
    ),
    "force": (v3(pb.FORCE_LEDGER, 9, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=1)), 1, WRITE),
    "info": (v3(pb.GET_BOOKIE_INFO, 9, getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3)), 1, ADMIN),
    "list": (
        v3(
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
            9,
            getListOfEntriesOfLedgerRequest=pb.GetListOfEntriesOfLedgerRequest(ledgerId=1),
        ),
        1,
        READ,
    ),
}
#: Users, and their rights.
_USERS = {
    "reader": READ,
    "writer": WRITE,
    "fencer": FENCE,
    "recoverer": READ | FENCE,
    "watcher": ADMIN,
    "owner": ALL,
    "nobody": 0,
}
_TABLE = """
# Who may do what.
read          user:reader
write         user:writer
fence\tuser:fencer
read,fence    user:recoverer
admin         user:watcher
all           user:owner
"""


def table(path: Path, text: str = _TABLE) -> Authorization:
    path.write_text(text)
    return Authorization.load(str(path))


@pytest.fixture
def access(tmp_path: Path) -> FrontAccess:
    jaas = write_jaas(tmp_path / "jaas.conf", users=dict.fromkeys(_USERS, "golden"))
    return FrontAccess(SaslBookie(jaas, "Bookie", re.compile(".*")), authorization=table(tmp_path / "table"))


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is refused may ask again at once."""
    monkeypatch.setattr(pauses, "_FIRST_REFUSAL_S", 0.0)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize("user", _USERS)
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_each_request_needs_its_right(
    access: FrontAccess, user: str, v2: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def code_of(body: bytes) -> int:
        if v2:
            return int.from_bytes(body[4:8], "big")
        return int(wire_v3.parse_response(body).status)

    asked: list[int] = []
    may = ConnectionAccess.may

    def ask(access: ConnectionAccess, needed: int) -> bool:
        asked.append(needed)
        return may(access, needed)

    monkeypatch.setattr(ConnectionAccess, "may", ask)

    async def test() -> None:
        refused = Code.UNAUTHORIZED if v2 else pb.EUA
        async with front(NetConfig(), ReadyBookie(), access=access) as served:
            peer = await served.connect()
            await Talk(peer, v2=v2).log_in(user)
            for what, (request, count, needed) in (_V2 if v2 else _V3).items():
                await peer.send(request)
                codes = {await code_of(await peer.body()) for _ in range(count)}
                allowed = _USERS[user] & needed == needed
                assert (codes == {refused}) == (not allowed), (what, codes)
                assert not allowed or refused not in codes, what
            # The third message of Java's client.
            again = await Talk(peer, v2=v2).say(b"")
            assert again is not None
            assert (access.refused_requests == 0) == (user == "owner")
            assert (not asked) == (user == "owner")  # about one who may do everything, nobody is asked again

    with caplog.at_level(logging.WARNING):
        run(test)
    assert (f"refused: 'user:{user}' may do " in caplog.text) == (user != "owner")


_GRPC: dict[str, tuple[Message, int]] = {
    "Tail": (calls.TailRequest(ledger_id=1), READ),
    "Fence": (calls.FenceRequest(ledger_id=1, master_key=KEY), FENCE),
    "GetLastAddConfirmed": (calls.GetLastAddConfirmedRequest(ledger_id=1), READ),
    "SetLastAddConfirmed": (calls.SetLastAddConfirmedRequest(ledger_id=1), WRITE),
    "Force": (calls.ForceRequest(ledger_id=1), WRITE),
    "ListEntries": (calls.ListEntriesRequest(ledger_id=1), READ),
    "GetInfo": (calls.GetInfoRequest(), ADMIN),
}


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_a_fencing_read_of_a_fenced_ledger_needs_both_rights_too(access: FrontAccess, v2: bool) -> None:
    """Nothing of it waits for anything, so that a bookie may answer it in another place."""

    class FencedBookie(ReadyBookie):
        def fenced_before(self, ledger_id: int, master_key: bytes) -> Code | None:
            return Code.OK

    async def test() -> None:
        async with front(NetConfig(), FencedBookie(), access=access) as served:
            for user in ("reader", "fencer", "recoverer"):
                peer = await served.connect()
                await Talk(peer, v2=v2).log_in(user)
                refused = access.refused_requests
                await peer.send((_V2 if v2 else _V3)["fencing read"][0])
                body = await peer.body()
                code = int.from_bytes(body[4:8], "big") if v2 else int(wire_v3.parse_response(body).status)
                assert (code == 0) == (user == "recoverer"), (user, code)
                assert access.refused_requests - refused == (user != "recoverer"), user

    run(test)


@pytest.mark.parametrize("kind", ["add", "read", "fencing read"])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v3"])
def test_n1_who_has_no_right_and_asks_again_at_once_is_answered_less_and_less_often(
    access: FrontAccess, kind: str, v2: bool
) -> None:
    async def test() -> None:
        async with front(NetConfig(), ReadyBookie(), access=access) as served:
            request = (_V2 if v2 else _V3)[kind][0]
            counts = {}
            for user in ("owner", "nobody"):
                peer = await served.connect()
                await Talk(peer, v2=v2).log_in(user)
                begun = time.monotonic()
                assert await answers_in(0.01, peer, request) >= 1
                # Who may do nothing gains nothing by another connection.
                assert (time.monotonic() - begun >= 0.5) == (user == "nobody")
                counts[user] = await answers_in(0.5, peer, request)
            assert counts["nobody"] <= 8
            assert counts["owner"] > 2 * counts["nobody"]

    run(test)


@pytest.mark.usefixtures("_no_pauses")
@pytest.mark.parametrize(("words", "rights"), [("read", READ), ("write", WRITE), ("fence", FENCE), ("admin", ADMIN)])
def test_each_call_of_grpc_needs_its_right(tmp_path: Path, words: str, rights: int) -> None:
    access = FrontAccess(authorization=table(tmp_path / "table", f"{words} anonymous"))

    async def test() -> None:
        async with asyncio.timeout(120), grpc_front(ReadyBookie(), access=access) as served, caller(served.port) as one:
            for method, (request, needed) in _GRPC.items():
                answer = await one.ask(method, request)
                assert (answer.code != Code.UNAUTHORIZED.v3) == (rights & needed == needed), method
            entries = [stored(1, 0, 60)]
            for recovery, needed in ((False, WRITE), (True, FENCE)):
                answers = await one.add(batch(1, 1, entries, recovery=recovery))
                assert (answers[1].code != Code.UNAUTHORIZED.v3) == (rights == needed)
            for key, code in ((None, Code.OK if rights == READ else Code.UNAUTHORIZED), (KEY, Code.UNAUTHORIZED)):
                found = await one.read(request_id=1, ledger_id=1, first_entry_id=0, count=1, fence_key=key)
                assert {answer.code for answer in found} == {code.v3}

    patient_loop.run(test())


@pytest.mark.parametrize("method", ["Fence", "Add", "Read"])
def test_n1_calls_without_the_right_are_answered_less_and_less_often(tmp_path: Path, method: str) -> None:
    """Over one connection of gRPC, within one call or in a call each."""
    access = FrontAccess(authorization=table(tmp_path / "table", "write anonymous"))
    request = calls.ReadRequest(ledger_id=1, first_entry_id=0, count=1)
    message = batch(1, 1, [stored(1, 0, 60)], recovery=True) if method == "Add" else request

    async def test() -> None:
        async with grpc_front(ReadyBookie(), access=access) as served, caller(served.port) as one:
            stream = None if method == "Fence" else one.stream(method)
            count, end = 0, time.monotonic() + 0.5
            while time.monotonic() < end:
                if stream is None:
                    answer = await one.ask("Fence", calls.FenceRequest(ledger_id=1, master_key=KEY))
                else:
                    await stream.write(message)
                    answer = await stream.read()
                assert answer.code == Code.UNAUTHORIZED.v3
                count += 1
            assert 2 <= count <= 8

    run(test)


def test_n1_refused_calls_that_wait_keep_nobody_out_and_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no places, and the oldest is told at once if there are too many."""
    monkeypatch.setattr(gate, "_MOST_WAITING", 2)
    monkeypatch.setattr(RefusalsByPeer, "next_s", lambda *_: 60.0)
    access = FrontAccess(authorization=table(tmp_path / "table", "write anonymous"))
    fence = calls.FenceRequest(ledger_id=1, master_key=KEY)

    async def test() -> None:
        async with grpc_front(ReadyBookie(), access=access) as served, caller(served.port) as one:
            waiting = [asyncio.create_task(one.ask("Fence", fence)) for _ in range(5)]
            done: set[asyncio.Task[Any]] = set()
            while len(done) < 3:
                done |= (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]
            assert {task.result().code for task in done} == {Code.UNAUTHORIZED.v3}
            assert len(served.server.gate.places) == 0
            for task in waiting:
                task.cancel()

    run(test)


def test_names_have_the_rights_of_all_lines_that_match(tmp_path: Path) -> None:
    rules = table(
        tmp_path / "table",
        "read *\nwrite  user:spark-*\nfence role:keepers\nadmin,fence subject:CN=a b*,O=tests\nall user:x.y\n",
    )
    for names, rights in (
        ((), READ),
        (("user:spark",), READ),
        (("user:spark-1",), READ | WRITE),
        (("user:SPARK-1",), READ),
        (("other:user:spark-1",), READ),
        (("user:spark-1", "role:keepers"), READ | WRITE | FENCE),
        (("role:keepers2",), READ),
        (("subject:CN=a bc,OU=q,O=tests",), READ | FENCE | ADMIN),
        (("subject:CN=a bc,O=tests2",), READ),
        (("user:xzy",), READ),  # a point is a point
        (("user:spark-\n",), READ | WRITE),
    ):
        assert rules.rights_of(names) == rights, names
    assert table(tmp_path / "table", "read anonymous").rights_of(()) == READ
    assert table(tmp_path / "table", "read anonymous").rights_of(("user:spark",)) == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no line"),
        ("# read *\n\n", "has no line"),
        ("read", "line 1: rights and a pattern"),
        ("\nreed user:spark", "line 2: 'reed' is none of read, write, fence, admin, all; did you mean read?"),
        ("read,,write user:spark", "'' is none of"),
        ("user:spark read", "line 1: 'read' matches no name"),
        ("read spark", "line 1: 'spark' matches no name: those begin with user:, role: or subject:"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError) as wrong:
        table(tmp_path / "table", text)
    assert str(wrong.value).startswith(f"authorizationFile: {tmp_path / 'table'} ")
    assert says in str(wrong.value)


def test_a_table_that_cannot_be_read_stops_a_bookie(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="authorizationFile: .* cannot be read"):
        FrontAccess.of(AccessConfig(authorization_file=str(tmp_path / "none")))
    (tmp_path / "table").write_bytes(b"\xff")
    with pytest.raises(InvalidArgumentError, match="is not UTF-8 text"):
        FrontAccess.of(AccessConfig(authorization_file=str(tmp_path / "table")))


def test_certificates_have_rights_without_roles(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("read,write role:writers\nread subject:CN=reader,*\n")
    access = FrontAccess.of(AccessConfig(authorization_file=str(tmp_path / "table")))
    assert access is not None
    writer = identity("one", client_only=True, units=("0:writers",))
    reader = identity("reader", client_only=True)
    assert access.begin(Peer("here", writer.der)).rights == READ | WRITE
    assert access.begin(Peer("here", reader.der)).rights == READ
    stranger = access.begin(Peer("here"))
    assert (stranger.rights, stranger.is_allowed) == (0, True)
