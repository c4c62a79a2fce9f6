"""v3 ADD frames: what protobuf reads out of them, against Apache's frames and against v2's entries."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bk_spark.bookie.config import ANSWER_RESERVE_BYTES
from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.wire import add_frames
from bk_spark.protocol.wire.add_frames import AddFrames, EntryPackager
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT, EntryPackagerV3, is_txn_of, txn_entry_id
from tests.support.wire import Captured, captured

URGENT = FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
DIGEST_OF_SCENE = {"add-CRC32": DigestType.CRC32, "add-MAC": DigestType.HMAC, "add-DUMMY": DigestType.DUMMY}
ADDS = [
    one
    for one in captured("wire-v3", "v3")
    if one.request and one.says["op"] == "ADD_ENTRY" and wire_v3.parse_request(one.body).HasField("addRequest")
]


def requests_of(built: AddFrames) -> list[pb.Request]:
    bounds = built.offsets.tolist()
    requests = []
    for start, end in itertools.pairwise(bounds):
        assert int.from_bytes(built.data[start : start + 4], "big") == end - start - 4
        requests.append(wire_v3.parse_request(built.data[start + 4 : end]))
    return requests


@pytest.mark.parametrize("one", ADDS, ids=str)
def test_captured_adds_say_the_same(one: Captured) -> None:
    wanted = wire_v3.parse_request(one.body)
    add = wanted.addRequest
    digest_type = DIGEST_OF_SCENE.get(one.scene, DigestType.CRC32C)
    lac, length = (int.from_bytes(add.body[at : at + 8], "big", signed=True) for at in (16, 24))
    payload = add.body[32 + digest_type.digest_bytes :]
    flags = FlagV2.RECOVERY_ADD if add.HasField("flag") else FlagV2.NONE
    flags |= FlagV2.HIGH_PRIORITY if wanted.header.priority else FlagV2.NONE
    deferred = bool(add.writeFlags & wire_v3.DEFERRED_SYNC)
    packager = EntryPackagerV3(add.ledgerId, digest_type, b"golden", flags, deferred_sync=deferred)
    (built,) = requests_of(packager.package(add.entryId, lac, length - len(payload), Payloads.of([payload])))
    assert built.header.txnId & ADD_TXN_BIT
    built.header.txnId = wanted.header.txnId
    if add.HasField("writeFlags") and not deferred:
        built.addRequest.writeFlags = 0  # Apache's client says that nothing is asked for
    assert built == wanted


def test_the_capture_has_every_kind_of_add() -> None:
    parsed = [wire_v3.parse_request(one.body) for one in ADDS]
    assert {bool(request.addRequest.HasField("flag")) for request in parsed} == {False, True}
    assert {bool(request.addRequest.writeFlags) for request in parsed} == {False, True}


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("flags", [FlagV2.NONE, FlagV2.RECOVERY_ADD, URGENT], ids=str)
@pytest.mark.parametrize("sizes", [[0], [7] * 5, [1, 0, 9, 200, 70_000]], ids=str)
def test_bodies_are_the_entries_of_v2(digest_type: DigestType, flags: FlagV2, sizes: list[int]) -> None:
    random_ = random.Random(len(sizes))
    for _ in range(20):
        ledger_id = random_.getrandbits(random_.randint(1, 63))
        first = random_.getrandbits(random_.randint(1, 62))
        payloads = Payloads.of([random_.randbytes(size) for size in sizes])
        v2 = EntryPackager(ledger_id, digest_type, b"pw").package(first, first - 1, 1000, payloads)
        packager = EntryPackagerV3(ledger_id, digest_type, b"pw", flags, deferred_sync=bool(first & 1))
        v3 = packager.package(first, first - 1, 1000, payloads)
        assert v3.lengths.tolist() == v2.lengths.tolist()
        assert np.diff(v3.offsets).tolist() == [size + packager.overhead_bytes for size in sizes]
        bounds = v2.offsets.tolist()
        for number, request in enumerate(requests_of(v3)):
            add = request.addRequest
            assert add.body == v2.data[bounds[number] + 28 : bounds[number + 1]]
            assert (add.ledgerId, add.entryId, add.masterKey) == (ledger_id, first + number, master_key(b"pw"))
            assert add.HasField("flag") is bool(flags & FlagV2.RECOVERY_ADD)
            assert add.writeFlags == first & 1
            assert request.header.HasField("priority") is bool(flags & FlagV2.HIGH_PRIORITY)
            assert (request.header.version, request.header.operation) == (pb.VERSION_THREE, pb.ADD_ENTRY)


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("sizes", [[0], [1024] * 3, [1, 0, 9, 9, 200, 9, 5_000], list(range(100, 124))], ids=str)
def test_few_frames_are_those_of_many(
    digest_type: DigestType, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few entries are packed with plain numbers, many with numpy: byte for byte the same, over both protocols."""
    random_ = random.Random(len(sizes))
    payloads = Payloads.of([random_.randbytes(size) for size in sizes])
    for flags, deferred in itertools.product((FlagV2.NONE, FlagV2.RECOVERY_ADD, URGENT), (False, True)):
        for ledger_id, first in ((0, 0), (5, 127), (2**40, 2**31), (2**63 - 1, 2**40 - 2), (7, 2**62)):
            packagers = (
                EntryPackagerV3(ledger_id, digest_type, b"pw", flags, deferred_sync=deferred),
                EntryPackager(ledger_id, digest_type, b"pw", flags),
            )
            for packager in packagers:
                few = packager.package(first, first - 1, 1000, payloads)
                with monkeypatch.context() as patched:
                    patched.setattr(add_frames, "_FEW", 0)
                    many = packager.package(first, first - 1, 1000, payloads)
                assert few.data == many.data
                assert few.offsets.tolist() == many.offsets.tolist()
                assert few.lengths.tolist() == many.lengths.tolist()


def test_transaction_ids() -> None:
    for ledger_id in (0, 7, 2**22 + 7, 2**63 - 1):
        packager = EntryPackagerV3(ledger_id, DigestType.DUMMY, b"")
        for first in (0, 5, 2**40 - 3, 2**40 - 1, 2**62):
            built = requests_of(packager.package(first, -1, 0, Payloads.of([b""] * 2)))
            for number, request in enumerate(built):
                txn_id = request.header.txnId
                assert 2**62 <= txn_id < 2**63
                assert is_txn_of(txn_id, ledger_id)
                assert not is_txn_of(txn_id, ledger_id ^ 1)
                assert txn_entry_id(txn_id) == (first + number if first < 2**40 - 1 else None)
    assert is_txn_of(txn_id, 2**22 - 1), "ledgers that agree in 22 bits cannot be told apart"


def test_an_entry_that_fits_a_v2_frame_fits_a_v3_frame() -> None:
    """The limit of payloads counts with v2's overhead and a reserve for answers."""
    for digest_type in DigestType:
        most = EntryPackagerV3(0, digest_type, b"", URGENT, deferred_sync=True).overhead_bytes
        assert most <= EntryPackager.overhead(digest_type) + ANSWER_RESERVE_BYTES


def test_keys_do_not_show() -> None:
    packager = EntryPackagerV3(1, DigestType.HMAC, b"hunter2")
    assert "hunter2" not in repr(packager)
    assert master_key(b"hunter2").hex() not in repr(packager)
