"""Following a ledger: LACs in any order, polls that overtake each other, ensembles that change, ends of all kinds."""

from __future__ import annotations

import random

import pytest

from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_spark.protocol.ledger.tail import (
    Failed,
    Finished,
    LedgerTail,
    LongPoll,
    ReadLac,
    ReadRange,
    RefreshMetadata,
    StopPoll,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, Quorum
from tests.support.ledgers import LEDGER, ledger

UNKNOWN = EntryUnknownError("no replica gave the entry")


class TailUnderTest:
    """A tail, its open polls and what else it wants, in the words of the tests."""

    def __init__(self, first: int = 0, *, attempts: int = 3, suspects: set[str] | None = None) -> None:
        self.machine = LedgerTail(LEDGER, first, attempts=attempts, suspects=suspects)
        self.polls: dict[str, LongPoll] = {}
        self.range: ReadRange | None = None
        self.refreshes: list[int] = []
        self.lac_reads = 0
        self.end: Finished | Failed | None = None
        self.given = first
        self.take()

    def take(self) -> None:
        for action in self.machine.take_actions():
            assert self.end is None, action
            match action:
                case LongPoll(_, bookie_id):
                    assert bookie_id not in self.polls
                    self.polls[bookie_id] = action
                case StopPoll(request_id):
                    (bookie_id,) = [one for one, poll in self.polls.items() if poll.request_id == request_id]
                    del self.polls[bookie_id]
                case ReadRange():
                    assert self.range is None
                    assert action.first == self.given
                    assert action.last <= self.machine.last_add_confirmed
                    self.range = action
                case RefreshMetadata(delay_ms):
                    self.refreshes.append(delay_ms)
                case ReadLac():
                    self.lac_reads += 1
                case Finished() | Failed():
                    self.end = action

    def metadata(self, metadata: LedgerMetadata) -> None:
        self.refreshes.pop(0)
        self.machine.on_metadata(metadata)
        self.take()

    def metadata_failed(self, error: BookKeeperError) -> None:
        self.refreshes.pop(0)
        self.machine.on_metadata_failed(error)
        self.take()

    def changed(self) -> None:
        self.machine.on_metadata_changed()
        self.take()

    def lac(self, lac: int | None) -> None:
        self.lac_reads -= 1
        self.machine.on_lac_read(lac)
        self.take()

    def news(self, bookie_id: str, lac: int) -> None:
        poll = self.polls.pop(bookie_id)
        self.machine.on_poll_answered(poll.request_id, Answer.PRESENT, lac, early=True)
        self.take()

    def nothing(self, bookie_id: str, *, early: bool = False, answer: Answer = Answer.PRESENT) -> None:
        poll = self.polls.pop(bookie_id)
        self.machine.on_poll_answered(poll.request_id, answer, -1, early=early)
        self.take()

    def unknown_ledger(self, bookie_id: str) -> None:
        self.nothing(bookie_id, early=True, answer=Answer.ABSENT)

    def broken(self, bookie_id: str, reason: str = "broke") -> None:
        poll = self.polls.pop(bookie_id)
        self.machine.on_poll_failed(poll.request_id, reason)
        self.take()

    def slow(self, bookie_id: str) -> None:
        self.machine.on_poll_slow(self.polls[bookie_id].request_id)
        self.take()

    def read(self, count: int | None = None, max_lac: int = -1) -> None:
        """Entries of the range come, all or ``count``; all end it."""
        assert self.range is not None
        left = self.range.last - self.given + 1
        count = left if count is None else count
        self.machine.on_entries(count, max_lac)
        self.given += count
        assert self.machine.next_entry_id == self.given
        if count == left:
            self.range = None
            self.machine.on_range_read()
        self.take()

    def read_fails(self, error: BookKeeperError = UNKNOWN) -> None:
        self.range = None
        self.machine.on_range_failed(error)
        self.take()

    @property
    def error(self) -> BookKeeperError:
        assert isinstance(self.end, Failed)
        return self.end.error


def following(metadata: LedgerMetadata | None = None, *, lac: int = -1, attempts: int = 3) -> TailUnderTest:
    """A tail that has caught up with ``lac`` and polls."""
    tail = TailUnderTest(attempts=attempts)
    tail.metadata(metadata or ledger())
    tail.lac(lac)
    if tail.range is not None:
        tail.read()
    return tail


# --- the beginning ------------------------------------------------------------------------------


def test_it_begins_with_the_metadata_and_a_lac_read() -> None:
    tail = TailUnderTest()
    assert tail.refreshes == [0]
    assert not tail.machine.waiting
    tail.metadata(ledger())
    assert (tail.lac_reads, tail.polls, tail.machine.waiting) == (1, {}, False)
    tail.lac(4)
    assert tail.range == ReadRange(0, 4)
    assert not tail.machine.waiting
    tail.read()
    assert tail.machine.waiting
    assert list(tail.polls) == ["b1"]
    assert tail.polls["b1"].previous_lac == 4


def test_a_lac_that_cannot_be_read_is_polled_for() -> None:
    tail = TailUnderTest()
    tail.metadata(ledger(Quorum(2, 2, 2), (0, "b1 b2"), (8, "b3 b2")))
    tail.lac(None)
    # The segment proves that entry 7 was confirmed.
    assert tail.range == ReadRange(0, 7)
    tail.read()
    assert [poll.previous_lac for poll in tail.polls.values()] == [7]


def test_a_closed_ledger_is_read_without_asking_anybody() -> None:
    tail = TailUnderTest(2)
    tail.metadata(ledger().closed(9, 0))
    assert (tail.lac_reads, tail.polls) == (0, {})
    assert tail.range == ReadRange(2, 9)
    tail.read()
    assert isinstance(tail.end, Finished)


@pytest.mark.parametrize(("last", "first"), [(-1, 0), (9, 10)])
def test_a_closed_ledger_with_nothing_left(last: int, first: int) -> None:
    tail = TailUnderTest(first)
    tail.metadata(ledger().closed(last, 0))
    assert isinstance(tail.end, Finished)


def test_closed_before_what_was_asked_for() -> None:
    tail = TailUnderTest(11)
    tail.metadata(ledger().closed(9, 0))
    assert isinstance(tail.error, NoSuchEntryError)
    assert tail.error.entry_id == 11


def test_a_first_entry_far_ahead_is_waited_for() -> None:
    tail = TailUnderTest(10)
    tail.metadata(ledger())
    tail.lac(4)
    for lac in (7, 9):
        tail.news(next(iter(tail.polls)), lac)
        assert tail.range is None
    tail.news(next(iter(tail.polls)), 12)
    assert tail.range == ReadRange(10, 12)


def test_a_negative_entry() -> None:
    with pytest.raises(InvalidArgumentError, match="from entry -1"):
        LedgerTail(LEDGER, -1, attempts=1)


# --- LACs ---------------------------------------------------------------------------------------


def test_lacs_heard_out_of_order() -> None:
    tail = following(lac=4)
    (first,) = tail.polls
    tail.slow(first)
    (second,) = tail.polls.keys() - {first}
    tail.news(second, 9)
    assert tail.range == ReadRange(5, 9)
    # The overtaken one, older news: the LAC does not go back, nothing is read twice.
    tail.news(first, 7)
    assert tail.machine.last_add_confirmed == 9
    tail.read()
    assert tail.given == 10
    assert [poll.previous_lac for poll in tail.polls.values()] == [9]


def test_a_lac_in_an_entry_counts() -> None:
    tail = following(lac=4)
    tail.news("b1", 9)
    tail.read(3, max_lac=12)
    assert tail.machine.last_add_confirmed == 12
    tail.read()
    assert tail.range == ReadRange(10, 12)


def test_news_during_a_read_are_read_next() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    tail.news("b2", 6)
    tail.news("b1", 8)
    assert tail.range == ReadRange(5, 6)
    tail.read()
    assert tail.range == ReadRange(7, 8)


# --- polls --------------------------------------------------------------------------------------


def test_a_slow_poll_is_joined_by_others_with_longer_waits() -> None:
    tail = following(lac=4)
    assert tail.polls["b1"].slow_after_ms == 1_500
    tail.slow("b1")
    assert tail.polls["b2"].slow_after_ms == 3_000
    tail.slow("b1")
    tail.slow("b2")
    assert tail.polls["b3"].slow_after_ms == 5_000
    tail.slow("b3")
    assert list(tail.polls) == ["b1", "b2", "b3"]


def test_polls_turn_round_while_nothing_comes() -> None:
    tail = following(lac=4)
    asked = []
    for _ in range(6):
        (bookie,) = tail.polls
        asked.append(bookie)
        assert tail.polls[bookie].delay_ms == 0
        tail.nothing(bookie)
    assert asked == ["b1", "b2", "b3"] * 2


def test_while_a_second_poll_is_under_way_the_first_is_not_repeated() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    tail.nothing("b1")
    assert list(tail.polls) == ["b2"]
    tail.slow("b2")
    assert list(tail.polls) == ["b2", "b3"]


def test_an_overtaken_poll_is_left_and_found_out_if_it_hangs() -> None:
    suspects: set[str] = set()
    tail = TailUnderTest(suspects=suspects)
    tail.metadata(ledger())
    tail.lac(-1)
    (hanging,) = tail.polls
    tail.slow(hanging)
    for lac in range(3):
        (bookie,) = tail.polls.keys() - {hanging}
        tail.news(bookie, lac)
        tail.read()
        assert tail.polls[hanging].previous_lac == -1
    tail.broken(hanging)
    assert suspects == {hanging}
    for lac in range(3, 9):
        (bookie,) = tail.polls
        assert bookie != hanging
        tail.news(bookie, lac)
        tail.read()


def test_the_bookie_that_holds_the_next_two_entries_is_asked_first() -> None:
    metadata = ledger(Quorum(5, 2, 2))
    for lac in range(-1, 6):
        tail = following(metadata, lac=lac)
        (bookie,) = tail.polls
        members = [
            {metadata.last_segment.ensemble[i] for i in metadata.quorum.write_set(entry)}
            for entry in (lac + 1, lac + 2)
        ]
        assert all(bookie in one for one in members)


def test_no_bookie_knows_the_ledger_yet() -> None:
    """ "No such ledger" means "nothing yet": each is asked at once, then all after growing pauses, for ever."""
    tail = following(attempts=2)
    pauses = []
    for _ in range(40):
        for number in range(3):
            (bookie,) = tail.polls
            delay_ms = tail.polls[bookie].delay_ms
            assert (delay_ms > 0) is (number == 0 and pauses != []) or not pauses
            tail.unknown_ledger(bookie)
        pauses.append(next(iter(tail.polls.values())).delay_ms)
    assert (tail.end, pauses[:6], pauses[-1]) == (None, [50, 100, 200, 400, 800, 1_000], 1_000)
    (bookie,) = tail.polls
    tail.news(bookie, 0)
    tail.read()
    assert [poll.delay_ms for poll in tail.polls.values()] == [0]


def test_a_hanging_bookie_does_not_stop_the_rounds_of_those_that_know_nothing_yet() -> None:
    tail = following()
    (hanging,) = tail.polls
    tail.slow(hanging)
    for _ in range(5):
        (bookie,) = tail.polls.keys() - {hanging}
        tail.unknown_ledger(bookie)
    (bookie,) = tail.polls.keys() - {hanging}
    tail.news(bookie, 0)
    assert tail.range == ReadRange(0, 0)


def test_a_poll_that_does_not_wait_is_not_repeated_at_once() -> None:
    tail = following(lac=4)
    for _ in range(3):
        (bookie,) = tail.polls
        tail.nothing(bookie, early=True)
    assert [poll.delay_ms for poll in tail.polls.values()] == [50]


def test_one_sound_bookie_is_enough() -> None:
    suspects: set[str] = set()
    tail = TailUnderTest(attempts=2, suspects=suspects)
    tail.metadata(ledger())
    tail.lac(0)
    tail.read()
    for lac in range(1, 20):
        while "b3" not in tail.polls:
            tail.broken(next(iter(tail.polls)))
        tail.news("b3", lac)
        tail.read()
    assert suspects == {"b1", "b2"}
    assert tail.end is None


def test_all_bookies_away() -> None:
    tail = following(lac=4, attempts=3)
    pauses = []
    for _ in range(3):
        for _ in range(3):
            (bookie,) = tail.polls
            tail.broken(bookie, "did not answer in time")
        pauses += [poll.delay_ms for poll in tail.polls.values()]
    assert pauses == [50, 100]
    assert isinstance(tail.error, EntryUnknownError)
    assert tail.error.retriable
    for bookie in ("b1", "b2", "b3"):
        assert f"{bookie} did not answer in time" in str(tail.error)
    assert tail.error.entry_id == 5


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    tail = following(lac=4, attempts=2)
    for _ in range(10):
        for _ in range(3):
            tail.broken(next(iter(tail.polls)))
        tail.nothing(next(iter(tail.polls)))
    assert tail.end is None


def test_late_answers_are_ignored() -> None:
    tail = following(lac=4)
    poll = tail.polls["b1"]
    tail.news("b1", 5)
    tail.machine.on_poll_answered(poll.request_id, Answer.PRESENT, 8, early=True)
    tail.machine.on_poll_failed(poll.request_id, "late")
    tail.machine.on_poll_slow(poll.request_id)
    tail.take()
    assert tail.machine.last_add_confirmed == 5


# --- metadata -----------------------------------------------------------------------------------


def test_an_ensemble_change_moves_the_polls() -> None:
    tail = following(ledger(), lac=4)
    tail.slow("b1")
    assert list(tail.polls) == ["b1", "b2"]
    tail.changed()
    assert tail.refreshes == [0]
    tail.metadata(ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (5, "b4 b2 b3")))
    assert list(tail.polls) == ["b2"]
    tail.slow("b2")
    tail.slow("b4")
    assert list(tail.polls) == ["b2", "b4", "b3"]


def test_a_new_segment_tells_of_confirmed_entries() -> None:
    tail = following(lac=4)
    tail.changed()
    tail.metadata(ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (9, "b4 b2 b3")))
    assert tail.range == ReadRange(5, 8)


def test_closing_while_polling() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    tail.changed()
    tail.metadata(ledger().closed(6, 0))
    assert tail.polls == {}
    assert tail.range == ReadRange(5, 6)
    tail.read()
    assert isinstance(tail.end, Finished)


def test_closing_while_reading() -> None:
    tail = following(lac=4)
    tail.news("b1", 6)
    tail.changed()
    tail.metadata(ledger().closed(8, 0))
    assert tail.range == ReadRange(5, 6)
    tail.read()
    assert tail.range == ReadRange(7, 8)
    tail.read()
    assert isinstance(tail.end, Finished)


def test_closed_and_a_lac_beyond_the_end_is_not_followed() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    tail.changed()
    tail.metadata(ledger().closed(6, 0))
    tail.read(1, max_lac=9)
    tail.read()
    assert isinstance(tail.end, Finished)
    assert tail.given == 7


def test_a_fenced_ledger_waits_for_its_metadata() -> None:
    tail = following(lac=4)
    # The fence wakes the poll; then the metadata say why.
    tail.nothing("b1", early=True)
    tail.changed()
    tail.metadata(ledger().in_recovery())
    assert (tail.polls, tail.machine.waiting, tail.end) == ({}, True, None)
    tail.changed()
    tail.metadata(ledger().closed(7, 0))
    tail.read()
    assert isinstance(tail.end, Finished)


def test_following_begins_during_a_recovery() -> None:
    tail = TailUnderTest()
    tail.metadata(ledger().in_recovery())
    tail.lac(3)
    tail.read()
    assert (tail.polls, tail.machine.waiting) == ({}, True)


def test_a_change_while_the_metadata_are_being_read_is_not_missed() -> None:
    tail = following()
    tail.changed()
    tail.changed()
    assert tail.refreshes == [0]
    tail.metadata(ledger())
    assert tail.refreshes == [0]
    tail.metadata(ledger().closed(-1, 0))
    assert isinstance(tail.end, Finished)


def test_a_deleted_ledger() -> None:
    tail = following()
    tail.changed()
    tail.metadata_failed(NoSuchLedgerError("the ledger does not exist"))
    assert isinstance(tail.error, NoSuchLedgerError)
    assert tail.polls == {}


def test_metadata_that_cannot_be_read_for_a_while() -> None:
    tail = following(attempts=3)
    tail.changed()
    tail.metadata_failed(MetadataUnavailableError("no ZooKeeper server answered"))
    # Meanwhile entries go on.
    tail.news("b2", 0)
    tail.read()
    assert tail.refreshes == [50]
    tail.metadata_failed(MetadataUnavailableError("no ZooKeeper server answered"))
    assert tail.refreshes == [100]
    tail.metadata(ledger())
    tail.changed()
    for _ in range(3):
        assert tail.end is None
        tail.metadata_failed(MetadataUnavailableError("no ZooKeeper server answered"))
    assert isinstance(tail.error, MetadataUnavailableError)


def test_metadata_that_cannot_be_understood() -> None:
    tail = following()
    tail.changed()
    tail.metadata_failed(MetadataFormatError("what is this"))
    assert isinstance(tail.error, MetadataFormatError)


# --- reads that fail ----------------------------------------------------------------------------


def test_a_failed_range_is_read_again_from_where_it_stood() -> None:
    tail = following(lac=4)
    tail.news("b1", 9)
    tail.read(2)
    tail.read_fails()
    assert (tail.range, tail.refreshes) == (None, [50])
    tail.metadata(ledger())
    assert tail.range == ReadRange(7, 9)
    tail.read()
    assert tail.machine.waiting


def test_a_range_that_keeps_failing() -> None:
    tail = following(lac=4, attempts=3)
    tail.news("b1", 9)
    for pause_ms in (50, 100):
        tail.read_fails()
        assert tail.refreshes == [pause_ms]
        tail.metadata(ledger())
    tail.read_fails()
    assert tail.error is UNKNOWN


def test_what_cannot_succeed_later_is_not_tried_again() -> None:
    tail = following(lac=4)
    tail.news("b1", 9)
    tail.read_fails(NoSuchLedgerError("gone"))
    assert isinstance(tail.error, NoSuchLedgerError)


def test_nothing_happens_after_the_end() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    poll = tail.polls["b2"]
    tail.changed()
    tail.metadata(ledger().closed(4, 0))
    assert isinstance(tail.end, Finished)
    tail.machine.on_poll_answered(poll.request_id, Answer.PRESENT, 9, early=True)
    tail.machine.on_poll_failed(poll.request_id, "late")
    tail.machine.on_metadata_changed()
    tail.machine.on_metadata_failed(BookieUnavailableError("late"))
    tail.machine.on_metadata(ledger())
    tail.machine.on_lac_read(12)
    assert tail.machine.take_actions() == []


# --- any order ----------------------------------------------------------------------------------


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2), Quorum(2, 1, 1), Quorum(1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(15))
def test_any_order_of_events(quorum: Quorum, seed: int) -> None:
    """Whatever happens in between: each entry once, in order, none above the LAC of its time; and once the ledger
    is closed and everything answers, the tail ends at its last entry."""
    random_ = random.Random(seed)
    confirmed, spare = -1, quorum.ensemble_size + 1
    metadata = ledger(quorum)
    tail = TailUnderTest(random_.choice([0, 0, 3]), attempts=1_000)
    for step in range(600):
        if step < 500 and random_.random() < 0.3:
            confirmed += random_.randint(0, 3)
        event = random_.random()
        if step == 500:
            metadata = metadata.closed(max(confirmed, tail.given), 0)
            tail.changed()
        elif event < 0.02 and step < 500:
            first, ensemble = confirmed + 1, list(metadata.last_segment.ensemble)
            ensemble[random_.randrange(len(ensemble))] = f"b{(spare := spare + 1)}"
            segments = [(one.first_entry_id, " ".join(one.ensemble)) for one in metadata.segments]
            kept = [one for one in segments if one[0] != first]
            metadata = ledger(quorum, *kept, (first, " ".join(ensemble)))
            tail.changed()
        elif event < 0.1 and tail.refreshes:
            tail.metadata_failed(MetadataUnavailableError("away"))
        elif event < 0.3 and tail.refreshes:
            tail.metadata(metadata)
        elif event < 0.4 and tail.lac_reads:
            tail.lac(random_.choice([None, random_.randint(-1, confirmed)]))
        elif event < 0.6 and tail.range is not None:
            if random_.random() < 0.3:
                tail.read_fails()
            else:
                assert tail.range.last <= max(confirmed, metadata.last_entry_id)
                tail.read(random_.randint(1, tail.range.last - tail.given + 1), random_.randint(-1, confirmed))
        elif tail.polls:
            bookie = random_.choice(sorted(tail.polls))
            assert int(bookie[1:]) <= spare
            what = random_.randrange(5)
            if what == 0:
                tail.broken(bookie)
            elif what == 1:
                tail.slow(bookie)
            elif what == 2:
                tail.unknown_ledger(bookie)
            elif confirmed > tail.polls[bookie].previous_lac:
                tail.news(bookie, random_.randint(tail.polls[bookie].previous_lac + 1, confirmed))
            else:
                tail.nothing(bookie, early=what == 3)
        if tail.end is not None:
            break
        # Somebody is always at work: no state from which nothing leads on.
        assert tail.polls or tail.range or tail.refreshes or tail.lac_reads
    while tail.end is None:
        if tail.refreshes:
            tail.metadata(metadata)
        elif tail.range is not None:
            tail.read()
        else:
            tail.lac(confirmed)
    assert isinstance(tail.end, Finished), tail.end
    assert tail.given == metadata.last_entry_id + 1
