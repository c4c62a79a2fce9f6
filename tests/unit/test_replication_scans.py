"""The auditor's scans: which ledgers they read, mark and report (bookie_server/replication/auditing/scans.py)."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError, SessionLostError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.replication_notes import (
    RepairFailure,
    decode_progress,
    encode_progress,
    progress_path,
    reason_path,
)
from bk_spark.protocol.quorum import Quorum
from bookie_server.replication.actions import (
    Check,
    CheckLedgers,
    LedgersRead,
    MarkLedgers,
    ReadLedgers,
    WriteProgress,
)
from bookie_server.replication.auditing.ledger_walk import LedgerWalk, ReadPace
from bookie_server.replication.auditing.lost_copies import FewCopies
from bookie_server.replication.auditing.scans import PAGE_LEDGERS, BookieScan, ScanReport, ScanSettings, check_steps
from tests.support.replication_model import ROOT, VOTE, ReplicationModel, ledger

pytestmark = pytest.mark.unit

SETTINGS = ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE)


def lost(*bookies: str) -> Callable[[frozenset[str]], frozenset[str]]:
    return lambda named: named & frozenset(bookies)


def walk(model: ReplicationModel, after: int = -1, page: int = 7) -> list[int]:
    found: list[int] = []

    def steps() -> Any:
        ledgers = LedgerWalk(model.manager, ROOT, ReadPace(1000), after)
        while ids := (yield from ledgers.next_page(page)):
            assert len(ids) <= page
            found.extend(ids)

    model.play(steps())
    return found


@pytest.mark.parametrize("manager", LedgerManager)
def test_a_walk_finds_all_ledgers_in_order_from_any_on(manager: LedgerManager) -> None:
    model = ReplicationModel(manager)
    ids = [0, 1, 5, 9_999, 10_000, 10_001, 123_456, 2**31 - 2, 2**31 - 1, 2**31, 2**40 + 7, 2**63 - 1]
    model.ledgers = dict.fromkeys(ids, ledger("b1"))
    assert walk(model) == ids
    for after in [0, 4, 5, 9_999, 10_000, 2**31 - 2, 2**31, 2**62, 2**63 - 1]:
        assert walk(model, after) == [each for each in ids if each > after]


def test_a_walk_that_is_resumed_lists_nothing_before_its_place() -> None:
    model = ReplicationModel()
    model.ledgers = dict.fromkeys(range(0, 500_000, 5_000), ledger("b1"))
    assert walk(model, 480_000, page=100) == [485_000, 490_000, 495_000]
    assert model.reads == 4  # the root, one branch, two leaves; the leaf of 480,000 too if it could hold more


def test_a_scan_stays_below_its_rate() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1", "b2") for each in range(5_000)}
    settings = ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE, reads_per_s=200)
    model.play(BookieScan(settings, lost()).steps())
    assert model.reads > 5_000
    assert model.reads - 400 <= model.paused_ms / 1000 * 200


class ManyLedgers(ReplicationModel):
    """So many ledgers that they are made when they are asked for, on 1,000 bookies."""

    COUNT = 20_000

    def _children(self, path: str) -> list[str] | None:
        digits = path.removeprefix(ROOT).replace("/", "")
        below = 10 ** (10 - len(digits))
        first = int(digits or "0") * below
        step, width = (1, 4) if len(digits) == 6 else (10_000, 4) if digits else (10**8, 2)
        names = [f"{number:0{width}d}" for number in range(below // step) if first + number * step < self.COUNT]
        return [f"L{name}" for name in names] if step == 1 else names

    def answer(self, action: Any) -> Any:
        if isinstance(action, ReadLedgers):
            self.reads += len(action.ledger_ids)
            ensembles = {each: [f"b{(each * 7 + place) % 1000}" for place in range(3)] for each in action.ledger_ids}
            return LedgersRead({each: ledger(*ensemble) for each, ensemble in ensembles.items()})
        return super().answer(action)


def test_a_scan_of_many_ledgers_stays_below_its_rate_and_within_a_few_megabytes() -> None:
    model = ManyLedgers()
    tracemalloc.start()
    try:
        report = model.play(BookieScan(SETTINGS, lost("b0")).steps())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.ledgers == model.COUNT
    assert len(model.marks) == report.marked == 60
    assert model.reads < model.COUNT + 100
    assert 900 < model.reads / (model.paused_ms / 1000) < 1000
    assert peak_bytes < 5_000_000


def test_a_scan_marks_each_ledger_that_names_a_lost_bookie_in_any_fragment() -> None:
    model = ReplicationModel()
    first, last = Segment(0, ("b1", "b2")), Segment(5, ("b3", "b2"))
    quorum = Quorum(2, 2, 2)
    model.ledgers = {
        1: ledger("b1", "b2"),
        2: ledger("b2", "b3"),
        3: LedgerMetadata(quorum, (first, last)).closed(9, 70),
        4: LedgerMetadata(quorum, (first,)).closed(-1, 0),
    }
    report = model.play(BookieScan(SETTINGS, lost("b1", "b4")).steps())
    one = frozenset({"b1"})
    assert model.marks == {1: one, 3: one, 4: one}
    # The fourth one is empty.
    few = Counter({FewCopies.BELOW_ACK_QUORUM: 2})
    assert report == ScanReport(ledgers=4, found=3, marked=3, found_bytes=70, few_copies=few)
    assert model.ended == [Check.BOOKIES]


def test_a_ledger_that_cannot_be_read_is_reported_and_does_not_stop_the_scan() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(600)}
    model.ledgers[3] = MetadataFormatError("no metadata")
    report = model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert set(model.marks) == set(range(600)) - {3}
    assert (report.not_judged, report.problems) == (1, {3: "no metadata"})


def test_a_scan_outlasts_a_short_loss_of_zookeeper_and_fails_with_a_long_one() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(20)}
    failures = [4]

    def fail(action: Any) -> None:
        if isinstance(action, MarkLedgers) and failures[0]:
            failures[0] -= 1
            raise MetadataUnavailableError("no answer")

    model.before = fail
    model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert len(model.marks) == 20
    assert model.paused_ms >= 500 + 1000 + 2000 + 4000
    failures[0] = 5
    with pytest.raises(MetadataUnavailableError):
        model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert model.ended == [Check.BOOKIES]  # the first


def test_ledgers_that_are_deleted_or_created_meanwhile_do_no_harm() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(2 * PAGE_LEDGERS)}

    def change(action: Any) -> None:
        if isinstance(action, ReadLedgers):
            for each in action.ledger_ids[:10]:
                model.ledgers.pop(each, None)
            model.ledgers[900_000] = ledger("b1")

    model.before = change
    report = model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert set(model.marks) <= set(model.ledgers)
    assert set(model.ledgers) - {900_000} <= set(model.marks)
    assert report.not_judged == 0


def test_a_bookie_that_is_lost_in_mid_scan_is_found_in_every_ledger() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1", "b2") for each in range(3 * PAGE_LEDGERS)}
    gone: set[str] = {"b1"}
    reads = [0]
    scan = BookieScan(SETTINGS, lambda named: named & gone)

    def lose(action: Any) -> None:
        if isinstance(action, MarkLedgers):
            reads[0] += 1
            if reads[0] == 2:
                gone.add("b2")
                scan.again()

    model.before = lose
    model.play(scan.steps())
    assert all(bookies == {"b1", "b2"} for bookies in model.marks.values())
    assert len(model.marks) == len(model.ledgers)
    assert model.ended == [Check.BOOKIES]


@pytest.mark.parametrize("at", range(22))
def test_a_new_round_at_any_step_covers_all_ledgers(at: int) -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1", "b2") for each in range(3 * PAGE_LEDGERS)}
    model.progress[Check.BOOKIES] = PAGE_LEDGERS + 10
    gone: set[str] = {"b1"}
    steps = [-1]
    scan = BookieScan(SETTINGS, lambda named: named & gone)

    def lose(action: Any) -> None:
        steps[0] += 1
        if steps[0] == at:
            gone.add("b2")
            scan.again()

    model.before = lose
    report = model.play(scan.steps())
    assert steps[0] > at
    # No ledger counts twice.
    assert report.few_copies == {FewCopies.NONE: len(model.ledgers)}
    assert {each for each, bookies in model.marks.items() if "b2" in bookies} == set(model.ledgers)


def test_every_round_begins_with_a_server_that_is_up_to_date() -> None:
    """Else a ledger that was made just before a bookie was lost could be missed."""
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(3 * PAGE_LEDGERS)}
    scan = BookieScan(SETTINGS, lost("b1"))
    trace: list[str] = []

    def note(action: Any) -> None:
        trace.append(type(action).__name__)
        if trace.count("MarkLedgers") == 2 and isinstance(action, MarkLedgers):
            scan.again()
            trace.append("again")

    model.before = note
    model.play(scan.steps())
    assert trace.index("SyncStore") < trace.index("ListChildren")
    rest = [each for each in trace[trace.index("again") :] if each in ("SyncStore", "ListChildren")]
    assert rest[0] == "SyncStore"
    assert trace.count("SyncStore") == 2


def test_a_scan_begins_where_the_last_auditor_stood_and_still_covers_all() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(1000)}
    model.progress[Check.BOOKIES] = 699
    marked: list[int] = []

    def note(action: Any) -> None:
        if isinstance(action, MarkLedgers):
            marked.extend(action.missing)

    model.before = note
    model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert marked[0] == 700
    assert sorted(marked) == list(range(1000))


def test_r4_an_auditor_without_its_vote_marks_nothing() -> None:
    model = ReplicationModel()
    model.ledgers = {1: ledger("b1")}
    model.votes.clear()
    with pytest.raises(SessionLostError):
        model.play(BookieScan(SETTINGS, lost("b1")).steps())
    assert not model.marks
    assert not model.ended


# --- checks of all ledgers --------------------------------------------------------------------------


def test_the_check_of_all_ledgers_marks_bad_ones_and_is_resumed() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1", "b2") for each in range(200)}
    model.bad = {3: frozenset({"b1"}), 150: frozenset({"b2"})}
    model.progress[Check.LEDGERS] = 99
    report = model.play(check_steps(Check.LEDGERS, SETTINGS, lost()))
    assert model.checked == list(range(100, 200))
    assert model.marks == {150: frozenset({"b2"})}
    assert (report.ledgers, report.found, report.marked) == (100, 1, 1)
    assert report.few_copies == {FewCopies.BELOW_ACK_QUORUM: 1}
    assert model.ended == [Check.LEDGERS]
    assert not model.progress


def test_the_progress_of_a_check_is_never_ahead_of_its_marks() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(100)}
    model.bad = {each: frozenset({"b1"}) for each in range(100)}

    def compare(action: Any) -> None:
        if isinstance(action, WriteProgress):
            assert set(model.marks) >= set(range(action.after + 1))

    model.before = compare
    model.play(check_steps(Check.LEDGERS, SETTINGS, lost()))
    assert len(model.marks) == 100


def test_a_ledger_that_nobody_could_judge_is_tried_again_and_then_reported() -> None:
    model = ReplicationModel()
    model.ledgers = {each: ledger("b1") for each in range(100)}
    model.unknown = {5: "b1 does not answer", 70: "b1 does not answer"}
    model.bad = {5: frozenset({"b1"}), 70: frozenset({"b1"})}

    def mend(action: Any) -> None:
        if isinstance(action, CheckLedgers) and set(action.ledgers) == {5, 70}:
            del model.unknown[5]

    model.before = mend
    report = model.play(check_steps(Check.LEDGERS, SETTINGS, lost()))
    assert model.marks == {5: frozenset({"b1"})}
    assert (report.not_judged, report.problems) == (1, {70: "b1 does not answer"})


@pytest.mark.parametrize("mark", [False, True])
def test_the_checks_of_closed_ledgers_skip_open_ones(mark: bool) -> None:
    model = ReplicationModel()
    model.ledgers = {1: ledger("b1", closed=True), 2: ledger("b1"), 3: ledger("b1", closed=True)}
    model.bad = {3: frozenset()}
    settings = ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE, mark_misplaced=mark)
    report = model.play(check_steps(Check.PLACEMENT, settings, lost()))
    assert model.checked == [1, 3]
    assert model.marks == ({3: frozenset()} if mark else {})
    assert (report.found, report.marked) == (1, int(mark))
    model.marks.clear()
    # What no move could help is counted only.
    model.unmovable = frozenset({3})
    report = model.play(check_steps(Check.PLACEMENT, settings, lost()))
    assert (report.found, report.marked, model.marks) == (1, 0, {})
    model.play(check_steps(Check.REPLICAS, settings, lost()))
    assert not model.marks
    assert model.ended == [Check.PLACEMENT, Check.PLACEMENT, Check.REPLICAS]


# --- our own znodes ---------------------------------------------------------------------------------


def test_progress_and_reasons_are_stored_with_a_version() -> None:
    assert progress_path("/ledgers", "ledgers") == "/ledgers/underreplication/progress/ledgers"
    assert reason_path("/ledgers", 7) == "/ledgers/underreplication/reasons/urL0000000007"
    assert encode_progress(12) == b"bk_spark progress 1\n12\n"
    assert decode_progress(encode_progress(2**63 - 1)) == 2**63 - 1
    failure = RepairFailure("entry 3 is lost\nat b1 and b2", 4)
    assert failure.encode() == b"bk_spark reason 1\n4\nentry 3 is lost\nat b1 and b2"
    assert RepairFailure.decode(failure.encode()) == failure
    assert len(RepairFailure("x" * 9_999, 1).encode()) < 3_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"12\n",
        b"bk_spark progress 2\n12\n",
        b"bk_spark progress 1\n-3\n",
        b"bk_spark progress 1\n%b\n" % (b"9" * 5_000),
    ],
)
def test_another_version_of_the_progress_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_progress(data)


@pytest.mark.parametrize(
    "data", [b"", b"bk_spark reason 2\n1\nx", b"bk_spark reason 1\nmany\nx", b"bk_spark reason 1\n" + b"9" * 5_000]
)
def test_another_version_of_a_reason_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        RepairFailure.decode(data)
