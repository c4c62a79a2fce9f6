"""Znodes of logs, and what tasks and checkpoints say about logs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import accumulate, product
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.bkctl.logs.checkpoint import offsets_in
from bk_spark.datasource.entries.schemas import schema_of_json
from bk_spark.datasource.pulsar.offsets import TopicPosition, parse_topics, topics_to_json
from bk_spark.datasource.stream.offsets import Position, StreamOffset, ledger_name, parse_offset
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats import znodes
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.progress import LogProgress, Progress, decode_progress, encode_progress
from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import SchemaChange, SchemaHistory
from bk_spark.log.formats.settings import EntryFormat, LogSettings, PasswordCheck, decode_settings, encode_settings
from bk_spark.log.formats.znodes import (
    Appended,
    Application,
    Head,
    IndexPosition,
    LedgerRegistration,
    Owner,
    Policy,
)
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError, MetadataFormatError
from bk_spark.protocol.pulsar.transactions import Position as EntryPosition
from bk_spark.protocol.quorum import Quorum
from bk_spark.pulsar.entry_numbers import NOTHING_YET
from tests.fuzz.damage import COUNT, EDGES, deep, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.messages import messages
from tests.support.log_model import LOG_ID

_WHERE: Final = "/logs/here"
_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_LOG_ID: Final = UUID(LOG_ID).bytes
_POSITION: Final = st.builds(IndexPosition, COUNT, COUNT, COUNT, COUNT)
#: Not the last number of all: decoders refuse a head with so many pages, because a list of them has no length.
_PAGE: Final = COUNT.filter(lambda number: number < 2**63 - 1)


_PROGRESS: Final = st.builds(
    Progress,
    _TEXT,
    COUNT,
    COUNT,
    st.lists(st.builds(LogProgress, _TEXT, st.just(LOG_ID), COUNT, COUNT), max_size=4).map(tuple),
    st.integers(0, 1000),
)


@st.composite
def _heads(draw: st.DrawFn) -> Head:
    offsets, pages = sorted((draw(COUNT), draw(COUNT))), sorted((draw(_PAGE), draw(_PAGE)))
    return Head(LOG_ID, *offsets, *pages, draw(COUNT), draw(st.none() | _POSITION), draw(COUNT))


_APPLICATIONS: Final = st.builds(
    Application,
    _TEXT,
    _TEXT,
    COUNT,
    _TEXT,
    COUNT,
    COUNT,
    COUNT,
    st.lists(_TEXT, max_size=4).map(tuple),
    st.dictionaries(COUNT, COUNT, max_size=4).map(MappingProxyType),
    st.booleans(),
    COUNT,
    st.none() | COUNT,
)


def _change(time_ms: int, json_type: str) -> SchemaChange:
    return SchemaChange(time_ms, ((0, f'{{"name":"a","type":"{json_type}"}}'),))


@st.composite
def _settings(draw: st.DrawFn) -> tuple[str, LogSettings]:
    ack, write, ensemble = sorted(draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)))
    check = PasswordCheck(
        draw(st.binary(max_size=16)), draw(st.integers(1, 9)), draw(st.binary(min_size=32, max_size=32))
    )
    changes = draw(st.lists(st.builds(_change, COUNT, st.sampled_from(["integer", "long"])), max_size=3))
    schema = draw(st.none() | st.just(SchemaHistory('{"type":"struct","fields":[]}', tuple(changes))))
    entry_format = EntryFormat.RAW if schema is None else EntryFormat.ARROW
    digest_type = draw(st.sampled_from(DigestType))
    instance_id = draw(st.none() | _TEXT.filter(bool))
    return LOG_ID, LogSettings(Quorum(ensemble, write, ack), digest_type, entry_format, check, schema, instance_id)


#: What a znode holds, how it is written and read, and its message.
_ZNODES: Final[dict[str, tuple[SearchStrategy[Any], Callable[[Any], bytes], Callable[[bytes, str], Any], Any]]] = {
    "head": (_heads(), znodes.encode_head, znodes.decode_head, pb.Head),
    "settings": (_settings(), lambda both: encode_settings(*both), decode_settings, pb.Settings),
    "application": (_APPLICATIONS, znodes.encode_application, znodes.decode_application, pb.Application),
    "registration": (
        st.builds(LedgerRegistration, st.none() | COUNT, st.booleans()),
        znodes.encode_registration,
        znodes.decode_registration,
        pb.Registration,
    ),
    "owner": (st.builds(Owner, _TEXT, _TEXT, COUNT, COUNT), znodes.encode_owner, znodes.decode_owner, pb.Owner),
    "appended": (
        st.builds(Appended, st.binary(max_size=20), COUNT),
        znodes.encode_appended,
        znodes.decode_appended,
        pb.Appended,
    ),
    "policy": (st.builds(Policy, COUNT, COUNT, COUNT, COUNT), znodes.encode_policy, znodes.decode_policy, pb.Policy),
    "progress": (_PROGRESS, encode_progress, decode_progress, pb.Progress),
    "maintenance": (st.binary(max_size=20), znodes.encode_maintenance, znodes.decode_maintenance, pb.Maintenance),
}
_LOG_IDS: Final = st.sampled_from([_LOG_ID, _LOG_ID, b"", bytes(16)])


def _fields(kind: Any) -> dict[str, SearchStrategy[Any]]:
    """Fields that must be right for anything after them to be read."""
    names = kind.DESCRIPTOR.fields_by_name
    versions = st.sampled_from([1, 2]) if kind is pb.Settings else st.just(1)
    return {"format_version": versions} | ({"log_id": _LOG_IDS} if "log_id" in names else {})


@pytest.mark.parametrize("name", _ZNODES)
@fuzz(40, data=st.data())
def test_znodes_of_logs(name: str, data: st.DataObject) -> None:
    """What is accepted has numbers that fit everywhere, and stays what it is when it is written again."""
    values, encode, decode, kind = _ZNODES[name]
    whole = st.one_of(
        values.map(encode),
        messages(kind, **_fields(kind)).map(kind.SerializeToString),
        st.builds(
            lambda one, inner: one + b"\x42" + bytes([len(inner)]) + inner, values.map(encode), st.binary(max_size=99)
        ),
    )
    content = data.draw(hostile(whole))
    # Apache's or not, a hash of many rounds would take a second: only whether it is read counts here.
    found = outcome(lambda: decode(content, _WHERE), MetadataFormatError, names=_WHERE)
    if not isinstance(found, Refused):
        assert all(number < 2**63 for number in _numbers(found))
        assert decode(encode(found), _WHERE) == found


def test_numbers_of_a_head() -> None:
    """Offsets and pages are ranges that may be empty."""
    names = ("first_offset", "next_offset", "first_page", "tail_page", "last_commit_time_ms")
    small = [(*numbers, 0) for numbers in product(range(3), repeat=4)]
    huge = [(0,) * before + (number,) + (0,) * (4 - before) for before in range(5) for number in (2**63 - 1, 2**63)]
    for numbers in (*small, *huge):
        message = pb.Head(format_version=1, log_id=_LOG_ID, **dict(zip(names, numbers, strict=True)))
        content = message.SerializeToString()
        found = outcome(
            lambda content=content: znodes.decode_head(content, _WHERE),  # type: ignore[misc]
            MetadataFormatError,
            names=_WHERE,
        )
        first_offset, next_offset, first_page, tail_page, _ = numbers
        is_sound = first_offset <= next_offset and first_page <= tail_page and max(numbers) < 2**63
        # A list of so many pages has no length.
        is_sound = is_sound and tail_page < 2**63 - 1
        assert isinstance(found, Head) == is_sound, numbers
        if isinstance(found, Head):
            assert tuple(getattr(found, name) for name in names) == numbers


def test_ledgers_of_an_application() -> None:
    """Each ledger in use is named once, with its last entry; a znode remembers only so many runs."""
    columns = ([], [0], [5], [5, 1], [5, 1, 1], [5, 0], [5, -1], [5, 1, -1], [-1], [1, -2], [2**62, 2**62])
    for deltas, more, retired in product(columns, (0, 1, -1), (0, 2, 32, 33)):
        ids, entries = list(accumulate(deltas)), list(range(100, 100 + max(0, len(deltas) + more)))
        content = pb.Application(
            format_version=1,
            in_use_ledger_deltas=deltas,
            in_use_last_entries=entries,
            retired_runs=[f"run {number}" for number in range(retired)],
        ).SerializeToString()
        found = outcome(
            lambda content=content: znodes.decode_application(content, _WHERE),  # type: ignore[misc]
            MetadataFormatError,
            names=_WHERE,
        )
        is_sound = len(set(ids)) == len(ids) == len(entries) and min(ids, default=0) >= 0 and retired <= 32
        is_sound = is_sound and max(ids, default=0) < 2**63
        assert isinstance(found, Application) == is_sound, (deltas, more, retired)
        if isinstance(found, Application):
            assert dict(found.in_use) == dict(zip(ids, entries, strict=True))
            assert len(found.retired_runs) == retired


def _numbers(value: Any) -> list[int]:
    if is_dataclass(value) and not isinstance(value, type):
        return [number for one in vars_of(value) for number in _numbers(one)]
    return [value] if isinstance(value, int) else []


def vars_of(value: Any) -> list[Any]:
    return [getattr(value, name) for name in value.__dataclass_fields__]


@pytest.mark.parametrize("name", _ZNODES)
@fuzz(20, data=st.data())
def test_znodes_of_logs_are_read_as_they_were_written(name: str, data: st.DataObject) -> None:
    values, encode, decode, _ = _ZNODES[name]
    value = data.draw(values)
    assert decode(encode(value), _WHERE) == value


@fuzz(
    30, inside=deep(), text=st.text('{}[]":,structfieldsnametype01', max_size=60), entry_format=st.sampled_from([1, 2])
)
def test_schemas_in_settings(inside: bytes, text: str, entry_format: int) -> None:
    """However deep it nests, and whatever else it is than a schema."""
    for schema in (inside.decode(), text, f'{{"type":"struct","fields":[{text}]}}'):
        message = pb.Settings(format_version=1, log_id=_LOG_ID, ensemble_size=1, write_quorum_size=1)
        message.ack_quorum_size, message.digest_type, message.entry_format = 1, 3, entry_format
        message.schema_json = schema
        message.password_check.MergeFrom(pb.PasswordCheck(salt=b"s", iterations=1, hash=bytes(32)))
        found = outcome(
            lambda message=message: decode_settings(message.SerializeToString(), _WHERE),  # type: ignore[misc]
            MetadataFormatError,
            names=_WHERE,
            limit_bytes=32 * 1024 * 1024,
        )
        changed = pb.Settings.FromString(message.SerializeToString())
        changed.format_version = 2
        changed.schema_changes.add(time_ms=1, positions=[0], columns=[text])
        outcome(
            lambda message=changed: decode_settings(message.SerializeToString(), _WHERE),  # type: ignore[misc]
            MetadataFormatError,
            names=_WHERE,
            limit_bytes=32 * 1024 * 1024,
        )
        if not isinstance(found, Refused):
            stored = found[1].schema_json
            for parse in (schema_of_json, parse_schema):
                outcome(lambda: parse(stored), MetadataFormatError, limit_bytes=32 * 1024 * 1024)  # noqa: B023


# --- what Spark keeps of a log ----------------------------------------------------------------------

_COUNTS: Final = st.integers(0, 2**63 - 1)


@st.composite
def _positions(draw: st.DrawFn, identity: SearchStrategy[Any]) -> Position:
    start, offset = sorted((draw(_COUNTS), draw(_COUNTS)))
    return Position(draw(identity), offset, draw(st.none() | st.just(start)), draw(st.just(0) | _COUNTS))


_OFFSETS: Final = st.one_of(
    st.dictionaries(_TEXT, _positions(_TEXT), max_size=3).map(StreamOffset),
    _positions(_COUNTS).map(lambda one: StreamOffset({ledger_name(one.identity): one})),  # type: ignore[arg-type]
)
_NAMES: Final = st.sampled_from(["v", "logs", "ledger", "id", "offset", "entry", "from"]) | _TEXT
_JSON: Final[SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.sampled_from(EDGES) | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=10,
)


def _with_one_change(found: Any) -> Iterator[Any]:
    """All values that differ from a JSON object in one thing, somewhere: a value, a name, a field more or less."""
    for key, value in found.items():
        rest = {name: one for name, one in found.items() if name != key}
        yield rest
        yield {**rest, f"{key}x": value}
        if isinstance(value, dict):
            yield from ({**rest, key: other} for other in _with_one_change(value))
        numbers = [one + more for one in (0, 2**63, *found.values()) if type(one) is int for more in (-1, 0, 1)]
        for other in (None, True, False, 1.0, "1", "", [], {}, *numbers):
            yield {**rest, key: other}
    yield {**found, "x": 0}


def _check_offset(found: Any) -> None:
    """What is accepted would be written as it was, so nothing in it was overlooked; a batch ends where it began, or
    later."""
    offset = outcome(lambda: parse_offset(found), MetadataFormatError, names="checkpoint")
    if isinstance(offset, Refused):
        return
    text = json.dumps(offset.to_json(), sort_keys=True)
    assert text == json.dumps(found, sort_keys=True).replace(', "lost": 0', "")
    assert all((one.start or 0) <= one.offset for one in offset.positions.values())


@fuzz(80, found=_JSON)
def test_other_json_as_an_offset(found: Any) -> None:
    _check_offset(found)


@fuzz(12, offset=_OFFSETS)
def test_offsets_of_a_checkpoint(offset: StreamOffset) -> None:
    valid = offset.to_json()
    for found in _with_one_change(valid):
        _check_offset(found)


@fuzz(40, offset=_OFFSETS)
def test_offsets_are_read_as_they_were_written(offset: StreamOffset) -> None:
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


@st.composite
def _topic_positions(draw: st.DrawFn) -> TopicPosition:
    pairs = sorted(draw(st.lists(st.tuples(_COUNTS, _COUNTS), min_size=2, max_size=2)))
    start = draw(st.none() | st.just(EntryPosition(*pairs[0])) | st.just(NOTHING_YET))
    return TopicPosition(EntryPosition(*pairs[1]), start, draw(_COUNTS))


_TOPIC_OFFSETS: Final = st.dictionaries(_TEXT, _topic_positions(), max_size=3)


def _check_topics(found: Any) -> None:
    positions = outcome(lambda: parse_topics(found), MetadataFormatError, names="checkpoint")
    if not isinstance(positions, Refused):
        text = json.dumps(topics_to_json(positions), sort_keys=True)
        assert text == json.dumps(found, sort_keys=True).replace(', "lost": 0', "").replace('"from": null, ', "")
        assert all(one.start is None or one.start <= one.next for one in positions.values())


@fuzz(12, positions=_TOPIC_OFFSETS, other=_JSON)
def test_offsets_of_topics_in_a_checkpoint(positions: dict[str, TopicPosition], other: Any) -> None:
    valid = topics_to_json(positions)
    assert parse_topics(json.loads(json.dumps(valid))) == positions
    for found in (other, *_with_one_change(valid)):
        _check_topics(found)


@fuzz(50, data=hostile(_OFFSETS.map(lambda offset: f"v1\n{{}}\n{json.dumps(offset.to_json())}".encode()) | deep()))
def test_files_of_a_checkpoint(data: bytes) -> None:
    whole = outcome(lambda: list(offsets_in(b"v1\n{}\n" + data, "/c/offsets/3")), MetadataFormatError)
    assert isinstance(whole, Refused | list)
    outcome(lambda: list(offsets_in(data, "/c/offsets/3")), MetadataFormatError)


_RANGE_NUMBERS: Final = st.integers(-1, 20) | st.sampled_from(EDGES)


@st.composite
def _commit_messages(draw: st.DrawFn) -> CommitMessage:
    numbers = draw(st.lists(st.tuples(*[st.integers(0, 20)] * 5), max_size=3))
    ranges = tuple(LedgerRange(ledger, min(a, b), max(a, b), rows, size) for ledger, a, b, rows, size in numbers)
    batch_id = draw(st.just(4) | _RANGE_NUMBERS)
    query_batch_id = draw(st.none() | st.just(4) | _RANGE_NUMBERS)
    log_id, app = draw(st.sampled_from([LOG_ID, LOG_ID, "other"])), draw(st.just("app") | st.text(max_size=3))
    return CommitMessage(log_id, app, "run", "query", batch_id, draw(_RANGE_NUMBERS), ranges, query_batch_id)


@fuzz(100, told=st.lists(_commit_messages(), max_size=4) | st.lists(_commit_messages(), min_size=1, max_size=1))
def test_commit_messages(told: list[CommitMessage]) -> None:
    """Messages that are accepted name no entry twice, and say the same behind Spark's wire."""
    carried = pickle.loads(pickle.dumps(told))
    assert carried == told
    request = outcome(lambda: CommitRequest.from_messages(carried), InvalidArgumentError, LogReplacedError)
    if isinstance(request, CommitRequest):
        entries = [(part.ledger_id, n) for part in request.ranges for n in range(part.first_entry, part.last_entry + 1)]
        assert len(entries) == len(set(entries))
        assert request.rows == sum(part.rows for message in told for part in message.ranges)


@fuzz(50, numbers=st.tuples(*[_RANGE_NUMBERS] * 5))
def test_ranges_of_entries(numbers: tuple[int, ...]) -> None:
    found = outcome(lambda: LedgerRange(*numbers), InvalidArgumentError, names="range of entries")
    assert isinstance(found, Refused) or found.entries > 0
