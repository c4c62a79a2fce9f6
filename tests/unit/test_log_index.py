"""Directories of index ledgers: bytes, limits, damage; the way through several of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from bk_spark.log.core.index import (
    MAX_DIRECTORY_BYTES,
    MAX_LINES,
    IndexWalk,
    Line,
    PageIndex,
    decode_directory,
    decode_indexed_page,
    encode_directory,
    line_of,
    walk_steps,
)
from bk_spark.log.core.steps import EntryRead, Failed, ReadEntry
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.proto import index_formats_pb2 as pb
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, IndexPosition
from bk_spark.protocol.errors import BookKeeperError, LogReplacedError, MetadataFormatError, NoSuchLedgerError
from tests.support.log_model import LOG_ID, PATHS

START_MS = 1_760_000_000_000
OTHER_ID = "ffffffff-4b5a-6978-8796-a5b4c3d2e1f0"

# Pages 7 to 9 are in ledgers 40 and 38, moved before; 10 and 11 come with this directory.
CARRIED = PageIndex(
    7,
    700,
    IndexPosition(21, 5, 7, 400),
    np.array([400, 500, 600]),
    np.array([10, 20, 30]),
    np.array([1000, 2000, 3000]),
    np.array([START_MS, START_MS + 5, START_MS + 5]),
    np.array([40, 40, 38]),
    np.array([1, 2, 0]),
)
MOVED = PageIndex.of(10, 1000, [Line(700, 7, 70, START_MS + 6), Line(850, 8, 80, START_MS + 600)])
HERE = IndexPosition(77, 2, 12, 1000)
DIRECTORY_HEX = (
    "080112100f1e2d3c4b5a69788796a5b4c3d2e1f0180720e8072a079003646464960132050a141e07083a08e807d00fb8174650"
    "420b8080b3c19c330500 01d2044a0250035202010 05a0202016209081510051807209003"
).replace(" ", "")


def values(index: PageIndex) -> tuple[object, ...]:
    columns = tuple(tuple(column.tolist()) for column in index.columns)
    return index.first_page, index.end_page, index.end_offset, index.previous, columns


def test_bytes_of_a_directory_are_frozen() -> None:
    assert encode_directory(LOG_ID, CARRIED.then(MOVED)).hex() == DIRECTORY_HEX
    index = decode_directory(bytes.fromhex(DIRECTORY_HEX), PATHS, HERE)
    assert (index.first_page, index.end_page, index.end_offset) == (7, 12, 1000)
    assert index.previous == CARRIED.previous
    assert index.base_offset.tolist() == [400, 500, 600, 700, 850]
    assert index.rows.tolist() == [10, 20, 30, 7, 8]
    assert index.size_bytes.tolist() == [1000, 2000, 3000, 70, 80]
    assert (index.first_time_ms - START_MS).tolist() == [0, 5, 5, 6, 600]
    assert [index.place(page) for page in range(7, 12)] == [(40, 1), (40, 2), (38, 0), (77, 0), (77, 1)]
    # Another move carries these lines along, now that the ledger is known.
    later = PageIndex.of(12, 1100, [Line(1000, 1, 1, START_MS + 700)])
    again = decode_directory(
        encode_directory(LOG_ID, index.since(8).then(later)), PATHS, IndexPosition(90, 1, 13, 1100)
    )
    assert again.previous is None
    assert [again.place(page) for page in range(8, 13)] == [(40, 2), (38, 0), (77, 0), (77, 1), (90, 0)]


def test_lines_before_a_page_are_dropped_with_what_leads_there() -> None:
    index = CARRIED
    assert values(index.since(3)) == values(index)
    assert index.since(7).previous is None
    assert values(index.since(9))[:4] == (9, 10, 700, None)
    assert values(index.since(50))[:4] == (10, 10, 700, None)


@pytest.mark.parametrize("seed", range(40))
def test_any_lines_come_back(seed: int) -> None:
    rng = random.Random(seed)
    count, own = rng.randint(0, 300), rng.randint(1, 300)
    lines, offset, time_ms = [], rng.randrange(1 << 60), rng.randrange(1 << 42)
    for _ in range(count + own):
        lines.append(Line(offset, rng.randrange(1 << 62), rng.randrange(1 << 62), time_ms))
        offset += rng.randint(1, 1 << rng.choice([1, 20, 40]))
        time_ms += rng.choice([0, 1, 10**6])
    first = rng.randrange(1 << 40)
    end = offset if own else 0
    places = [(rng.randrange(1 << 62), rng.randrange(1 << 20)) for _ in range(count)]
    for line in range(1, count):
        if rng.random() < 0.7:
            places[line] = (places[line - 1][0], places[line - 1][1] + 1)
    index = PageIndex.of(first, end, lines)
    index.ledger_id[:count] = [ledger for ledger, _ in places]
    index.entry_id[:count] = [entry for _, entry in places]
    index.entry_id[count:] = np.arange(own)
    position = IndexPosition(rng.randrange(1 << 62), own, first + count + own, end)
    back = decode_directory(encode_directory(LOG_ID, index), PATHS, position)
    index.ledger_id[count:] = position.ledger_id
    assert values(back) == values(index)


def test_the_longest_directory_that_is_written_is_one_that_is_read() -> None:
    step = (1 << 61) // MAX_LINES
    lines = [Line(n * step, (1 << 63) - 1, (1 << 63) - 1, n * (1 << 42)) for n in range(MAX_LINES)]
    index = PageIndex.of(1 << 40, 1 << 62, lines)
    index.ledger_id[:-1] = [(1 << 62) * (n % 2) for n in range(MAX_LINES - 1)]
    index.entry_id[:-1] = (1 << 20) - np.arange(MAX_LINES - 1)
    index.entry_id[-1] = 0
    data = encode_directory(LOG_ID, index)
    assert len(data) <= MAX_DIRECTORY_BYTES
    assert len(decode_directory(data, PATHS, IndexPosition(3, 1, index.end_page, 1 << 62))) == MAX_LINES


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format_version": 2}, "format version 2; this release knows 1"),
        ({"first_page": 8}, "its end"),
        ({"end_offset": 999}, "its end"),
        ({"rows": [1, 2]}, "columns of different lengths"),
        ({"rows": [1 << 63, 1, 1, 1, 1]}, "damaged"),
        ({"base_offset_deltas": [400, 100, 100, 100]}, "runs of pages"),
        ({"base_offset_deltas": [400, 100, 0, 200, 150]}, "offsets"),
        ({"base_offset_deltas": [401, 99, 100, 100, 150]}, "its start"),
        ({"base_offset_deltas": [400, 100, 100, 100, 1 << 62]}, "offsets"),
        ({"base_offset_deltas": [400, (1 << 63) - 1, 100, 100, 150]}, "damaged"),
        ({"run_pages": [2, 2]}, "runs of pages"),
        ({"run_pages": [3, 0]}, "runs of pages"),
        ({"run_pages": [1 << 62, 1 << 62, 1 << 62, (1 << 62) + 3]}, "runs of pages"),
        ({"run_ledger_deltas": [-40, 3]}, "a negative value"),
        ({"run_first_entries": [1]}, "runs of pages"),
        ({"first_time_deltas_ms": [START_MS, (1 << 63) - 1, 0, 0, 0]}, "damaged"),
    ],
)
def test_a_damaged_directory_is_refused_with_where_it_lies(change: dict[str, object], match: str) -> None:
    message = pb.IndexDirectory()
    message.ParseFromString(bytes.fromhex(DIRECTORY_HEX))
    for name, value in change.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    with pytest.raises(MetadataFormatError, match=match) as caught:
        decode_directory(message.SerializeToString(), PATHS, HERE)
    assert "entry 2 of index ledger 77 of log flights" in str(caught.value)


def test_a_directory_of_another_log_or_place_is_refused() -> None:
    data = bytes.fromhex(DIRECTORY_HEX)
    with pytest.raises(LogReplacedError, match="another log's index"):
        decode_directory(encode_directory(OTHER_ID, CARRIED.then(MOVED)), PATHS, HERE)
    for position in (
        replace(HERE, entry_id=1),
        replace(HERE, entry_id=6),
        replace(HERE, end_page=13),
        replace(HERE, end_offset=1001),
    ):
        with pytest.raises(MetadataFormatError, match="damaged"):
            decode_directory(data, PATHS, position)
    with pytest.raises(MetadataFormatError, match="more than"):
        decode_directory(bytes(MAX_DIRECTORY_BYTES + 1), PATHS, HERE)


def page_of(number: int, base_offset: int, entries: int) -> SegmentPage:
    segments = [
        Segment(5, 0, entries - 1, base_offset, 3, 30, START_MS),
        Segment(6, 0, 0, base_offset + entries, 4, 40, 9),
    ]
    segments[1] = replace(segments[1], commit_time_ms=START_MS + 1)
    return SegmentPage(LOG_ID, number, base_offset, SegmentTable.of(segments))


def test_a_page_is_held_against_its_line() -> None:
    page = page_of(10, 700, 149)
    assert line_of(page) == Line(700, 7, 70, START_MS)
    index = decode_directory(bytes.fromhex(DIRECTORY_HEX), PATHS, HERE)
    assert list(decode_indexed_page(encode_page(page), PATHS, index, 10).table) == list(page.table)
    for wrong, number, match in (
        (page_of(10, 700, 148), 10, r"holds offsets \[700, 849\), its directory says \[700, 850\)"),
        (page_of(10, 701, 148), 10, r"holds offsets \[701, 850\)"),
        (page_of(11, 850, 100), 11, r"holds offsets \[850, 951\), its directory says \[850, 1000\)"),
        (page, 11, "holds page 10"),
    ):
        with pytest.raises(MetadataFormatError, match=match) as caught:
            decode_indexed_page(encode_page(wrong), PATHS, index, number)
        assert f"entry {number - 10} of index ledger 77 of log flights" in str(caught.value)


def chain(directories: int, lines: int = 3) -> tuple[dict[tuple[int, int], bytes], list[IndexPosition]]:
    """Directories that point to one another, of pages with ten offsets each; where they lie."""
    entries: dict[tuple[int, int], bytes] = {}
    positions: list[IndexPosition] = []
    for number in range(directories):
        first = number * lines
        moved = PageIndex.of(
            first, 10 * (first + lines), [Line(10 * (first + n), 1, 1, START_MS) for n in range(lines)]
        )
        if positions:
            moved = replace(moved, previous=positions[-1])
        position = IndexPosition(100 + number, lines, first + lines, 10 * (first + lines))
        entries[position.ledger_id, position.entry_id] = encode_directory(LOG_ID, moved)
        positions.append(position)
    return entries, positions


def walk(entries: dict[tuple[int, int], bytes], head: Head) -> tuple[IndexWalk, int]:
    """What the walk finds, and the number of entries it reads."""
    steps, reads = walk_steps(PATHS, head), 0
    try:
        action = next(steps)
        while True:
            assert isinstance(action, ReadEntry)
            reads += 1
            data = entries.get((action.ledger_id, action.entry_id))
            action = steps.send(Failed(NoSuchLedgerError("gone")) if data is None else EntryRead(data))
    except StopIteration as end:
        found: IndexWalk = end.value
        return found, reads


def test_only_directories_that_lead_to_pages_of_the_log_are_read() -> None:
    entries, positions = chain(4)
    head = Head(LOG_ID, 0, 1000, 0, 99, 0, positions[-1])
    found, reads = walk(entries, head)
    assert (found.pages.first_page, found.pages.end_page, reads) == (0, 12, 4)
    assert found.directories == tuple(reversed(positions))
    assert found.ledgers == {100, 101, 102, 103}
    for first_page, first_read, needed in ((2, 0, {100, 101, 102, 103}), (3, 1, {101, 102, 103}), (11, 3, {103})):
        found, reads = walk(entries, replace(head, first_page=first_page, first_offset=10 * first_page))
        assert (found.pages.first_page, found.pages.end_page) == (first_page, 12)
        assert found.pages.base_offset.tolist() == list(range(10 * first_page, 120, 10))
        assert found.ledgers == needed
        assert reads == 4 - first_read
    for first_page in (12, 50):
        found, reads = walk(entries, replace(head, first_page=first_page))
        assert (len(found.pages), found.ledgers, reads) == (0, frozenset(), 0)
    found, reads = walk({}, replace(head, index=None))
    assert (len(found.pages), found.ledgers, reads) == (0, frozenset(), 0)


def test_a_list_that_its_directories_do_not_reach_is_refused() -> None:
    entries, positions = chain(2)
    head = Head(LOG_ID, 0, 1000, 0, 99, 0, positions[-1])
    del entries[100, 3]
    with pytest.raises(NoSuchLedgerError):
        walk(entries, head)
    entries, positions = chain(1)
    data = encode_directory(LOG_ID, PageIndex.of(1, 30, [Line(10, 1, 1, 1), Line(20, 1, 1, 1)]))
    with pytest.raises(MetadataFormatError, match=r"entry 2 of index ledger 100 .*begins at page 1") as caught:
        walk({(100, 2): data}, replace(head, index=IndexPosition(100, 2, 3, 30)))
    assert isinstance(caught.value, BookKeeperError)
