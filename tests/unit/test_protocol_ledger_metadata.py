"""Ledger metadata: every captured znode byte for byte, refusals, transitions."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, decode, encode
from bk_spark.protocol.metadata.proto.data_formats_pb2 import LedgerMetadataFormat
from bk_spark.protocol.quorum import Quorum
from tests.support.fixtures import golden

CAPTURED = golden("metadata")
READABLE = [one for one in CAPTURED if one["means"]["formatVersion"] != 1]
HEADER = b"BookieMetadataFormatVersion\t"
OPEN = LedgerMetadata(Quorum(3, 3, 2), (Segment(0, ("a:1", "b:1", "c:1")),), password=b"pw")


def name_of(one: dict[str, Any]) -> str:
    return str(one["name"])


@pytest.mark.parametrize("one", READABLE, ids=name_of)
def test_captured_metadata_mean_what_apache_says(one: dict[str, Any]) -> None:
    metadata, means = decode(bytes.fromhex(one["hex"])), one["means"]
    assert metadata.format_version == means["formatVersion"]
    assert metadata.state.name == means["state"]
    assert metadata.quorum == Quorum(means["ensembleSize"], means["writeQuorum"], means["ackQuorum"])
    assert (metadata.length, metadata.last_entry_id) == (means["length"], means["lastEntryId"])
    assert metadata.digest_type is not None
    assert metadata.digest_type.name == {"MAC": "HMAC"}.get(means["digestType"], means["digestType"])
    assert metadata.password == bytes.fromhex(means["password"])
    assert (metadata.creation_time_ms or 0) == means["ctime"]
    assert (metadata.creator_token or 0) == means["cToken"]
    assert {str(segment.first_entry_id): list(segment.ensemble) for segment in metadata.segments} == means["segments"]
    assert {key: value.hex() for key, value in metadata.custom_metadata.items()} == means["customMetadata"]


@pytest.mark.parametrize("one", READABLE, ids=name_of)
def test_captured_metadata_are_written_byte_for_byte(one: dict[str, Any]) -> None:
    data = bytes.fromhex(one["hex"])
    assert encode(decode(data)) == data


@pytest.mark.parametrize("one", [one for one in CAPTURED if one["means"]["formatVersion"] == 1], ids=name_of)
def test_version_1_is_refused_by_name(one: dict[str, Any]) -> None:
    with pytest.raises(MetadataFormatError, match="format version 1; this release reads versions 2 and 3"):
        decode(bytes.fromhex(one["hex"]))


def test_golden_open_ledger() -> None:
    metadata = LedgerMetadata(
        Quorum(3, 2, 2),
        (Segment(0, ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")),),
        digest_type=DigestType.CRC32C,
        password=b"pw",
        creator_token=9,
    )
    body = encode(metadata)
    assert body.startswith(HEADER + b"3\n")
    assert "0802100318 00 20ffffffffffffffffff01 2801 32".replace(" ", "") in body.hex()
    assert body.hex().endswith("3803 42027077 4802 6009".replace(" ", ""))
    assert decode(body) == metadata


@pytest.mark.parametrize("version", [2, 3])
def test_everything_survives_both_forms(version: int) -> None:
    metadata = replace(
        OPEN,
        segments=(*OPEN.segments, Segment(2**40, ("d:1", "b:1", "c:1"))),
        password=bytes(range(256)),
        custom_metadata={"": b"", "kéy": bytes(range(256)), "text": b'"\n\\'},
        creation_time_ms=1_795_240_775_604,
        creator_token=2**62 if version == 3 else None,
        format_version=version,
    )
    assert decode(encode(metadata)) == metadata
    closed = metadata.closed(2**41, 2**50)
    assert decode(encode(closed)) == closed


def test_an_update_keeps_the_version_it_found() -> None:
    (text,) = [one for one in CAPTURED if one["name"] == "open-format2"]
    changed = decode(bytes.fromhex(text["hex"])).in_recovery()
    assert encode(changed).startswith(HEADER + b"2\n")
    assert decode(encode(changed)).state is LedgerState.IN_RECOVERY


def test_after_the_first_update_the_creator_token_is_0() -> None:
    assert encode(replace(OPEN, creator_token=None)).endswith(b"\x60\x00")


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_an_end_is_written_for_closed_ledgers_only(state: LedgerState) -> None:
    odd = replace(OPEN, state=state, last_entry_id=5, length=50)
    found = decode(encode(odd))
    assert (found.last_entry_id, found.length) == (-1, 0)


def test_trailing_bytes_are_not_read() -> None:
    assert decode(encode(OPEN) + b"whatever comes later") == replace(OPEN, creator_token=None)


def test_old_ledgers_without_password_or_ack_quorum() -> None:
    message = LedgerMetadataFormat(quorumSize=2, ensembleSize=3, length=0, state="OPEN")
    message.segment.add(ensembleMember=["a", "b", "c"], firstEntryId=0)
    metadata = decode(binary(message))
    assert metadata.quorum == Quorum(3, 2, 2)
    assert (metadata.digest_type, metadata.password) == (None, None)
    again = LedgerMetadataFormat.FromString(encode(metadata).partition(b"\n")[2][1:])
    assert not again.HasField("password")
    assert not again.HasField("digestType")


def binary(message: LedgerMetadataFormat) -> bytes:
    body = message.SerializePartialToString()
    assert len(body) < 128
    return HEADER + b"3\n" + bytes([len(body)]) + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion",
        HEADER,
        HEADER + b"3",
        HEADER + b"x\n",
        HEADER + b"-3\n",
        HEADER + b"33333333333\n",
        b"\n" + HEADER + b"3\n",
        HEADER.replace(b"\t", b" ") + b"3\n\0",
    ],
)
def test_other_content_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="BookieMetadataFormatVersion"):
        decode(data)


@pytest.mark.parametrize("version", [0, 4, 2147483647])
def test_unknown_versions_are_refused(version: int) -> None:
    with pytest.raises(MetadataFormatError, match=f"format version {version}; this release reads versions 2 and 3"):
        decode(HEADER + b"%d\n" % version + encode(OPEN).partition(b"\n")[2])
    with pytest.raises(MetadataFormatError, match=f"format version {version} cannot be written"):
        encode(replace(OPEN, format_version=version))


@pytest.mark.parametrize("version", [2, 3])
def test_every_truncation_is_refused_or_means_the_same(version: int) -> None:
    metadata = replace(OPEN, format_version=version, custom_metadata={"a": b"b"}).closed(4, 44)
    data = encode(metadata)
    for size in range(len(data)):
        try:
            found = decode(data[:size])
        except MetadataFormatError:
            continue
        # Text has no length: a cut may only cost what comes last, never the end or the ensemble.
        assert version == 2
        assert (found.state, found.last_entry_id, found.length) == (LedgerState.CLOSED, 4, 44)
        assert found.segments == metadata.segments


@pytest.mark.parametrize("version", [2, 3])
def test_any_corrupt_byte_raises_nothing_but_a_format_error(version: int) -> None:
    data = encode(replace(OPEN, format_version=version))
    for position in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            corrupt = bytearray(data)
            corrupt[position] = value
            with contextlib.suppress(MetadataFormatError):
                decode(bytes(corrupt))


def message(**changes: Any) -> LedgerMetadataFormat:
    fields: dict[str, Any] = {"quorumSize": 2, "ensembleSize": 2, "length": 0, "lastEntryId": -1, "state": "OPEN"}
    fields.update(changes)
    made = LedgerMetadataFormat(**{name: value for name, value in fields.items() if value is not None})
    made.segment.add(ensembleMember=["a", "b"], firstEntryId=0)
    return made


@pytest.mark.parametrize(
    "broken",
    [
        message(quorumSize=3),
        message(quorumSize=0),
        message(ensembleSize=3),
        message(ackQuorumSize=3),
        message(ackQuorumSize=0),
        message(state="CLOSED", lastEntryId=None),
        message(quorumSize=None),
        message(ensembleSize=None),
        message(length=None),
        message(state=None),
        LedgerMetadataFormat(quorumSize=2, ensembleSize=2, length=0, state="OPEN"),
    ],
    ids=lambda one: str(one).replace("\n", " ")[:60],
)
def test_inconsistent_metadata_are_refused(broken: LedgerMetadataFormat) -> None:
    with pytest.raises(MetadataFormatError):
        decode(binary(broken))
    text = HEADER + b"2\n" + str(broken).encode()
    with pytest.raises(MetadataFormatError):
        decode(text)


@pytest.mark.parametrize("firsts", [(1,), (0, 0), (0, 5, 4), (0, 5, 5), (-1,), (0, -1)])
def test_segments_must_rise_from_0(firsts: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        replace(OPEN, segments=tuple(Segment(first, ("a", "b", "c")) for first in firsts))


def test_the_password_does_not_show() -> None:
    assert "hunter2" not in repr(replace(OPEN, password=b"hunter2"))
    (one,) = [one for one in CAPTURED if one["name"] == "closed-CRC32C-v3"]
    assert "golden" not in repr(decode(bytes.fromhex(one["hex"])))


def test_transitions() -> None:
    assert OPEN.in_recovery().state is LedgerState.IN_RECOVERY
    closed = OPEN.in_recovery().closed(9, 90)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 90)
    assert OPEN.state is LedgerState.OPEN


def test_segments_are_appended_or_replace_the_last() -> None:
    first = OPEN.with_segment(Segment(5, ("d:1", "b:1", "c:1")))
    assert [segment.first_entry_id for segment in first.segments] == [0, 5]
    again = first.with_segment(Segment(5, ("e:1", "b:1", "c:1")))
    assert [segment.ensemble[0] for segment in again.segments] == ["a:1", "e:1"]
    whole = OPEN.with_segment(Segment(0, ("e:1", "b:1", "c:1")))
    assert whole.segments == (Segment(0, ("e:1", "b:1", "c:1")),)
    with pytest.raises(InvalidArgumentError):
        again.with_segment(Segment(4, ("f:1", "b:1", "c:1")))
    with pytest.raises(InvalidArgumentError):
        again.with_segment(Segment(6, ("f:1", "b:1")))


def test_segment_of() -> None:
    metadata = OPEN.with_segment(Segment(5, ("d:1", "b:1", "c:1")))
    assert [metadata.segment_of(entry).first_entry_id for entry in (0, 4, 5, 6, 2**62)] == [0, 0, 5, 5, 5]
    assert metadata.last_segment.first_entry_id == 5
    with pytest.raises(InvalidArgumentError):
        metadata.segment_of(-1)
