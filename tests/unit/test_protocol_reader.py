"""Reading ranges: replicas, partial answers, stripes, segments, order, bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import EntryBlock, pack_entry
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound, ReadMetadata
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.range_pass import APART_BYTES, RangePass
from bk_spark.protocol.ledger.reading.read_actions import (
    BatchRead,
    BatchRefused,
    EntriesRead,
    ReadBatch,
    ReadEntries,
    ReportFailure,
    RequestFailed,
)
from bk_spark.protocol.ledger.reading.read_settings import GRPC_REQUEST_BYTES, ReadSettings, Speculation
from bk_spark.protocol.ledger.reading.reader import RangeReader
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, Quorum
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of

KEY = LedgerKey(LEDGER, DigestType.CRC32C, digest_function(DigestType.CRC32C, PASSWORD))
EMPTY = memoryview(b"")


def stored(entry_id: int, lac: int = -1, payload: bytes | None = None) -> memoryview:
    payload = payload_of(entry_id) if payload is None else payload
    return memoryview(pack_entry(LEDGER, entry_id, lac, 0, payload, KEY.digest))


def answers(entry_ids: range, lac: int = -1) -> dict[int, ReadAnswer]:
    return {entry: ReadAnswer(LEDGER, entry, Code.OK, stored(entry, lac)) for entry in entry_ids}


class ReaderUnderTest:
    """A pass, the requests it has open, and the entries it gave."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        chunk_entries: int = 4,
        chunks_in_flight: int = 3,
        unconfirmed: bool = False,
        speculation: Speculation = Speculation(100, 300),  # noqa: B008
        suspects: set[str] | None = None,
        max_answer_bytes: int | None = None,
    ) -> None:
        settings = ReadSettings(
            timeout_ms=5_000,
            speculation=speculation,
            requests_ahead=chunks_in_flight,
            max_answer_bytes=max_answer_bytes,
            first_request_entries=chunk_entries,
            max_request_entries=chunk_entries,
        )
        self.without_batch_reads: set[str] = set()
        self.machine = RangePass(
            KEY,
            metadata,
            first,
            last,
            settings,
            unconfirmed=unconfirmed,
            suspects=set() if suspects is None else suspects,
            without_batch_reads=self.without_batch_reads,
            request_ids=itertools.count(),
        )
        self.asked: list[ReadEntries | ReadBatch] = []
        self.stopped: list[ReadEntries | ReadBatch] = []
        #: Timers that run, in ms.
        self.timers: dict[object, float] = {}
        self.reported: list[str] = []
        self.first = self.next = first
        self.take()

    def take(self) -> None:
        for action in self.machine.take_actions():
            match action:
                case ReadEntries() | ReadBatch():
                    self.asked.append(action)
                case StopRequest(request_id):
                    stopped = [request for request in self.asked if request.request_id == request_id]
                    self.asked = [request for request in self.asked if request not in stopped]
                    self.stopped += stopped
                case StartTimer(name, after_ms):
                    self.timers[name] = after_ms
                case StopTimer(name):
                    self.timers.pop(name, None)
                case ReportFailure(bookie_id):
                    self.reported.append(bookie_id)

    @property
    def failed(self) -> list[BookKeeperError]:
        end = self.machine.outcome
        assert not isinstance(end, EndedBy) or isinstance(end.error, BookKeeperError)
        return [end.error] if isinstance(end, EndedBy) else []  # type: ignore[list-item]

    @property
    def finished(self) -> bool:
        return isinstance(self.machine.outcome, Succeeded)

    def open(self) -> list[tuple[str, list[int]]]:
        return [(request.bookie_id, list(request.entry_ids)) for request in self.asked]

    def slow_after_ms(self, request: ReadEntries | ReadBatch) -> float | None:
        after_ms = self.timers[request.request_id]
        return after_ms if after_ms < 1_000 else None

    def answer(self, request: ReadEntries | ReadBatch, count: int | None = None, lac: int = -1) -> None:
        """The first ``count`` entries are there, or all."""
        found = answers(request.entry_ids[:count], lac)
        lacking = request.entry_ids[len(found) :]
        found.update({entry: ReadAnswer(LEDGER, entry, Code.NO_ENTRY, EMPTY) for entry in lacking})
        self.tell(request, EntriesRead(request.request_id, found))

    def error(
        self,
        request: ReadEntries | ReadBatch,
        reason: str = "does not have it",
        answer: Answer = Answer.ABSENT,
    ) -> None:
        if answer is Answer.ABSENT:
            self.code(request, Code.NO_ENTRY)
        else:
            self.tell(request, RequestFailed(request.request_id, BookieUnavailableError(reason)))

    def code(self, request: ReadEntries | ReadBatch, code: Code) -> None:
        found = {entry: ReadAnswer(LEDGER, entry, code, EMPTY) for entry in request.entry_ids}
        self.tell(request, EntriesRead(request.request_id, found))

    def tell(
        self, request: ReadEntries | ReadBatch, event: EntriesRead | BatchRead | BatchRefused | RequestFailed
    ) -> None:
        self.asked.remove(request)
        self.machine.handle(event)
        self.take()

    def fire(self, request: ReadEntries | ReadBatch) -> None:
        del self.timers[request.request_id]
        self.machine.handle(TimerFired(request.request_id))
        self.take()

    def slow(self, request: ReadEntries | ReadBatch) -> None:
        """It takes long."""
        assert self.slow_after_ms(request) is not None
        self.fire(request)

    def read(self) -> list[EntryBlock]:
        """Blocks that are ready, checked to be the next entries."""
        blocks = []
        while (found := self.machine.next_block()) is not None:
            assert found.first_entry_id == self.next
            assert [bytes(payload) for payload in found.payloads] == [
                payload_of(entry) for entry in range(self.next, self.next + len(found))
            ]
            self.next += len(found)
            blocks.append(found)
            self.take()
        return blocks

    def finish(self, answer: Callable[[ReadEntries | ReadBatch], None] | None = None) -> None:
        while self.asked:
            (answer or self.answer)(self.asked[0])
            self.read()


def test_successive_chunks_begin_at_different_replicas() -> None:
    reader = ReaderUnderTest(ledger(), 0, 11)
    assert reader.open() == [("b1", [0, 1, 2, 3]), ("b2", [4, 5, 6, 7]), ("b3", [8, 9, 10, 11])]
    reader.finish()
    assert (reader.finished, reader.next) == (True, 12)


def test_only_what_another_bookie_was_asked_for_is_asked_again() -> None:
    """Clients count these reads. What an answer left over is no retry."""
    for most in (None, 10_000):
        reader = ReaderUnderTest(ledger(), 0, 3, max_answer_bytes=most)
        (first,) = reader.asked
        reader.answer(first, count=2)
        (rest,) = reader.asked
        reader.error(rest, answer=Answer.UNKNOWN)
        (second,) = reader.asked
        reader.slow(second)
        _, third = reader.asked
        assert [one.again for one in (first, rest, second, third)] == [False, False, True, True]


def test_blocks_come_in_order_whatever_the_order_of_answers() -> None:
    reader = ReaderUnderTest(ledger(), 5, 14)
    first, second, third = reader.asked
    reader.answer(third)
    reader.answer(second)
    assert reader.read() == []
    assert not reader.finished
    reader.answer(first)
    assert [len(one) for one in reader.read()] == [4, 4, 2]
    assert reader.finished


def test_no_more_chunks_under_way_than_allowed() -> None:
    reader = ReaderUnderTest(ledger(), 0, 99, chunks_in_flight=2)
    assert [entries[0] for _, entries in reader.open()] == [0, 4]
    # An answered chunk that nobody took still counts: it is in memory.
    reader.answer(reader.asked[1])
    assert [entries[0] for _, entries in reader.open()] == [0]
    reader.answer(reader.asked[0])
    assert reader.open() == []
    assert reader.machine.next_block() is not None
    reader.take()
    assert [entries[0] for _, entries in reader.open()] == [8]


def test_requests_are_sized_by_the_entries_read_so_far() -> None:
    settings = ReadSettings(requests_ahead=1, first_request_entries=4, max_request_entries=10)
    machine = RangePass(
        KEY, ledger(), 0, 40, settings, suspects=set(), without_batch_reads=set(), request_ids=itertools.count()
    )

    def asked() -> ReadEntries:
        (request,) = [action for action in machine.take_actions() if isinstance(action, ReadEntries)]
        return request

    first = asked()
    assert len(first.entry_ids) == 4
    machine.handle(EntriesRead(first.request_id, answers(first.entry_ids)))
    assert machine.next_block() is not None
    # They are small: as many as are of any use.
    second = asked()
    assert len(second.entry_ids) == 10
    large = {
        entry: ReadAnswer(
            LEDGER, entry, Code.OK, memoryview(pack_entry(LEDGER, entry, -1, 0, bytes(600_000), KEY.digest))
        )
        for entry in second.entry_ids
    }
    machine.handle(EntriesRead(second.request_id, large))
    # They are given one by one. The next ones are asked for when none is left.
    for entry in second.entry_ids:
        assert machine.take_actions() in ([], [StopTimer(second.request_id)])
        block = machine.next_block()
        assert block is not None
        assert block.first_entry_id == entry
        assert len(block) == 1
    assert len(asked().entry_ids) == 3


@pytest.mark.parametrize(("size", "request_bytes", "count"), [(300_000, 1 << 20, 3), (1 << 20, GRPC_REQUEST_BYTES, 3)])
def test_a_closed_ledger_tells_the_size_of_its_entries(size: int, request_bytes: int, count: int) -> None:
    closed = ledger().closed(99, 100 * size)
    settings = ReadSettings(requests_ahead=1, request_bytes=request_bytes)
    machine = RangePass(
        KEY, closed, 0, 99, settings, suspects=set(), without_batch_reads=set(), request_ids=itertools.count()
    )
    (request,) = [action for action in machine.take_actions() if isinstance(action, ReadEntries)]
    assert len(request.entry_ids) == count


def test_a_replica_that_fails_is_followed_by_the_next_and_avoided() -> None:
    reader = ReaderUnderTest(ledger(), 0, 19)
    reader.error(reader.asked[0])
    assert reader.open()[-1] == ("b2", [0, 1, 2, 3])
    reader.finish()
    # Chunk 3 would have begun at b1.
    reader = ReaderUnderTest(ledger(), 0, 19)
    reader.error(reader.asked[0])
    for request in list(reader.asked):
        reader.answer(request)
    reader.read()
    assert [bookie for bookie, _ in reader.open()] == ["b2", "b2"]
    reader.finish()
    assert reader.next == 20


def test_an_answer_in_part_is_continued_where_it_ended() -> None:
    reader = ReaderUnderTest(ledger(), 0, 9, chunk_entries=10, chunks_in_flight=1)
    reader.answer(reader.asked[0], 3)
    assert reader.open() == [("b1", [3, 4, 5, 6, 7, 8, 9])]
    assert reader.read() == []
    reader.answer(reader.asked[0], 1)
    reader.answer(reader.asked[0])
    assert [len(one) for one in reader.read()] == [10]
    assert reader.finished


def test_after_progress_every_replica_may_be_asked_again() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3, chunks_in_flight=1)
    reader.error(reader.asked[0])  # b1 lacks entry 0
    reader.answer(reader.asked[0], 1)  # b2 gives it, and no more
    reader.error(reader.asked[0])  # b2 lacks entry 1
    reader.error(reader.asked[0])  # b3 too
    assert reader.open() == [("b1", [1, 2, 3])]
    reader.answer(reader.asked[0])
    assert [len(one) for one in reader.read()] == [4]


def test_absent_everywhere_is_unknown_not_absent() -> None:
    reader = ReaderUnderTest(ledger(), 0, 7, chunks_in_flight=2)
    reader.error(reader.asked[0])
    reader.error(reader.asked[-1], "answered IO_ERROR", Answer.UNKNOWN)
    reader.error(reader.asked[-1], "did not answer in time", Answer.UNKNOWN)
    (failed,) = reader.failed
    assert isinstance(failed, EntryUnknownError)
    assert failed.entry_id == 0
    for part in ("b1 does not have it", "b2 answered IO_ERROR", "b3 did not answer in time"):
        assert part in str(failed)
    assert "check that these bookies are running and reachable from here" in str(failed)
    # What comes later changes nothing.
    for request in list(reader.asked):
        reader.answer(request)
    assert (reader.read(), reader.finished, len(reader.failed)) == ([], False, 1)


def test_what_helps_depends_on_whether_the_replicas_answered() -> None:
    reader = ReaderUnderTest(ledger(), 0, 0)
    for _ in range(3):
        reader.error(reader.asked[-1])
    (failed,) = reader.failed
    assert isinstance(failed, EntryUnknownError)
    assert "If their disks or directories were replaced, bring back the old ones" in str(failed)


def test_the_error_names_the_entry_that_could_not_be_had() -> None:
    reader = ReaderUnderTest(ledger(), 10, 13, chunks_in_flight=1)
    reader.answer(reader.asked[0], 2)
    for _ in range(3):
        reader.error(reader.asked[0])
    assert reader.machine.outcome is None
    # What lies before is given out first.
    assert [len(one) for one in reader.read()] == [2]
    (failed,) = reader.failed
    assert failed.entry_id == 12
    assert (reader.read(), reader.finished) == ([], False)


def test_answers_to_unknown_requests_are_ignored() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    request = reader.asked[0]
    reader.answer(request)
    reader.machine.handle(EntriesRead(request.request_id, answers(request.entry_ids)))
    reader.machine.handle(RequestFailed(request.request_id, BookieUnavailableError("late")))
    reader.machine.handle(TimerFired(request.request_id))
    reader.machine.handle(EntriesRead(999, answers(range(5))))
    assert [len(one) for one in reader.read()] == [4]
    assert reader.finished


def test_more_entries_than_asked_for_are_cut_off() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3, max_answer_bytes=10_000)
    (request,) = reader.asked
    reader.tell(request, BatchRead(request.request_id, Code.OK, records(range(9))))
    assert [len(one) for one in reader.read()] == [4]


def test_the_highest_lac_is_passed_on() -> None:
    reader = ReaderUnderTest(ledger(), 0, 7, chunks_in_flight=2)
    first, second = reader.asked
    reader.answer(second, lac=6)
    reader.answer(first, lac=2)
    assert [one.max_lac for one in reader.read()] == [6, 6]


def test_a_striped_ledger_is_asked_position_by_position() -> None:
    reader = ReaderUnderTest(ledger(Quorum(3, 2, 2)), 4, 11, chunk_entries=8, chunks_in_flight=1)
    assert reader.open() == [("b2", [4, 7, 10]), ("b3", [5, 8, 11]), ("b1", [6, 9])]
    reader.error(reader.asked[0])
    assert reader.open()[-1] == ("b3", [4, 7, 10])
    reader.answer(reader.asked[-1], 1)
    reader.finish()
    assert reader.next == 12
    assert reader.finished


def test_an_entry_of_a_stripe_has_its_write_set_and_no_more() -> None:
    reader = ReaderUnderTest(ledger(Quorum(4, 2, 1)), 3, 3)
    reader.error(reader.asked[0])
    reader.error(reader.asked[0])
    assert "b4 " in str(reader.failed[0])
    assert "b1 " in str(reader.failed[0])
    assert "b2 " not in str(reader.failed[0])


def test_chunks_end_where_segments_do() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (3, "b3 b2"), (4, "b3 b4"), (20, "b5 b6"))
    reader = ReaderUnderTest(metadata, 1, 9, chunks_in_flight=9)
    assert [entries for _, entries in reader.open()] == [[1, 2], [3], [4, 5, 6, 7], [8, 9]]
    for bookie, entries in reader.open():
        assert bookie in metadata.segment_of(entries[0]).ensemble
    reader.finish()
    assert reader.next == 10


# --- slow replicas ------------------------------------------------------------------------------


def test_a_slow_replica_is_left_under_way_while_the_next_is_asked() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    (first,) = reader.asked
    assert reader.slow_after_ms(first) == 100
    reader.slow(first)
    assert reader.open() == [("b1", [0, 1, 2, 3]), ("b2", [0, 1, 2, 3])]
    assert reader.slow_after_ms(reader.asked[1]) == 200
    reader.slow(reader.asked[1])
    # Nobody is left to be asked.
    assert reader.slow_after_ms(reader.asked[2]) is None
    assert [bookie for bookie, _ in reader.open()] == ["b1", "b2", "b3"]


def test_waits_double_up_to_the_bound() -> None:
    assert [Speculation(2_000, 2_000).wait_ms(number) for number in range(4)] == [2_000] * 4
    assert [Speculation(100, 1_000).wait_ms(number) for number in range(6)] == [100, 200, 400, 800, 1_000, 1_000]
    assert Speculation(100, 1_000).wait_ms(10_000) == 1_000


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_good_answer_wins_and_the_other_is_ignored(winner: int) -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    reader.slow(reader.asked[0])
    both = list(reader.asked)
    reader.answer(both[winner])
    assert (reader.stopped, reader.open()) == ([both[1 - winner]], [])
    reader.machine.handle(EntriesRead(both[1 - winner].request_id, answers(range(4))))
    reader.machine.handle(RequestFailed(both[1 - winner].request_id, BookieUnavailableError("late")))
    assert [len(one) for one in reader.read()] == [4]
    assert reader.finished


def test_an_answer_in_part_stops_the_other_and_goes_on_with_the_winner() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    reader.slow(reader.asked[0])
    reader.answer(reader.asked[1], 1)
    assert [request.bookie_id for request in reader.stopped] == ["b1"]
    assert reader.open() == [("b2", [1, 2, 3])]
    for bookie in ("b3", "b1"):
        reader.error(reader.asked[0])
        assert reader.open() == [(bookie, [1, 2, 3])]
    reader.answer(reader.asked[0])
    assert [len(one) for one in reader.read()] == [4]


def test_an_error_does_not_end_a_read_while_another_is_under_way() -> None:
    reader = ReaderUnderTest(ledger(Quorum(2, 2, 2)), 0, 3)
    reader.slow(reader.asked[0])
    reader.error(reader.asked[1])
    assert (reader.open(), reader.failed) == ([("b1", [0, 1, 2, 3])], [])
    reader.answer(reader.asked[0])
    assert [len(one) for one in reader.read()] == [4]


def test_an_error_of_the_first_leaves_the_second_its_time() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    reader.slow(reader.asked[0])
    reader.error(reader.asked[0])
    assert reader.open() == [("b2", [0, 1, 2, 3])]
    reader.slow(reader.asked[0])
    assert [bookie for bookie, _ in reader.open()] == ["b2", "b3"]


def test_an_error_while_only_slow_ones_are_under_way_goes_to_the_next_at_once() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    reader.slow(reader.asked[0])
    reader.error(reader.asked[1])
    assert [bookie for bookie, _ in reader.open()] == ["b1", "b3"]


def test_slow_and_failed_replicas_are_asked_last_and_remembered_by_whom_they_were_given() -> None:
    suspects = {"b3"}
    reader = ReaderUnderTest(ledger(), 0, 11, suspects=suspects)
    assert [bookie for bookie, _ in reader.open()] == ["b1", "b2", "b1"]
    reader.slow(reader.asked[1])
    assert suspects == {"b3", "b2"}
    reader.error(reader.asked[0], "broke", Answer.UNKNOWN)
    assert suspects == {"b1", "b2", "b3"}
    suspects.clear()
    reader.finish()
    reader = ReaderUnderTest(ledger(), 0, 11, suspects=suspects)
    assert [bookie for bookie, _ in reader.open()] == ["b1", "b2", "b3"]


# --- unconfirmed entries ------------------------------------------------------------------------


def test_an_unconfirmed_entry_that_all_replicas_lack_is_not_there() -> None:
    suspects: set[str] = set()
    reader = ReaderUnderTest(ledger(), 5, 5, unconfirmed=True, suspects=suspects)
    for _ in range(3):
        assert reader.failed == []
        reader.error(reader.asked[0])
    (failed,) = reader.failed
    assert isinstance(failed, NoSuchEntryError)
    assert failed.entry_id == 5
    # To lack what may not exist is no fault.
    assert suspects == set()


@pytest.mark.parametrize("position", range(3))
def test_one_replica_that_cannot_tell_makes_it_unknown(position: int) -> None:
    """C7: an I/O error is never absent, in whatever order it comes; nor is a wrong digest."""
    reader = ReaderUnderTest(ledger(), 5, 5, unconfirmed=True)
    for number in range(3):
        if number == position:
            reader.error(reader.asked[0], "answered IO_ERROR", Answer.UNKNOWN)
        else:
            reader.error(reader.asked[0])
    (failed,) = reader.failed
    assert isinstance(failed, EntryUnknownError)
    assert "answered IO_ERROR" in str(failed)


def test_what_lies_before_an_absent_entry_is_given_first_whatever_fails_first() -> None:
    reader = ReaderUnderTest(ledger(), 0, 11, unconfirmed=True)
    one, two, three = reader.asked
    for _ in range(3):
        reader.error(next(request for request in reader.asked if request.entry_ids[0] == 4))
    # What lies behind will not be given: it is not waited for.
    assert reader.stopped == [three]
    assert (reader.open(), reader.failed) == ([("b1", [0, 1, 2, 3])], [])
    assert two not in reader.asked
    reader.answer(one)
    assert [len(found) for found in reader.read()] == [4]
    assert [failed.entry_id for failed in reader.failed] == [4]
    assert reader.open() == []


def test_the_lowest_of_several_gaps_in_a_stripe_counts() -> None:
    reader = ReaderUnderTest(ledger(Quorum(3, 2, 2)), 0, 8, chunk_entries=9, unconfirmed=True)
    zero, one, two = reader.asked
    assert [list(request.entry_ids) for request in (zero, one, two)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    reader.answer(zero)
    reader.answer(two, 1)
    reader.answer(one, 2)
    while reader.asked:
        reader.error(reader.asked[0])
    assert [len(found) for found in reader.read()] == [5]
    assert [failed.entry_id for failed in reader.failed] == [5]


# --- what an answer means -----------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for code in Code if code not in (Code.OK, Code.NO_ENTRY, Code.NO_LEDGER)])
def test_only_what_a_bookie_says_is_absent_is_absent(code: Code) -> None:
    reader = ReaderUnderTest(ledger(Quorum(1, 1, 1)), 5, 5, unconfirmed=True)
    reader.code(reader.asked[0], code)
    (failed,) = reader.failed
    assert isinstance(failed, EntryUnknownError)
    assert f"b1 answered {code.name}" in str(failed)


def test_unauthorized_without_a_key_is_about_authentication() -> None:
    reader = ReaderUnderTest(ledger(Quorum(1, 1, 1)), 0, 0)
    reader.code(reader.asked[0], Code.UNAUTHORIZED)
    assert "it requires authentication (bookieAuthProviderFactoryClass)" in str(reader.failed[0])


def test_a_wrong_digest_goes_to_the_next_replica_and_ends_an_answer_before_it() -> None:
    suspects: set[str] = set()
    reader = ReaderUnderTest(ledger(), 0, 3, suspects=suspects)
    (request,) = reader.asked
    found = answers(request.entry_ids)
    wrong = bytearray(found[2].stored)
    wrong[-1] ^= 1
    found[2] = found[2]._replace(stored=memoryview(bytes(wrong)))
    reader.tell(request, EntriesRead(request.request_id, found))
    assert reader.open() == [("b1", [2, 3])]
    (request,) = reader.asked
    reader.tell(request, EntriesRead(request.request_id, {entry: found[entry] for entry in (2, 3)}))
    assert (reader.open(), suspects) == ([("b2", [2, 3])], {"b1"})
    reader.finish()
    assert reader.finished


def test_which_failures_are_reported_as_the_bookies() -> None:
    """What broke, and what did not answer in time. A bookie that answers works, whatever it says."""
    reader = ReaderUnderTest(ledger(Quorum(5, 5, 3)), 0, 0)
    one = reader.asked[0]
    reader.slow(one)
    # What is left of its time.
    assert reader.timers[one.request_id] == 5_000 - 100
    reader.fire(one)
    assert (reader.stopped, reader.reported) == ([one], ["b1"])
    reader.error(reader.asked[0], "broke", Answer.UNKNOWN)
    assert reader.reported == ["b1", "b2"]
    request = reader.asked[0]
    reader.tell(request, RequestFailed(request.request_id, MetadataUnavailableError("where is it?")))
    reader.code(reader.asked[0], Code.IO_ERROR)
    reader.code(reader.asked[0], Code.NO_ENTRY)
    assert reader.reported == ["b1", "b2"]
    assert "b1 did not answer in time; b2 broke; b3 where is it?; b4 answered IO_ERROR" in str(reader.failed[0])
    assert reader.timers == {}


# --- batch reads --------------------------------------------------------------------------------


def records(entry_ids: range) -> memoryview:
    return memoryview(b"".join(len(stored(entry)).to_bytes(4, "big") + stored(entry) for entry in entry_ids))


def test_entries_that_follow_each_other_are_read_in_a_batch() -> None:
    reader = ReaderUnderTest(ledger(), 0, 4, chunks_in_flight=2, max_answer_bytes=10_000)
    batch, single = reader.asked
    assert isinstance(batch, ReadBatch)
    assert 8_000 < batch.max_bytes < 10_000
    assert isinstance(single, ReadEntries)
    reader.tell(batch, BatchRead(batch.request_id, Code.OK, records(range(2))))
    # The rest, from the same bookie.
    assert reader.open()[1] == ("b1", [2, 3])
    batch = reader.asked[1]
    reader.tell(batch, BatchRead(batch.request_id, Code.NO_ENTRY, EMPTY))
    assert reader.open()[1] == ("b2", [2, 3])
    reader.tell(reader.asked[1], BatchRead(reader.asked[1].request_id, Code.OK, records(range(2, 4))))
    reader.finish()
    assert reader.finished
    striped = ReaderUnderTest(ledger(Quorum(3, 2, 2)), 0, 11, max_answer_bytes=10_000, chunk_entries=12)
    assert all(isinstance(request, ReadEntries) for request in striped.asked)


@pytest.mark.parametrize("single", [False, True])
def test_large_entries_of_an_answer_are_given_one_by_one_from_its_memory(single: bool) -> None:
    reader = ReaderUnderTest(ledger(), 0, 7, chunks_in_flight=1, max_answer_bytes=None if single else 1 << 22)
    kept = []

    def answer(entry_ids: range, wrong: int = -1) -> None:
        (request,) = reader.asked
        found = [stored(entry, entry - 1, bytes([entry]) * APART_BYTES) for entry in entry_ids]
        if wrong in entry_ids:
            found[wrong] = memoryview(bytes(found[wrong][:-1]) + b"!")
        event: EntriesRead | BatchRead
        if single:
            ids = zip(entry_ids, found, strict=True)
            kept.extend(found)
            event = EntriesRead(request.request_id, {i: ReadAnswer(LEDGER, i, Code.OK, one) for i, one in ids})
        else:
            kept.append(memoryview(b"".join(len(one).to_bytes(4, "big") + one for one in found)))
            event = BatchRead(request.request_id, Code.OK, kept[-1])
        reader.tell(request, event)

    answer(range(4), wrong=2)
    assert reader.machine.next_block() is None
    # The rest comes in another answer, with an entry that nobody asked for.
    assert reader.open() == [("b1", [2, 3])]
    answer(range(2, 4) if single else range(2, 5))
    blocks = []
    for _ in range(4):
        assert reader.asked == []
        blocks.append(reader.machine.next_block())
        reader.take()
    assert [(block.first_entry_id, len(block)) for block in blocks if block is not None] == [(i, 1) for i in range(4)]
    for entry_id, block in enumerate(blocks):
        assert block is not None
        assert bytes(block.payloads[0]) == bytes([entry_id]) * APART_BYTES
        assert block.max_lac == (2 if single else 3)
        assert any(
            np.shares_memory(np.frombuffer(block.payloads.data, np.uint8), np.frombuffer(one, np.uint8)) for one in kept
        )
    # Small ones are joined, as before.
    assert reader.machine.next_block() is None
    (request,) = reader.asked
    reader.answer(request)
    found = reader.machine.next_block()
    assert found is not None
    assert len(found) == 4


def test_a_bookie_that_refuses_batch_reads_is_asked_one_by_one_and_remembered() -> None:
    reader = ReaderUnderTest(ledger(Quorum(1, 1, 1)), 0, 7, chunks_in_flight=1, max_answer_bytes=10_000)
    (batch,) = reader.asked
    reader.tell(batch, BatchRefused(batch.request_id))
    assert reader.without_batch_reads == set()
    (again,) = reader.asked
    assert (again.request_id, isinstance(again, ReadEntries)) == (batch.request_id, True)
    # The time that the bookie has does not begin anew.
    assert batch.request_id in reader.timers
    reader.answer(again)
    assert reader.without_batch_reads == {"b1"}
    reader.read()
    assert isinstance(reader.asked[0], ReadEntries)
    reader.finish()
    assert reader.finished


def test_a_bookie_that_cannot_be_reached_after_a_batch_read_just_died() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3, max_answer_bytes=10_000)
    (batch,) = reader.asked
    reader.tell(batch, BatchRefused(batch.request_id))
    reader.error(reader.asked[0], "cannot connect", Answer.UNKNOWN)
    assert (reader.without_batch_reads, reader.reported) == (set(), ["b1"])
    assert isinstance(reader.asked[0], ReadBatch)
    assert reader.asked[0].bookie_id == "b2"


def test_so_many_single_reads_at_once_and_no_more() -> None:
    reader = ReaderUnderTest(ledger(), 0, 999, chunk_entries=1_000)
    assert len(reader.asked[0].entry_ids) == 500
    reader.finish()
    assert reader.next == 1_000


# --- passes -------------------------------------------------------------------------------------


def range_reader(
    known: LedgerMetadata | LedgerView,
    first: int,
    last: int,
    *,
    unconfirmed: bool = False,
    attempts: int = 3,
    lac: int = -1,
) -> RangeReader:
    view = LedgerView(LEDGER, known) if isinstance(known, LedgerMetadata) else known
    view.learn_lac(lac)
    settings = ReadSettings(attempts=attempts, requests_ahead=2, first_request_entries=4, max_request_entries=4)
    return RangeReader(
        KEY, view, first, last, settings, unconfirmed=unconfirmed, suspects=set(), without_batch_reads=set()
    )


class PassesUnderTest:
    """A reader over several passes. Bookies have the entries in ``held``."""

    def __init__(self, machine: RangeReader, held: dict[str, set[int]]) -> None:
        self.machine = machine
        self.held = held
        self.given: list[int] = []
        self.pauses_ms: list[float] = []
        self.asked: list[str] = []
        #: Read when metadata are asked for.
        self.metadata: list[LedgerMetadata | BookKeeperError] = []

    def run(self) -> Exception | None:
        machine = self.machine
        while True:
            while (block := machine.next_block()) is not None:
                self.given += range(block.first_entry_id, block.first_entry_id + len(block))
            actions = machine.take_actions()
            if not actions:
                assert machine.outcome is not None
                return machine.outcome.error if isinstance(machine.outcome, EndedBy) else None
            for action in actions:
                match action:
                    case ReadEntries(request_id, bookie_id, entry_ids):
                        self.asked.append(bookie_id)
                        found = {
                            entry: answers(range(entry, entry + 1))[entry]
                            if entry in self.held.get(bookie_id, ())
                            else ReadAnswer(LEDGER, entry, Code.NO_ENTRY, EMPTY)
                            for entry in entry_ids
                        }
                        machine.handle(EntriesRead(request_id, found))
                    case StartTimer("pause", after_ms):
                        self.pauses_ms.append(after_ms)
                        machine.handle(TimerFired("pause"))
                    case ReadMetadata():
                        told = self.metadata.pop(0)
                        machine.handle(
                            MetadataFailed(told) if isinstance(told, BookKeeperError) else MetadataFound(told, 0)
                        )


def test_an_entry_that_no_replica_gives_is_looked_for_with_fresh_metadata() -> None:
    """A re-replication moved the segment to b4."""
    moved = ledger(Quorum(2, 2, 2), (0, "b4 b2"))
    before = ledger(Quorum(2, 2, 2), (0, "b1 b2"))
    reader = PassesUnderTest(range_reader(before, 0, 9), {"b2": set(range(5)), "b4": set(range(10))})
    reader.metadata = [moved]
    assert reader.run() is None
    assert (reader.given, reader.pauses_ms) == (list(range(10)), [400])


def test_passes_that_give_nothing_are_bounded_and_pauses_grow() -> None:
    reader = PassesUnderTest(range_reader(ledger(), 0, 9), {"b1": set(range(5))})
    reader.metadata = [ledger()] * 2
    error = reader.run()
    assert isinstance(error, EntryUnknownError)
    assert error.entry_id == 5
    assert (reader.given, reader.pauses_ms, reader.metadata) == (list(range(5)), [400, 800], [])


def test_progress_begins_the_count_of_passes_anew() -> None:
    machine = range_reader(ledger(Quorum(1, 1, 1), (0, "b1")), 0, 5, attempts=2)
    reader = PassesUnderTest(machine, {f"b{number}": {number - 1} for number in range(1, 7)})
    reader.metadata = [ledger(Quorum(1, 1, 1), (0, f"b{number}")) for number in range(2, 7)]
    assert reader.run() is None
    assert (reader.given, reader.pauses_ms) == (list(range(6)), [400] * 5)


def test_metadata_that_cannot_be_read_end_a_reading() -> None:
    reader = PassesUnderTest(range_reader(ledger(), 0, 3), {})
    reader.metadata = [MetadataUnavailableError("no ZooKeeper server answered")]
    assert isinstance(reader.run(), MetadataUnavailableError)


def test_absent_needs_metadata_that_still_name_the_same_replicas() -> None:
    before = ledger(Quorum(2, 2, 2), (0, "b1 b2"))
    after = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (3, "b3 b2"))
    held = {"b1": set(range(3)), "b3": set(range(6))}
    reader = PassesUnderTest(range_reader(before, 0, 9, unconfirmed=True), held)
    # First the ensemble has been replaced; then nothing has changed.
    reader.metadata = [after, after]
    error = reader.run()
    assert isinstance(error, NoSuchEntryError)
    assert (error.entry_id, reader.given, reader.pauses_ms) == (6, list(range(6)), [])


def test_absent_counts_against_the_metadata_that_were_asked_with() -> None:
    """Somebody else's newer metadata in the view do not make older answers right."""
    before, after = ledger(Quorum(1, 1, 1), (0, "b1")), ledger(Quorum(1, 1, 1), (0, "b1"), (2, "b2"))
    view = LedgerView(LEDGER, before)
    machine = range_reader(view, 0, 3, unconfirmed=True)
    view.learn_metadata(after)
    reader = PassesUnderTest(machine, {"b1": {0, 1}, "b2": {2, 3}})
    reader.metadata = [after]
    assert reader.run() is None
    assert reader.given == [0, 1, 2, 3]


def test_unconfirmed_reading_stops_at_the_end_of_a_ledger_that_was_closed() -> None:
    reader = PassesUnderTest(range_reader(ledger(), 0, 9, unconfirmed=True), {"b2": set(range(4))})
    reader.metadata = [ledger().closed(3, 0)]
    error = reader.run()
    assert isinstance(error, NoSuchEntryError)
    assert "entry 4 lies beyond the last add confirmed, 3" in str(error)
    assert reader.given == [0, 1, 2, 3]


def test_known_entries_are_read_beyond_the_end_that_an_old_handle_knows() -> None:
    """The handle was opened while b1 had the ledger. Since then b2 replaced b1, and the ledger was closed."""
    before = ledger(Quorum(1, 1, 1), (0, "b1"))
    after = ledger(Quorum(1, 1, 1), (0, "b1"), (2, "b2")).closed(5, 0)
    reader = PassesUnderTest(range_reader(before, 0, 5, lac=0), {"b1": {0, 1}, "b2": {2, 3, 4, 5}})
    reader.metadata = [after]
    assert reader.run() is None
    assert (reader.given, reader.metadata) == (list(range(6)), [])


def beyond_the_end(*metadata: LedgerMetadata | BookKeeperError, first: int = 0) -> PassesUnderTest:
    """A reader of known entries up to 9 of a ledger that its handle knows as closed at 3."""
    machine = range_reader(ledger(Quorum(1, 1, 1), (0, "b1")).closed(3, 0), first, 9)
    reader = PassesUnderTest(machine, {"b1": set(range(10))})
    reader.metadata = [*metadata]
    return reader


@pytest.mark.parametrize("first", [0, 4, 7])
def test_a_known_entry_beyond_the_end_of_a_closed_ledger_does_not_exist(first: int) -> None:
    """C11: the bookie has entries that a recovery which lost wrote back."""
    reader = beyond_the_end(ledger(Quorum(1, 1, 1), (0, "b1")).closed(3, 0), first=first)
    error = reader.run()
    assert isinstance(error, NoSuchEntryError)
    assert f"entry {max(first, 4)} lies beyond the last add confirmed, 3" in str(error)
    assert (reader.given, reader.pauses_ms, reader.metadata) == (list(range(first, 4)), [], [])


@pytest.mark.parametrize("error", [NoSuchLedgerError("deleted"), MetadataUnavailableError("no answer")])
def test_before_a_known_entry_is_said_not_to_exist_the_ledger_must(error: BookKeeperError) -> None:
    reader = beyond_the_end(error)
    assert reader.run() is error
    assert reader.given == [0, 1, 2, 3]


def test_a_ledger_with_another_end_is_read_on_and_not_for_ever() -> None:
    """An id that was used again. Each look finds a later end."""
    ends = [ledger(Quorum(1, 1, 1), (0, "b1")).closed(end, 0) for end in range(4, 9)]
    reader = beyond_the_end(*ends)
    reader.metadata.append(ends[-1])
    assert isinstance(reader.run(), NoSuchEntryError)
    assert reader.given == list(range(9))
    stuck = beyond_the_end(*(ledger(Quorum(1, 1, 1), (0, name)).closed(3, 0) for name in ("b2", "b3", "b4", "b5")))
    assert isinstance(stuck.run(), NoSuchEntryError)
    assert len(stuck.metadata) == 1


def test_what_is_confirmed_is_read_as_such_on_the_way() -> None:
    """That all lack entry 2 is no proof: it is known to be there. It does not count as absent."""
    reader = PassesUnderTest(range_reader(ledger(), 0, 9, unconfirmed=True, lac=5, attempts=1), {"b1": {0, 1}})
    assert isinstance(reader.run(), EntryUnknownError)
    assert reader.given == [0, 1]


def test_the_view_learns_lacs_and_never_goes_back() -> None:
    view = LedgerView(LEDGER, ledger())
    for lac, known in ((4, 4), (2, 4), (9, 9)):
        view.learn_lac(lac)
        assert view.last_add_confirmed == known
    view.learn_metadata(ledger().closed(7, 0))
    view.learn_lac(12)
    # An older state comes last.
    view.learn_metadata(ledger())
    assert (view.closed, view.last_add_confirmed) == (True, 7)
    with pytest.raises(NoSuchEntryError, match="beyond the last add confirmed, 7"):
        view.check_range(0, 8)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_ranges(first: int, last: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{first}..{last}"):
        range_reader(ledger(), first, last)


@pytest.mark.parametrize(
    "metadata",
    [
        ledger(),
        ledger(Quorum(5, 3, 2)),
        ledger(Quorum(4, 1, 1)),
        ledger(Quorum(3, 2, 2), (0, "b1 b2 b3"), (7, "b1 b4 b3"), (8, "b5 b4 b3"), (40, "b5 b6 b3")),
        ledger(Quorum(2, 2, 1), (0, "b1 b2"), (31, "b3 b2")),
    ],
    ids=["plain", "striped", "no copies", "striped segments", "segments"],
)
@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_answers(metadata: LedgerMetadata, seed: int) -> None:
    """Each entry has at least one replica that can give it: the whole range is read, in order, within bounds."""
    random_ = random.Random(seed)
    first, last = random_.randint(0, 30), random_.randint(31, 90)
    giver = {
        entry: random_.choice([metadata.segment_of(entry).ensemble[k] for k in metadata.quorum.write_set(entry)])
        for entry in range(first, last + 1)
    }
    chunk_entries, chunks_in_flight = random_.randint(1, 12), random_.randint(1, 5)
    reader = ReaderUnderTest(metadata, first, last, chunk_entries=chunk_entries, chunks_in_flight=chunks_in_flight)
    while reader.asked:
        assert max(one.entry_ids[-1] for one in reader.asked) < reader.next + chunk_entries * chunks_in_flight
        request = random_.choice(reader.asked)
        if random_.random() < 0.2 and reader.slow_after_ms(request) is not None:
            reader.slow(request)
        members = metadata.segment_of(request.entry_ids[0]).ensemble
        assert all(
            request.bookie_id in [members[k] for k in metadata.quorum.write_set(entry)] for entry in request.entry_ids
        )
        sound = random_.random() < 0.6
        count = 0
        for entry in request.entry_ids:
            if not (sound or giver[entry] == request.bookie_id):
                break
            count += 1
        if count:
            reader.answer(request, random_.randint(1, count))
        else:
            reader.error(request)
        if random_.random() < 0.5:
            reader.read()
        if not reader.asked:
            reader.read()
    assert (reader.failed, reader.next, reader.finished) == ([], last + 1, True)
