"""Recovery adds of stored entries: what a bookie receives is what another one stored."""

from __future__ import annotations

import pytest

from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.stored_adds import cut_records, stored_adds_v2, stored_adds_v3
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import is_txn_of, txn_entry_id
from bk_spark.protocol.wire.wire_v2 import AddRun, parse_requests
from tests.support.wire import frames

KEY = master_key(b"secret")


def _stored(entry_id: int, size: int) -> bytes:
    digest = digest_function(DigestType.CRC32C, b"secret")
    return pack_entry(7, entry_id, entry_id - 3, 100 * entry_id, b"x" * size, digest)


@pytest.mark.parametrize("sizes", [[5], [5, 5, 5], [5, 0, 900, 5], [0], [70_000, 70_000]], ids=str)
def test_entries_arrive_as_they_were_stored(sizes: list[int]) -> None:
    entry_ids = range(3, 3 + 2 * len(sizes), 2)
    stored = [_stored(entry_id, size) for entry_id, size in zip(entry_ids, sizes, strict=True)]
    records = b"".join(len(one).to_bytes(4, "big") + one for one in stored)
    assert [bytes(one) for one in cut_records(memoryview(records))] == stored

    data = bytes(stored_adds_v2(KEY, len(sizes), memoryview(records)))
    received = b""
    for run in parse_requests(frames([data])):
        assert isinstance(run, AddRun)
        assert run.master_key == KEY
        assert run.flags == FlagV2.RECOVERY_ADD
        received += bytes(run.records)
    assert received == records

    data = bytes(stored_adds_v3(7, KEY, entry_ids, memoryview(records)))
    for entry_id, one in zip(entry_ids, stored, strict=True):
        size = int.from_bytes(data[:4], "big")
        request = wire_v3.parse_request(data[4 : 4 + size])
        data = data[4 + size :]
        add = request.addRequest
        assert (add.ledgerId, add.entryId, add.masterKey, add.body) == (7, entry_id, KEY, one)
        assert add.flag == pb.AddRequest.RECOVERY_ADD
        assert is_txn_of(request.header.txnId, 7)
        assert txn_entry_id(request.header.txnId) == entry_id
    assert not data


def test_an_incomplete_record_is_left_out() -> None:
    records = len(b"abc").to_bytes(4, "big") + b"abc" + (9).to_bytes(4, "big") + b"short"
    assert [bytes(one) for one in cut_records(memoryview(records))] == [b"abc"]
