"""The commits in pages of segments, and the states that they tell of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from bk_spark.log.formats.commits import MAX_BARE_COMMITS, CommitKind, CommitRecord, CommitTable, cut_records
from bk_spark.log.formats.page import MAX_PAGE_BYTES, SegmentPage, decode_page, encode_page, fill_pages
from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS, Segment, SegmentTable
from bk_spark.log.formats.znodes import Head
from bk_spark.log.history.commits import Commit, newest_first
from bk_spark.log.history.states import LogStates, State
from bk_spark.log.positions.texts import AsOf, Time, Transaction
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, MetadataFormatError

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
START_MS = 1_760_000_000_000
EMPTY = SegmentTable.of(())

FOUR_COMMITS_HEX = (
    "080212100f1e2d3c4b5a69788796a5b4c3d2e1f018032064288080b3c19c333a03d00f03420200074a050501ac0201520400"
    "0201025a010262010a680a78638201056416dc2e148a0102010192010300f403f20127085a180420012a0402000100320400"
    "0102133a016e3a004204000001015204000001025a021004"
)


@dataclass
class ModelList:
    """A list of pages, changed as appends change it, and what each change left behind."""

    pages: list[SegmentPage] = field(
        default_factory=lambda: [SegmentPage(LOG_ID, 0, 0, EMPTY, CommitTable.begin(0, 0))]
    )
    first: int = 0
    end: int = 0
    time_ms: int = START_MS
    commits: list[Commit] = field(default_factory=list)
    kept: int = 0
    changes: int = 0

    def change(
        self, kind: CommitKind, entries: Sequence[int] = (), app: str | None = None, batch: int | None = None
    ) -> None:
        """Append a segment for each number of entries; with a truncation, begin in the middle."""
        self.changes += 1
        start = self.end
        segments = []
        for position, count in enumerate(entries):
            ledger_id, first = 100 + position, 1_000 * self.changes
            segments.append(Segment(ledger_id, first, first + count - 1, self.end, 2 * count, 30, self.time_ms))
            self.end += count
        if kind is CommitKind.OVERWRITE:
            self.first = start
        elif kind is CommitKind.TRUNCATE:
            self.first = (self.first + self.end) // 2
        moved = self.first if kind in (CommitKind.OVERWRITE, CommitKind.TRUNCATE) else None
        record = CommitRecord(kind, len(segments), self.time_ms, app, batch, moved)
        filled = fill_pages(self.pages[-1], SegmentTable.of(segments), [record])
        for page, data in filled:
            again = decode_page(data, "/p", log_id=LOG_ID, number=page.number)
            assert encode_page(again) == data
            self.pages[page.number :] = [again]
        rows = sum(2 * count for count in entries)
        self.commits.append(
            Commit(kind, start, self.end, self.time_ms, rows, 30 * len(segments), app, batch, self.first)
        )

    @property
    def states(self) -> LogStates:
        def page_at(time_ms: int) -> int:
            with_time = [p.number for p in self.pages if len(p.table) and p.table.commit_time_ms[0] <= time_ms]
            return with_time[-1] if with_time else 0

        def page_of(offset: int) -> int:
            return [page.number for page in self.pages if page.base_offset <= offset][-1]

        head = Head(
            LOG_ID,
            self.first,
            self.end,
            0,
            len(self.pages) - 1,
            self.commits[-1].time_ms if self.commits else 0,
            kept_offset=self.kept,
        )
        return LogStates("flights", head, self.pages.__getitem__, page_of, page_at)

    def state(self, as_of: AsOf, now_ms: int | None = None) -> State:
        return self.states.of(as_of, lambda: self.time_ms + 10 * COMMIT_TIME_LAG_MS if now_ms is None else now_ms)


def four_commits() -> SegmentPage:
    segments = [
        Segment(1000, 0, 4, 100, 50, 5_000, START_MS),
        Segment(998, 7, 7, 105, 10, 1_001, START_MS),
        Segment(1000, 10, 309, 106, 3_000, 299_990, START_MS + 500),
        Segment(998, 8, 8, 406, 10, 1_000, START_MS + 500),
    ]
    records = [
        CommitRecord(CommitKind.APPEND, 2, START_MS, "n", 0),
        CommitRecord(CommitKind.OVERWRITE, 1, START_MS + 500, "n", 1, 106),
        CommitRecord(CommitKind.TRUNCATE, 0, START_MS + 501, first_offset=110),
        CommitRecord(CommitKind.WRITER, 1, START_MS + 502, is_continued=True),
    ]
    tail = SegmentPage(LOG_ID, 3, 100, EMPTY, CommitTable.begin(90, 0))
    ((page, _),) = fill_pages(tail, SegmentTable.of(segments), records)
    return page


def test_bytes_of_commits_are_frozen() -> None:
    page = four_commits()
    data = encode_page(page)
    back = decode_page(data, "/p", log_id=LOG_ID, number=3)
    assert back.commits is not None
    assert page.commits is not None
    assert list(back.commits.records()) == list(page.commits.records())
    assert back.commits.first_offsets.tolist() == [90, 106, 110, 110]
    assert data.hex() == FOUR_COMMITS_HEX


def random_list(seed: int, changes: int, most_segments: int = 20) -> ModelList:
    rng = random.Random(seed)
    model = ModelList()
    batches: dict[str, int] = {}
    for _ in range(changes):
        kind = rng.choices(
            [CommitKind.APPEND, CommitKind.OVERWRITE, CommitKind.TRUNCATE, CommitKind.WRITER], [8, 2, 1, 1]
        )[0]
        entries = [rng.randint(1, 1 << rng.choice([1, 8, 30])) for _ in range(rng.randint(1, most_segments))]
        if kind is CommitKind.TRUNCATE or (kind is CommitKind.OVERWRITE and rng.random() < 0.5):
            entries = []
        app = batch = None
        if kind in (CommitKind.APPEND, CommitKind.OVERWRITE) and rng.random() < 0.9:
            app = rng.choice(["a", "täglich", "q" * 255])
            batch = batches[app] = batches.get(app, -1) + rng.choice([1, 1, 1, 5, 1 << 40])
        if kind is CommitKind.WRITER:
            entries = entries[:1]
        model.change(kind, entries, app, batch)
        model.time_ms += rng.choice([0, 0, 1, 1000])
    return model


@pytest.mark.parametrize("seed", range(6))
def test_any_commits_come_back_as_they_were(seed: int) -> None:
    model = random_list(seed, 40 if seed == 0 else 150, most_segments=2_000 if seed == 0 else 20)
    assert list(newest_first(reversed(model.pages), 0)) == model.commits[::-1]
    if seed == 0:
        assert any(page.commits is not None and page.commits.is_continued.any() for page in model.pages)


@pytest.mark.parametrize("seed", range(6))
def test_each_state_is_found_by_offset_time_and_transaction(seed: int) -> None:
    model = random_list(seed, 20 if seed == 0 else 60, most_segments=2_000 if seed == 0 else 20)
    for number, commit in enumerate(model.commits):
        assert commit.first_offset is not None
        state = State(commit.first_offset, commit.end_offset, commit.time_ms)
        later = [other for other in model.commits[number:] if other.time_ms == commit.time_ms][-1]
        assert later.first_offset is not None
        assert model.state(Time(commit.time_ms)) == State(later.first_offset, later.end_offset, later.time_ms)
        if commit.app is not None and commit.batch is not None:
            assert model.state(Transaction(commit.app, commit.batch)) == state
        if commit.kind is CommitKind.WRITER:
            inside = State(commit.first_offset, commit.start_offset + 1, commit.time_ms)
            assert model.state(commit.start_offset) == inside
        elif commit.end_offset > commit.start_offset:
            assert model.state(commit.start_offset) == model.state(commit.end_offset - 1) == state


@pytest.mark.parametrize(("tasks", "batches"), [(8, 500), (1, 4000)])
def test_recording_costs_less_than_a_byte_a_commit(tasks: int, batches: int) -> None:
    segments, records = [], []
    for batch in range(batches):
        time_ms = START_MS + 1000 * batch + batch % 7
        for task in range(tasks):
            segments.append(Segment(task, 5 * batch, 5 * batch + 4, 5 * len(segments), 5, 500, time_ms))
        records.append(CommitRecord(CommitKind.APPEND, tasks, time_ms, "2f0c41f1-9e2e-4d1a-b5a5-58b9d0a3f0d1", batch))
    empty = SegmentPage(LOG_ID, 0, 0, EMPTY)
    sizes = [
        sum(len(data) for _, data in fill_pages(page, SegmentTable.of(segments), records))
        for page in (empty, replace(empty, commits=CommitTable.begin(0, 0)))
    ]
    print(f"{tasks} tasks: {(sizes[1] - sizes[0]) / batches:.3f} bytes a commit more")
    assert sizes[0] < sizes[1] < sizes[0] + batches


def test_a_page_of_an_older_release_goes_on() -> None:
    segments = [Segment(1, 0, 4, 0, 5, 5, START_MS), Segment(2, 0, 4, 5, 5, 5, START_MS)]
    segments.append(Segment(3, 0, 4, 10, 5, 5, START_MS + 7))
    page = SegmentPage(LOG_ID, 0, 0, SegmentTable.of(segments), CommitTable.begin(2, 3))
    model = ModelList([page], first=2, end=15, time_ms=START_MS + 9)
    model.change(CommitKind.APPEND, [4], "a", 7)
    found = list(newest_first(reversed(model.pages), 0))
    assert [(one.kind, one.start_offset, one.end_offset, one.first_offset) for one in found] == [
        (CommitKind.APPEND, 15, 19, 2),
        (CommitKind.UNKNOWN, 10, 15, None),
        (CommitKind.UNKNOWN, 0, 10, None),
    ]
    # The first release kept nothing before the log's first offset. If that is 0, nothing ever left the log.
    assert model.state(3) == State(0, 10, START_MS)
    model.kept = 2
    with pytest.raises(LogRangeGoneError, match=r"of which \[0, 2\) are gone"):
        model.state(3)
    assert model.state(15) == State(2, 19, START_MS + 9)


def test_many_commits_without_rows_do_not_fill_a_page() -> None:
    model = ModelList()
    model.change(CommitKind.APPEND, [5])
    for batch in range(300):
        model.time_ms += 1
        model.change(CommitKind.OVERWRITE, (), f"{batch:0255}", batch)
        assert len(encode_page(model.pages[-1])) <= MAX_PAGE_BYTES * 3 // 4 or len(model.pages[-1].table)
    model.change(CommitKind.APPEND, [5], "after", 1)
    assert all(len(page.table) for page in model.pages)
    found = list(newest_first(reversed(model.pages), 0))
    assert found[1] == model.commits[-2]
    assert len(found) <= 2 * MAX_BARE_COMMITS + 2
    assert found[-1] == model.commits[0]


def two_commits() -> ModelList:
    model = ModelList()
    model.change(CommitKind.APPEND, [10], "nightly", 1)
    model.time_ms += 1000
    model.change(CommitKind.OVERWRITE, [10], "nightly", 2)
    return model


def test_records_are_cut_after_any_number_of_segments() -> None:
    records = [
        CommitRecord(CommitKind.APPEND, count, START_MS + number) for number, count in enumerate((0, 2, 0, 3, 0))
    ]
    for segments in range(6):
        taken, rest = cut_records(records, segments)
        assert sum(one.segments for one in taken) == segments
        assert sum(one.segments for one in rest) == 5 - segments
        # Only a commit in the middle is in both, and is continued then.
        split = [one for one in taken if one.is_continued]
        assert len(split) == (segments in (1, 3, 4)) == len(taken) + len(rest) - len(records)
        assert not rest or rest[0].segments
    assert cut_records(records, 2) == (records[:3], records[3:])


def test_what_was_overwritten_and_let_go() -> None:
    model = two_commits()
    assert model.state(Transaction("nightly", 1)) == State(0, 10, START_MS)
    model.kept = 10
    for as_of in (5, Transaction("nightly", 1), Time(START_MS)):
        with pytest.raises(LogRangeGoneError, match="log flights.*bkctl log retention flights --history"):
            model.state(as_of)
    model.kept = 4
    with pytest.raises(LogRangeGoneError, match=r"held offsets \[0, 10\), of which \[0, 4\) are gone"):
        model.state(Transaction("nightly", 1))
    assert model.state(10) == model.state(Transaction("nightly", 2)) == State(10, 20, START_MS + 1000)


def test_what_is_not_there_yet() -> None:
    model = two_commits()
    with pytest.raises(InvalidArgumentError, match="no commit with offset 20 yet"):
        model.state(20)
    with pytest.raises(InvalidArgumentError, match="no commit of version 3 by application 'nightly'"):
        model.state(Transaction("nightly", 3))
    with pytest.raises(InvalidArgumentError, match="no commit of version 1 by application 'daily'"):
        model.state(Transaction("daily", 1))
    with pytest.raises(InvalidArgumentError, match="no commit at 2025-10-09T08:53:19.999Z or before"):
        model.state(Time(START_MS - 1))


def test_a_time_at_which_commits_may_still_come() -> None:
    model = two_commits()
    last_ms = START_MS + 1000
    assert model.state(Time(last_ms - 1), now_ms=last_ms) == State(0, 10, START_MS)
    with pytest.raises(InvalidArgumentError, match="is in the future, it is 2025"):
        model.state(Time(last_ms + 1), now_ms=last_ms)
    with pytest.raises(InvalidArgumentError, match="less than 2 minutes ago"):
        model.state(Time(last_ms), now_ms=last_ms + COMMIT_TIME_LAG_MS - 1)
    settled = model.state(Time(last_ms), now_ms=last_ms + COMMIT_TIME_LAG_MS)
    assert settled == State(10, 20, last_ms)


def test_a_log_without_commits() -> None:
    for as_of in (0, Time(5), Transaction("a", 0)):
        with pytest.raises(InvalidArgumentError, match="no commit"):
            ModelList().state(as_of)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 5),
        ("count", 1 << 40),
        ("unrecorded_segments", 1),
        ("usual_segments", 2),
        ("first_offset", 1 << 63),
        ("segment_residuals", [1, 0, -1]),
        ("segment_residuals", [-9, 0, 0, 9]),
        ("kinds", [0, 0, 0, 5]),
        ("kinds", [0, 32, 2, 3]),
        ("app_indexes", [0, 0, 2, 0]),
        ("apps", []),
        ("batch_residuals", [-9, 0, 0, 0]),
        ("time_residuals_ms", [1 << 63, 0, 0, 0]),
        ("time_residuals_ms", [900, 0, 0, 0]),
        ("moves", [1]),
        ("moves", [1 << 62, 1 << 62]),
    ],
    ids=str,
)
def test_damaged_commits_are_refused(name: str, value: int | list[int]) -> None:
    message = pb.SegmentPage.FromString(encode_page(four_commits()))
    if isinstance(value, list):
        message.commits.ClearField(name)  # type: ignore[arg-type]
        getattr(message.commits, name).extend(value)
    else:
        setattr(message.commits, name, value)
    with pytest.raises(MetadataFormatError, match="damaged"):
        decode_page(message.SerializeToString(), "/p", log_id=LOG_ID, number=3)


def test_commits_in_a_page_of_the_first_version_are_refused() -> None:
    message = pb.SegmentPage.FromString(encode_page(four_commits()))
    message.format_version = 1
    with pytest.raises(MetadataFormatError, match="its version"):
        decode_page(message.SerializeToString(), "/p", log_id=LOG_ID, number=3)


def test_a_page_without_commits_has_the_first_version() -> None:
    page = replace(four_commits(), commits=None)
    assert encode_page(page)[:2] == b"\x08\x01"
