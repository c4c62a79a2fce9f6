"""Runs of v3 requests, read as arrays, say what protobuf says of each."""

from __future__ import annotations

import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import EntryPackagerV3
from bk_spark.protocol.wire.v3.request_runs_v3 import AddRunV3, ReadRunV3, segments, uniform_run
from bookie_server.net.native.gathered_v3 import AddsV3, GatheredAdds
from tests.support.bookie import KEY, stored
from tests.support.wire import frames


def add(entry_id: int, *, txn_id: int | None = None, size: int = 100, **more: object) -> pb.Request:
    fields: dict[str, object] = {"ledgerId": 7, "entryId": entry_id, "masterKey": KEY, **more}
    body = fields.pop("body", stored(7, entry_id, size))
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY)
    header.txnId = 1000 + entry_id if txn_id is None else txn_id
    return pb.Request(header=header, addRequest=pb.AddRequest(body=body, **fields))  # type: ignore[arg-type]


def read(entry_id: int, ledger_id: int = 7) -> pb.Request:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=500 + entry_id)
    return pb.Request(header=header, readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id))


def run(*requests: pb.Request) -> AddRunV3 | ReadRunV3 | None:
    received = frames(b"".join(frame(request.SerializeToString()) for request in requests))
    return uniform_run(received, 0, len(received))


def assert_like(run: AddRunV3 | ReadRunV3 | None, requests: list[pb.Request]) -> None:
    """The run holds these and no others."""
    assert isinstance(run, AddRunV3)
    adds = AddsV3.of(run)
    assert list(adds.txn_ids) == [request.header.txnId for request in requests]
    assert list(adds.ledger_ids) == [request.addRequest.ledgerId for request in requests]
    assert list(adds.entry_ids) == [request.addRequest.entryId for request in requests]
    first = requests[0]
    gathered = GatheredAdds(adds.master_key, adds.recovery, adds.high_priority)
    for request in requests:
        body = request.addRequest.body
        gathered.append(request.header.txnId, request.addRequest.ledgerId, request.addRequest.entryId, body)
    wanted = gathered.all().records
    assert bytes(adds.records.data) == bytes(wanted.data)
    for name in ("ledger_ids", "entry_ids", "last_adds_confirmed", "offsets"):
        assert getattr(adds.records, name).tolist() == getattr(wanted, name).tolist()
    assert adds.master_key == first.addRequest.masterKey
    assert adds.high_priority == (first.header.priority > 0)
    recovery = first.addRequest.HasField("flag") and first.addRequest.flag == pb.AddRequest.RECOVERY_ADD
    assert adds.recovery == recovery


@pytest.mark.parametrize("flags", [FlagV2.NONE, FlagV2.RECOVERY_ADD, FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY])
@pytest.mark.parametrize("deferred_sync", [False, True])
def test_adds_of_our_client(flags: FlagV2, deferred_sync: bool) -> None:
    packager = EntryPackagerV3(7, DigestType.CRC32C, b"secret", flags, deferred_sync=deferred_sync)
    received = frames(bytes(packager.package(120, 119, 0, Payloads.of([b"%03d" % i for i in range(50)])).data))
    requests = [wire_v3.parse_request(body) for body in received]
    assert_like(uniform_run(received, 0, 50), requests)
    assert_like(uniform_run(received, 10, 30), requests[10:30])


def test_adds_as_apaches_client_writes_them_end_where_ids_get_longer() -> None:
    requests = [add(entry_id) for entry_id in range(30)]
    assert_like(run(*requests), requests)
    longer = [add(i) for i in range(118, 138)]  # entry id 128 takes a byte more, but not if the payload has one less
    for request in longer[10:]:
        request.addRequest.body = stored(7, request.addRequest.entryId, 99)
    assert_like(run(*longer), longer[:10])


@pytest.mark.parametrize(
    "odd",
    [
        add(15, masterKey=bytes(20)),
        add(15, ledgerId=8),
        read(15),
        add(15, size=97, flag=pb.AddRequest.RECOVERY_ADD),
        add(15, size=98, writeFlags=1),
    ],
    ids=["key", "ledger", "read", "recovery", "write flags"],
)
def test_a_run_ends_before_what_is_different(odd: pb.Request) -> None:
    requests = [add(entry_id) for entry_id in range(30)]
    size = len(requests[0].SerializeToString())
    if odd.HasField("readRequest"):
        odd.readRequest.masterKey = bytes(size - len(odd.SerializeToString()) - 4)  # tag, and sizes of two bytes
    elif len(odd.SerializeToString()) != size:
        odd.addRequest.body = stored(7, 15, 100 + size - len(odd.SerializeToString()))
    assert len(odd.SerializeToString()) == size
    assert_like(run(*requests[:15], odd, *requests[16:]), requests[:15])


def test_what_is_unusual_is_left_to_protobuf() -> None:
    few = [add(i) for i in range(7)]
    assert run(*few) is None
    for change in (
        {"txn_id": 2**63},
        {"entryId": -1},
        {"ledgerId": -1},
        {"body": b"short"},
    ):
        assert run(*[add(5, **change) for _ in range(20)]) is None  # type: ignore[arg-type]
    context = [add(i) for i in range(20)]
    for request in context:
        request.requestContext.add(key="a", value="b")
    assert run(*context) is None
    versions = [add(i) for i in range(20)]
    for request in versions:
        request.header.version = pb.VERSION_TWO
    assert run(*versions) is None
    one = add(1).SerializeToString()
    twice = frames(frame(one + one) * 20)
    assert uniform_run(twice, 0, 20) is None


def test_a_large_add_alone_is_a_run() -> None:
    request = add(1, size=700_000)
    assert_like(run(request), [request])


def test_fields_in_another_order() -> None:
    """Apache's codec writes optional fields first."""
    requests = [add(i, flag=pb.AddRequest.RECOVERY_ADD) for i in range(20)]
    data = b""
    for request in requests:
        body = request.addRequest.SerializeToString()
        flag, rest = b"\xa0\x06\x01", body.replace(b"\xa0\x06\x01", b"")
        assert len(rest) == len(body) - len(flag)
        header = request.header.SerializeToString()
        inner = flag + rest
        message = b"\xaa\x06" + bytes((len(inner) & 0x7F | 0x80, len(inner) >> 7)) + inner
        data += frame(message + b"\x0a" + bytes((len(header),)) + header)
    received = frames(data)
    assert [wire_v3.parse_request(body) for body in received] == requests
    assert_like(uniform_run(received, 0, 20), requests)


@pytest.mark.parametrize("ours", [False, True])
def test_reads(ours: bool) -> None:
    if ours:
        received = frames(wire_v3.read_requests(3, 7, np.arange(50)))
    else:
        received = frames(b"".join(frame(read(i).SerializeToString()) for i in range(50)))
    requests = [wire_v3.parse_request(body) for body in received]
    reads = uniform_run(received, 0, 50)
    assert isinstance(reads, ReadRunV3)
    assert list(reads.txn_ids) == [request.header.txnId for request in requests]
    assert (set(reads.ledger_ids), list(reads.entry_ids)) == ({7}, list(range(50)))
    fencing = read(1)
    fencing.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
    assert run(*[fencing] * 20) is None
    assert run(*[read(-1)] * 20) is None
    negative = read(1)
    negative.readRequest.ledgerId = -1
    assert run(*[negative] * 20) is None


def test_segments() -> None:
    def of(*sizes: int) -> list[tuple[int, bool]]:
        return list(segments(frames(b"".join(frame(bytes(size)) for size in sizes))))

    assert of(*[5] * 20) == [(20, True)]
    assert of(5, 6, 5, 6, 5, 6, 5, 6, 5) == [(9, False)]
    assert of(1, 2, *[5] * 8, 1, *[7] * 8) == [(2, False), (10, True), (11, False), (19, True)]
    assert of(1, 2_000_000, 1) == [(1, False), (2, True), (3, False)]
