"""Offsets of streaming reads: what Spark keeps in checkpoints."""

from __future__ import annotations

import json
import random
import uuid

import pytest

from bk_spark.bkctl.logs.checkpoint import offsets_in
from bk_spark.datasource.stream.offsets import Position, StreamOffset, ledger_name, parse_offset
from bk_spark.protocol.errors import MetadataFormatError

ID = "0f1e2d3c-0000-4000-8000-00000000e1f0"


def _read_back(offset: StreamOffset) -> StreamOffset:
    return parse_offset(json.loads(json.dumps(offset.to_json())))


def test_the_bytes_of_version_1() -> None:
    logs = StreamOffset({"b": Position(ID, 7), "a": Position(ID, 120, 100, 30)})
    assert json.dumps(logs.to_json()) == (
        f'{{"v": 1, "logs": {{"a": {{"id": "{ID}", "offset": 120, "from": 100, "lost": 30}}, '
        f'"b": {{"id": "{ID}", "offset": 7}}}}}}'
    )
    ledger = StreamOffset({ledger_name(17): Position(17, 5, 0)})
    assert json.dumps(ledger.to_json()) == '{"v": 1, "ledger": {"id": 17, "entry": 5, "from": 0}}'
    assert ledger.ledger_id == 17
    assert logs.ledger_id is None
    assert json.dumps(StreamOffset({}).to_json()) == '{"v": 1, "logs": {}}'


def test_offsets_come_back_and_equal_ones_are_equal_texts() -> None:
    random_of = random.Random(5)
    edges = [0, 1, 2, 2**31, 2**53 + 1, 2**63 - 1]
    for _ in range(500):
        positions = {}
        for number in random_of.sample(range(20), random_of.randint(0, 8)):
            offset = random_of.choice(edges)
            start = random_of.choice([None, 0, offset])
            positions[f"log-{number}"] = Position(str(uuid.uuid4()), offset, start, random_of.choice([0, 0, 9]))
        offset_read = _read_back(StreamOffset(positions))
        assert offset_read.positions == positions
        shuffled = dict(random_of.sample(list(positions.items()), len(positions)))
        assert json.dumps(StreamOffset(shuffled).to_json()) == json.dumps(offset_read.to_json())
        ledger_id, entry = random_of.choice(edges), random_of.choice(edges)
        ledger = StreamOffset({ledger_name(ledger_id): Position(ledger_id, entry)})
        assert _read_back(ledger) == ledger


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "is not an offset of this data source"),
        ([], "is not an offset of this data source"),
        ({"logs": {}}, "is not an offset of this data source"),
        ({"flights": {"0": 17}}, "is not an offset of this data source: is the checkpoint that of another source"),
        ({"v": 2, "logs": {}}, "format version 2; this release knows 1: use the release that wrote the checkpoint"),
        ({"v": "1", "logs": {}}, "format version '1'"),
        ({"v": True, "logs": {}}, "format version True"),
        ({"v": 1}, "names neither logs nor a ledger"),
        ({"v": 1, "logs": {}, "ledger": {}}, "names neither logs nor a ledger"),
        ({"v": 1, "logs": {}, "more": 1}, "names neither logs nor a ledger"),
        ({"v": 1, "logs": []}, "names neither logs nor a ledger"),
        ({"v": 1, "logs": {"a": 5}}, "is damaged at 'a'"),
        ({"v": 1, "logs": {"a": {"id": ID}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"offset": 1}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": 3, "offset": 1}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": -1}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 1.0}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": True}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 2**63}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 1, "lost": -1}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 1, "from": "0"}}}, "is damaged at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 1, "from": 2}}}, "ends before it begins at a"),
        ({"v": 1, "logs": {"a": {"id": ID, "offset": 1, "until": 2}}}, "unknown field until at a"),
        ({"v": 1, "ledger": {"id": True, "entry": 1}}, "is damaged at ledger"),
        ({"v": 1, "ledger": {"id": "7", "entry": 1}}, "is damaged at ledger"),
        ({"v": 1, "ledger": {"id": 7, "offset": 1}}, "unknown field offset at ledger"),
    ],
)
def test_what_is_no_offset_is_refused(found: object, message: str) -> None:
    with pytest.raises(MetadataFormatError, match=message) as raised:
        parse_offset(found)
    assert "the query's checkpoint" in str(raised.value)


def test_a_long_text_is_not_shown_whole() -> None:
    with pytest.raises(MetadataFormatError) as raised:
        parse_offset({"v": 3, "logs": {f"log-{number}": {} for number in range(1000)}})
    assert len(str(raised.value)) < 500


def test_where_a_batch_begins() -> None:
    first_end = StreamOffset({"a": Position(ID, 9, start=7)})
    second_end = StreamOffset({"a": Position(ID, 20), "b": Position(ID, 3, start=0)})
    # The first batch begins where it says, whatever "latest" is when it is run again.
    for asked_anew in (7, 9, 12):
        assert StreamOffset({"a": Position(ID, asked_anew, asked_anew)}).begin("a", first_end) == 7
    assert first_end.begin("a", second_end) == 9
    assert first_end.begin("b", second_end) == 0
    with pytest.raises(MetadataFormatError, match="does not say where its first batch of log b began"):
        first_end.begin("b", StreamOffset({"b": Position(ID, 3)}))


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b'{"v": 1', b'{"v": 2, "streams": {}}'], ids=range(4))
def test_lines_of_other_sources_in_a_checkpoint_are_passed_over(line: bytes) -> None:
    ours = b'{"v": 1, "logs": {"a": {"id": "x", "offset": 7}}}'
    assert list(offsets_in(b"v1\n{}\n" + line + b"\n" + ours, "/c/offsets/3")) == [("a", Position("x", 7))]
