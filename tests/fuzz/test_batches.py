"""Batches of entries in the messages of bookie.proto, as a bookie and a client get them."""

from __future__ import annotations

import struct
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.batches import Entries, batch_entries, batch_of_frames, parse_with_records, with_records
from tests.fuzz.damage import INT64, hostile, varint
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.messages import messages
from tests.support.bookie import KEY, PASSWORD

_MOST: Final = 50
_SIZES: Final = st.lists(st.integers(0, 60), max_size=9) | st.builds(
    lambda size, count: [size] * count, st.integers(24, 40), st.integers(1, 60)
)


def _entry(ledger_id: int, entry_id: int, size: int) -> bytes:
    return (struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes(60))[: max(size, 0)]


@st.composite
def _batches(draw: st.DrawFn) -> bytes:
    """Whole batches, often of short entries, with fields behind the records, or with a count that is wrong."""
    ledger_id, sizes = draw(st.just(7) | INT64), draw(_SIZES)
    sizes = sizes if draw(st.booleans()) else [size + 32 for size in sizes]
    entries = [_entry(ledger_id, i, size) for i, size in enumerate(sizes)]
    records = b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)
    records = draw(st.just(records) | hostile(st.just(records)))
    count = draw(st.just(len(entries)) | st.integers(0, 70))
    head = pb.AddBatch(batch_id=draw(st.integers(0, 2**64 - 1)), ledger_id=ledger_id, master_key=KEY, count=count)
    message = with_records(head.SerializeToString(), [records])
    return message + draw(st.sampled_from([b"", b"", b"\x20\x01", varint(15 << 3 | 2) + b"\x01x"]))


_MESSAGES: Final[SearchStrategy[bytes]] = _batches() | st.builds(
    lambda message: message.SerializeToString(), messages(pb.AddBatch)
)


@fuzz(200, data=hostile(_MESSAGES))
def test_batches_of_adds(data: bytes) -> None:
    """What is accepted says what protobuf reads, and its records are all there are, one behind the other."""
    found: Any = outcome(lambda: parse_with_records(pb.AddBatch, data), WireFormatError)
    if isinstance(found, Refused):
        return
    head, records = found
    whole = pb.AddBatch.FromString(data)
    assert bytes(records) == whole.records
    assert (head.batch_id, head.ledger_id, head.count) == (whole.batch_id, whole.ledger_id, whole.count)
    entries = outcome(lambda: batch_entries(head, records, _MOST), WireFormatError)
    if isinstance(entries, Refused):
        return
    assert isinstance(entries, Entries)
    offsets = entries.offsets.tolist()
    assert (offsets[0], offsets[-1], len(offsets) - 1) == (0, len(records), head.count)
    assert len(entries.entry_ids) == head.count <= _MOST
    for i, ids in enumerate(zip(entries.entry_ids.tolist(), entries.last_adds_confirmed.tolist(), strict=True)):
        record = bytes(records[offsets[i] : offsets[i + 1]])
        assert struct.unpack_from(">Iqqq", record) == (len(record) - 4, head.ledger_id, *ids)


@fuzz(15, sizes=_SIZES.filter(bool))
def test_batches_with_one_number_wrong(sizes: list[int]) -> None:
    """Lengths that do not add up, and a count that is not that of the records, are refused."""
    entries = [_entry(7, i, size + 32) for i, size in enumerate(sizes)]
    records = b"".join(struct.pack(">I", len(entry)) + entry for entry in entries)

    def is_accepted(data: bytes, count: int) -> bool:
        head = pb.AddBatch(ledger_id=7, master_key=KEY, count=count)
        return not isinstance(outcome(lambda: batch_entries(head, memoryview(data), _MOST), WireFormatError), Refused)

    assert is_accepted(records, len(entries)) == (len(entries) <= _MOST)
    assert not is_accepted(records, len(entries) - 1)
    assert not is_accepted(records, len(entries) + 1)
    at = 0
    for entry in entries:
        for more in (-8, -4, -1, 1, 4, 8):
            changed = records[:at] + struct.pack(">I", len(entry) + more) + records[at + 4 :]
            assert not is_accepted(changed, len(entries))
        at += 4 + len(entry)
    for more in (1, 4, 8):
        assert not is_accepted(records + bytes(more), len(entries))
        assert not is_accepted(records[:-more], len(entries))


@fuzz(
    60,
    ledger_id=st.integers(0, 2**63 - 1),
    first=st.integers(0, 2**62),
    sizes=_SIZES.filter(bool) | st.lists(st.sampled_from([0, 5000, 9000]), min_size=1, max_size=4),
    digest=st.sampled_from(DigestType),
    flags=st.sampled_from([FlagV2.NONE, FlagV2.RECOVERY_ADD, FlagV2.HIGH_PRIORITY, FlagV2(6)]),
)
def test_frames_become_batches(ledger_id: int, first: int, sizes: list[int], digest: DigestType, flags: FlagV2) -> None:
    """A batch has the entries, the key and the flags of the frames that it was made of."""
    payloads = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    frames = EntryPackager(ledger_id, digest, PASSWORD, flags).package(first, first - 1, 0, Payloads.of(payloads))
    batch = batch_of_frames(3, frames.data, frames.offsets)
    head, records = parse_with_records(pb.AddBatch, batch.message)
    entries = batch_entries(head, records, len(sizes))
    assert (head.batch_id, head.ledger_id, head.master_key) == (3, ledger_id, KEY)
    assert (head.recovery, head.high_priority) == (bool(flags & 2), bool(flags & 4))
    assert entries.entry_ids.tolist() == batch.entry_ids.tolist() == list(range(first, first + len(sizes)))
    for i in range(len(sizes)):
        frame = bytes(frames.data[int(frames.offsets[i]) : int(frames.offsets[i + 1])])
        assert bytes(records[int(entries.offsets[i]) + 4 : int(entries.offsets[i + 1])]) == frame[28:]
