"""ADD frames built in batches: equal to Apache's bytes, and to frames built one by one."""

from __future__ import annotations

import itertools
import random
import struct

import numpy as np
import pytest

from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.wire.add_frames import AddFrames, EntryPackager
from bk_spark.protocol.wire.wire_v2 import AddRun, parse_requests
from tests.support.wire import Captured, captured, frames

ADDS = [one for one in captured("wire-v2", "v2") if one.request and one.says["op"] == "ADDENTRY"]
DIGEST_OF_SCENE = {"add-CRC32": DigestType.CRC32, "add-MAC": DigestType.HMAC, "add-DUMMY": DigestType.DUMMY}


def digest_of(one: Captured) -> DigestType:
    return DIGEST_OF_SCENE.get(one.scene, DigestType.CRC32C)


def frames_of(built: AddFrames) -> list[bytes]:
    bounds = built.offsets.tolist()
    return [bytes(built.data[start:end]) for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("one", ADDS, ids=str)
def test_captured_adds(one: Captured) -> None:
    digest_type = digest_of(one)
    ledger_id, entry_id, lac, length = struct.unpack_from(">qqqq", one.body, 24)
    payload = one.body[24 + 32 + digest_type.digest_bytes :]
    packager = EntryPackager(ledger_id, digest_type, b"golden", FlagV2(one.says["flags"]))
    built = packager.package(entry_id, lac, length - len(payload), Payloads.of([payload]))
    assert built.data == one.data
    assert (built.first_entry_id, built.lengths.tolist()) == (entry_id, [length])


def test_golden_recovery_add() -> None:
    expected = (
        "00000045 02010006 2e2a69d870796fe05c0e77c52a29ce5e4222b758"
        "0000000000000005 0000000000000007 0000000000000006 0000000000000064 00000000177e796d 68656c6c6f"
    )
    packager = EntryPackager(5, DigestType.CRC32, b"testPasswd", FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY)
    assert packager.package(7, 6, 95, Payloads.of([b"hello"])).data == bytes.fromhex(expected)


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("sizes", [[0], [0, 0, 0], [7] * 5, [1, 0, 9, 9, 300], [0, 0, 1]], ids=str)
def test_batches_equal_entries_packed_one_by_one(digest_type: DigestType, sizes: list[int]) -> None:
    random_ = random.Random(len(sizes))
    buffers = [random_.randbytes(size) for size in sizes]
    # Payloads that lie within a larger buffer, as a part of an Arrow column does.
    data = memoryview(b"before" + b"".join(buffers) + b"after")
    payloads = Payloads(data, 6 + np.concatenate(([0], np.cumsum(sizes))).astype(np.int64))
    digest = digest_function(digest_type, b"pw")
    packager = EntryPackager(2**40, digest_type, b"pw")
    built = packager.package(2**31, 41, 1000, payloads)
    assert len(built) == len(sizes)
    lengths = (1000 + np.cumsum(sizes)).tolist()
    assert built.lengths.tolist() == lengths
    stored = [
        pack_entry(2**40, 2**31 + index, 41, lengths[index], payload, digest) for index, payload in enumerate(buffers)
    ]
    for one, entry in zip(frames_of(built), stored, strict=True):
        assert one == struct.pack(">II", 24 + len(entry), 0x02010000) + master_key(b"pw") + entry
        assert len(one) == packager.overhead_bytes + len(entry) - 32 - digest_type.digest_bytes
    (run,) = parse_requests(frames(bytes(built.data)))
    assert isinstance(run, AddRun)
    assert run.entry_ids.tolist() == list(range(2**31, 2**31 + len(sizes)))


def test_select_joins_neighbours() -> None:
    packager = EntryPackager(1, DigestType.CRC32C, b"")
    built = packager.package(0, -1, 0, Payloads.of([b"%d" % number * 3 for number in range(8)]))
    each = frames_of(built)
    for bits in range(1, 256):
        wanted = np.array([bits >> number & 1 for number in range(8)], np.bool_)
        views = built.select(wanted)
        assert b"".join(views) == b"".join(one for number, one in enumerate(each) if wanted[number])
        assert len(views) == sum(wanted[number] and not (number and wanted[number - 1]) for number in range(8))
    assert built.select(np.ones(8, np.bool_))[0] is built.data
    assert built.select(np.zeros(8, np.bool_)) == []


def test_keys_do_not_show() -> None:
    packager = EntryPackager(1, DigestType.HMAC, b"hunter2")
    assert "hunter2" not in repr(packager)
    assert master_key(b"hunter2").hex() not in repr(packager)
