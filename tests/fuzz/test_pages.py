"""Lists of segments: pages in ZooKeeper, and directories of index ledgers."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any, Final
from uuid import UUID

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.log.core.index import Line, PageIndex, decode_directory, encode_directory
from bk_spark.log.formats.commits import CommitKind, CommitRecord, CommitTable
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.proto import index_formats_pb2, log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS
from bk_spark.log.formats.segment import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_ENTRIES,
    MAX_SEGMENT_ROWS,
    Segment,
    SegmentTable,
)
from bk_spark.log.formats.znodes import IndexPosition
from bk_spark.protocol.errors import LogReplacedError, MetadataFormatError
from tests.fuzz.damage import COUNT, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.messages import changes, messages
from tests.support.log_model import LOG_ID, PATHS

_WHERE: Final = "/logs/here"
_LOG_ID: Final = UUID(LOG_ID).bytes
#: Fields that must be right for anything after them to be read.
_HEADER: Final[dict[str, SearchStrategy[Any]]] = {
    "format_version": st.sampled_from([1, 2]),
    "log_id": st.sampled_from([_LOG_ID, _LOG_ID, b"", bytes(16)]),
}


@st.composite
def _segments(draw: st.DrawFn) -> list[Segment]:
    offset, time_ms = draw(st.integers(0, 2**50)), draw(st.integers(0, 2**42))
    ledgers = draw(st.lists(COUNT, min_size=1, max_size=3))
    segments = []
    for _ in range(draw(st.integers(0, 6))):
        entries, first = draw(st.integers(1, 2**39) | st.integers(1, 9)), draw(st.integers(0, 2**40))
        rows, size_bytes = draw(st.integers(0, 2**45) | st.just(7)), draw(st.integers(0, 2**45) | st.just(70))
        ledger_id = draw(st.sampled_from(ledgers))
        version = draw(st.sampled_from([0, 0, 1, 2, MAX_SCHEMA_VERSIONS - 1]))
        segments.append(Segment(ledger_id, first, first + entries - 1, offset, rows, size_bytes, time_ms, version))
        offset, time_ms = offset + entries, time_ms + draw(st.sampled_from([0, 0, 1, 1000]))
    if draw(st.booleans()):
        segments.append(Segment(ledgers[0], draw(st.integers(0, 9)), None, offset, 0, 0, time_ms))
    return segments


@st.composite
def _commits(draw: st.DrawFn, segments: list[Segment]) -> CommitTable:
    """Commits of the sealed ones of ``segments``, some of which may have come before commits were recorded."""
    times = [one.commit_time_ms for one in segments if one.entries]
    done = draw(st.integers(0, len(times)))
    first_offset = draw(st.integers(0, 2**50))
    commits, records = CommitTable.begin(first_offset, done), []
    time_ms, batches = 0, dict.fromkeys(["a", "app-ß", ""], 0)
    while done < len(times) or (len(records) < 8 and draw(st.booleans())):
        kind = draw(st.sampled_from(_KINDS))
        count = draw(st.integers(0, len(times) - done))
        time_ms = max(time_ms, *times[: done + count], 0) + draw(st.sampled_from([0, 1, 10**9]))
        app = draw(st.sampled_from([*batches]))
        batches[app] += draw(st.sampled_from([1, 1, 2**40]))
        first_offset += draw(st.integers(0, 2**40)) if kind in _MOVING else 0
        records.append(
            CommitRecord(
                kind,
                count,
                time_ms,
                app or None,
                batches[app] if app else None,
                first_offset if kind in _MOVING else None,
                draw(st.booleans()),
            )
        )
        done += count
    return commits.extended(records)


@st.composite
def _pages(draw: st.DrawFn) -> SegmentPage:
    segments = draw(_segments())
    commits = draw(_commits(segments)) if draw(st.booleans()) else None
    base_offset = segments[0].base_offset if segments else 0
    return SegmentPage(LOG_ID, _NUMBER, base_offset, SegmentTable.of(segments), commits)


_NUMBER: Final = 3
_MOVING: Final = (CommitKind.OVERWRITE, CommitKind.TRUNCATE)
_KINDS: Final = (CommitKind.APPEND, *_MOVING, CommitKind.WRITER, CommitKind.LEDGER)
_PAGES: Final = _pages()
_PAGE_MESSAGES: Final = messages(pb.SegmentPage, **_HEADER, number=st.just(_NUMBER))


def _decode_page(data: bytes) -> SegmentPage:
    return decode_page(data, _WHERE, log_id=LOG_ID, number=_NUMBER)


@fuzz(50, data=hostile(_PAGES.map(encode_page) | _PAGE_MESSAGES.map(pb.SegmentPage.SerializeToString)))
def test_pages_of_segments(data: bytes) -> None:
    _check_page(data)


@fuzz(3, page=_PAGES.filter(lambda page: len(page.table) > 1))
def test_pages_with_other_columns(page: SegmentPage) -> None:
    """Whatever one thing is wrong, in any column."""
    for message in changes(pb.SegmentPage.FromString(encode_page(page))):
        found = _check_page(message.SerializeToString())
        if found is not None:
            assert (message.log_id, message.number) == (_LOG_ID, _NUMBER)
            assert message.format_version in (1, 2)
            assert message.format_version == 2 or not found.table.schema_version.any()
            assert found.table.entries.tolist() == list(message.entries)
            assert not len(found.table) or found.open_tail == message.open_tail


def _check_page(data: bytes) -> SegmentPage | None:
    """A page that is accepted is a list without gaps, of numbers within their bounds, and can be written."""
    page = outcome(lambda: _decode_page(data), MetadataFormatError, LogReplacedError, names=_WHERE)
    if isinstance(page, Refused):
        return None
    offset = page.base_offset
    for number, segment in enumerate(page.table):
        assert segment.base_offset == offset
        assert min(astuple(segment)[0], segment.first_entry, segment.rows, segment.size_bytes) >= 0
        assert segment.commit_time_ms >= 0
        assert 0 <= segment.schema_version < MAX_SCHEMA_VERSIONS
        assert segment.entries < MAX_SEGMENT_ENTRIES
        assert segment.rows < MAX_SEGMENT_ROWS
        assert segment.size_bytes < MAX_SEGMENT_BYTES
        assert segment.entries > 0 or number == len(page.table) - 1
        offset = segment.end_offset
    assert page.end_offset == offset
    _check_commits(page)
    again = _decode_page(encode_page(page))
    assert list(again.table) == list(page.table)
    assert _records(again) == _records(page)
    return page


def _check_commits(page: SegmentPage) -> None:
    """Commits cover the sealed segments, in the order of their times. Where the log begins never goes back."""
    commits = page.commits
    if commits is None:
        return
    sealed = int(np.count_nonzero(page.table.entries))
    assert commits.unrecorded + int(commits.segments.sum()) == sealed
    assert min(commits.segments, default=0) >= 0
    assert (np.diff(commits.time_ms) >= 0).all()
    assert (np.diff(commits.first_offsets, prepend=commits.first_offset) >= 0).all()
    assert ((commits.app >= 0) & (commits.app < max(1, len(commits.apps)))).all()
    assert (commits.batch >= 0).all()


def _records(page: SegmentPage) -> list[CommitRecord] | None:
    return None if page.commits is None else list(page.commits.records())


@fuzz(50, page=_PAGES)
def test_pages_are_read_as_they_were_written(page: SegmentPage) -> None:
    found = _decode_page(encode_page(page))
    assert (found.base_offset, list(found.table)) == (page.base_offset, list(page.table))
    assert _records(found) == _records(page)


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


@fuzz(30, made=_directories(), data=st.data())
def test_directories_of_pages(made: tuple[PageIndex, IndexPosition], data: st.DataObject) -> None:
    index, position = made
    valid = st.just(encode_directory(LOG_ID, index))
    fields = {**_HEADER, "end_offset": st.just(position.end_offset)}
    other = messages(index_formats_pb2.IndexDirectory, **fields)
    content = data.draw(hostile(valid) | other.map(index_formats_pb2.IndexDirectory.SerializeToString))
    _check_directory(content, position)


@fuzz(6, made=_directories(), is_continued=st.booleans())
def test_directories_with_other_columns(made: tuple[PageIndex, IndexPosition], is_continued: bool) -> None:
    """Whatever one thing is wrong, in any column, or in the position of the directory before."""
    index, position = made
    valid = index_formats_pb2.IndexDirectory.FromString(encode_directory(LOG_ID, index))
    if is_continued:
        end_page, end_offset = index.first_page, int(index.base_offset[0])
        valid.previous.MergeFrom(pb.IndexPosition(ledger_id=5, entry_id=5, end_page=end_page, end_offset=end_offset))
    _check_directory(valid.SerializeToString(), position)
    for message in changes(valid):
        _check_directory(message.SerializeToString(), position)


def _check_directory(content: bytes, position: IndexPosition) -> None:
    """What is accepted leads from its first page to the end that the head names, with no page left out."""
    found = outcome(
        lambda: decode_directory(content, PATHS, position), MetadataFormatError, LogReplacedError, names="flights"
    )
    if isinstance(found, Refused):
        return
    assert (found.end_page, found.end_offset) == (position.end_page, position.end_offset)
    assert all(found.place(page)[0] >= 0 for page in range(found.first_page, found.end_page))
    assert {len(column) for column in found.columns} == {len(found)}
    assert all((column >= 0).all() for column in found.columns)
    offsets = [*found.base_offset.tolist(), found.end_offset]
    assert offsets == sorted(set(offsets))
    assert found.first_time_ms.tolist() == sorted(found.first_time_ms.tolist())
    before = found.previous
    assert before is None or (before.end_page, before.end_offset) == (found.first_page, offsets[0])


@fuzz(40, made=_directories())
def test_directories_are_read_as_they_were_written(made: tuple[PageIndex, IndexPosition]) -> None:
    index, position = made
    found = decode_directory(encode_directory(LOG_ID, index), PATHS, position)
    index.ledger_id[index.ledger_id < 0] = position.ledger_id
    assert [column.tolist() for column in found.columns] == [column.tolist() for column in index.columns]
