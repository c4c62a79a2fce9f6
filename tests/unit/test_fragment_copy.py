"""The machine that copies a fragment: what it asks and sends, event by event."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.ledger.reading.read_actions import (
    BatchRead,
    BatchRefused,
    EntriesRead,
    ReadBatch,
    ReadEntries,
    ReportFailure,
    RequestFailed,
)
from bk_spark.protocol.machine import StartTimer, StopRequest, Succeeded, TimerFired
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    AskPace,
    AskThrottle,
    EntriesWritten,
    PacePassed,
    StoredEntries,
    ThrottlePassed,
    WriteEntries,
)
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits, CopyResult
from bk_spark.protocol.replication.copying.fragment_copy import FragmentCopy
from bk_spark.protocol.replication.fragments import fragments_of
from bk_spark.protocol.replication.known_entries import KnownEntries, KnownNeighbours
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, ledger
from tests.support.repair import stored_entry

COUNT = 20


class Copying:
    """A copy of entries 0 to 19 of b1, which is lost, to b9. Sorts the machine's actions."""

    def __init__(
        self,
        *,
        targets: dict[int, str] | None = None,
        known: KnownEntries | None = None,
        length: int = 100 * COUNT,
        **limits: Any,
    ) -> None:
        # Entries of about 100 bytes.
        self.metadata = ledger(Quorum(3, 3, 2)).closed(COUNT - 1, length)
        (fragment,) = fragments_of(self.metadata, -1)
        self.machine = FragmentCopy(
            LEDGER,
            self.metadata,
            fragment,
            targets or {0: "b9"},
            {0},
            CopyLimits(**limits),
            request_ids=itertools.count(1),
            known=known,
        )
        self.actions: list[Any] = []

    def take(self, kind: type[Any]) -> list[Any]:
        """Take the actions of one kind. Nothing waits for the pace, unless this asks for what does."""
        while actions := self.machine.take_actions():
            self.actions += actions
            for asked in [each for each in self.actions if isinstance(each, AskPace)]:
                if kind is not AskPace:
                    self.actions.remove(asked)
                    self.machine.handle(PacePassed(asked.request_id))
        found = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def records(self, entry_ids: range) -> memoryview:
        stored = [stored_entry(self.metadata, entry_id) for entry_id in entry_ids]
        return memoryview(b"".join(len(one).to_bytes(4, "big") + one for one in stored))

    def answer(self, read: Any, count: int | None = None) -> None:
        """Give the first ``count`` entries of a request, or all."""
        entry_ids = read.entry_ids[:count]
        if isinstance(read, ReadBatch):
            self.machine.handle(BatchRead(read.request_id, Code.OK, self.records(entry_ids)))
            return
        answers = {
            each: ReadAnswer(LEDGER, each, Code.OK, memoryview(stored_entry(self.metadata, each)))
            if each in entry_ids
            else ReadAnswer(LEDGER, each, Code.NO_ENTRY, memoryview(b""))
            for each in read.entry_ids
        }
        self.machine.handle(EntriesRead(read.request_id, answers))

    def absent(self, read: Any) -> None:
        self.answer(read, 0)

    def finish(self, refuse: Callable[[WriteEntries], Code] = lambda write: Code.OK) -> CopyResult:
        """Answer everything until the end."""
        for _ in range(1_000):
            if self.machine.outcome is not None:
                assert isinstance(self.machine.outcome, Succeeded)
                return self.machine.outcome.result
            for read in self.take(ReadEntries) + self.take(ReadBatch):
                self.answer(read)
            for asked in self.take(AskThrottle):
                self.machine.handle(ThrottlePassed(asked.request_id))
            for write in self.take(WriteEntries):
                self.machine.handle(EntriesWritten(write.request_id, refuse(write)))
        raise AssertionError("does not end")


def test_batches_are_bounded_in_number_and_bytes() -> None:
    copying = Copying(batches=3, batch_bytes=200, max_answer_bytes=5_000_000)
    reads = copying.take(ReadBatch)
    assert [read.entry_ids for read in reads] == [range(2), range(2, 4), range(4, 6)]
    assert {read.bookie_id for read in reads} == {"b2", "b3"}, "the healthy sources take turns"
    copying.answer(reads[1])
    # It waits for the throttle, and counts as under way until it is written.
    assert not copying.take(ReadBatch)
    (asked,) = copying.take(AskThrottle)
    assert (asked.read.entry_ids, bytes(asked.read.records)) == (range(2, 4), copying.records(range(2, 4)))
    assert asked.targets == 1
    assert not copying.take(WriteEntries)
    copying.machine.handle(ThrottlePassed(asked.request_id))
    (write,) = copying.take(WriteEntries)
    assert (write.bookie_id, write.entries.entry_ids) == ("b9", range(2, 4))
    assert write.entries.records == copying.records(range(2, 4))
    assert not copying.take(ReadBatch)
    copying.machine.handle(EntriesWritten(write.request_id, Code.OK))
    (following,) = copying.take(ReadBatch)
    for read in (reads[0], reads[2], following):
        copying.answer(read)
    assert copying.finish().copied == {0}


def test_a_batch_is_read_when_its_time_has_come() -> None:
    copying = Copying(batches=3, batch_bytes=200, max_answer_bytes=5_000_000)
    first, *others = copying.take(AskPace)
    # A fragment costs more than its entries.
    assert first.size_bytes == 200 + CopyLimits().fragment_bytes
    assert [each.size_bytes for each in others] == [200, 200]
    copying.machine.handle(PacePassed(first.request_id))
    (read,) = [each for each in copying.machine.take_actions() if isinstance(each, ReadBatch)]
    copying.answer(read)
    (asked,) = [each for each in copying.machine.take_actions() if isinstance(each, AskThrottle)]
    assert asked.paced_bytes == 200
    for each in others:
        copying.machine.handle(PacePassed(each.request_id))
    assert len(copying.take(ReadBatch)) == 2


def test_no_more_is_read_while_too_many_bytes_are_not_acknowledged() -> None:
    copying = Copying(batches=8, batch_bytes=200, pending_bytes=300, max_answer_bytes=5_000_000)
    reads = copying.take(ReadBatch)
    assert len(reads) == 8
    for read in reads:
        copying.answer(read)
    for asked in copying.take(AskThrottle):
        copying.machine.handle(ThrottlePassed(asked.request_id))
    writes = copying.take(WriteEntries)
    copying.machine.handle(EntriesWritten(writes[0].request_id, Code.OK))
    assert not copying.take(ReadBatch)
    for write in writes[1:]:
        copying.machine.handle(EntriesWritten(write.request_id, Code.OK))
    assert copying.take(ReadBatch)


def test_what_is_known_is_written_and_not_read() -> None:
    other, known = Copying(), KnownEntries(10_000)
    for entry_ids in (range(1), range(7, 9), range(COUNT - 1, COUNT)):
        known.add(StoredEntries(entry_ids, other.records(entry_ids)))
    copying = Copying(known=known, max_answer_bytes=5_000_000)
    reads = copying.take(ReadBatch)
    assert [read.entry_ids for read in reads] == [range(1, 7), range(9, COUNT - 1)]
    # With what is read beside it.
    for read in reads:
        copying.answer(read)
    for asked in copying.take(AskThrottle):
        copying.machine.handle(ThrottlePassed(asked.request_id))
    writes = copying.take(WriteEntries)
    assert [write.entries.entry_ids for write in writes] == [range(7), range(7, COUNT)]
    assert b"".join(write.entries.records for write in writes) == copying.records(range(COUNT))
    for write in writes:
        copying.machine.handle(EntriesWritten(write.request_id, Code.OK))
    done = copying.finish()
    assert (done.copied, done.entries) == ({0}, COUNT)


def test_known_entries_beside_others_are_written_once() -> None:
    other, known = Copying(), KnownEntries(10_000)
    for entry_id in (0, 9, 10, COUNT - 1):
        known.add(StoredEntries(range(entry_id, entry_id + 1), other.records(range(entry_id, entry_id + 1))))
    copying = Copying(known=known, batch_bytes=600, max_answer_bytes=5_000_000)
    written: list[int] = []

    def note(write: WriteEntries) -> Code:
        assert write.entries.records == copying.records(write.entries.entry_ids)
        written.extend(write.entries.entry_ids)
        return Code.OK

    # The first answer is short. Its rest is read again.
    reads = copying.take(ReadBatch)
    assert [read.entry_ids for read in reads] == [range(1, 7), range(7, 9), range(11, 17), range(17, 19)]
    copying.answer(reads[0], 2)
    for read in reads[1:]:
        copying.answer(read)
    assert copying.finish(note).entries == COUNT
    assert sorted(written) == list(range(COUNT))


def test_known_entries_of_a_striped_ledger_join_their_own_series() -> None:
    neighbours = KnownNeighbours(100)

    def stored(*entry_ids: int) -> StoredEntries:
        step = entry_ids[1] - entry_ids[0] if len(entry_ids) > 1 else 1
        return StoredEntries(range(entry_ids[0], entry_ids[-1] + 1, step), memoryview(bytes(entry_ids)))

    unread = [range(3, 12, 3)]
    assert neighbours.take(stored(0), 3, unread)
    assert neighbours.take(stored(12), 3, unread)
    assert not neighbours.take(stored(1), 3, unread)
    assert not neighbours.take(StoredEntries(range(1), memoryview(bytes(101))), 3, unread)
    # Entry 3 was read alone.
    assert neighbours.join(stored(3)) == stored(0, 3)
    assert neighbours.join(stored(6)) == stored(6)
    assert neighbours.join(stored(6, 9)) == stored(6, 9, 12)
    assert neighbours.join(stored(3)) == stored(3)


def test_known_entries_count_as_pending() -> None:
    other, known = Copying(), KnownEntries(10_000)
    for entry_id in range(COUNT):
        known.add(StoredEntries(range(entry_id, entry_id + 1), other.records(range(entry_id, entry_id + 1))))
    copying = Copying(known=known, pending_bytes=2 * len(other.records(range(1))))
    assert len(copying.take(AskThrottle)) == 2


def test_known_entries_are_bounded_and_do_not_overlap() -> None:
    def stored(entry_ids: range) -> StoredEntries:
        return StoredEntries(entry_ids, memoryview(((6).to_bytes(4, "big") + bytes(6)) * len(entry_ids)))

    known = KnownEntries(40)
    for entry_ids in (range(0, 9, 4), range(8, 9), range(1, 3), range(5, 6), range(6, 7)):
        known.add(stored(entry_ids))
    assert [each for each in range(10) if each in known] == [0, 4, 5, 8]
    assert [each.entry_ids for each in known.within(range(0, 100, 4))] == [range(0, 9, 4)]
    assert list(known.unknown(range(0, 21, 4))) == [range(12, 24, 4)]
    assert list(known.unknown(range(1, 10, 4))) == [range(1, 5, 4), range(9, 13, 4)]
    assert list(known.unknown(range(2, 11, 4))) == [range(2, 14, 4)]


def test_known_entries_are_sent_in_batches_of_the_copys_size() -> None:
    other, known = Copying(), KnownEntries(10_000)
    known.add(StoredEntries(range(COUNT), other.records(range(COUNT))))
    entry_bytes = max(len(other.records(range(each, each + 1))) for each in range(COUNT))
    for limits in ({"batch_bytes": 3 * entry_bytes}, {"batch_entries": 3}):
        copying = Copying(known=known, batches=COUNT, **limits)
        asked = copying.take(AskThrottle)
        assert [len(each.read.entry_ids) for each in asked] == [3] * 6 + [2]
        assert all(each.read.records == other.records(each.read.entry_ids) for each in asked)
        for each in asked:
            copying.machine.handle(ThrottlePassed(each.request_id))
        assert copying.finish().entries == COUNT
    # An entry that is larger than a batch is one.
    assert len(Copying(known=known, batches=50, batch_bytes=1).take(AskThrottle)) == COUNT


def test_while_the_size_of_entries_is_unknown_one_small_batch_is_read() -> None:
    copying = Copying(length=0, max_answer_bytes=5_000_000)
    (read,) = copying.take(ReadBatch)
    assert read.entry_ids == range(16)
    copying.answer(read)
    assert copying.take(ReadBatch)
    copying = Copying(length=0, batch_entries=3, max_answer_bytes=5_000_000)
    (read,) = copying.take(ReadBatch)
    assert read.entry_ids == range(3)
    copying.answer(read)
    # Its size is known now, and the rest is read at once.
    assert [len(read.entry_ids) for read in copying.take(ReadBatch)] == [3] * 5 + [2]


def test_the_bytes_of_an_answer_are_bounded_before_the_size_of_entries_is_known_and_afterwards() -> None:
    copying = Copying(length=0, batch_bytes=1_000, max_answer_bytes=5_000_000)
    (read,) = copying.take(ReadBatch)
    assert read.max_bytes == 1_000
    # An answer has at least one entry, though it is larger. The rest is cut into batches.
    copying.answer(read, 1)
    assert {read.max_bytes for read in copying.take(ReadBatch)} == {2_000}
    limits = CopyLimits(max_answer_bytes=5 * 1024 * 1024)
    assert limits.answer_bytes(0) == limits.batch_bytes
    assert limits.answer_bytes(100) == 2 * limits.batch_bytes
    # The bookie's frames are smaller than a batch.
    assert CopyLimits(max_answer_bytes=100_000).answer_bytes(100) == 100_000 - 1024


def test_while_the_size_of_entries_is_unknown_a_bookie_without_batch_reads_is_asked_for_one() -> None:
    copying = Copying(length=0)
    (read,) = copying.take(ReadEntries)
    assert read.entry_ids == range(1)
    copying.answer(read)
    assert sum(len(read.entry_ids) for read in copying.take(ReadEntries)) == COUNT - 1
    # The same if it turns out that the bookie knows no batch reads, and if another one is asked then.
    copying = Copying(length=0, max_answer_bytes=5_000_000)
    (batch,) = copying.take(ReadBatch)
    copying.machine.handle(BatchRefused(batch.request_id))
    (read,) = copying.take(ReadEntries)
    assert (read.bookie_id, read.entry_ids) == (batch.bookie_id, range(1))
    copying.answer(read)
    assert copying.finish().entries == COUNT


def test_what_is_read_again_is_cut_into_batches_too() -> None:
    size_bytes = len(Copying().records(range(1)))
    copying = Copying(length=0, batch_bytes=3 * size_bytes, batches=1)
    (read,) = copying.take(ReadEntries)
    copying.answer(read)
    (asked,) = copying.take(AskThrottle)
    copying.machine.handle(ThrottlePassed(asked.request_id))
    (write,) = copying.take(WriteEntries)
    copying.machine.handle(EntriesWritten(write.request_id, Code.OK))
    (read,) = copying.take(ReadEntries)
    assert read.entry_ids == range(1, 4)
    copying.answer(read)
    assert copying.finish().entries == COUNT


def test_of_entries_that_are_known_in_part_the_rest_is_kept() -> None:
    other, known = Copying(), KnownEntries(10_000)
    for entry_ids in (range(1), range(6, 8), range(10)):
        known.add(StoredEntries(entry_ids, other.records(entry_ids)))
    found = known.within(range(COUNT))
    assert [each.entry_ids for each in found] == [range(1), range(1, 6), range(6, 8), range(8, 10)]
    assert all(each.records == other.records(each.entry_ids) for each in found)


def test_by_default_reads_under_way_are_no_more_than_may_be_pending() -> None:
    limits = CopyLimits()
    assert limits.batches * limits.batch_bytes <= limits.pending_bytes <= 2 << 20


def test_the_rest_of_a_short_answer_is_read_again() -> None:
    copying = Copying(batch_entries=COUNT, max_answer_bytes=5_000_000)
    (read,) = copying.take(ReadBatch)
    copying.answer(read, 7)
    (rest,) = copying.take(ReadBatch)
    assert rest.entry_ids == range(7, COUNT)
    copying.answer(rest)
    result = copying.finish()
    assert result.entries == COUNT
    assert result.size_bytes == len(copying.records(range(COUNT)))


def test_a_bookie_that_breaks_at_a_batch_read_is_read_one_by_one() -> None:
    copying = Copying(batch_entries=10, batches=1, max_answer_bytes=5_000_000)
    (read,) = copying.take(ReadBatch)
    copying.machine.handle(BatchRefused(read.request_id))
    (again,) = copying.take(ReadEntries)
    assert (again.bookie_id, again.entry_ids) == (read.bookie_id, range(10))
    copying.answer(again)
    assert copying.finish().copied == {0}


def test_a_source_that_fails_is_asked_last() -> None:
    copying = Copying(batch_entries=5, batches=1)
    (read,) = copying.take(ReadEntries)
    copying.machine.handle(RequestFailed(read.request_id, BookieUnavailableError("broke")))
    assert copying.take(ReportFailure) == [ReportFailure(read.bookie_id)]
    (other,) = copying.take(ReadEntries)
    assert {read.bookie_id, other.bookie_id} == {"b2", "b3"}
    copying.answer(other)
    for _ in range(3):
        (asked,) = copying.take(AskThrottle)
        copying.machine.handle(ThrottlePassed(asked.request_id))
        (write,) = copying.take(WriteEntries)
        copying.machine.handle(EntriesWritten(write.request_id, Code.OK))
        (following,) = copying.take(ReadEntries)
        assert following.bookie_id == other.bookie_id
        copying.answer(following)
    assert copying.finish().copied == {0}


def test_the_bad_copy_is_asked_when_no_other_is_left() -> None:
    """b1 may be back, with the only copy."""
    copying = Copying(batch_entries=COUNT, batches=1)
    for expected in ({"b2", "b3"}, {"b2", "b3"}, {"b1"}):
        (read,) = copying.take(ReadEntries)
        assert read.bookie_id in expected
        if expected != {"b1"}:
            copying.absent(read)
    copying.answer(read)
    assert copying.finish().copied == {0}


def test_an_entry_that_nobody_has_stops_the_positions_that_store_it() -> None:
    copying = Copying(batch_entries=10, batches=3)
    first, second = copying.take(ReadEntries)
    copying.answer(second)
    copying.answer(first, 1)
    for _ in range(3):
        (read,) = copying.take(ReadEntries)
        assert read.entry_ids[0] == 1
        copying.absent(read)
    result = copying.machine.outcome
    assert isinstance(result, Succeeded)
    assert result.result.copied == frozenset()
    assert list(result.result.unreadable) == [1]
    assert "b2 does not have it" in result.result.unreadable[1]


def test_a_busy_target_gets_the_entries_again_after_a_pause() -> None:
    copying = Copying(batch_entries=COUNT, busy_attempts=3)
    (read,) = copying.take(ReadEntries)
    copying.answer(read)
    (asked,) = copying.take(AskThrottle)
    copying.machine.handle(ThrottlePassed(asked.request_id))
    for _ in range(2):
        (write,) = copying.take(WriteEntries)
        copying.take(StartTimer)
        copying.machine.handle(EntriesWritten(write.request_id, Code.TOO_MANY_REQUESTS))
        (pause,) = copying.take(StartTimer)
        assert (pause.name, pause.after_ms) == (write.request_id, 100)
        assert not copying.take(WriteEntries)
        copying.machine.handle(TimerFired(write.request_id))
    (write,) = copying.take(WriteEntries)
    copying.machine.handle(EntriesWritten(write.request_id, Code.TOO_MANY_REQUESTS))
    assert isinstance(copying.machine.outcome, Succeeded)
    result = copying.machine.outcome.result
    assert list(result.failed_targets) == ["b9"]
    assert result.copied == frozenset()


def test_a_target_that_does_not_answer_has_failed_and_the_other_goes_on() -> None:
    copying = Copying(targets={0: "b9", 1: "b8"}, batch_entries=10, batches=1)
    (read,) = copying.take(ReadEntries)
    copying.answer(read)
    (asked,) = copying.take(AskThrottle)
    assert (len(asked.read.entry_ids), asked.targets) == (10, 2)
    copying.machine.handle(ThrottlePassed(asked.request_id))
    to_b8, to_b9 = copying.take(WriteEntries)
    assert (to_b8.bookie_id, to_b9.bookie_id) == ("b8", "b9")
    copying.machine.handle(TimerFired(to_b9.request_id))
    assert copying.take(StopRequest) == [StopRequest(to_b9.request_id)]
    copying.machine.handle(EntriesWritten(to_b8.request_id, Code.OK))
    result = copying.finish(lambda write: Code.OK if write.bookie_id == "b8" else Code.FENCED)
    assert result.copied == {1}
    assert list(result.failed_targets) == ["b9"]


def test_entries_that_could_not_be_read_before_come_first() -> None:
    metadata = ledger(Quorum(3, 3, 2)).closed(COUNT - 1, 100 * COUNT)
    (fragment,) = fragments_of(metadata, -1)
    limits = CopyLimits(batches=2, batch_entries=5)
    machine = FragmentCopy(
        LEDGER, metadata, fragment, {0: "b9"}, {0}, limits, request_ids=itertools.count(1), read_first={17, 99}
    )
    for asked in machine.take_actions():
        assert isinstance(asked, AskPace)
        machine.handle(PacePassed(asked.request_id))
    reads = [action for action in machine.take_actions() if isinstance(action, ReadEntries)]
    assert [read.entry_ids for read in reads] == [range(17, 18), range(5)]
