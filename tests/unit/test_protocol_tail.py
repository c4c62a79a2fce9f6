"""Following a ledger: LACs in any order, polls that overtake each other, ensembles that change, ends of all kinds."""

from __future__ import annotations

import random

import pytest

from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_lac
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
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.read_actions import (
    AskLac,
    EntriesGiven,
    LacHeard,
    LacTold,
    LongPoll,
    MetadataChanged,
    PollAnswered,
    RangeFailed,
    RangeRead,
    ReadLac,
    ReadRange,
    ReportFailure,
    RequestFailed,
    WatchMetadata,
)
from bk_spark.protocol.ledger.reading.read_settings import TailSettings
from bk_spark.protocol.ledger.reading.tail import Event, LedgerTail
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from tests.support.ledgers import LEDGER, PASSWORD, ledger

UNKNOWN = EntryUnknownError("no replica returned the entry")
KEY = LedgerKey(LEDGER, DigestType.CRC32C, digest_function(DigestType.CRC32C, PASSWORD))


def proof(lac: int) -> bytes:
    return pack_lac(LEDGER, lac, KEY.digest)


class TailUnderTest:
    """A tail, its open polls and what else it wants, in the words of the tests. Its pauses pass at once."""

    def __init__(
        self,
        first: int = 0,
        *,
        attempts: int = 3,
        suspects: set[str] | None = None,
        max_wait_ms: int | None = None,
        known: LedgerMetadata | None = None,
    ) -> None:
        self.view = LedgerView(LEDGER, known or ledger())
        settings = TailSettings(attempts=attempts, max_wait_ms=max_wait_ms, poll_ms=4_000, timeout_ms=5_000)
        self.machine = LedgerTail(KEY, self.view, first, settings, suspects=set() if suspects is None else suspects)
        self.polls: dict[str, LongPoll] = {}
        #: Of polls, by request id.
        self.delays_ms: dict[int, float] = {}
        #: Timers that run, in ms.
        self.timers: dict[object, float] = {}
        #: Requests for proof of a LAC.
        self.asked: dict[str, AskLac] = {}
        self.range: ReadRange | None = None
        self.refreshes: list[float] = []
        self.lac_reads = 0
        self.reported: list[str] = []
        self.given = first
        self._pause_ms = 0.0
        self.take()

    @property
    def end(self) -> Succeeded[None] | EndedBy | None:
        return self.machine.outcome

    def take(self) -> None:
        actions = self.machine.take_actions()
        for action in actions:
            match action:
                case LongPoll(_, bookie_id):
                    assert bookie_id not in self.polls
                    self.polls[bookie_id] = action
                case StopRequest(request_id):
                    self.polls = {one: poll for one, poll in self.polls.items() if poll.request_id != request_id}
                    self.asked = {one: asked for one, asked in self.asked.items() if asked.request_id != request_id}
                case ReadRange():
                    assert self.range is None
                    assert action.first == self.given
                    assert action.last <= self.machine.last_add_confirmed
                    self.range = action
                case WatchMetadata():
                    self.refreshes.append(self._pause_ms)
                    self._pause_ms = 0
                case ReadLac():
                    self.lac_reads += 1
                case AskLac(_, bookie_id):
                    self.asked[bookie_id] = action
                case StartTimer("metadata", after_ms):
                    self._pause_ms = after_ms
                    self.machine.handle(TimerFired("metadata"))
                case StartTimer(("pause", int(request_id)), after_ms):
                    self.delays_ms[request_id] = after_ms
                    self.machine.handle(TimerFired(("pause", request_id)))
                case StartTimer(name, after_ms):
                    self.timers[name] = after_ms
                case StopTimer(name):
                    self.timers.pop(name, None)
                case ReportFailure(bookie_id):
                    self.reported.append(bookie_id)
        if actions:
            self.take()

    def tell(self, event: Event) -> None:
        self.machine.handle(event)
        self.take()

    def metadata(self, metadata: LedgerMetadata) -> None:
        self.refreshes.pop(0)
        self.tell(MetadataFound(metadata, 0))

    def metadata_failed(self, error: BookKeeperError) -> None:
        self.refreshes.pop(0)
        self.tell(MetadataFailed(error))

    def changed(self) -> None:
        self.tell(MetadataChanged())

    def lac(self, lac: int | None) -> None:
        self.lac_reads -= 1
        self.tell(LacHeard(lac))

    def delay_ms(self, bookie_id: str) -> float:
        return self.delays_ms.get(self.polls[bookie_id].request_id, 0)

    @property
    def pauses_ms(self) -> list[float]:
        """Before the polls that are open."""
        return [self.delay_ms(bookie_id) for bookie_id in self.polls]

    def slow_after_ms(self, bookie_id: str) -> float:
        return self.timers["slow", self.polls[bookie_id].request_id]

    def claim(self, bookie_id: str, lac: int) -> None:
        poll = self.polls.pop(bookie_id)
        self.tell(PollAnswered(poll.request_id, Code.OK, lac))

    def prove(self, bookie_id: str, lac: int | None) -> None:
        asked = self.asked.pop(bookie_id)
        self.tell(LacTold(asked.request_id, Code.OK, None if lac is None else proof(lac), None))

    def news(self, bookie_id: str, lac: int) -> None:
        """A claim, and its proof."""
        self.claim(bookie_id, lac)
        self.prove(bookie_id, lac)

    def nothing(self, bookie_id: str, *, early: bool = False, code: Code = Code.OK) -> None:
        poll = self.polls.pop(bookie_id)
        if not early:
            self.tell(TimerFired(("early", poll.request_id)))
        self.tell(PollAnswered(poll.request_id, code, poll.previous_lac if code is Code.OK else None))

    def unknown_ledger(self, bookie_id: str) -> None:
        self.nothing(bookie_id, early=True, code=Code.NO_LEDGER)

    def broken(self, bookie_id: str, reason: str = "broke") -> None:
        poll = self.polls.pop(bookie_id)
        self.tell(RequestFailed(poll.request_id, BookieUnavailableError(reason)))

    def late(self, bookie_id: str) -> None:
        self.tell(TimerFired(("late", self.polls[bookie_id].request_id)))

    def slow(self, bookie_id: str) -> None:
        name = ("slow", self.polls[bookie_id].request_id)
        self.timers.pop(name, None)
        self.tell(TimerFired(name))

    def read(self, count: int | None = None, max_lac: int = -1) -> None:
        """Entries of the range come, all or ``count``; all end it."""
        assert self.range is not None
        left = self.range.last - self.given + 1
        count = left if count is None else count
        self.given += count
        done = count == left
        if done:
            self.range = None
        self.tell(EntriesGiven(count, max_lac))
        assert self.machine.next_entry_id == self.given
        if done:
            self.tell(RangeRead())

    def read_fails(self, error: BookKeeperError = UNKNOWN) -> None:
        self.range = None
        self.tell(RangeFailed(error))

    @property
    def error(self) -> BookKeeperError:
        assert isinstance(self.end, EndedBy)
        assert isinstance(self.end.error, BookKeeperError)
        return self.end.error


def following(
    metadata: LedgerMetadata | None = None, *, lac: int = -1, attempts: int = 3, max_wait_ms: int | None = None
) -> TailUnderTest:
    """A tail that has caught up with ``lac`` and polls."""
    tail = TailUnderTest(attempts=attempts, max_wait_ms=max_wait_ms)
    tail.metadata(metadata or ledger())
    tail.lac(lac)
    if tail.range is not None:
        tail.read()
    return tail


def late(tail: TailUnderTest, request_id: int, lac: int) -> None:
    """All that may come of a poll that is over."""
    tail.tell(PollAnswered(request_id, Code.OK, lac))
    tail.tell(LacTold(request_id, Code.OK, proof(lac), None))
    tail.tell(RequestFailed(request_id, BookieUnavailableError("late")))
    for kind in ("pause", "slow", "early", "late"):
        tail.tell(TimerFired((kind, request_id)))


# --- the beginning ------------------------------------------------------------------------------


def test_it_begins_with_the_metadata_and_a_lac_read() -> None:
    tail = TailUnderTest()
    assert (tail.refreshes, tail.machine.waiting) == ([0], False)
    tail.metadata(ledger())
    assert (tail.lac_reads, tail.polls, tail.machine.waiting) == (1, {}, False)
    tail.lac(4)
    assert (tail.range, tail.machine.waiting) == (ReadRange(0, 4), False)
    tail.read()
    assert (tail.range, tail.machine.waiting) == (None, True)
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
    assert isinstance(tail.end, Succeeded)


@pytest.mark.parametrize(("last", "first"), [(-1, 0), (9, 10)])
def test_a_closed_ledger_with_nothing_left(last: int, first: int) -> None:
    tail = TailUnderTest(first)
    tail.metadata(ledger().closed(last, 0))
    assert isinstance(tail.end, Succeeded)


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
        TailUnderTest(-1)


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
    assert tail.slow_after_ms("b1") == 1_500
    tail.slow("b1")
    assert tail.slow_after_ms("b2") == 3_000
    tail.slow("b1")
    tail.slow("b2")
    assert tail.slow_after_ms("b3") == 5_000
    tail.slow("b3")
    assert list(tail.polls) == ["b1", "b2", "b3"]


def test_polls_turn_round_while_nothing_comes() -> None:
    tail = following(lac=4)
    asked = []
    for _ in range(6):
        (bookie,) = tail.polls
        asked.append(bookie)
        assert tail.delay_ms(bookie) == 0
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
    pauses: list[float] = []
    for _ in range(40):
        for number in range(3):
            (bookie,) = tail.polls
            delay_ms = tail.delay_ms(bookie)
            assert (delay_ms > 0) is (number == 0 and pauses != []) or not pauses
            tail.unknown_ledger(bookie)
        pauses.append(tail.pauses_ms[0])
    assert (tail.end, pauses[:6], pauses[-1]) == (None, [50, 100, 200, 400, 800, 1_000], 1_000)
    (bookie,) = tail.polls
    tail.news(bookie, 0)
    tail.read()
    assert tail.pauses_ms == [0]


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
    assert tail.pauses_ms == [50]


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
    pauses: list[float] = []
    for _ in range(3):
        for _ in range(3):
            (bookie,) = tail.polls
            tail.broken(bookie, "did not answer in time")
        pauses += tail.pauses_ms
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
    late(tail, poll.request_id, 8)
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
    assert isinstance(tail.end, Succeeded)


def test_closing_while_reading() -> None:
    tail = following(lac=4)
    tail.news("b1", 6)
    tail.changed()
    tail.metadata(ledger().closed(8, 0))
    assert tail.range == ReadRange(5, 6)
    tail.read()
    assert tail.range == ReadRange(7, 8)
    tail.read()
    assert isinstance(tail.end, Succeeded)


def test_closed_and_a_lac_beyond_the_end_is_not_followed() -> None:
    tail = following(lac=4)
    tail.slow("b1")
    tail.changed()
    tail.metadata(ledger().closed(6, 0))
    tail.read(1, max_lac=9)
    tail.read()
    assert isinstance(tail.end, Succeeded)
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
    assert isinstance(tail.end, Succeeded)


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
    assert isinstance(tail.end, Succeeded)


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
    assert isinstance(tail.end, Succeeded)
    tail.take()
    late(tail, poll.request_id, 9)
    tail.machine.wait()
    for event in (
        MetadataChanged(),
        MetadataFailed(UNKNOWN),
        MetadataFound(ledger(), 0),
        LacHeard(12),
        RangeFailed(UNKNOWN),
    ):
        tail.machine.handle(event)
    tail.machine.fail(UNKNOWN)
    assert isinstance(tail.end, Succeeded)
    assert tail.machine.take_actions() == []


# --- proof, and what counts as a failure ---------------------------------------------------------


def test_a_claim_is_followed_as_far_as_it_is_proved() -> None:
    tail = following(lac=4)
    tail.claim("b1", 9)
    # Its bookie is asked for a proof, and while it is, no other poll begins.
    assert (list(tail.asked), tail.polls, tail.range) == (["b1"], {}, None)
    tail.prove("b1", 7)
    assert tail.range == ReadRange(5, 7)


@pytest.mark.parametrize("proved", [None, -1, 4])
def test_a_claim_without_proof_is_a_failure_of_its_bookie(proved: int | None) -> None:
    suspects: set[str] = set()
    tail = TailUnderTest(suspects=suspects, attempts=1)
    tail.metadata(ledger())
    tail.lac(4)
    tail.read()
    for _ in range(3):
        (bookie,) = tail.polls
        tail.claim(bookie, 9)
        tail.prove(bookie, proved)
    assert suspects == {"b1", "b2", "b3"}
    assert "b1 claims a last add confirmed of 9 without proof" in str(tail.error)
    assert tail.given == 5


def test_a_code_other_than_absent_is_a_failure() -> None:
    tail = following(lac=4, attempts=1)
    for code in (Code.IO_ERROR, Code.UNAUTHORIZED, Code.UNKNOWN_LEDGER_STATE):
        (bookie,) = tail.polls
        tail.nothing(bookie, code=code)
    for said in ("b1 answered IO_ERROR", "b2 answered UNAUTHORIZED: it requires authentication", "b3 answered UNKNOWN"):
        assert said in str(tail.error)


def test_a_poll_that_is_not_answered_in_time_is_given_up_and_reported() -> None:
    tail = following(lac=4)
    assert tail.timers["late", tail.polls["b1"].request_id] == 4_000 + 5_000
    tail.late("b1")
    assert (list(tail.polls), tail.reported) == (["b2"], ["b1"])
    # A broken connection was noticed by others already.
    tail.broken("b2")
    assert tail.reported == ["b1"]


def test_a_bookie_that_claims_and_does_not_prove_in_time_is_given_up() -> None:
    tail = following(lac=4)
    request_id = tail.polls["b1"].request_id
    tail.claim("b1", 9)
    tail.tell(TimerFired(("late", request_id)))
    assert (tail.asked, list(tail.polls), tail.reported) == ({}, ["b2"], ["b1"])


def test_timers_of_polls_that_are_over_do_not_run() -> None:
    tail = following(lac=4)
    tail.nothing("b1")
    tail.claim("b2", 9)
    tail.prove("b2", 9)
    assert {name[1] for name in tail.timers if isinstance(name, tuple)} == set()
    tail.read()
    tail.changed()
    tail.metadata(ledger().closed(9, 0))
    assert tail.timers == {}


# --- the caller's wait --------------------------------------------------------------------------


def test_the_wait_begins_when_the_caller_has_everything() -> None:
    tail = TailUnderTest(max_wait_ms=200)
    tail.machine.wait()
    tail.metadata(ledger())
    assert "wait" not in tail.timers
    tail.lac(4)
    assert "wait" not in tail.timers
    tail.read()
    # The caller has not come back yet.
    assert "wait" not in tail.timers
    tail.machine.wait()
    tail.take()
    assert tail.timers["wait"] == 200
    tail.tell(TimerFired("wait"))
    assert (isinstance(tail.end, Succeeded), tail.polls) == (True, {})


def test_entries_end_a_wait_and_polls_without_news_do_not() -> None:
    tail = following(lac=4, max_wait_ms=200)
    tail.machine.wait()
    tail.take()
    for _ in range(5):
        del tail.timers["wait"]
        tail.nothing(next(iter(tail.polls)))
        # It is not begun anew.
        assert "wait" not in tail.timers
        tail.timers["wait"] = 200
    tail.news(next(iter(tail.polls)), 5)
    assert "wait" in tail.timers
    tail.read()
    assert "wait" not in tail.timers


def test_a_wait_that_is_over_while_entries_are_read_waits_for_them() -> None:
    tail = following(lac=4, max_wait_ms=200)
    for fails in (False, True):
        tail.machine.wait()
        tail.take()
        tail.news(next(iter(tail.polls)), tail.given)
        tail.tell(TimerFired("wait"))
        assert tail.end is None
        if fails:
            tail.read_fails()
            assert isinstance(tail.end, Succeeded)
        else:
            tail.read()
            assert tail.end is None


def test_a_wait_cannot_be_negative() -> None:
    with pytest.raises(InvalidArgumentError, match="max_wait_ms must not be negative, got -1"):
        TailUnderTest(max_wait_ms=-1)


def test_a_ledger_that_is_known_to_be_closed_is_not_watched() -> None:
    tail = TailUnderTest(known=ledger().closed(4, 0))
    assert (tail.refreshes, tail.range) == ([], ReadRange(0, 4))
    tail.read()
    assert isinstance(tail.end, Succeeded)


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
    assert isinstance(tail.end, Succeeded), tail.end
    assert tail.given == metadata.last_entry_id + 1
