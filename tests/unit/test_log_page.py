"""Pages of segments: bytes, sizes, damage."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from bk_spark.log.formats.page import MAX_PAGE_BYTES, SegmentPage, decode_page, encode_page, fill_pages
from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS
from bk_spark.log.formats.segment import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, MAX_SEGMENT_ROWS, Segment, SegmentTable
from bk_spark.protocol.errors import LogReplacedError, MetadataFormatError

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
START_MS = 1_760_000_000_000
EMPTY = SegmentTable.of(())

# Two ledgers, a gap in the first (entries 5 to 9 were never committed), two commits.
FOUR_SEGMENTS = [
    Segment(1000, 0, 4, 100, 50, 5_000, START_MS),
    Segment(998, 7, 7, 105, 10, 1_001, START_MS),
    Segment(1000, 10, 309, 106, 3_000, 299_990, START_MS + 500),
    Segment(998, 8, 8, 406, 10, 1_000, START_MS + 500),
]
FOUR_SEGMENTS_HEX = (
    "080112100f1e2d3c4b5a69788796a5b4c3d2e1f018032064288080b3c19c333a03d00f03420200074a050501ac0201520400"
    "0201025a010262010a680a78638201056416dc2e148a0102010192010300f403"
)
OPEN_TAIL_HEX = (
    "080112100f1e2d3c4b5a69788796a5b4c3d2e1f018032064288080b3c19c3330013a04d00fd00f4a02050052020002680a78649201020009"
)
# Versions 0, 2, 2 and 1 of the schema: field 19 has runs of 1, 2 and 1, field 20 has +0, +2, -1.
GROWN_HEX = "0802" + FOUR_SEGMENTS_HEX[4:] + "9a0103000100" + "a20103000401"
ALL_IN_VERSION_7_HEX = "0802" + FOUR_SEGMENTS_HEX[4:] + "9a010103" + "a201010e"


def page_of(segments: list[Segment], number: int = 3) -> SegmentPage:
    return SegmentPage(LOG_ID, number, segments[0].base_offset if segments else 0, SegmentTable.of(segments))


def decoded(data: bytes, number: int = 3) -> SegmentPage:
    return decode_page(data, "/p", log_id=LOG_ID, number=number)


def test_bytes_of_a_page_are_frozen() -> None:
    assert encode_page(page_of(FOUR_SEGMENTS)).hex() == FOUR_SEGMENTS_HEX
    assert list(decoded(bytes.fromhex(FOUR_SEGMENTS_HEX)).table) == FOUR_SEGMENTS


def test_bytes_of_a_page_with_versions_of_the_schema_are_frozen() -> None:
    for versions, frozen in (((0, 2, 2, 1), GROWN_HEX), ((7, 7, 7, 7), ALL_IN_VERSION_7_HEX)):
        segments = [replace(one, schema_version=v) for one, v in zip(FOUR_SEGMENTS, versions, strict=True)]
        assert encode_page(page_of(segments)).hex() == frozen
        assert list(decoded(bytes.fromhex(frozen)).table) == segments


def test_bytes_of_an_open_tail_are_frozen() -> None:
    segments = [FOUR_SEGMENTS[0], Segment(2000, 0, None, 105, 0, 0, START_MS + 9)]
    assert encode_page(page_of(segments)).hex() == OPEN_TAIL_HEX
    page = decoded(bytes.fromhex(OPEN_TAIL_HEX))
    assert page.open_tail
    assert list(page.table) == segments
    assert page.end_offset == 105


def test_an_empty_page_keeps_its_offset() -> None:
    page = decoded(encode_page(SegmentPage(LOG_ID, 3, 77, EMPTY)))
    assert (page.base_offset, page.end_offset, len(page.table), page.open_tail) == (77, 77, 0, False)


def random_segments(rng: random.Random, count: int) -> list[Segment]:
    """Anything the format allows: jumps within ledgers, huge and tiny values, shared and new commit times."""
    ledgers = [rng.randrange(1 << rng.choice([8, 40, 62])) for _ in range(rng.randint(1, 40))]
    segments, offset, time_ms = [], rng.randrange(1 << 50), rng.randrange(1 << 42)
    versions = rng.choice([[0], [0, 0, 0, 1], [5], range(MAX_SCHEMA_VERSIONS)])
    for _ in range(count):
        entries = rng.randrange(1, 1 << rng.choice([1, 8, 16, 39]))
        first = rng.randrange(1 << rng.choice([1, 10, 40]))
        rows = rng.randrange(1 << rng.choice([1, 10, 45]))
        size_bytes = rng.randrange(1 << rng.choice([1, 20, 45]))
        time_ms += rng.choice([0, 0, 0, 1, 1000])
        sizes = (offset, rows, size_bytes, time_ms, rng.choice(versions))
        segments.append(Segment(rng.choice(ledgers), first, first + entries - 1, *sizes))
        offset += entries
    return segments


@pytest.mark.parametrize("seed", range(60))
def test_any_segments_come_back_as_they_were(seed: int) -> None:
    rng = random.Random(seed)
    segments = random_segments(rng, rng.randint(1, 200))
    if seed % 3 == 0:
        last = segments[-1]
        segments.append(Segment(5, 0, None, last.end_offset, 0, 0, last.commit_time_ms))
    assert list(decoded(encode_page(page_of(segments))).table) == segments


@pytest.mark.parametrize("seed", range(10))
def test_pages_fill_up_and_go_on(seed: int) -> None:
    rng = random.Random(seed)
    segments = random_segments(rng, 6_000)
    cut = rng.choice([0, 1, 1_000])
    tail = SegmentPage(LOG_ID, 8, segments[0].base_offset, SegmentTable.of(segments[:cut]))
    pages = fill_pages(tail, SegmentTable.of(segments[cut:]))

    numbers = [page.number for page, _ in pages]
    assert numbers == list(range(numbers[0], numbers[0] + len(pages)))
    assert numbers[0] == 8
    assert all(len(data) <= MAX_PAGE_BYTES for _, data in pages)
    assert all(len(data) > MAX_PAGE_BYTES * 9 // 10 for _, data in pages[:-1])
    back = [segment for page, data in pages for segment in decoded(data, page.number).table]
    assert back == segments


def test_a_full_tail_page_is_left_alone() -> None:
    segments = random_segments(random.Random(1), 6_000)
    pages = fill_pages(page_of([], 0), SegmentTable.of(segments))
    full = pages[0][0]
    while True:
        one = Segment(1 << 61, 1 << 40, 1 << 40, full.end_offset, 1 << 45, 1 << 45, 1 << 43)
        more = fill_pages(full, SegmentTable.of([one]))
        if more[0][0].number != full.number:
            break
        full = more[0][0]
    assert [page.number for page, _ in more] == [full.number + 1]
    assert more[0][0].base_offset == full.end_offset


def micro_batches(*, tasks: int, batches: int, entry_rows: int, row_bytes: int, varying: bool) -> list[Segment]:
    """What a stream leaves: every task goes on in its ledger, about once a second."""
    rng = np.random.default_rng(7)
    next_entry = [0] * tasks
    segments, offset, time_ms = [], 0, START_MS
    for _ in range(batches):
        time_ms += 1000 + int(rng.integers(-60, 60))
        for task in range(tasks):
            rows = int(rng.normal(20_000, 3_000))
            entries = -(-rows // entry_rows)
            size_bytes = int(rows * row_bytes * (rng.normal(1, 0.02) if varying else 1))
            first = next_entry[task]
            next_entry[task] += entries
            segments.append(Segment(70_000 + task, first, first + entries - 1, offset, rows, size_bytes, time_ms))
            offset += entries
    return segments


@pytest.mark.parametrize(
    ("case", "segments"),
    [
        ("raw, 8 tasks", micro_batches(tasks=8, batches=400, entry_rows=1, row_bytes=1024, varying=True)),
        ("raw, 1 task", micro_batches(tasks=1, batches=3000, entry_rows=1, row_bytes=100, varying=True)),
        ("arrow, 8 tasks", micro_batches(tasks=8, batches=400, entry_rows=16_000, row_bytes=60, varying=True)),
        ("arrow, 1 task", micro_batches(tasks=1, batches=3000, entry_rows=16_000, row_bytes=60, varying=True)),
    ],
)
def test_a_segment_takes_at_most_eight_bytes_in_the_common_case(case: str, segments: list[Segment]) -> None:
    pages = fill_pages(page_of([], 0), SegmentTable.of(segments))
    per_segment = sum(len(data) for _, data in pages) / len(segments)
    print(f"{case}: {per_segment:.2f} bytes a segment, {len(segments) // len(pages)} segments a page")
    assert per_segment <= 8
    grown = fill_pages(page_of([], 0), SegmentTable.of(replace(one, schema_version=3) for one in segments))
    added = sum(len(data) for _, data in grown) - sum(len(data) for _, data in pages)
    assert added <= 10 * len(pages), "a version that all share costs a few bytes a page"


def test_unknown_versions_other_logs_and_other_pages_are_refused() -> None:
    data = encode_page(page_of(FOUR_SEGMENTS))
    newer = pb.SegmentPage.FromString(data)
    newer.format_version = 3
    with pytest.raises(MetadataFormatError, match="format version 3; this release knows 1 to 2"):
        decoded(newer.SerializeToString())
    with pytest.raises(LogReplacedError):
        decode_page(data, "/p", log_id="11111111-2222-3333-4444-555555555555", number=3)
    with pytest.raises(MetadataFormatError, match="holds page 3"):
        decoded(data, number=4)
    with pytest.raises(MetadataFormatError, match="more than 32768"):
        decoded(bytes(MAX_PAGE_BYTES + 1))
    with pytest.raises(MetadataFormatError, match="format version 0"):
        decoded(b"")


def damaged(**changes: object) -> pb.SegmentPage:
    message = pb.SegmentPage.FromString(encode_page(page_of(FOUR_SEGMENTS)))
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    "message",
    [
        damaged(entries=[5, 0, 300, 1]),
        damaged(entries=[5, 1, 300, 0]),
        damaged(entries=[5, 1, 300, MAX_SEGMENT_ENTRIES]),
        damaged(entries=[5, 1, 300]),
        damaged(entries=[5, 1, 300, 1 << 63]),
        damaged(open_tail=True),
        damaged(ledger_id_deltas=[]),
        damaged(ledger_id_deltas=[-4, 1]),
        damaged(ledger_index_deltas=[0, 2, -1, 1]),
        damaged(ledger_index_deltas=[0, -1, 1, 1]),
        damaged(ledger_first_entries=[1]),
        damaged(gap_position_deltas=[4]),
        damaged(gap_position_deltas=[2, 0], gap_entries=[1, 1]),
        damaged(gap_entries=[5, 5]),
        damaged(gap_entries=[-900]),
        damaged(rows_per_entry=(1 << 64) - 1),
        damaged(row_residuals=[MAX_SEGMENT_ROWS, 0, 0, 0]),
        damaged(row_residuals=[-(1 << 63), 0, 0, 0]),
        damaged(bytes_per_row=1 << 62),
        damaged(byte_residuals=[MAX_SEGMENT_BYTES, 0, 0, 0]),
        damaged(time_run_repeats=[1, 2]),
        damaged(time_run_repeats=[2, -1 & 0xFFFF]),
        damaged(time_run_deltas_ms=[]),
        damaged(base_time_ms=(1 << 64) - 1),
        damaged(base_offset=1 << 63),
        damaged(schema_run_deltas=[1]),
        damaged(schema_run_repeats=[3]),
        damaged(format_version=2, schema_run_deltas=[1], schema_run_repeats=[2]),
        damaged(format_version=2, schema_run_deltas=[1], schema_run_repeats=[1 << 63]),
        damaged(format_version=2, schema_run_deltas=[1, -2, 1, 1]),
        damaged(format_version=2, schema_run_deltas=[1, 1, 1, 1, 1]),
        damaged(format_version=2, schema_run_deltas=[MAX_SCHEMA_VERSIONS], schema_run_repeats=[3]),
        damaged(format_version=2, schema_run_deltas=[MAX_SCHEMA_VERSIONS - 1, 1, 0, 0]),
        damaged(format_version=2, schema_run_deltas=[-(1 << 63)], schema_run_repeats=[3]),
    ],
)
def test_damaged_columns_are_refused(message: pb.SegmentPage) -> None:
    with pytest.raises(MetadataFormatError, match="is damaged"):
        decoded(message.SerializeToString())


def test_overlapping_gives_whole_sealed_segments() -> None:
    table = SegmentTable.of([*FOUR_SEGMENTS, Segment(2000, 0, None, 407, 0, 0, START_MS + 500)])
    assert list(table.overlapping(100, 407)) == FOUR_SEGMENTS
    assert list(table.overlapping(104, 106)) == FOUR_SEGMENTS[:2]
    assert list(table.overlapping(105, 106)) == FOUR_SEGMENTS[1:2]
    assert list(table.overlapping(405, 1_000)) == FOUR_SEGMENTS[2:]
    assert list(table.overlapping(103, 103)) == []
    assert list(table.overlapping(407, 500)) == []


def test_a_clipped_segment_keeps_offsets_and_entries_in_step() -> None:
    segment = FOUR_SEGMENTS[2]
    assert segment.clip(0, 1_000) == segment
    part = segment.clip(206, 256)
    assert (part.base_offset, part.first_entry, part.last_entry, part.rows) == (206, 110, 159, 500)
    assert part.entry_at(206) == segment.entry_at(206) == 110
