"""Every operation of both protocols against a real bookie, case by case (compatibility.md §1.7–§1.9)."""

from __future__ import annotations

import contextlib
import itertools
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest

from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.entry_availability import decode_availability
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.local import LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, stored

_ids = itertools.count(20_000)
FENCE = pb.ReadRequest.FENCE_LEDGER
PIGGYBACK = pb.ReadRequest.ENTRY_PIGGYBACK
LONG_MS = 60_000


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
def other(bookie: BookieProcess) -> Iterator[Connection]:
    with bookie.connect() as connection:
        yield connection


@pytest.fixture
def ledger() -> int:
    """An id that nobody used."""
    return next(_ids)


def request(operation: pb.OperationType, **body: object) -> pb.Request:
    return pb.Request(header=pb.BKPacketHeader(operation=operation), **body)  # type: ignore[arg-type]


def add(ledger: int, entry_id: int, key: bytes = KEY, **more: object) -> pb.Request:
    body = pb.AddRequest(ledgerId=ledger, entryId=entry_id, masterKey=key, body=stored(ledger, entry_id), **more)  # type: ignore[arg-type]
    return request(pb.ADD_ENTRY, addRequest=body)


def read(ledger: int, entry_id: int, **more: object) -> pb.Request:
    return request(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=ledger, entryId=entry_id, **more))  # type: ignore[arg-type]


def poll(ledger: int, previous: int, **more: object) -> pb.Request:
    return read(ledger, -1, previousLAC=previous, flag=PIGGYBACK, **more)


def send(connection: Connection, message: pb.Request, txn_id: int) -> None:
    message.header.version, message.header.txnId = pb.VERSION_THREE, txn_id
    connection.send(frame(message.SerializeToString()))


def answer(connection: Connection) -> pb.Response:
    return wire_v3.parse_response(connection.body())


def fields(response: pb.Response) -> list[str]:
    return [field.name for field, _ in response.ListFields()]


# --- urgent reads ---------------------------------------------------------------------------------


def test_urgent_reads_are_answered_in_the_order_in_which_they_came_over_v3(connection: Connection, ledger: int) -> None:
    """A recovery reads ahead and waits for its oldest read."""
    count = 300
    for i in range(count):
        send(connection, add(ledger, i), i)
        answer(connection)
    requests = [read(ledger, i, flag=FENCE, masterKey=KEY) for i in range(count)]
    for i, message in enumerate(requests):
        message.header.version, message.header.txnId, message.header.priority = pb.VERSION_THREE, i, 1
    # At once, so that most of them wait together.
    connection.send(b"".join(frame(message.SerializeToString()) for message in requests))
    assert [answer(connection).header.txnId for _ in range(count)] == list(range(count))


def test_urgent_reads_are_answered_in_the_order_in_which_they_came_over_v2(connection: Connection) -> None:
    ledgers = [next(_ids) for _ in range(300)]
    for ledger_id in ledgers:
        assert connection.add(ledger_id, [0]) == [Code.OK]
    # A key of its own for each, for requests that are alike are one request to the bookie.
    flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY
    keys = [KEY if i % 2 else bytes(20) for i in range(300)]
    requests = [wire_v2.read_requests(ledgers[i], [0], flags, keys[i]) for i in range(300)]
    connection.send(b"".join(requests))
    answers = [connection.body() for _ in range(300)]
    assert [int.from_bytes(body[8:16], "big") for body in answers] == ledgers


# --- lists of entries ----------------------------------------------------------------------------


def listed(connection: Connection, ledger: int) -> list[int]:
    body = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger)
    response = connection.call(request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, getListOfEntriesOfLedgerRequest=body))
    assert (response.status, response.getListOfEntriesOfLedgerResponse.status) == (pb.EOK, pb.EOK)
    assert response.getListOfEntriesOfLedgerResponse.ledgerId == ledger
    data = response.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
    return list(itertools.chain.from_iterable(decode_availability(data).ranges()))


def test_the_list_of_entries_of_a_ledger(connection: Connection, other: Connection, ledger: int) -> None:
    body = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger)
    response = connection.call(request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, getListOfEntriesOfLedgerRequest=body))
    assert (response.status, response.getListOfEntriesOfLedgerResponse.status) == (pb.ENOLEDGER, pb.ENOLEDGER)
    assert not response.getListOfEntriesOfLedgerResponse.HasField("availabilityOfEntriesOfLedger")
    ids = [*range(3), 5, 6, 7, 10, 11, 12, 20, 5000, 70_000]
    assert set(other.add(ledger, ids)) == {Code.OK}
    assert listed(connection, ledger) == ids
    striped = next(_ids)
    ids = [i for i in range(6000) if i % 3 != 1]
    assert set(other.add(striped, ids)) == {Code.OK}
    assert listed(connection, striped) == ids
    fenced = next(_ids)
    assert other.fence(fenced) is Code.NO_ENTRY
    assert listed(connection, fenced) == []


# --- long polls, a test for each row of the table in compatibility.md §1.8 -------------------------------------------


def test_a_long_poll_of_an_unknown_ledger(connection: Connection, ledger: int) -> None:
    response = connection.call(poll(ledger, 0, timeOut=LONG_MS))
    assert (response.status, response.readResponse.status) == (pb.ENOLEDGER, pb.ENOLEDGER)


def test_a_long_poll_of_an_entry_that_is_not_the_last(connection: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    response = connection.call(read(ledger, 3, previousLAC=0, flag=PIGGYBACK, timeOut=LONG_MS))
    assert (response.status, response.readResponse.status) == (pb.EBADREQ, pb.EBADREQ)


def test_a_long_poll_whose_lac_is_there_already(connection: Connection, ledger: int) -> None:
    for i in range(3):
        connection.call(add(ledger, i))
    body = connection.call(poll(ledger, -1, timeOut=LONG_MS)).readResponse
    assert (body.status, body.entryId, body.body, body.maxLAC) == (pb.EOK, 0, stored(ledger, 0), 1)
    assert not body.HasField("lacUpdateTimestamp")


def test_a_long_poll_whose_next_entry_is_elsewhere(connection: Connection, ledger: int) -> None:
    connection.call(add(ledger, 5))  # says that entry 4 is confirmed
    body = connection.call(poll(ledger, 1, timeOut=LONG_MS)).readResponse
    assert (body.status, body.entryId, body.HasField("body"), body.maxLAC) == (pb.EOK, -1, False, 4)


def test_a_long_poll_waits_for_an_add(connection: Connection, other: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    connection.call(add(ledger, 1))
    before_ms = int(time.time() * 1000)
    send(connection, poll(ledger, 0, timeOut=LONG_MS), 77)
    connection.call(add(ledger, 1))  # the same LAC again
    other.call(add(ledger, 2))
    response = answer(connection)
    body = response.readResponse
    assert (response.header.txnId, body.entryId, body.body, body.maxLAC) == (77, 1, stored(ledger, 1), 1)
    assert before_ms <= body.lacUpdateTimestamp <= time.time() * 1000


def test_a_long_poll_waits_for_an_explicit_lac(connection: Connection, other: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    send(connection, poll(ledger, -1, timeOut=LONG_MS), 77)
    connection.call(read(ledger, 0))  # so the long poll has begun
    packet = struct.pack(">qq", ledger, 0) + bytes(4)
    write = pb.WriteLacRequest(ledgerId=ledger, lac=0, masterKey=KEY, body=packet)
    assert other.call(request(pb.WRITE_LAC, writeLacRequest=write)).status == pb.EOK
    body = answer(connection).readResponse
    assert (body.entryId, body.body, body.maxLAC) == (0, stored(ledger, 0), 0)
    assert body.HasField("lacUpdateTimestamp")


def test_a_long_poll_ends_with_its_time(connection: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    start = time.monotonic()
    body = connection.call(poll(ledger, 0, timeOut=300)).readResponse
    assert time.monotonic() - start >= 0.3
    assert (body.status, body.entryId, body.HasField("body"), body.maxLAC) == (pb.EOK, -1, False, -1)
    assert not body.HasField("lacUpdateTimestamp")


def test_a_long_poll_without_a_time_does_not_wait(connection: Connection, ledger: int) -> None:
    connection.call(add(ledger, 1))
    body = connection.call(poll(ledger, 5)).readResponse
    assert (body.status, body.entryId, body.HasField("body"), body.maxLAC) == (pb.EOK, -1, False, 0)


def test_a_fence_ends_a_long_poll_at_once(connection: Connection, other: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    send(connection, poll(ledger, 0, timeOut=LONG_MS), 77)
    connection.call(read(ledger, 0))  # so the long poll has begun
    assert other.fence(ledger) == stored(ledger, 0)
    body = answer(connection).readResponse
    assert (body.status, body.entryId, body.HasField("body"), body.maxLAC) == (pb.EOK, -1, False, -1)
    assert not body.HasField("lacUpdateTimestamp")


def test_a_long_poll_of_a_fenced_ledger_waits_its_time(connection: Connection, other: Connection, ledger: int) -> None:
    connection.call(add(ledger, 0))
    assert other.fence(ledger) == stored(ledger, 0)
    start = time.monotonic()
    assert connection.call(poll(ledger, 0, timeOut=300)).readResponse.entryId == -1
    assert time.monotonic() - start >= 0.3
    send(connection, poll(ledger, 0, timeOut=LONG_MS), 77)  # and a recovery add ends it
    other_v3 = add(ledger, 2, flag=pb.AddRequest.RECOVERY_ADD)
    with_v3 = Connection(other.socket.getpeername()[1])
    with with_v3:
        assert with_v3.call(other_v3).status == pb.EOK
    body = answer(connection).readResponse
    assert (body.entryId, body.maxLAC) == (-1, 1)  # entry 1 was never here


def test_without_piggyback_the_wait_ends_in_a_plain_read(
    connection: Connection, other: Connection, ledger: int
) -> None:
    connection.call(add(ledger, 0))
    send(connection, read(ledger, 0, previousLAC=0, timeOut=LONG_MS), 77)
    other.call(add(ledger, 2))
    body = answer(connection).readResponse
    assert (body.entryId, body.body, body.maxLAC) == (0, stored(ledger, 0), 1)
    assert connection.call(read(ledger, 9, previousLAC=0, timeOut=1)).status == pb.ENOENTRY
    # And piggyback without previousLAC is a plain read from the start.
    body = connection.call(read(ledger, 2, flag=PIGGYBACK)).readResponse
    assert (body.entryId, body.body, body.maxLAC) == (2, stored(ledger, 2), 1)


def test_long_polls_keep_little_of_their_requests(bookie: BookieProcess, connection: Connection, ledger: int) -> None:
    """A request may bring megabytes of context along; only numbers are kept while it waits."""
    connection.call(add(ledger, 0))
    waiting = poll(ledger, 0, timeOut=LONG_MS)
    waiting.requestContext.add(key="k", value="v" * 2_000_000)
    before = bookie.resident_mib()
    for txn_id in range(200):
        send(connection, waiting, 1000 + txn_id)
    assert connection.call(read(ledger, 0)).status == pb.EOK
    assert bookie.resident_mib() < before + 100


# --- explicit LAC, force, info, authentication, TLS ------------------------------------------------


def test_read_lac(connection: Connection, ledger: int) -> None:
    def read_lac() -> pb.Response:
        return connection.call(request(pb.READ_LAC, readLacRequest=pb.ReadLacRequest(ledgerId=ledger)))

    response = read_lac()
    assert response.readLacResponse == pb.ReadLacResponse(status=pb.ENOENTRY, ledgerId=ledger)
    packet = struct.pack(">qq", ledger, 3) + b"digest"
    write = pb.WriteLacRequest(ledgerId=ledger, lac=3, masterKey=KEY, body=packet)
    assert connection.call(request(pb.WRITE_LAC, writeLacRequest=write)).status == pb.EOK
    assert read_lac().readLacResponse == pb.ReadLacResponse(status=pb.EOK, ledgerId=ledger, lacBody=packet)
    connection.call(add(ledger, 4))
    assert read_lac().readLacResponse == pb.ReadLacResponse(
        status=pb.EOK, ledgerId=ledger, lacBody=packet, lastEntryBody=stored(ledger, 4)
    )
    write.masterKey = b"wrong"
    assert connection.call(request(pb.WRITE_LAC, writeLacRequest=write)).writeLacResponse.status == pb.EUA
    assert connection.call(read(ledger, -1, flag=FENCE, masterKey=KEY)).status == pb.EOK
    write.masterKey = KEY  # a fence does not count
    assert connection.call(request(pb.WRITE_LAC, writeLacRequest=write)).status == pb.EOK


def test_max_lac_comes_with_plain_reads_that_found_their_entry(connection: Connection, ledger: int) -> None:
    for i in range(4):
        connection.call(add(ledger, i))
    assert connection.call(read(ledger, 1)).readResponse.maxLAC == 2
    assert connection.call(read(ledger, -1)).readResponse.maxLAC == 2
    assert not connection.call(read(ledger, 9)).readResponse.HasField("maxLAC")
    assert not connection.call(read(ledger, 1, flag=FENCE, masterKey=KEY)).readResponse.HasField("maxLAC")


def test_force(connection: Connection, ledger: int) -> None:
    force = request(pb.FORCE_LEDGER, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=ledger))
    response = connection.call(force)  # of a ledger that is not here
    assert response.forceLedgerResponse == pb.ForceLedgerResponse(status=pb.EOK, ledgerId=ledger)
    for i in range(50):
        send(connection, add(ledger, i, writeFlags=wire_v3.DEFERRED_SYNC), 100 + i)
    send(connection, force, 200)
    seen = [answer(connection) for _ in range(51)]
    assert {response.status for response in seen} == {pb.EOK}
    assert seen[-1].header.operation == pb.FORCE_LEDGER


@pytest.mark.parametrize("operation", [pb.RANGE_READ_ENTRY, pb.RANGE_ADD_ENTRY, pb.BATCH_READ_ENTRY, pb.START_TLS])
def test_operations_that_are_refused_have_no_body(connection: Connection, operation: pb.OperationType) -> None:
    message = request(operation)
    if operation == pb.START_TLS:
        message.startTLSRequest.SetInParent()
    response = connection.call(message)
    assert (response.status, fields(response)) == (pb.EBADREQ, ["header", "status"])


def test_auth_over_v3_sends_the_header_back(connection: Connection) -> None:
    message = request(pb.AUTH, authRequest=pb.AuthMessage(authPluginName="whatever", payload=b"secret" * 1000))
    message.header.priority = 7
    response = connection.call(message)
    assert (response.status, response.header.priority) == (pb.EOK, 7)
    assert response.authResponse == pb.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")


def test_a_wrong_version_over_v3(connection: Connection, ledger: int) -> None:
    packet = struct.pack(">qq", ledger, 3)
    messages = [
        (add(ledger, 0), "addResponse"),
        (read(ledger, 0), "readResponse"),
        (poll(ledger, 0), "readResponse"),
        (
            request(
                pb.WRITE_LAC, writeLacRequest=pb.WriteLacRequest(ledgerId=ledger, lac=3, masterKey=KEY, body=packet)
            ),
            "writeLacResponse",
        ),
        (request(pb.READ_LAC, readLacRequest=pb.ReadLacRequest(ledgerId=ledger)), "readLacResponse"),
        (request(pb.FORCE_LEDGER, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=ledger)), "forceLedgerResponse"),
        (
            request(pb.GET_BOOKIE_INFO, getBookieInfoRequest=pb.GetBookieInfoRequest(requested=3)),
            "getBookieInfoResponse",
        ),
        (
            request(
                pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
                getListOfEntriesOfLedgerRequest=pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger),
            ),
            "getListOfEntriesOfLedgerResponse",
        ),
    ]
    for message, body in messages:
        message.header.version = pb.VERSION_TWO
        response = connection.call(message)
        assert (response.status, getattr(response, body).status) == (pb.EBADVERSION, pb.EBADVERSION), body
    assert connection.call(read(ledger, 0)).status == pb.ENOLEDGER  # none of them did anything


def test_a_ledger_with_an_empty_key_takes_the_first_key_that_is_shown(connection: Connection, ledger: int) -> None:
    """An empty key protects nothing. A bookie that lost its data marks ledgers with it if it does not know theirs."""
    assert connection.call(add(ledger, 0, b"")).addResponse.status == pb.EOK
    assert connection.call(add(ledger, 1, b"x")).addResponse.status == pb.EOK
    assert connection.call(add(ledger, 2, b"")).addResponse.status == pb.EUA
    assert connection.call(read(ledger, 0, flag=FENCE, masterKey=b"y")).status == pb.EUA
    assert connection.call(read(ledger, 0, flag=FENCE, masterKey=b"x")).readResponse.body == stored(ledger, 0)


@pytest.mark.parametrize("size", [1, 19, 20, 21, 200])
def test_master_keys_of_any_length(connection: Connection, ledger: int, size: int) -> None:
    key = bytes(range(size))
    assert connection.call(add(ledger, 0, key)).addResponse.status == pb.EOK
    assert connection.call(add(ledger, 1, key + b"x")).addResponse.status == pb.EUA
    assert connection.call(read(ledger, 0, flag=FENCE, masterKey=key + b"x")).status == pb.EUA
    assert connection.call(read(ledger, 0, flag=FENCE, masterKey=key)).readResponse.body == stored(ledger, 0)


def test_the_answer_to_an_add_says_the_ids_of_the_request_and_the_body_is_what_counts(
    connection: Connection, ledger: int
) -> None:
    message = add(ledger, 3)
    message.addRequest.ledgerId, message.addRequest.entryId = 1, -5
    response = connection.call(message)
    assert response.addResponse == pb.AddResponse(status=pb.EOK, ledgerId=1, entryId=-5)
    assert connection.call(read(ledger, 3)).readResponse.body == stored(ledger, 3)


def test_requests_whose_header_does_not_come_first(connection: Connection, ledger: int) -> None:
    """Apache's codec keeps to no order of fields."""
    inner, header = pb.ReadRequest(ledgerId=ledger, entryId=0), pb.BKPacketHeader()
    header.version, header.operation, header.txnId = pb.VERSION_THREE, pb.READ_ENTRY, 5
    body, head = inner.SerializeToString(), header.SerializeToString()
    connection.send(frame(b"\xa2\x06" + bytes((len(body),)) + body + b"\x0a" + bytes((len(head),)) + head))
    response = answer(connection)
    assert (response.header.txnId, response.status) == (5, pb.ENOLEDGER)


def test_v2_versions_and_flags(bookie: BookieProcess, connection: Connection, ledger: int) -> None:
    def header(version: int, op: int, flags: int = 0) -> bytes:
        return (version << 24 | op << 16 | flags).to_bytes(4, "big")

    assert connection.add(ledger, [0]) == [Code.OK]
    # Version 1 has no key in its reads, so it cannot fence.
    connection.send(frame(header(1, 2, 1) + struct.pack(">qq", ledger, 0)))
    assert int.from_bytes(connection.body()[4:8], "big") == Code.UNAUTHORIZED
    connection.send(frame(header(9, 1) + bytes(20) + stored(ledger, 1)))
    body = bytes(connection.body())
    assert (body[0], struct.unpack(">iqq", body[4:])) == (9, (Code.BAD_VERSION, ledger, 1))
    batch = struct.pack(">Iqqqiq", wire_v2.header_int(wire_v2.OpV2.BATCH_READ, 0, 3), ledger, 1, 77, 1, 1)
    connection.send(frame(batch))
    assert struct.unpack(">Iiqqq", connection.body()) == (3 << 24 | 7 << 16, Code.BAD_VERSION, ledger, 1, 77)
    connection.send(frame(header(9, 3) + b"anything"))  # AUTH: no version is looked at
    assert bytes(connection.body()).startswith(bytes.fromhex("02030000"))
    connection.send(frame(header(9, 4)))
    assert connection.closed_by_peer()


# --- many at once ----------------------------------------------------------------------------------


def test_adds_and_reads_of_all_shapes_in_one_stream_over_v3(connection: Connection, ledger: int) -> None:
    """Runs, runs that break off, single requests, in any order: each gets its own answer."""
    random = np.random.default_rng(11)
    wanted: dict[int, tuple[int, int]] = {}
    messages = []
    sizes = random.choice([30, 30, 30, 31, 500], 600)
    for i in range(600):
        body = pb.AddRequest(ledgerId=ledger, entryId=i, masterKey=KEY, body=stored(ledger, i, int(sizes[i])))
        if i % 97 == 50:
            body.flag = pb.AddRequest.RECOVERY_ADD
        if i % 101 == 51:
            body.masterKey = b"wrong"
        wanted[i] = pb.ADD_ENTRY, pb.EUA if body.masterKey == b"wrong" else pb.EOK
        messages.append(request(pb.ADD_ENTRY, addRequest=body))
        if i % 53 == 20:
            wanted[10_000 + i] = pb.READ_LAC, pb.ENOENTRY  # the first adds are not durable yet
            messages.append(request(pb.READ_LAC, readLacRequest=pb.ReadLacRequest(ledgerId=ledger)))
            messages[-1].header.txnId = 10_000 + i
        messages[-1 if i % 53 != 20 else -2].header.txnId = i
    for i in range(600):
        wanted[20_000 + i] = pb.READ_ENTRY, pb.ENOENTRY if wanted[i][1] == pb.EUA else pb.EOK
        messages.append(read(ledger, i))
        messages[-1].header.txnId = 20_000 + i
    for message in messages:
        message.header.version = pb.VERSION_THREE
    connection.send(b"".join(frame(message.SerializeToString()) for message in messages))
    got = {}
    for _ in messages:
        response = answer(connection)
        status = response.status
        if response.header.operation == pb.READ_LAC and status == pb.EOK:
            status = pb.ENOENTRY  # or they are
        got[response.header.txnId] = response.header.operation, status
        if response.header.operation == pb.READ_ENTRY and response.status == pb.EOK:
            entry_id = response.header.txnId - 20_000
            assert response.readResponse.entryId == entry_id
            assert response.readResponse.body == stored(ledger, entry_id, int(sizes[entry_id]))
    assert got == wanted


def test_small_half_frames_on_many_connections_are_bounded(bookie: BookieProcess, ledger: int) -> None:
    data = add_frame(ledger, 0, size=200_000)[:-1]
    connections = [bookie.connect() for _ in range(400)]
    before = bookie.resident_mib()
    try:
        for connection in connections:
            with contextlib.suppress(ConnectionError):  # it may have been the oldest when others came
                connection.send(data)
        with bookie.connect() as good:
            assert good.add(ledger, [1]) == [Code.OK]
        assert bookie.resident_mib() < before + 60  # they sent 76 MiB
    finally:
        for connection in connections:
            connection.socket.close()


def test_reads_one_by_one_between_other_requests_are_bounded_in_memory(bookie: BookieProcess, ledger: int) -> None:
    auth = frame(bytes.fromhex("02030000"))
    with bookie.connect() as writer:
        assert set(writer.add(ledger, range(10))) == {Code.OK}
        for i in range(10):
            writer.send(add_frame(ledger, i, size=60_000))
            assert bytes(writer.body())[4:8] == bytes(4)
        before = bookie.resident_mib()
        greedy = [bookie.connect() for _ in range(20)]
        try:
            for connection in greedy:
                connection.socket.settimeout(0.2)
                one = b"".join(wire_v2.read_requests(ledger, [i % 10]) + auth for i in range(1000))
                with contextlib.suppress(TimeoutError):
                    for _ in range(20):
                        connection.send(one)
            assert writer.read(ledger, 3) == stored(ledger, 3, 60_000)
            assert bookie.resident_mib() < before + 150
        finally:
            for connection in greedy:
                connection.socket.close()
