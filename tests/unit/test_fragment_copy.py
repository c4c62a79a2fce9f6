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
from bk_spark.protocol.replication.actions import AskThrottle, EntriesWritten, ThrottlePassed, WriteEntries
from bk_spark.protocol.replication.fragment_copy import CopyLimits, CopyResult, FragmentCopy
from bk_spark.protocol.replication.fragments import fragments_of
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, ledger
from tests.support.repair import stored_entry

COUNT = 20


class Copying:
    """A copy of entries 0 to 19 of b1, which is lost, to b9. Sorts the machine's actions."""

    def __init__(self, *, targets: dict[int, str] | None = None, **limits: Any) -> None:
        # Entries of about 100 bytes.
        self.metadata = ledger(Quorum(3, 3, 2)).closed(COUNT - 1, 100 * COUNT)
        (fragment,) = fragments_of(self.metadata, -1)
        self.machine = FragmentCopy(
            LEDGER,
            self.metadata,
            fragment,
            targets or {0: "b9"},
            {0},
            CopyLimits(**limits),
            request_ids=itertools.count(1),
        )
        self.actions: list[Any] = []

    def take(self, kind: type[Any]) -> list[Any]:
        self.actions += self.machine.take_actions()
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
    assert (asked.entries, asked.size_bytes) == (2, len(copying.records(range(2, 4))))
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
    assert asked.entries == 20, "an entry counts once for each target"
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
    reads = [action for action in machine.take_actions() if isinstance(action, ReadEntries)]
    assert [read.entry_ids for read in reads] == [range(17, 18), range(5)]
