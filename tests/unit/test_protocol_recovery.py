"""Recovery, event by event. Bookies are b1, b2, …; scenario ids (C1, …) are those of the protocol's known bugs."""

from __future__ import annotations

import random

import pytest

from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.errors import EntryUnknownError
from bk_spark.protocol.ledger.recovery import (
    READ_AHEAD_ENTRIES,
    EndFound,
    FenceBookie,
    FencingRead,
    LedgerRecovery,
    LengthRead,
    RecoveryFailed,
    RecoveryState,
    StartWriteBack,
    WriteBack,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Answer, Quorum
from tests.support.ledgers import LEDGER, ledger, payload_of

PRESENT, ABSENT, UNKNOWN = Answer.PRESENT, Answer.ABSENT, Answer.UNKNOWN


def length_of(last_entry_id: int) -> int:
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


def entry_of(entry_id: int, lac: int | None = None) -> Entry:
    lac = entry_id - 1 if lac is None else lac
    return Entry(LEDGER, entry_id, lac, length_of(entry_id), memoryview(payload_of(entry_id)))


class RecoveryUnderTest:
    """A recovery whose actions are sorted. ``reads`` are the fencing reads asked so far."""

    def __init__(self, metadata: LedgerMetadata | None = None, *, follow: bool = True) -> None:
        self.machine = LedgerRecovery(LEDGER, metadata or ledger(state=LedgerState.IN_RECOVERY))
        self.fences: list[str] = []
        self.reads: list[tuple[str, int]] = []
        self.length_reads: list[tuple[str, int]] = []
        self.start: StartWriteBack | None = None
        self.written: list[bytes] = []
        self.lacs: set[int] = set()
        self.end: int | None = None
        self.failed: RecoveryFailed | None = None
        self._follow = follow
        self.take()

    def take(self) -> None:
        while actions := self.machine.take_actions():
            for action in actions:
                assert self.end is None, "nothing may follow the end"
                match action:
                    case FenceBookie(bookie_id):
                        self.fences.append(bookie_id)
                    case FencingRead(bookie_id, entry_id):
                        self.reads.append((bookie_id, entry_id))
                    case LengthRead(bookie_id, entry_id):
                        self.length_reads.append((bookie_id, entry_id))
                    case StartWriteBack():
                        assert self.start is None
                        self.start = action
                    case WriteBack(payloads, lac):
                        self.written += [bytes(payload) for payload in payloads]
                        self.lacs.add(lac)
                        if self._follow:
                            self.follow()
                    case EndFound(last_entry_id):
                        self.end = last_entry_id
                    case RecoveryFailed():
                        self.failed = action

    def follow(self) -> None:
        assert self.start is not None
        self.machine.on_written_back(self.start.last_entry_id + len(self.written))
        self.take()

    def fence(self, bookie_id: str, answer: Answer, last_entry: Entry | None = None) -> None:
        self.machine.on_fence_answer(bookie_id, answer, last_entry)
        self.take()

    def read(self, bookie_id: str, entry_id: int, answer: Answer) -> None:
        entry = entry_of(entry_id) if answer is PRESENT else None
        self.machine.on_read_answer(bookie_id, entry_id, answer, entry)
        self.take()

    def all_say(self, answer: Answer, *entry_ids: int) -> None:
        for entry_id in entry_ids:
            for bookie_id in [bookie for bookie, asked in self.reads if asked == entry_id]:
                self.read(bookie_id, entry_id, answer)

    def asked(self, entry_id: int) -> list[str]:
        return [bookie for bookie, asked in self.reads if asked == entry_id]


def fenced(lac: int = -1, metadata: LedgerMetadata | None = None) -> RecoveryUnderTest:
    """A recovery that heard ``lac`` from all bookies."""
    recovery = RecoveryUnderTest(metadata)
    for bookie_id in recovery.fences:
        recovery.fence(bookie_id, PRESENT, entry_of(lac + 1, lac) if lac >= 0 else entry_of(0))
    return recovery


# --- fencing ------------------------------------------------------------------------------------


def test_every_bookie_of_the_last_ensemble_is_fenced_first() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (5, "b3 b2"))
    recovery = RecoveryUnderTest(metadata)
    assert (recovery.fences, recovery.reads) == (["b3", "b2"], [])


def test_reading_begins_when_no_write_quorum_can_still_acknowledge() -> None:
    recovery = RecoveryUnderTest()
    recovery.fence("b1", PRESENT, entry_of(5, 3))
    assert recovery.reads == []
    recovery.fence("b3", ABSENT)
    assert recovery.asked(4) == ["b2", "b3", "b1"]
    assert min(entry for _, entry in recovery.reads) == 4
    # What comes later changes nothing.
    recovery.fence("b2", PRESENT, entry_of(9, 8))
    assert recovery.machine.state is RecoveryState.READING
    assert min(entry for _, entry in recovery.reads) == 4


def test_the_highest_lac_heard_counts() -> None:
    recovery = RecoveryUnderTest(ledger(Quorum(3, 3, 1)))
    recovery.fence("b1", PRESENT, entry_of(5, 3))
    recovery.fence("b2", PRESENT, entry_of(9, 7))
    recovery.fence("b3", PRESENT, entry_of(9, 2))
    assert min(entry for _, entry in recovery.reads) == 8


def test_too_few_definite_answers_end_the_recovery() -> None:
    recovery = RecoveryUnderTest()
    recovery.fence("b1", UNKNOWN)
    recovery.fence("b2", PRESENT, entry_of(0))
    assert recovery.failed is None
    recovery.fence("b3", UNKNOWN)
    assert recovery.failed is not None
    assert isinstance(recovery.failed.error, EntryUnknownError)
    assert "b1, b3" in str(recovery.failed.error)
    assert recovery.reads == []


def test_one_unknown_answer_does_not_hold_up_the_others() -> None:
    recovery = RecoveryUnderTest()
    recovery.fence("b1", UNKNOWN)
    recovery.fence("b2", ABSENT)
    recovery.fence("b3", ABSENT)
    assert recovery.asked(0) == ["b1", "b2", "b3"]


# --- finding the end ----------------------------------------------------------------------------


def test_an_empty_ledger() -> None:
    recovery = RecoveryUnderTest()
    for bookie_id in ("b1", "b2", "b3"):
        recovery.fence(bookie_id, ABSENT)
    recovery.read("b1", 0, ABSENT)
    assert recovery.end is None
    recovery.read("b2", 0, ABSENT)
    assert (recovery.end, recovery.start, recovery.written) == (-1, StartWriteBack(-1, 0), [])


def test_entries_beyond_the_lac_are_written_back_until_the_first_gap() -> None:
    recovery = fenced(lac=4)
    recovery.all_say(PRESENT, 6, 5)
    assert recovery.start == StartWriteBack(4, length_of(4))
    assert recovery.written == [payload_of(5), payload_of(6)]
    # Entry 8 is there, but 7 is not: it was never acknowledged.
    recovery.all_say(PRESENT, 8)
    recovery.all_say(ABSENT, 7)
    assert recovery.end == 6
    assert recovery.written == [payload_of(5), payload_of(6)]


@pytest.mark.parametrize(
    ("quorum", "needed"),
    [(Quorum(3, 3, 2), 2), (Quorum(3, 3, 3), 1), (Quorum(3, 3, 1), 3), (Quorum(5, 3, 2), 2)],
    ids=str,
)
def test_absent_needed(quorum: Quorum, needed: int) -> None:
    recovery = RecoveryUnderTest(ledger(quorum))
    for bookie_id in recovery.fences:
        recovery.fence(bookie_id, ABSENT)
    for number, bookie_id in enumerate(recovery.asked(0), 1):
        assert (recovery.end is not None) is (number > needed)
        recovery.read(bookie_id, 0, ABSENT)
    assert recovery.end == -1


def test_one_replica_is_enough_for_present() -> None:
    recovery = fenced()
    recovery.read("b1", 0, ABSENT)
    recovery.read("b2", 0, PRESENT)
    assert recovery.written == [payload_of(0)]


def test_c5_c7_unknown_never_truncates() -> None:
    """A bookie lost the entry in a crash (C5) or cannot read its bytes (C7): it says unknown."""
    recovery = fenced()
    recovery.read("b1", 0, UNKNOWN)
    recovery.read("b2", 0, ABSENT)
    assert (recovery.end, recovery.failed) == (None, None)
    recovery.read("b3", 0, UNKNOWN)
    assert recovery.end is None
    assert recovery.failed is not None
    assert recovery.failed.error.entry_id == 0
    for part in ("b1 unknown", "b2 absent", "b3 unknown"):
        assert part in str(recovery.failed.error)


def test_unknown_beside_enough_absent_answers_is_an_end() -> None:
    recovery = fenced()
    recovery.read("b3", 0, UNKNOWN)
    recovery.read("b1", 0, ABSENT)
    recovery.read("b2", 0, ABSENT)
    assert recovery.end == -1


def test_c5_an_acknowledged_entry_is_found_behind_unknown_answers() -> None:
    recovery = fenced()
    recovery.read("b1", 0, UNKNOWN)
    recovery.read("b2", 0, ABSENT)
    recovery.read("b3", 0, PRESENT)
    assert recovery.written == [payload_of(0)]


def test_the_first_answer_of_a_bookie_counts() -> None:
    recovery = fenced()
    for _ in range(3):
        recovery.read("b1", 0, ABSENT)
    assert recovery.end is None
    recovery.read("b9", 0, ABSENT)
    recovery.read("b1", 99, ABSENT)
    assert recovery.end is None


def test_every_read_of_the_search_fences() -> None:
    """C1, C2: only FencingRead is ever asked before the end, and of the whole write set."""
    recovery = fenced(lac=2)
    recovery.all_say(PRESENT, 3, 4)
    assert recovery.length_reads == []
    for entry_id in range(3, 5 + READ_AHEAD_ENTRIES):
        assert sorted(recovery.asked(entry_id)) == ["b1", "b2", "b3"]


def test_reads_go_no_further_ahead_than_the_writer_follows() -> None:
    recovery = RecoveryUnderTest(follow=False)
    for bookie_id in recovery.fences:
        recovery.fence(bookie_id, PRESENT, entry_of(0))
    found = 0
    while recovery.asked(found):
        recovery.all_say(PRESENT, found)
        found += 1
    assert found == 4 * READ_AHEAD_ENTRIES
    assert len(recovery.written) == found
    assert (recovery.end, recovery.failed) == (None, None)
    recovery.follow()
    recovery.all_say(PRESENT, found)
    recovery.all_say(ABSENT, found + 1)
    assert (recovery.end, len(recovery.written)) == (found, found + 1)


# --- length -------------------------------------------------------------------------------------


def test_the_length_comes_from_the_entry_at_the_lac_where_nothing_lies_beyond() -> None:
    recovery = fenced(lac=4)
    recovery.all_say(ABSENT, 5)
    assert (recovery.end, recovery.length_reads) == (None, [("b2", 4), ("b3", 4), ("b1", 4)])
    recovery.read("b2", 4, ABSENT)
    recovery.read("b3", 4, PRESENT)
    assert (recovery.end, recovery.start) == (4, StartWriteBack(4, length_of(4)))


def test_the_entry_at_the_lac_was_acknowledged_absent_or_not() -> None:
    recovery = fenced(lac=4)
    recovery.all_say(ABSENT, 5)
    for bookie_id in ("b1", "b2", "b3"):
        recovery.read(bookie_id, 4, ABSENT)
    assert (recovery.end, recovery.failed is not None) == (None, True)


def test_the_length_is_that_of_the_last_entry_written_back() -> None:
    recovery = fenced(lac=4)
    recovery.all_say(PRESENT, 5)
    recovery.all_say(ABSENT, 6)
    assert (recovery.end, recovery.length_reads, recovery.start) == (5, [], StartWriteBack(4, length_of(4)))


# --- segments -----------------------------------------------------------------------------------


def test_c3_recovery_starts_at_the_last_segment_and_touches_no_earlier_one() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (1000, "b2 b3"), (2000, "b4 b5"), state=LedgerState.IN_RECOVERY)
    recovery = RecoveryUnderTest(metadata)
    assert recovery.fences == ["b4", "b5"]
    for bookie_id in ("b4", "b5"):
        recovery.fence(bookie_id, ABSENT)
    assert {bookie for bookie, _ in recovery.reads} == {"b4", "b5"}
    assert min(entry for _, entry in recovery.reads) == 2000
    recovery.read("b4", 2000, ABSENT)
    # The length lies in the segment before, which is read and not fenced.
    assert recovery.length_reads == [("b3", 1999), ("b2", 1999)]
    recovery.read("b2", 1999, PRESENT)
    assert (recovery.end, recovery.start, recovery.written) == (1999, StartWriteBack(1999, length_of(1999)), [])


def test_c3_an_old_lac_does_not_lead_back_into_an_earlier_segment() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (10, "b3 b2"))
    recovery = RecoveryUnderTest(metadata)
    recovery.fence("b2", PRESENT, entry_of(9, 2))
    recovery.fence("b3", PRESENT, entry_of(10, 2))
    assert min(entry for _, entry in recovery.reads) == 10
    recovery.all_say(PRESENT, 10)
    assert recovery.lacs == {9}


# --- scenarios with a writer --------------------------------------------------------------------


def test_c10_write_backs_carry_the_lac_that_was_found_at_the_start() -> None:
    recovery = fenced(lac=4)
    for entry_id in (5, 6, 7):
        recovery.all_say(PRESENT, entry_id)
    recovery.all_say(ABSENT, 8)
    assert (recovery.lacs, recovery.end) == ({4}, 7)


def test_c16_after_a_crash_between_write_back_and_close_the_next_ends_alike() -> None:
    first = fenced(lac=4)
    first.all_say(PRESENT, 5, 6)
    first.all_say(ABSENT, 7)
    assert (first.end, first.written) == (6, [payload_of(5), payload_of(6)])
    # The next one meets the write-backs, whose LAC is still 4.
    second = RecoveryUnderTest()
    second.fence("b1", PRESENT, entry_of(6, 4))
    second.fence("b2", PRESENT, entry_of(6, 4))
    second.all_say(PRESENT, 5, 6)
    second.all_say(ABSENT, 7)
    assert (second.end, second.written, second.lacs) == (first.end, first.written, {4})


def test_nothing_happens_after_the_end_or_a_failure() -> None:
    ended = fenced()
    ended.all_say(ABSENT, 0)
    ended.read("b3", 0, PRESENT)
    ended.read("b1", 1, PRESENT)
    ended.machine.on_written_back(5)
    ended.take()
    assert (ended.end, ended.written) == (-1, [])
    failed = fenced()
    failed.all_say(UNKNOWN, 0)
    failed.all_say(PRESENT, 1)
    failed.machine.on_written_back(5)
    failed.take()
    assert (failed.end, failed.written, failed.machine.state) == (None, [], RecoveryState.FAILED)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(4, 4, 1), Quorum(3, 2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_answers_ends_at_or_beyond_every_acknowledged_entry(quorum: Quorum, seed: int) -> None:
    """Entries up to ``acknowledged`` lie on an ack quorum, some beyond on fewer; some bookies cannot tell."""
    random_ = random.Random(f"{seed} {quorum}")
    acknowledged = random_.randint(-1, 6)
    pushed = acknowledged + random_.randint(0, 5)
    holds: dict[int, set[str]] = {}
    for entry in range(pushed + 1):
        members = [f"b{index + 1}" for index in quorum.write_set(entry)]
        least = quorum.ack_quorum_size if entry <= acknowledged else 0
        holds[entry] = set(random_.sample(members, random_.randint(least, len(members))))
    recovery = RecoveryUnderTest(ledger(quorum))
    fences, done = list(recovery.fences), 0
    while recovery.end is None and recovery.failed is None and (fences or done < len(recovery.reads)):
        if fences and (done == len(recovery.reads) or random_.random() < 0.5):
            bookie = fences.pop(random_.randrange(len(fences)))
            held = [entry for entry in holds if bookie in holds[entry]]
            if random_.random() < 0.1:
                recovery.fence(bookie, UNKNOWN)
            elif held:
                lac = random_.randint(-1, min(acknowledged, max(held) - 1))
                recovery.fence(bookie, PRESENT, entry_of(max(held), lac))
            else:
                recovery.fence(bookie, ABSENT)
        else:
            pick = random_.randrange(done, len(recovery.reads))
            recovery.reads[done], recovery.reads[pick] = recovery.reads[pick], recovery.reads[done]
            bookie, entry = recovery.reads[done]
            done += 1
            answer = PRESENT if bookie in holds.get(entry, ()) else ABSENT
            recovery.read(bookie, entry, UNKNOWN if random_.random() < 0.1 else answer)
    for bookie, entry in recovery.length_reads:
        if recovery.end is None:
            recovery.read(bookie, entry, PRESENT if bookie in holds[entry] else ABSENT)
    if recovery.failed is None:
        assert recovery.end is not None
        assert recovery.end >= acknowledged
        assert recovery.end <= pushed
        assert recovery.start is not None
        begin = recovery.start.last_entry_id
        assert recovery.written == [payload_of(entry) for entry in range(begin + 1, recovery.end + 1)]
        assert recovery.start.length == length_of(begin)
