"""Reading ranges: replicas, partial answers, stripes, segments, order, bounds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bk_spark.protocol.entries.entry_block import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import EntryUnknownError, InvalidArgumentError, NoSuchEntryError
from bk_spark.protocol.ledger.reader import RangeReader, ReadEntries, ReadFailed, StopReading
from bk_spark.protocol.ledger.speculation import Speculation
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, Quorum
from tests.support.ledgers import LEDGER, ledger, payload_of


def block(entry_ids: range, max_lac: int = -1) -> EntryBlock:
    return EntryBlock(entry_ids.start, Payloads.of([payload_of(entry) for entry in entry_ids]), max_lac)


class ReaderUnderTest:
    """A reader, the requests it has open, and the entries it gave."""

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
    ) -> None:
        self.machine = RangeReader(
            LEDGER,
            metadata,
            first,
            last,
            chunk_entries=chunk_entries,
            chunks_in_flight=chunks_in_flight,
            unconfirmed=unconfirmed,
            speculation=speculation,
            suspects=suspects,
        )
        self.asked: list[ReadEntries] = []
        self.stopped: list[ReadEntries] = []
        self.failed: list[ReadFailed] = []
        self.first = self.next = first
        self.take()

    def take(self) -> None:
        for action in self.machine.take_actions():
            match action:
                case ReadEntries():
                    self.asked.append(action)
                case StopReading(request_id):
                    (stopped,) = [request for request in self.asked if request.request_id == request_id]
                    self.asked.remove(stopped)
                    self.stopped.append(stopped)
                case ReadFailed():
                    self.failed.append(action)

    def open(self) -> list[tuple[str, list[int]]]:
        return [(request.bookie_id, list(request.entry_ids)) for request in self.asked]

    def answer(self, request: ReadEntries, count: int | None = None, lac: int = -1) -> None:
        self.asked.remove(request)
        self.machine.on_entries(request.request_id, block(request.entry_ids[:count], lac))
        self.take()

    def error(self, request: ReadEntries, reason: str = "does not have it", answer: Answer = Answer.ABSENT) -> None:
        self.asked.remove(request)
        self.machine.on_error(request.request_id, answer, reason)
        self.take()

    def slow(self, request: ReadEntries) -> None:
        self.machine.on_slow(request.request_id)
        self.take()

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

    def finish(self, answer: Callable[[ReadEntries], None] | None = None) -> None:
        while self.asked:
            (answer or self.answer)(self.asked[0])
            self.read()


def test_successive_chunks_begin_at_different_replicas() -> None:
    reader = ReaderUnderTest(ledger(), 0, 11)
    assert reader.open() == [("b1", [0, 1, 2, 3]), ("b2", [4, 5, 6, 7]), ("b3", [8, 9, 10, 11])]
    reader.finish()
    assert (reader.machine.finished, reader.next) == (True, 12)


def test_blocks_come_in_order_whatever_the_order_of_answers() -> None:
    reader = ReaderUnderTest(ledger(), 5, 14)
    first, second, third = reader.asked
    reader.answer(third)
    reader.answer(second)
    assert reader.read() == []
    assert not reader.machine.finished
    reader.answer(first)
    assert [len(one) for one in reader.read()] == [4, 4, 2]
    assert reader.machine.finished


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


def test_chunks_may_change_their_size() -> None:
    reader = ReaderUnderTest(ledger(), 0, 20, chunks_in_flight=1)
    reader.machine.chunk_entries = 10
    reader.finish()
    reader = ReaderUnderTest(ledger(), 0, 20, chunks_in_flight=1)
    reader.machine.chunk_entries = 10
    reader.answer(reader.asked[0])
    reader.read()
    assert [len(entries) for _, entries in reader.open()] == [10]


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
    assert reader.machine.finished


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
    assert isinstance(failed.error, EntryUnknownError)
    assert failed.error.entry_id == 0
    for part in ("b1 does not have it", "b2 answered IO_ERROR", "b3 did not answer in time"):
        assert part in str(failed.error)
    assert "see that these bookies run and can be reached from here" in str(failed.error)
    assert reader.machine.error is failed.error
    # What comes later changes nothing.
    for request in list(reader.asked):
        reader.answer(request)
    assert (reader.read(), reader.machine.finished, len(reader.failed)) == ([], False, 1)


def test_what_helps_depends_on_whether_the_replicas_answered() -> None:
    reader = ReaderUnderTest(ledger(), 0, 0)
    for _ in range(3):
        reader.error(reader.asked[-1])
    (failed,) = reader.failed
    assert isinstance(failed.error, EntryUnknownError)
    assert "were their disks or directories replaced? Bring back what they held" in str(failed.error)


def test_the_error_names_the_entry_that_could_not_be_had() -> None:
    reader = ReaderUnderTest(ledger(), 10, 13, chunks_in_flight=1)
    reader.answer(reader.asked[0], 2)
    for _ in range(3):
        reader.error(reader.asked[0])
    assert (reader.failed, reader.machine.error) == ([], None)
    # What lies before is given out first.
    assert [len(one) for one in reader.read()] == [2]
    (failed,) = reader.failed
    assert failed.error.entry_id == 12
    assert reader.machine.error is failed.error
    assert (reader.read(), reader.machine.finished) == ([], False)


def test_answers_to_unknown_requests_are_ignored() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    request = reader.asked[0]
    reader.answer(request)
    reader.machine.on_entries(request.request_id, block(request.entry_ids))
    reader.machine.on_error(request.request_id, Answer.UNKNOWN, "late")
    reader.machine.on_slow(request.request_id)
    reader.machine.on_entries(999, block(range(5)))
    assert [len(one) for one in reader.read()] == [4]
    assert reader.machine.finished


def test_more_entries_than_asked_for_are_cut_off() -> None:
    reader = ReaderUnderTest(ledger(), 0, 3)
    (request,) = reader.asked
    reader.machine.on_entries(request.request_id, block(range(9)))
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
    assert reader.machine.finished


def test_an_entry_of_a_stripe_has_its_write_set_and_no_more() -> None:
    reader = ReaderUnderTest(ledger(Quorum(4, 2, 1)), 3, 3)
    reader.error(reader.asked[0])
    reader.error(reader.asked[0])
    assert "b4 " in str(reader.failed[0].error)
    assert "b1 " in str(reader.failed[0].error)
    assert "b2 " not in str(reader.failed[0].error)


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
    assert first.slow_after_ms == 100
    reader.slow(first)
    assert reader.open() == [("b1", [0, 1, 2, 3]), ("b2", [0, 1, 2, 3])]
    assert reader.asked[1].slow_after_ms == 200
    reader.slow(reader.asked[1])
    # Nobody is left to be asked: no further call of on_slow is wanted.
    assert reader.asked[2].slow_after_ms is None
    reader.slow(reader.asked[2])
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
    reader.machine.on_entries(both[1 - winner].request_id, block(range(4)))
    reader.machine.on_error(both[1 - winner].request_id, Answer.UNKNOWN, "late")
    assert [len(one) for one in reader.read()] == [4]
    assert reader.machine.finished


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
    assert isinstance(failed.error, NoSuchEntryError)
    assert failed.error.entry_id == 5
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
    assert isinstance(failed.error, EntryUnknownError)
    assert "answered IO_ERROR" in str(failed.error)


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
    assert [failed.error.entry_id for failed in reader.failed] == [4]
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
    assert [failed.error.entry_id for failed in reader.failed] == [5]


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3), (0, -1)])
def test_impossible_ranges(first: int, last: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{first}..{last}"):
        RangeReader(LEDGER, ledger(), first, last, chunk_entries=1, chunks_in_flight=1)


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
    reader = ReaderUnderTest(
        metadata, first, last, chunk_entries=random_.randint(1, 12), chunks_in_flight=random_.randint(1, 5)
    )
    while reader.asked:
        assert len(reader.machine._chunks) <= reader.machine._chunks_in_flight
        request = random_.choice(reader.asked)
        if random_.random() < 0.2:
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
        reader.machine.chunk_entries = random_.randint(1, 12)
    assert (reader.failed, reader.next, reader.machine.finished) == ([], last + 1, True)
