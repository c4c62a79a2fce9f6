"""Wire protocol v2 against captured frames, in runs and one by one, and against malformed bodies."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from bk_spark.protocol.codes import Code, FlagV2, OpV2
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.answers_v2 import AddAnswers, BatchReadAnswer, ReadAnswer, parse_answers
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.wire_v2 import AddRun, Auth, BadVersion, BatchRead, ReadRun, parse_requests
from tests.support.wire import Captured, captured, frames

CAPTURED = captured("wire-v2", "v2")
REQUESTS = [one for one in CAPTURED if one.request]
ANSWERS = [one for one in CAPTURED if not one.request]
KEY = master_key(b"golden")
OPS = {"ADDENTRY": OpV2.ADD, "READENTRY": OpV2.READ, "BATCH_READ_ENTRY": OpV2.BATCH_READ}


def test_the_capture_holds_what_these_tests_are_about() -> None:
    kinds = {(one.request, one.says["op"], one.says.get("flags"), one.says.get("rc")) for one in CAPTURED}
    assert (True, "ADDENTRY", 6, None) in kinds
    assert (True, "READENTRY", 5, None) in kinds
    assert (False, "ADDENTRY", 0, 104) in kinds
    assert (False, "BATCH_READ_ENTRY", 0, 0) in kinds
    assert len(CAPTURED) > 150


@pytest.mark.parametrize("one", REQUESTS, ids=str)
def test_captured_request(one: Captured) -> None:
    (request,) = parse_requests(frames(one.data))
    says = one.says
    key = bytes.fromhex(says["masterKey"]) if "masterKey" in says else None
    match request:
        case AddRun():
            assert says["op"] == "ADDENTRY"
            assert request.records == struct.pack(">I", len(one.body) - 24) + one.body[24:]
            assert request.offsets.tolist() == [0, len(one.body) - 20]
            assert request.last_adds_confirmed.tolist() == [struct.unpack_from(">q", one.body, 40)[0]]
            assert request.master_key == key == KEY
            assert (request.ledger_ids.tolist(), request.entry_ids.tolist()) == ([says["ledger"]], [says["entry"]])
        case ReadRun():
            assert says["op"] == "READENTRY"
            fencing = bool(says["flags"] & FlagV2.FENCING)
            assert request.master_key == (one.body[20:40] if fencing else None)
            assert (request.ledger_ids.tolist(), request.entry_ids.tolist()) == ([says["ledger"]], [says["entry"]])
        case BatchRead():
            assert says["op"] == "BATCH_READ_ENTRY"
            assert (request.ledger_id, request.first_entry_id) == (says["ledger"], says["entry"])
        case _:
            pytest.fail(f"unexpected {request}")
    assert (request.version, request.flags) == (says["version"], says["flags"])


@pytest.mark.parametrize("one", REQUESTS, ids=str)
def test_we_build_reads_as_apache_does(one: Captured) -> None:
    says = one.says
    if says["op"] == "BATCH_READ_ENTRY":
        (request,) = parse_requests(frames(one.data))
        assert isinstance(request, BatchRead)
        built = wire_v2.batch_read_request(
            request.ledger_id,
            request.first_entry_id,
            request.request_id,
            request.max_count,
            request.max_size_bytes,
        )
        assert built == one.data
    elif says["op"] == "READENTRY":
        # Apache's encoder writes the key wherever it has one; the server takes it with FENCING only.
        key = one.body[20:] or None
        assert wire_v2.read_requests(says["ledger"], [says["entry"]], says["flags"], key) == one.data


@pytest.mark.parametrize("one", ANSWERS, ids=str)
def test_captured_answer_is_read_and_built_again(one: Captured) -> None:
    (answer,) = parse_answers(frames(one.data))
    says = one.says
    version = says["version"]
    if isinstance(answer, AddAnswers):
        assert (answer.ledger_ids.tolist(), answer.entry_ids.tolist()) == ([says["ledger"]], [says["entry"]])
        assert answer.codes.tolist() == [says["rc"]]
        assert wire_v2.add_answers(version, answer.ledger_ids, answer.entry_ids, answer.codes) == one.data
        assert wire_v2.add_answers(version, answer.ledger_ids, answer.entry_ids, Code(says["rc"])) == one.data
    elif isinstance(answer, ReadAnswer):
        assert (answer.ledger_id, answer.entry_id, int(answer.code)) == (says["ledger"], says["entry"], says["rc"])
        assert answer.stored == one.body[24:]
        ids = np.array([answer.ledger_id]), np.array([answer.entry_id])
        if answer.code is Code.OK:
            built = b"".join(wire_v2.read_answer(version, answer.ledger_id, answer.entry_id, answer.stored))
            stored = np.frombuffer(answer.stored, np.uint8)
            assert wire_v2.read_answers(version, *ids, stored, np.array([0]), np.array([len(stored)])) == [one.data]
        else:
            built = wire_v2.add_answers(version, *ids, answer.code, OpV2.READ)
        assert built == one.data
    else:
        assert (answer.ledger_id, answer.first_entry_id, int(answer.code)) == (
            says["ledger"],
            says["entry"],
            says["rc"],
        )
        request = BatchRead(version, 0, None, answer.ledger_id, answer.first_entry_id, answer.request_id, 3, 1000)
        built = wire_v2.batch_read_answer(request, answer.code, len(answer.records)) + bytes(answer.records)
        assert built == one.data


def test_whole_conversations_at_once() -> None:
    """Runs are joined and nothing is lost or reordered, whatever follows what."""
    for direction in (True, False):
        stream = [one for one in CAPTURED if one.request is direction]
        seen: list[tuple[int, int]] = []
        parse = parse_requests if direction else parse_answers
        for item in parse(frames(one.data for one in stream)):
            match item:
                case AddRun() | ReadRun() | AddAnswers():
                    seen += zip(item.ledger_ids.tolist(), item.entry_ids.tolist(), strict=True)
                case BatchRead() | BatchReadAnswer():
                    seen.append((item.ledger_id, item.first_entry_id))
                case ReadAnswer():
                    seen.append((item.ledger_id, item.entry_id))
        assert seen == [(one.says["ledger"], one.says["entry"]) for one in stream]


def add_frame(
    ledger_id: int, entry_id: int, payload: bytes, key: bytes = KEY, flags: int = 0, version: int = 2
) -> bytes:
    stored = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload)) + payload
    return frame(struct.pack(">I", wire_v2.header_int(OpV2.ADD, flags, version)) + key + stored)


@pytest.mark.parametrize("seed", range(30))
def test_adds_in_runs_equal_adds_one_by_one(seed: int) -> None:
    random_ = random.Random(seed)
    keys = [bytes([n]) * 20 for n in range(2)]
    stream, position = [], 0
    for _ in range(random_.randint(1, 12)):
        key, flags = random_.choice(keys), random_.choice([0, 6])
        sizes = [random_.randint(0, 40)] * random_.randint(1, 12)
        if random_.random() < 0.5:
            sizes = [random_.randint(0, 40) for _ in sizes]
        for size in sizes:
            stream.append(add_frame(random_.randint(1, 2), position, random_.randbytes(size), key, flags))
            position += 1
    together = list(parse_requests(frames(stream)))
    single = [run for one in stream for run in parse_requests(frames(one))]
    seen = []
    for run in together:
        assert isinstance(run, AddRun)
        for index, (ledger_id, entry_id, lac) in enumerate(
            zip(run.ledger_ids.tolist(), run.entry_ids.tolist(), run.last_adds_confirmed.tolist(), strict=True)
        ):
            record = bytes(run.records[run.offsets[index] : run.offsets[index + 1]])
            seen.append((run.version, run.flags, run.master_key, ledger_id, entry_id, lac, record))
    alone = []
    for run in single:
        assert isinstance(run, AddRun)
        alone.append(
            (
                run.version,
                run.flags,
                run.master_key,
                int(run.ledger_ids[0]),
                int(run.entry_ids[0]),
                int(run.last_adds_confirmed[0]),
                bytes(run.records),
            )
        )
    assert seen == alone
    assert [one[4] for one in seen] == list(range(position))


def test_fencing_reads_are_cut_at_every_change_of_key() -> None:
    keys = [b"a" * 20, b"a" * 20, b"b" * 20, b"a" * 20]
    stream = b"".join(wire_v2.read_requests(7, [number], FlagV2.FENCING, key) for number, key in enumerate(keys))
    runs = list(parse_requests(frames(stream)))
    assert [(run.master_key, run.entry_ids.tolist()) for run in runs if isinstance(run, ReadRun)] == [
        (b"a" * 20, [0, 1]),
        (b"b" * 20, [2]),
        (b"a" * 20, [3]),
    ]


def test_old_versions() -> None:
    def read(version: int, flags: int = 0) -> bytes:
        return frame(struct.pack(">Iqq", wire_v2.header_int(OpV2.READ, flags, version), 7, 8))

    # Before version 2 a fencing read carries no key.
    runs = list(parse_requests(frames([read(0), read(1), read(1, FlagV2.FENCING)])))
    assert [(run.version, run.flags, run.master_key) for run in runs if isinstance(run, ReadRun)] == [
        (0, 0, None),
        (1, 0, None),
        (1, 1, None),
    ]
    ids = np.array([7]), np.array([8])
    assert wire_v2.add_answers(0, *ids, Code.OK)[4:8].hex() == "00000001"
    assert wire_v2.add_answers(1, *ids, Code.OK)[4:8].hex() == "01010000"


def test_a_version_above_2_is_answered_with_the_ids_asked_for() -> None:
    read = frame(struct.pack(">Iqq", wire_v2.header_int(OpV2.READ, 0, 3), 7, 8))
    add = add_frame(7, 8, b"payload", version=3)
    batch = frame(struct.pack(">Iqqqiq", wire_v2.header_int(OpV2.BATCH_READ, 0, 3), 7, 8, 9, 1, 1))
    short = frame(struct.pack(">I", wire_v2.header_int(OpV2.READ, 0, 200)))
    assert list(parse_requests(frames([read, add, batch, short]))) == [
        BadVersion(3, OpV2.READ, 7, 8, -1),
        BadVersion(3, OpV2.ADD, 7, 8, -1),
        BadVersion(3, OpV2.BATCH_READ, 7, 8, 9),
        BadVersion(200, OpV2.READ, -1, -1, -1),
    ]


def test_auth() -> None:
    body = b"\x0a\x12AuthDisabledPlugin\x12\x00"
    (request,) = parse_requests(frames(frame(bytes.fromhex("02030000") + body)))
    assert isinstance(request, Auth)
    assert request.body == body
    assert wire_v2.auth_answer(2, body).hex() == "0000001a" + "02030000" + body.hex()


@pytest.mark.parametrize("op", [0, 4, 5, 6, 8, 255])
def test_unknown_opcodes_are_refused(op: int) -> None:
    good = wire_v2.read_requests(7, [1])
    bad = frame(struct.pack(">I", wire_v2.header_int(op)) + bytes(60))
    parsed = parse_requests(frames([good, bad]))
    assert isinstance(next(parsed), ReadRun)
    with pytest.raises(WireFormatError, match=f"opcode {op}"):
        next(parsed)


@pytest.mark.parametrize(
    ("header", "needed"),
    [
        (wire_v2.header_int(OpV2.ADD), 24 + 32),
        (wire_v2.header_int(OpV2.READ), 20),
        (wire_v2.header_int(OpV2.READ, FlagV2.FENCING), 40),
        (wire_v2.header_int(OpV2.BATCH_READ), 40),
        (wire_v2.header_int(OpV2.BATCH_READ, FlagV2.FENCING), 60),
    ],
)
def test_bodies_cut_short(header: int, needed: int) -> None:
    whole = (struct.pack(">I", header) + bytes(needed))[:needed]
    assert len(list(parse_requests(frames(frame(whole))))) == 1
    for size in range(needed):
        for neighbours in (0, 1):
            with pytest.raises(WireFormatError):
                list(parse_requests(frames(frame(whole) * neighbours + frame(whole[:size]))))


def test_malformed_answers() -> None:
    answer = wire_v2.add_answers(2, np.array([1]), np.array([2]), Code.OK)
    for size in range(24):
        with pytest.raises(WireFormatError):
            list(parse_answers(frames(frame(answer[4 : 4 + size]))))
    for op in (0, 3, 4, 5, 6, 8):
        with pytest.raises(WireFormatError, match=f"opcode {op}"):
            list(parse_answers(frames(frame(struct.pack(">Iiqq", wire_v2.header_int(op), 0, 1, 2)))))
    batch = struct.pack(">Iiqq", wire_v2.header_int(OpV2.BATCH_READ), 0, 1, 2)
    with pytest.raises(WireFormatError, match="request id"):
        list(parse_answers(frames(frame(batch + bytes(7)))))


@pytest.mark.parametrize("version", [0, 1, 3])
@pytest.mark.parametrize("op", [OpV2.ADD, OpV2.READ], ids=lambda op: op.name)
@pytest.mark.parametrize("count", [1, 20])
def test_answers_of_another_version_are_refused(version: int, op: OpV2, count: int) -> None:
    answer = frame(struct.pack(">Iiqq", version << 24 | op << 16, Code.OK, 1, 2))
    with pytest.raises(WireFormatError, match="version"):
        list(parse_answers(frames(answer * count)))


def test_codes_of_answers_that_v2_does_not_know() -> None:
    (answer,) = parse_answers(frames(frame(struct.pack(">Iiqq", wire_v2.header_int(OpV2.READ), 777, 1, 2))))
    assert isinstance(answer, ReadAnswer)
    assert answer.code is Code.BAD_REQUEST


def test_a_limbo_ledger_leaves_as_an_io_error() -> None:
    built = wire_v2.add_answers(2, np.array([1]), np.array([2]), Code.UNKNOWN_LEDGER_STATE, OpV2.READ)
    (answer,) = parse_answers(frames(built))
    assert isinstance(answer, ReadAnswer)
    assert answer.code is Code.IO_ERROR


@pytest.mark.parametrize("key", [None, KEY])
def test_many_reads_at_once(key: bytes | None) -> None:
    flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY if key else FlagV2.NONE
    together = wire_v2.read_requests(7, range(5, 25, 3), flags, key)
    assert together == b"".join(wire_v2.read_requests(7, [entry_id], flags, key) for entry_id in range(5, 25, 3))
    assert wire_v2.read_requests(7, np.arange(5, 25, 3), flags, key) == together
    (run,) = parse_requests(frames(together))
    assert isinstance(run, ReadRun)
    assert (run.entry_ids.tolist(), run.master_key, run.flags) == (list(range(5, 25, 3)), key, flags)


def test_nothing_in_nothing_out() -> None:
    empty = frames(frame(b"x"))
    none = type(empty)(empty.data, empty.starts[:0], empty.lengths[:0])
    assert (list(parse_requests(none)), list(parse_answers(none))) == ([], [])


@pytest.mark.parametrize(("size", "count"), [(100, 3), (100, 1), (5000, 3)])
def test_entries_found_are_answered_and_large_ones_are_not_copied(size: int, count: int) -> None:
    gap = 4
    stored = np.random.default_rng(1).integers(0, 256, count * (size + gap), np.uint8)
    starts, sizes = (np.arange(count) * (size + gap) + gap)[::-1], np.full(count, size)
    built = wire_v2.read_answers(2, np.full(count, 7), np.arange(count), stored, starts, sizes)
    found = list(parse_answers(frames(b"".join(built))))
    for i, answer in enumerate(found):
        assert isinstance(answer, ReadAnswer)
        assert (answer.ledger_id, answer.entry_id, answer.code) == (7, i, Code.OK)
        assert bytes(answer.stored) == stored[starts[i] : starts[i] + size].tobytes()
    assert len(found) == count
    views = [np.frombuffer(buffer, np.uint8) for buffer in built]
    assert sum(np.shares_memory(view, stored) for view in views) == (count if size > 4096 else 0)
