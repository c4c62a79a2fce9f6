"""Znodes of logs, pages of segments, directories of index ledgers, and what tasks and checkpoints say about logs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import astuple, is_dataclass
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.bkctl.logs.checkpoint import offsets_in
from bk_spark.datasource.entries.schemas import schema_of_json
from bk_spark.datasource.stream.offsets import Position, StreamOffset, ledger_name, parse_offset
from bk_spark.log.core.index import Line, PageIndex, decode_directory, encode_directory
from bk_spark.log.formats import znodes
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.proto import index_formats_pb2, log_formats_pb2 as pb
from bk_spark.log.formats.segment import Segment, SegmentTable
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
from bk_spark.protocol.quorum import Quorum
from tests.fuzz.damage import COUNT, EDGES, deep, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.messages import messages
from tests.support.log_model import LOG_ID, PATHS

_WHERE: Final = "/logs/here"
_TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
_LOG_ID: Final = UUID(LOG_ID).bytes
_POSITION: Final = st.builds(IndexPosition, COUNT, COUNT, COUNT, COUNT)


@st.composite
def _heads(draw: st.DrawFn) -> Head:
    offsets, pages = sorted((draw(COUNT), draw(COUNT))), sorted((draw(COUNT), draw(COUNT)))
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


@st.composite
def _settings(draw: st.DrawFn) -> tuple[str, LogSettings]:
    ack, write, ensemble = sorted(draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)))
    check = PasswordCheck(
        draw(st.binary(max_size=16)), draw(st.integers(1, 9)), draw(st.binary(min_size=32, max_size=32))
    )
    schema = draw(st.none() | st.just('{"type":"struct","fields":[]}'))
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
    "maintenance": (st.binary(max_size=20), znodes.encode_maintenance, znodes.decode_maintenance, pb.Maintenance),
}
_LOG_IDS: Final = st.sampled_from([_LOG_ID, _LOG_ID, b"", bytes(16)])


def _fields(kind: Any) -> dict[str, SearchStrategy[Any]]:
    """Fields that must be right for anything after them to be read."""
    names = kind.DESCRIPTOR.fields_by_name
    return {"format_version": st.just(1)} | ({"log_id": _LOG_IDS} if "log_id" in names else {})


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
        if not isinstance(found, Refused):
            stored = found[1].schema_json
            outcome(lambda stored=stored: schema_of_json(stored), MetadataFormatError, limit_bytes=32 * 1024 * 1024)  # type: ignore[misc]


# --- lists of segments ------------------------------------------------------------------------------


@st.composite
def _segments(draw: st.DrawFn) -> list[Segment]:
    offset, time_ms = draw(st.integers(0, 2**50)), draw(st.integers(0, 2**42))
    ledgers = draw(st.lists(COUNT, min_size=1, max_size=3))
    segments = []
    for _ in range(draw(st.integers(0, 6))):
        entries, first = draw(st.integers(1, 2**39) | st.integers(1, 9)), draw(st.integers(0, 2**40))
        rows, size_bytes = draw(st.integers(0, 2**45) | st.just(7)), draw(st.integers(0, 2**45) | st.just(70))
        ledger_id = draw(st.sampled_from(ledgers))
        segments.append(Segment(ledger_id, first, first + entries - 1, offset, rows, size_bytes, time_ms))
        offset, time_ms = offset + entries, time_ms + draw(st.sampled_from([0, 0, 1, 1000]))
    if draw(st.booleans()):
        segments.append(Segment(ledgers[0], draw(st.integers(0, 9)), None, offset, 0, 0, time_ms))
    return segments


_NUMBER: Final = 3
_PAGES: Final = _segments().map(
    lambda segments: SegmentPage(LOG_ID, _NUMBER, segments[0].base_offset if segments else 0, SegmentTable.of(segments))
)
_PAGE_MESSAGES: Final = messages(pb.SegmentPage, **_fields(pb.SegmentPage), number=st.just(_NUMBER))


def _decode_page(data: bytes) -> SegmentPage:
    return decode_page(data, _WHERE, log_id=LOG_ID, number=_NUMBER)


@fuzz(150, data=hostile(_PAGES.map(encode_page) | _PAGE_MESSAGES.map(pb.SegmentPage.SerializeToString)))
def test_pages_of_segments(data: bytes) -> None:
    """A page that is accepted is a list without gaps, of numbers within their bounds, and can be written."""
    page = outcome(lambda: _decode_page(data), MetadataFormatError, LogReplacedError, names=_WHERE)
    if isinstance(page, Refused):
        return
    offset = page.base_offset
    for number, segment in enumerate(page.table):
        assert segment.base_offset == offset
        assert min(astuple(segment)[0], segment.first_entry, segment.rows, segment.size_bytes) >= 0
        assert segment.entries > 0 or number == len(page.table) - 1
        offset = segment.end_offset
    assert page.end_offset == offset
    assert list(_decode_page(encode_page(page)).table) == list(page.table)


@fuzz(50, page=_PAGES)
def test_pages_are_read_as_they_were_written(page: SegmentPage) -> None:
    found = _decode_page(encode_page(page))
    assert (found.base_offset, list(found.table)) == (page.base_offset, list(page.table))


@st.composite
def _directories(draw: st.DrawFn) -> tuple[PageIndex, IndexPosition]:
    lines, offset, time_ms = [], draw(st.integers(0, 2**60)), draw(st.integers(0, 2**42))
    carried, own = draw(st.integers(0, 5)), draw(st.integers(1, 5))
    for _ in range(carried + own):
        lines.append(Line(offset, draw(COUNT), draw(COUNT), time_ms))
        offset, time_ms = offset + draw(st.integers(1, 2**40)), time_ms + draw(st.sampled_from([0, 1, 10**6]))
    first = draw(st.integers(0, 2**40))
    index = PageIndex.of(first, offset, lines)
    index.ledger_id[:carried] = draw(st.lists(st.integers(0, 2**62), min_size=carried, max_size=carried))
    index.entry_id[carried:] = np.arange(own)
    return index, IndexPosition(draw(st.integers(0, 2**62)), own, first + carried + own, offset)


@fuzz(100, made=_directories(), data=st.data())
def test_directories_of_pages(made: tuple[PageIndex, IndexPosition], data: st.DataObject) -> None:
    """What is accepted leads from its first page to the end that the head names."""
    index, position = made
    valid = st.just(encode_directory(LOG_ID, index))
    fields = {**_fields(index_formats_pb2.IndexDirectory), "end_offset": st.just(position.end_offset)}
    other = messages(index_formats_pb2.IndexDirectory, **fields)
    content = data.draw(hostile(valid) | other.map(index_formats_pb2.IndexDirectory.SerializeToString))
    found = outcome(
        lambda: decode_directory(content, PATHS, position), MetadataFormatError, LogReplacedError, names="flights"
    )
    if not isinstance(found, Refused):
        assert (found.end_page, found.end_offset) == (position.end_page, position.end_offset)
        assert all(found.place(page)[0] >= 0 for page in range(found.first_page, found.end_page))


@fuzz(40, made=_directories())
def test_directories_are_read_as_they_were_written(made: tuple[PageIndex, IndexPosition]) -> None:
    index, position = made
    found = decode_directory(encode_directory(LOG_ID, index), PATHS, position)
    index.ledger_id[index.ledger_id < 0] = position.ledger_id
    assert [column.tolist() for column in found.columns] == [column.tolist() for column in index.columns]


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
_NAMES: Final = st.sampled_from(["v", "logs", "ledger", "id", "offset", "entry", "from", "lost"]) | _TEXT
_JSON: Final[SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.sampled_from(EDGES) | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def _changed_offsets(draw: st.DrawFn) -> Any:
    """An offset in which a value, somewhere, is another one, or has another name."""
    found = draw(_OFFSETS).to_json()
    inside = found
    while isinstance(inside, dict) and inside and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(inside)))
        if not isinstance(inside[key], dict) or draw(st.integers(0, 3)) == 0:
            inside[draw(st.just(key) | _NAMES)] = draw(_JSON)
            break
        inside = inside[key]
    return found


@fuzz(120, found=st.one_of(_changed_offsets(), _changed_offsets(), _JSON))
def test_offsets_of_a_checkpoint(found: Any) -> None:
    """What is accepted is written again as it was."""
    offset = outcome(lambda: parse_offset(found), MetadataFormatError, names="checkpoint")
    assert isinstance(offset, Refused) or parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


@fuzz(40, offset=_OFFSETS)
def test_offsets_are_read_as_they_were_written(offset: StreamOffset) -> None:
    assert parse_offset(json.loads(json.dumps(offset.to_json()))) == offset


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
