"""The native front end of a real bookie: Apache's captured conversations, v2 and v3 rules, hostile bytes."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.entry_availability import decode_availability
from bk_spark.protocol.wire.framing import frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, stored
from tests.support.fixtures import golden
from tests.support.wire import Captured, captured

_ids = itertools.count(10_000)


@pytest.fixture(scope="module")
def bookie(zk_only: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path_factory.mktemp("bookie"), f"zk://{zk_only.zookeepers[0].id}/ledgers")
    process.start()
    yield process
    process.end()


@pytest.fixture
def connection(bookie: BookieProcess) -> Iterator[Connection]:
    with bookie.connect() as connection:
        yield connection


@pytest.fixture
def ledger() -> int:
    """An id that nobody used."""
    return next(_ids)


# --- Apache's conversations ----------------------------------------------------------------------

#: Facts of another disk.
_NOT_REPLAYED = {"GET_BOOKIE_INFO"}
#: The adds before them are not in the fixture, or cut.
_INCOMPLETE = {"add-100k", "batch-read-recovery"}


@pytest.mark.parametrize("name", ["wire-v2", "wire-v3"])
def test_apaches_client_gets_the_answers_that_apaches_bookie_gave(bookie: BookieProcess, name: str) -> None:
    """Every captured request is sent again, in order; v2 answers are compared byte for byte, v3 field by field. Like
    Apache's client this one has a connection for each protocol."""
    compared = 0
    with bookie.connect() as v2, bookie.connect() as v3:
        for _, items in itertools.groupby(_history(name), key=lambda item: item.scene):
            wanted: list[Captured] = []
            answers: list[bytes] = []
            asked: list[Connection] = []
            for item in items:
                connection = v3 if is_v3(item.body) else v2
                if item.request:
                    connection.send(item.data)
                    asked.append(connection)
                else:
                    wanted.append(item)
                    if connection in asked:  # some answers were captured a moment before their requests
                        asked.remove(connection)
                        answers.append(bytes(connection.body()))
            answers += [bytes(connection.body()) for connection in asked]
            # Answers to what was under way at once may come in another order.
            pairs = zip(sorted(wanted, key=lambda item: _key(item.body)), sorted(answers, key=_key), strict=True)
            for item, answer in pairs:
                compared += 1
                _assert_same(item, answer)
    assert compared > 50


def _history(name: str) -> list[Captured]:
    scenes = {scene["scene"]: i for i, scene in enumerate(golden(name))}
    items = [
        item
        for item in captured(name, "v2") + captured(name, "v3")
        if item.says["op"] not in _NOT_REPLAYED and item.scene not in _INCOMPLETE
    ]
    return sorted(items, key=lambda item: (scenes[item.scene], item.number))


def _key(answer: bytes) -> tuple[int, bytes]:
    if is_v3(answer):
        return wire_v3.parse_response(answer).header.txnId, b""
    return 0, answer


def _assert_same(item: Captured, answer: bytes) -> None:
    if not is_v3(answer):
        assert answer.hex() == item.body.hex(), item
        return
    wanted, got = wire_v3.parse_response(item.body), wire_v3.parse_response(answer)
    for response in (wanted, got):
        if response.readResponse.HasField("lacUpdateTimestamp"):
            response.readResponse.lacUpdateTimestamp = 1
        response.header.ClearField("priority")
        if response.HasField("getListOfEntriesOfLedgerResponse"):
            body = response.getListOfEntriesOfLedgerResponse
            entries = decode_availability(body.availabilityOfEntriesOfLedger)
            # Apache's writes a group for each run, ours one for equal runs.
            body.availabilityOfEntriesOfLedger = repr(list(entries.ranges())).encode()
    assert got == wanted, item


# --- v2 ------------------------------------------------------------------------------------------


def test_v2_codes(connection: Connection, ledger: int) -> None:
    assert connection.read(ledger, 0) is Code.NO_LEDGER
    assert connection.add(ledger, range(3)) == [Code.OK] * 3
    assert connection.read(ledger, 3) is Code.NO_ENTRY
    assert connection.read(ledger, 2) == stored(ledger, 2)
    assert connection.add(ledger, [3], key=bytes(20)) == [Code.UNAUTHORIZED]
    assert connection.fence(ledger, bytes(20)) is Code.UNAUTHORIZED
    assert connection.add(ledger, [3]) == [Code.OK]
    assert connection.fence(ledger) == stored(ledger, 3)
    assert connection.add(ledger, [4]) == [Code.FENCED]
    assert connection.add(ledger, [4], flags=FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY) == [Code.OK]
    assert connection.read(ledger, 4, fence_key=KEY) == stored(ledger, 4)


def test_fencing_an_unknown_ledger_creates_it(connection: Connection, ledger: int) -> None:
    assert connection.fence(ledger) is Code.NO_ENTRY
    assert connection.add(ledger, [0]) == [Code.FENCED]
    assert connection.read(ledger, 0) is Code.NO_ENTRY


def test_adds_before_a_fence_in_one_stream_are_seen_by_it_and_later_ones_refused(
    connection: Connection, ledger: int
) -> None:
    fence = wire_v2.read_requests(ledger, [-1], FlagV2.FENCING, KEY)
    first = b"".join(add_frame(ledger, i) for i in range(200))
    second = b"".join(add_frame(ledger, i) for i in range(200, 400))
    connection.send(first + fence + second)
    codes: dict[int, int] = {}
    fenced = b""
    for _ in range(401):
        body = connection.body()
        if body[1] == wire_v2.OpV2.ADD:
            codes[int.from_bytes(body[16:24], "big")] = int.from_bytes(body[4:8], "big")
        else:
            fenced = bytes(body[24:])
    assert [codes[i] for i in range(400)] == [Code.OK] * 200 + [Code.FENCED] * 200
    assert fenced == stored(ledger, 199)


def test_bad_version_is_echoed(connection: Connection) -> None:
    connection.send(frame(struct.pack(">Iqq", 3 << 24 | 2 << 16, 5, 6)))
    assert bytes(connection.body()) == struct.pack(">Iiqq", 3 << 24 | 2 << 16, 103, 5, 6)


def test_version_0_and_1(connection: Connection, ledger: int) -> None:
    assert connection.add(ledger, [0]) == [Code.OK]
    for header in (2, 1 << 24 | 2 << 16):
        connection.send(frame(struct.pack(">Iqq", header, ledger, 0)))
        assert bytes(connection.body()) == struct.pack(">Iiqq", header, 0, ledger, 0) + stored(ledger, 0)


def test_v2_auth_without_a_provider(connection: Connection) -> None:
    body = pb.AuthMessage(authPluginName="whatever", payload=b"").SerializeToString()
    connection.send(frame(bytes.fromhex("02030000") + body))
    assert bytes(connection.body()).hex() == "020300000a12" + b"AuthDisabledPlugin".hex() + "1200"


def test_batch_read(connection: Connection, ledger: int) -> None:
    assert set(connection.add(ledger, range(1500))) == {Code.OK}

    def batch(first: int, count: int, size: int, request_id: int = 77) -> tuple[Code, list[bytes]]:
        connection.send(wire_v2.batch_read_request(ledger, first, request_id, count, size))
        body = connection.body()
        assert struct.unpack_from(">Iiqqq", body)[2:] == (ledger, first, request_id)
        code = Code(int.from_bytes(body[4:8], "big"))
        return code, [bytes(entry) for entry in _cut(body[32:])]

    assert batch(0, 10, 1 << 20) == (Code.OK, [stored(ledger, i) for i in range(10)])
    code, entries = batch(3, 0, 100_000)
    assert code is Code.OK
    assert entries == [stored(ledger, 3 + i) for i in range(len(entries))]
    size = 36 + sum(4 + len(entry) for entry in entries)
    assert size <= 100_000 < size + 4 + len(stored(ledger, 3 + len(entries)))
    assert batch(1498, 0, 1 << 20)[1] == [stored(ledger, 1498), stored(ledger, 1499)]
    assert batch(5, 3, 1)[1] == [stored(ledger, 5)]
    assert batch(1500, 3, 1 << 20) == (Code.NO_ENTRY, [])
    all_of_it: list[bytes] = []
    while len(all_of_it) < 1500:
        all_of_it += batch(len(all_of_it), 0, 1 << 30)[1]
    assert all_of_it == [stored(ledger, i) for i in range(1500)]


def _cut(records: memoryview) -> Iterator[memoryview]:
    while records:
        size = int.from_bytes(records[:4], "big")
        yield records[4 : 4 + size]
        records = records[4 + size :]


def test_reads_of_all_kinds_of_entries_pipelined(connection: Connection, ledger: int) -> None:
    assert set(connection.add(ledger, range(2000))) == {Code.OK}
    wanted = [7, *range(2000), 1999, 5, 2001, -1, 3, 2005]
    connection.send(wire_v2.read_requests(ledger, wanted))
    answers: dict[int, bytes] = {}
    codes: dict[int, int] = {}
    for _ in wanted:
        body = connection.body()
        entry_id = int.from_bytes(body[16:24], "big", signed=True)
        codes[entry_id] = int.from_bytes(body[4:8], "big")
        answers[entry_id] = bytes(body[24:])
    assert answers.pop(-1) == stored(ledger, 1999)
    assert (codes[2001], codes[2005]) == (Code.NO_ENTRY, Code.NO_ENTRY)
    assert {i: answers[i] for i in range(2000)} == {i: stored(ledger, i) for i in range(2000)}


# --- v3 ------------------------------------------------------------------------------------------


def request(operation: pb.OperationType, **body: object) -> pb.Request:
    return pb.Request(header=pb.BKPacketHeader(operation=operation), **body)  # type: ignore[arg-type]


def v3_add(ledger: int, entry_id: int, **more: object) -> pb.Request:
    add = pb.AddRequest(ledgerId=ledger, entryId=entry_id, masterKey=KEY, body=stored(ledger, entry_id), **more)  # type: ignore[arg-type]
    return request(pb.ADD_ENTRY, addRequest=add)


def v3_read(ledger: int, entry_id: int, **more: object) -> pb.Request:
    return request(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=ledger, entryId=entry_id, **more))  # type: ignore[arg-type]


def test_v3_add_read_fence(connection: Connection, ledger: int) -> None:
    assert connection.call(v3_read(ledger, 0)).status == pb.ENOLEDGER
    for i in range(3):
        answer = connection.call(v3_add(ledger, i))
        assert (answer.status, answer.addResponse) == (
            pb.EOK,
            pb.AddResponse(status=pb.EOK, ledgerId=ledger, entryId=i),
        )
    answer = connection.call(v3_read(ledger, 1))
    assert (answer.readResponse.body, answer.readResponse.maxLAC) == (stored(ledger, 1), 1)
    answer = connection.call(v3_read(ledger, -1))
    assert (answer.readResponse.entryId, answer.readResponse.body) == (-1, stored(ledger, 2))
    answer = connection.call(v3_read(ledger, 9))
    assert (answer.status, answer.readResponse.status) == (pb.ENOENTRY, pb.ENOENTRY)
    assert not answer.readResponse.HasField("maxLAC")
    fence = pb.ReadRequest.FENCE_LEDGER
    assert connection.call(v3_read(ledger, -1, flag=fence)).status == pb.EUA
    assert connection.call(v3_read(ledger, -1, flag=fence, masterKey=b"x")).status == pb.EUA
    answer = connection.call(v3_read(ledger, -1, flag=fence, masterKey=KEY))
    assert answer.readResponse.body == stored(ledger, 2)
    assert not answer.readResponse.HasField("maxLAC")
    assert connection.call(v3_add(ledger, 3)).addResponse.status == pb.EFENCED
    assert connection.call(v3_add(ledger, 3, flag=pb.AddRequest.RECOVERY_ADD)).status == pb.EOK
    assert connection.call(v3_add(ledger, 4, flag=pb.AddRequest.RECOVERY_ADD, writeFlags=1)).status == pb.EOK


def test_v3_interop_checklist(connection: Connection, ledger: int) -> None:
    """compatibility.md §9, points 1, 2, 3 and 7."""
    unknown = next(_ids)
    answer = connection.call(v3_read(unknown, -1, flag=pb.ReadRequest.FENCE_LEDGER, masterKey=KEY))
    assert answer.status == pb.ENOENTRY
    assert connection.call(v3_add(unknown, 0)).status == pb.EFENCED
    lac = request(pb.READ_LAC, readLacRequest=pb.ReadLacRequest(ledgerId=ledger))
    assert connection.call(lac).readLacResponse.status == pb.ENOENTRY
    assert connection.call(v3_read(ledger, 0)).status == pb.ENOLEDGER
    answer = connection.call(request(pb.BATCH_READ_ENTRY))
    assert answer.status == pb.EBADREQ
    assert [field.name for field, _ in answer.ListFields()] == ["header", "status"]


@pytest.mark.parametrize(
    "operation", [pb.RANGE_READ_ENTRY, pb.RANGE_ADD_ENTRY, pb.START_TLS, pb.GET_LIST_OF_ENTRIES_OF_LEDGER, pb.ADD_ENTRY]
)
def test_v3_unsupported_operations_and_missing_bodies(connection: Connection, operation: pb.OperationType) -> None:
    assert connection.call(request(operation)).status == pb.EBADREQ


def test_v3_wrong_version_and_short_entry(connection: Connection, ledger: int) -> None:
    add = v3_add(ledger, 0)
    add.header.version = pb.VERSION_TWO
    connection.send(frame(_with_txn(add)))
    answer = wire_v3.parse_response(connection.body())
    assert (answer.status, answer.addResponse.status) == (pb.EBADVERSION, pb.EBADVERSION)
    add = v3_add(ledger, 0)
    add.addRequest.body = b"short"
    assert connection.call(add).addResponse.status == pb.EBADREQ


def _with_txn(message: pb.Request) -> bytes:
    message.header.txnId = 999
    return message.SerializeToString()


def test_v3_explicit_lac_force_info_auth(connection: Connection, ledger: int) -> None:
    assert connection.call(v3_add(ledger, 0)).status == pb.EOK
    packet = struct.pack(">qq", ledger, 41) + b"digest"
    write = pb.WriteLacRequest(ledgerId=ledger, lac=41, masterKey=KEY, body=packet)
    answer = connection.call(request(pb.WRITE_LAC, writeLacRequest=write))
    assert answer.writeLacResponse == pb.WriteLacResponse(status=pb.EOK, ledgerId=ledger)
    answer = connection.call(request(pb.READ_LAC, readLacRequest=pb.ReadLacRequest(ledgerId=ledger)))
    assert answer.readLacResponse == pb.ReadLacResponse(
        status=pb.EOK, ledgerId=ledger, lacBody=packet, lastEntryBody=stored(ledger, 0)
    )
    assert connection.call(v3_read(ledger, 0)).readResponse.maxLAC == 41
    write.body = b"x"
    assert connection.call(request(pb.WRITE_LAC, writeLacRequest=write)).status == pb.EBADREQ
    answer = connection.call(request(pb.FORCE_LEDGER, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=next(_ids))))
    assert (answer.status, answer.forceLedgerResponse.status) == (pb.EOK, pb.EOK)
    answer = connection.call(request(pb.GET_BOOKIE_INFO, getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3)))
    info = answer.getBookieInfoResponse
    assert info.totalDiskCapacity >= info.freeDiskSpace > 0
    answer = connection.call(request(pb.AUTH, authRequest=pb.AuthMessage(authPluginName="x", payload=b"")))
    assert (answer.authResponse.authPluginName, answer.authResponse.payload) == ("AuthDisabledPlugin", b"")


def test_v3_long_poll(bookie: BookieProcess, connection: Connection, ledger: int) -> None:
    piggyback = pb.ReadRequest.ENTRY_PIGGYBACK

    def poll(previous: int, timeout: int, entry_id: int = -1) -> pb.Request:
        return v3_read(ledger, entry_id, previousLAC=previous, timeOut=timeout, flag=piggyback)

    assert connection.call(poll(-1, 0)).status == pb.ENOLEDGER
    assert connection.call(v3_add(ledger, 0)).status == pb.EOK
    assert connection.call(poll(-1, 0, entry_id=3)).status == pb.EBADREQ
    start = time.monotonic()
    body = connection.call(poll(-1, 300)).readResponse
    assert time.monotonic() - start >= 0.3
    assert (body.entryId, body.maxLAC, body.HasField("body")) == (-1, -1, False)
    assert connection.call(v3_add(ledger, 2)).status == pb.EOK  # says that entry 1 is confirmed
    body = connection.call(poll(-1, 60_000)).readResponse
    assert (body.entryId, body.body, body.maxLAC) == (0, stored(ledger, 0), 1)
    assert not body.HasField("lacUpdateTimestamp")
    body = connection.call(poll(0, 60_000)).readResponse
    assert (body.entryId, body.HasField("body"), body.maxLAC) == (-1, False, 1)  # entry 1 is not here
    waiting = poll(1, 60_000)
    waiting.header.txnId, waiting.header.version = 5000, pb.VERSION_THREE
    connection.send(frame(waiting.SerializeToString()))
    with bookie.connect() as other:
        assert other.call(v3_add(ledger, 3)).status == pb.EOK
    response = wire_v3.parse_response(connection.body())
    assert response.header.txnId == 5000
    body = response.readResponse
    assert (body.entryId, body.body, body.maxLAC) == (2, stored(ledger, 2), 2)
    assert body.lacUpdateTimestamp > 1_600_000_000_000
    waiting = poll(2, 60_000)
    waiting.header.txnId, waiting.header.version = 5001, pb.VERSION_THREE
    connection.send(frame(waiting.SerializeToString()))
    with bookie.connect() as other:
        other.fence(ledger)
    assert wire_v3.parse_response(connection.body()).readResponse.entryId == -1


def test_v3_pipelined_in_one_stream(connection: Connection, ledger: int) -> None:
    messages = []
    for i in range(300):
        messages.append(v3_add(ledger, i))
    for i in range(300):
        messages.append(v3_read(ledger, i))
    for txn_id, message in enumerate(messages):
        message.header.txnId, message.header.version = txn_id, pb.VERSION_THREE
    connection.send(b"".join(frame(message.SerializeToString()) for message in messages))
    responses = [wire_v3.parse_response(connection.body()) for _ in messages]
    by_txn = {response.header.txnId: response for response in responses}
    assert all(by_txn[i].addResponse.status == pb.EOK for i in range(300))
    assert all(by_txn[300 + i].readResponse.body == stored(ledger, i) for i in range(300))


def test_the_first_v2_frame_makes_a_connection_v2_for_good(bookie: BookieProcess, ledger: int) -> None:
    """compatibility.md §1.2 and §9, point 6."""
    with bookie.connect() as connection:
        assert connection.call(v3_add(ledger, 0)).status == pb.EOK
        assert connection.add(ledger, [1]) == [Code.OK]
        assert connection.read(ledger, 0) == stored(ledger, 0)
        again = v3_read(ledger, 0)
        again.header.version = pb.VERSION_THREE
        connection.send(frame(_with_txn(again)))
        assert connection.closed_by_peer()


def test_v3_and_v2_and_v3_in_one_send(bookie: BookieProcess, ledger: int) -> None:
    """What comes before the frame that ends the connection is done."""
    first, last = v3_add(ledger, 0), v3_add(ledger, 2)
    for request in (first, last):
        request.header.version = pb.VERSION_THREE
    with bookie.connect() as connection, bookie.connect() as other:
        connection.send(frame(_with_txn(first)) + add_frame(ledger, 1) + frame(_with_txn(last)))
        assert connection.closed_by_peer()
        assert other.read(ledger, 1) == stored(ledger, 1)
        assert other.read(ledger, 0) == stored(ledger, 0)
        assert other.read(ledger, 2) is Code.NO_ENTRY


# --- hostile bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        struct.pack(">I", 5 * 1024 * 1024 - 3),
        b"\0\0\0\0",
        b"\0\0\0\x02\x02\x01",
        frame(struct.pack(">I", 2 << 24 | 4 << 16) + bytes(100)),
        frame(struct.pack(">I", 2 << 24 | 99 << 16)),
        frame(b"\x02\x01\0\0" + bytes(30)),
        frame(b"\x02\x02\0\0" + bytes(15)),
        frame(b"\x0a\xff\xff"),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=lambda data: data[:12].hex(),
)
def test_what_is_no_frame_closes_the_connection_and_nothing_else(bookie: BookieProcess, data: bytes) -> None:
    ledger = next(_ids)
    with bookie.connect() as good, bookie.connect() as bad:
        assert good.add(ledger, [0]) == [Code.OK]
        bad.send(data)
        assert bad.closed_by_peer()
        assert good.read(ledger, 0) == stored(ledger, 0)


def test_what_came_before_the_garbage_in_one_send_is_done(bookie: BookieProcess, ledger: int) -> None:
    with bookie.connect() as connection:
        connection.send(add_frame(ledger, 0) + frame(b"\x02\x63\0\0"))
        assert connection.closed_by_peer()
    with bookie.connect() as connection:
        assert connection.read(ledger, 0) == stored(ledger, 0)


def test_half_a_frame_and_then_nothing(bookie: BookieProcess, ledger: int) -> None:
    data = add_frame(ledger, 0)
    for cut in (1, 4, 10, len(data) - 1):
        with bookie.connect() as connection:
            connection.send(data[:cut])
    with bookie.connect() as connection:
        assert connection.read(ledger, 0) is Code.NO_LEDGER
        for i in range(len(data)):
            connection.send(data[i : i + 1])
        assert bytes(connection.body())[4:8] == bytes(4)


def test_random_bytes_never_end_the_bookie(bookie: BookieProcess, ledger: int) -> None:
    with contextlib.ExitStack() as connections:
        peers = [connections.enter_context(bookie.connect()) for _ in range(50)]
        for peer in peers:
            peer.send(os.urandom(2000))
            peer.socket.shutdown(socket.SHUT_WR)
        assert all(peer.closed_by_peer() for peer in peers)
    with bookie.connect() as connection:
        assert connection.add(ledger, [0]) == [Code.OK]


def test_the_largest_frame_and_one_more_byte(bookie: BookieProcess, ledger: int) -> None:
    largest = 5 * 1024 * 1024 - len(add_frame(ledger, 0, size=0))
    with bookie.connect() as connection:
        connection.send(add_frame(ledger, 0, size=largest))
        assert bytes(connection.body())[4:8] == bytes(4)
        assert connection.read(ledger, 0) == stored(ledger, 0, largest)
        connection.send(add_frame(ledger, 1, size=largest + 1)[:1000])
        assert connection.closed_by_peer()


def test_a_client_that_takes_no_answers_is_not_read_any_more(bookie: BookieProcess, ledger: int) -> None:
    """Reads of megabytes are asked for and their answers left alone: the bookie's memory stays bounded."""
    with contextlib.ExitStack() as connections:
        connection = connections.enter_context(bookie.connect())
        for i in range(40):
            connection.send(add_frame(ledger, i, size=1_000_000))
            assert bytes(connection.body())[4:8] == bytes(4)
        greedy = [connections.enter_context(bookie.connect()) for _ in range(60)]

        def ask_for_more_than_is_taken(client: Connection) -> None:
            client.socket.settimeout(0.5)
            # The bookie may close a stalled connection while others wait for room.
            with contextlib.suppress(TimeoutError, ConnectionError):
                for _ in range(2000):
                    client.send(wire_v2.read_requests(ledger, list(range(40))))
                    client.send(wire_v2.batch_read_request(ledger, 0, 1, 0, 5_000_000))

        with ThreadPoolExecutor(20) as threads:
            list(threads.map(ask_for_more_than_is_taken, greedy))
        assert connection.read(ledger, 3) == stored(ledger, 3, 1_000_000)
        assert bookie.resident_mib() < 300
        for client in greedy:
            client.socket.close()
        assert connection.add(ledger, [100]) == [Code.OK]


def test_many_half_frames_of_the_largest_size_are_bounded_in_memory(bookie: BookieProcess, ledger: int) -> None:
    whole = add_frame(ledger, 0, size=5_000_000)
    halves = [bookie.connect() for _ in range(80)]

    def send_what_is_taken(half: Connection) -> None:
        half.socket.settimeout(0.5)
        # The bookie may close a stalled connection while others wait for room.
        with contextlib.suppress(TimeoutError, ConnectionError):
            half.send(whole[:-1])

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(send_what_is_taken, halves))
    with bookie.connect() as connection:
        assert connection.add(ledger, [5]) == [Code.OK]
        assert bookie.resident_mib() < 300
        for half in halves[:-1]:
            half.socket.close()
        last = halves[-1]
        last.socket.settimeout(30)
        # How much of the last one was taken is not known here: a new connection sends it whole.
        connection.send(add_frame(ledger, 6, size=5_000_000))
        assert bytes(connection.body())[4:8] == bytes(4)
        last.socket.close()


def test_a_flood_of_adds_is_bounded_in_memory(bookie: BookieProcess) -> None:
    ledgers = [next(_ids) for _ in range(6)]
    chunks = [b"".join(add_frame(ledger, i, size=100_000) for i in range(300)) for ledger in ledgers]
    connections = [bookie.connect() for _ in ledgers]
    for connection in connections:
        connection.socket.setblocking(False)
    left = {connection: memoryview(chunk) for connection, chunk in zip(connections, chunks, strict=True)}
    import selectors

    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        while selector.get_map():
            for key, _ in selector.select():
                rest = left[key.data]
                left[key.data] = rest[key.data.socket.send(rest) :]
                if not left[key.data]:
                    selector.unregister(key.data.socket)
    for connection in connections:
        connection.socket.setblocking(True)
        assert all(bytes(connection.body())[4:8] == bytes(4) for _ in range(300))
        connection.socket.close()
    assert bookie.resident_mib() < 300
