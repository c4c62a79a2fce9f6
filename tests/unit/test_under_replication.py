"""The znodes of under-replication, byte for byte as Apache's auditor, worker and shell write them."""

from __future__ import annotations

import pytest

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.under_replication import (
    LAYOUT,
    MAX_RECOVERY_DELAY_S,
    Mark,
    PeriodicCheck,
    UnderReplicationPaths,
    check_layout,
    decode_check_time,
    decode_lock,
    decode_recovery_delay,
    decode_vote,
    encode_check_time,
    encode_lock,
    encode_recovery_delay,
    encode_vote,
    encode_worker,
    is_mark_group,
    locked_ledger,
    vote_number,
)
from tests.support.fixtures import golden

_PATHS = UnderReplicationPaths("/ledgers")
_NODES = [
    (node["path"], bytes.fromhex(node["hex"]))
    for node in (
        *golden("zk-nodes"),
        *(node for stage in golden("zk-stages") for node in stage.get("nodes", ())),
    )
    if node["path"].startswith(_PATHS.base) and node["hex"]
]
_MARKS = [(path, content) for path, content in _NODES if path.startswith(_PATHS.marks)]


def nodes_at(path: str) -> list[bytes]:
    found = [content for at, content in _NODES if at == path]
    assert found, f"no fixture at {path}"
    return found


def test_apaches_marks() -> None:
    assert len(_MARKS) > 20
    for path, content in _MARKS:
        mark = Mark.decode(content, 3, path)
        assert mark.missing
        assert mark.ctime_ms is not None
        assert mark.version == 3
        assert mark.encode() == content
        ledger_id = locked_ledger(path.rpartition("/")[2])
        assert ledger_id is not None
        assert _PATHS.mark(ledger_id) == path
        assert all(map(is_mark_group, path.removeprefix(_PATHS.marks + "/").split("/")[:-1]))
    assert {len(Mark.decode(content, 0, path).missing) for path, content in _MARKS} == {1, 2}


def test_apaches_locks_votes_layout_and_delay() -> None:
    assert nodes_at(_PATHS.layout)[0] == LAYOUT
    locks = [(path, content) for path, content in _NODES if path.startswith(_PATHS.locks)]
    assert locks
    for path, content in locks:
        assert decode_lock(content, path) == "localhost"
        assert encode_lock("localhost") == content
        assert path == _PATHS.lock(locked_ledger(path.rpartition("/")[2]) or -1)
    for path in (_PATHS.election, f"{_PATHS.vote_prefix}0000000000"):
        for content in nodes_at(path):
            bookie_id = decode_vote(content, path)
            assert bookie_id is not None
            assert encode_vote(bookie_id) == content
    for content in nodes_at(_PATHS.recovery_delay):
        assert encode_recovery_delay(decode_recovery_delay(content, "here")) == content


def test_paths_of_ledgers() -> None:
    """The examples of compatibility.md §6.1."""
    base = "/ledgers/underreplication"
    assert _PATHS.mark(0x123456789A) == f"{base}/ledgers/0000/0012/3456/789a/urL78187493530"
    assert _PATHS.mark(0) == f"{base}/ledgers/0000/0000/0000/0000/urL0000000000"
    assert _PATHS.mark(2**63 - 1) == f"{base}/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807"
    assert _PATHS.lock(7) == f"{base}/locks/urL0000000007"
    assert _PATHS.check_time(PeriodicCheck.REPLICAS) == f"{base}/replicascheckctime"
    for wrong in (-1, 2**63):
        with pytest.raises(InvalidArgumentError, match="ledger id"):
            _PATHS.mark(wrong)
        with pytest.raises(InvalidArgumentError, match="ledger id"):
            _PATHS.lock(wrong)


@pytest.mark.parametrize(
    ("name", "ledger_id"),
    [
        ("urL0000000007", 7),
        ("urL78187493530", 78187493530),
        ("urL9223372036854775807", 2**63 - 1),
        ("urL9223372036854775808", None),
        ("urL7", None),
        ("urL00000000007", None),
        ("urL-000000007", None),
        ("urL", None),
        ("L0000000007", None),
        ("0000000007", None),
        ("urL٠٠٠٠٠٠٠٠٠٧", None),
        ("1234567890", None),
    ],
)
def test_only_names_that_are_written_so_are_ledgers(name: str, ledger_id: int | None) -> None:
    assert locked_ledger(name) == ledger_id


def test_names_of_directories_and_votes() -> None:
    assert is_mark_group("00af")
    assert not any(map(is_mark_group, ["00AF", "0af", "00000", "00g0", "urL0"]))
    names = ["V_0000000010", "V_0000000009", "V_-2147483648", "V_x", "V_", "V0000000001", "0000000001"]
    assert [vote_number(name) for name in names] == [10, 9, -(2**31), None, None, None, None]


def test_marks_are_merged() -> None:
    mark = Mark(("b1:1", "b2:1"), 5, 7)
    assert mark.with_missing(["b2:1"], 9) is mark
    assert mark.with_missing([], 9) is mark
    assert mark.with_missing(["b3:1", "b1:1"], 9) == Mark(("b1:1", "b2:1", "b3:1"), 9, 7)


def test_marks_without_bookies_or_time() -> None:
    assert Mark.decode(b"", 0, "here") == Mark(())
    assert Mark((), None).encode() == b""
    assert Mark((), 12).encode() == b"ctime: 12\n"
    assert Mark(('h"1":1', "hä:2"), 12).encode() == 'replica: "h\\"1\\":1"\nreplica: "hä:2"\nctime: 12\n'.encode()
    assert Mark.decode(b"replica: 'h\\303\\244'  ctime: 1", 0, "here") == Mark(("hä",), 1)


@pytest.mark.parametrize(
    ("check", "time_ms", "content"),
    [
        (PeriodicCheck.ALL_LEDGERS, 1778207789691, "08fba4c6abe033"),
        (PeriodicCheck.PLACEMENT_POLICY, 0, "0800"),
        (PeriodicCheck.REPLICAS, -1, "08ffffffffffffffffff01"),
    ],
)
def test_times_of_checks_are_one_varint(check: PeriodicCheck, time_ms: int, content: str) -> None:
    """A varint of field 1, as every protobuf writes an int64."""
    assert decode_check_time(check, bytes.fromhex(content), "here") == time_ms
    assert encode_check_time(check, time_ms).hex() == content
    assert decode_check_time(check, b"", "here") is None


@pytest.mark.parametrize("check", PeriodicCheck)
def test_a_garbled_time_of_a_check_is_named(check: PeriodicCheck) -> None:
    with pytest.raises(MetadataFormatError, match="here does not hold the time of a check"):
        decode_check_time(check, b"\x08\xff", "here")


@pytest.mark.parametrize("content", [b"", b"-1", b"1.5", b"7\n", b"seven", b"2147483648", "٧".encode(), b"9" * 5000])
def test_a_garbled_delay_is_named(content: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="here is not a number of seconds") as raised:
        decode_recovery_delay(content, "here")
    assert len(str(raised.value)) < 200


def test_bounds_of_the_delay() -> None:
    assert decode_recovery_delay(encode_recovery_delay(MAX_RECOVERY_DELAY_S), "here") == 2**31 - 1
    for wrong in (-1, 2**31):
        with pytest.raises(InvalidArgumentError, match="is not within"):
            encode_recovery_delay(wrong)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"what is this", "not a layout"),
        (b"\xff", "not a layout"),
        (b'type: "BASIC"', "not a layout.*required"),
        (b'type: "BASIC" version: 2', "layout 'BASIC' version 2"),
        (b'type: "OTHER" version: 1', "layout 'OTHER' version 1"),
    ],
)
def test_another_layout_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(MetadataFormatError, match=f"here.*{says}"):
        check_layout(content, "here")


def test_a_layout_may_be_laid_out_otherwise() -> None:
    check_layout(b'version: 1  type: "BASIC"', "here")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"replica 1", b"replica: 5", b"ctime: 9223372036854775808", b"no: 1"])
def test_a_garbled_mark_is_named(content: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="here is not a mark"):
        Mark.decode(content, 0, "here")


def test_an_error_does_not_repeat_a_whole_znode() -> None:
    with pytest.raises(MetadataFormatError, match="here is not a mark") as raised:
        Mark.decode(b"x" * 100_000, 0, "here")
    assert len(str(raised.value)) < 400
    with pytest.raises(MetadataFormatError, match="here names the layout") as raised:
        check_layout(b'version: 1 type: "%b"' % (b"x" * 100_000), "here")
    assert len(str(raised.value)) < 400


def test_locks_and_votes_without_a_name() -> None:
    assert decode_lock(b"", "here") is None
    assert decode_vote(b"", "here") is None
    with pytest.raises(MetadataFormatError, match="here is not a lock"):
        decode_lock(b"\xff", "here")
    with pytest.raises(MetadataFormatError, match="here is not a vote"):
        decode_vote(b"bookieId: 7", "here")


def test_a_workers_content_has_a_version() -> None:
    assert encode_worker("b1:3181") == b'{"version": 1, "name": "b1:3181"}'
