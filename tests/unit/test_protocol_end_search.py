"""The search for a ledger's end, event by event. Bookies are b1, b2, …

Scenario ids (C1, …) are those of the protocol's known bugs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import Buffer, digest_function
from bk_spark.protocol.entries.entry import Entry, pack_entry, verify_entry
from bk_spark.protocol.errors import (
    BookieTimeoutError,
    BookieUnavailableError,
    BookKeeperError,
    EntryUnknownError,
    MetadataUnavailableError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger.end_search import (
    READ_AHEAD_ENTRIES,
    EndSearch,
    EntryFailed,
    EntryRead,
    Purpose,
    ReadEntry,
    SearchEvent,
    SearchState,
    Unclear,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Answer, Quorum
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of

PRESENT, ABSENT, UNKNOWN = Answer.PRESENT, Answer.ABSENT, Answer.UNKNOWN
DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
TIMEOUT_MS = 700


def length_of(last_entry_id: int) -> int:
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


def stored(entry_id: int, lac: int | None = None) -> bytes:
    lac = entry_id - 1 if lac is None else lac
    return pack_entry(LEDGER, entry_id, lac, length_of(entry_id), payload_of(entry_id), DIGEST)


def verify(entry: Buffer, entry_id: int | None) -> Entry:
    return verify_entry(entry, LEDGER, entry_id, DigestType.CRC32C, DIGEST)


class SearchUnderTest:
    """A search whose actions are sorted. ``reads`` are those of the search so far."""

    def __init__(self, metadata: LedgerMetadata | None = None, *, follow: bool = True) -> None:
        self.machine = EndSearch(
            LEDGER, metadata or ledger(state=LedgerState.IN_RECOVERY), verify, read_timeout_ms=TIMEOUT_MS
        )
        self.fences: list[str] = []
        self.reads: list[tuple[str, int]] = []
        self.length_reads: list[tuple[str, int]] = []
        self.asked_with: list[ReadEntry] = []
        #: Reads whose time runs, and those that were given up.
        self.timers: set[object] = set()
        self.given_up: list[object] = []
        self.unclear: list[Unclear] = []
        self.written: list[bytes] = []
        self._follow = follow
        self.take()

    @property
    def end(self) -> int | None:
        return self.machine.outcome.result if isinstance(self.machine.outcome, Succeeded) else None

    @property
    def start(self) -> tuple[int, int | None]:
        """Where the write-backs begin: last entry and length."""
        return self.machine.last_add_confirmed, self.machine.length

    @property
    def error(self) -> Exception | None:
        return self.machine.outcome.error if isinstance(self.machine.outcome, EndedBy) else None

    def take(self) -> None:
        kinds = {Purpose.SEARCH: self.reads, Purpose.LENGTH: self.length_reads}
        while actions := self.machine.take_actions():
            for action in actions:
                match action:
                    case ReadEntry():
                        self.asked_with.append(action)
                        assert action.request_id in self.timers
                        if action.purpose is Purpose.FENCE:
                            assert action.entry_id == LAST_ENTRY
                            self.fences.append(action.bookie_id)
                        else:
                            kinds[action.purpose].append((action.bookie_id, action.entry_id))
                    case StartTimer(name, after_ms):
                        assert after_ms == TIMEOUT_MS
                        self.timers.add(name)
                    case StopTimer(name):
                        self.timers.discard(name)
                    case StopRequest(request_id):
                        self.given_up.append(request_id)
                    case Unclear():
                        self.unclear.append(action)
            self.written += [bytes(entry.payload) for entry in self.machine.take_found()]
            if self._follow:
                self.follow()

    def follow(self) -> None:
        self.machine.on_written_back(self.machine.last_add_confirmed + len(self.written))
        if not self._follow:
            self.take()

    def handle(self, event: SearchEvent) -> None:
        self.machine.handle(event)
        self.take()

    def answer(self, bookie_id: str, entry_id: int, code: Code, entry: bytes = b"") -> None:
        self.handle(EntryRead(1, bookie_id, entry_id, ReadAnswer(LEDGER, entry_id, code, memoryview(entry))))

    def fence(self, bookie_id: str, answer: Answer, last_entry: bytes | None = None) -> None:
        self.say(bookie_id, LAST_ENTRY, answer, last_entry)

    def read(self, bookie_id: str, entry_id: int, answer: Answer) -> None:
        self.say(bookie_id, entry_id, answer, stored(entry_id) if answer is PRESENT else None)

    def say(self, bookie_id: str, entry_id: int, answer: Answer, entry: bytes | None) -> None:
        codes = {PRESENT: Code.OK, ABSENT: Code.NO_ENTRY, UNKNOWN: Code.IO_ERROR}
        self.answer(bookie_id, entry_id, codes[answer], entry or b"")

    def all_say(self, answer: Answer, *entry_ids: int) -> None:
        for entry_id in entry_ids:
            for bookie_id in [bookie for bookie, asked in self.reads if asked == entry_id]:
                self.read(bookie_id, entry_id, answer)

    def asked(self, entry_id: int) -> list[str]:
        return [bookie for bookie, asked in self.reads if asked == entry_id]


def fenced(lac: int = -1, metadata: LedgerMetadata | None = None) -> SearchUnderTest:
    """A search that heard ``lac`` from all bookies."""
    search = SearchUnderTest(metadata)
    for bookie_id in search.fences:
        search.fence(bookie_id, PRESENT, stored(lac + 1, lac) if lac >= 0 else stored(0))
    return search


# --- fencing ------------------------------------------------------------------------------------


def test_every_bookie_of_the_last_ensemble_is_fenced_first() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (5, "b3 b2"))
    search = SearchUnderTest(metadata)
    assert (search.fences, search.reads) == (["b3", "b2"], [])


def test_reading_begins_when_no_write_quorum_can_still_acknowledge() -> None:
    search = SearchUnderTest()
    search.fence("b1", PRESENT, stored(5, 3))
    assert search.reads == []
    search.fence("b3", ABSENT)
    assert search.asked(4) == ["b2", "b3", "b1"]
    assert min(entry for _, entry in search.reads) == 4
    # Later answers change nothing.
    search.fence("b2", PRESENT, stored(9, 8))
    assert search.machine.state is SearchState.READING
    assert min(entry for _, entry in search.reads) == 4


def test_the_highest_lac_heard_counts() -> None:
    search = SearchUnderTest(ledger(Quorum(3, 3, 1)))
    search.fence("b1", PRESENT, stored(5, 3))
    search.fence("b2", PRESENT, stored(9, 7))
    search.fence("b3", PRESENT, stored(9, 2))
    assert min(entry for _, entry in search.reads) == 8


def test_too_few_definite_answers_end_the_search() -> None:
    search = SearchUnderTest()
    search.fence("b1", UNKNOWN)
    search.fence("b2", PRESENT, stored(0))
    assert search.error is None
    search.fence("b3", UNKNOWN)
    assert search.error is not None
    assert "b1, b3" in str(search.error)
    assert search.reads == []


def test_one_unknown_answer_does_not_hold_up_the_others() -> None:
    search = SearchUnderTest()
    search.fence("b1", UNKNOWN)
    search.fence("b2", ABSENT)
    search.fence("b3", ABSENT)
    assert search.asked(0) == ["b1", "b2", "b3"]


# --- what is asked, and what answers mean ------------------------------------------------------------


def test_c1_every_read_that_decides_where_the_ledger_ends_fences_and_carries_the_key() -> None:
    search = fenced(lac=2)
    search.all_say(PRESENT, 3, 4)
    search.all_say(ABSENT, 5)
    fencing, urgent = FlagV2.FENCING, FlagV2.FENCING | FlagV2.HIGH_PRIORITY
    asked = [(read.entry_id, read.flags, read.with_key) for read in search.asked_with]
    assert asked[:3] == [(LAST_ENTRY, fencing, True)] * 3
    assert len(asked) > 3 * READ_AHEAD_ENTRIES
    assert {(flags, with_key) for _, flags, with_key in asked[3:]} == {(urgent, True)}


def test_the_read_for_the_length_does_not_fence() -> None:
    search = fenced(lac=4)
    search.all_say(ABSENT, 5)
    last = search.asked_with[-3:]
    assert [(read.entry_id, read.flags, read.with_key) for read in last] == [(4, FlagV2.NONE, False)] * 3


def _times_out(search: SearchUnderTest, bookie_id: str, entry_id: int) -> None:
    search.handle(TimerFired((1, bookie_id, entry_id)))
    assert search.given_up == [(1, bookie_id, entry_id)]


def _breaks(search: SearchUnderTest, bookie_id: str, entry_id: int) -> None:
    search.handle(EntryFailed(1, bookie_id, entry_id, BookieUnavailableError("refused")))


def _is_busy(search: SearchUnderTest, bookie_id: str, entry_id: int) -> None:
    search.handle(EntryFailed(1, bookie_id, entry_id, BookieTimeoutError("too many requests are outstanding")))


def _code(code: Code) -> Callable[[SearchUnderTest, str, int], None]:
    return lambda search, bookie_id, entry_id: search.answer(bookie_id, entry_id, code)


def _corrupt(search: SearchUnderTest, bookie_id: str, entry_id: int) -> None:
    entry = bytearray(stored(max(entry_id, 0)))
    entry[-1] ^= 1
    search.answer(bookie_id, entry_id, Code.OK, bytes(entry))


def _another_entry(search: SearchUnderTest, bookie_id: str, entry_id: int) -> None:
    # As the last entry, any id is right.
    search.answer(bookie_id, entry_id, Code.OK, stored(1)[: None if entry_id != LAST_ENTRY else 10])


ERRORS = [code for code in Code if code not in (Code.OK, Code.NO_ENTRY, Code.NO_LEDGER, Code.UNAUTHORIZED)]
UNKNOWNS = {
    "times out": _times_out,
    "breaks": _breaks,
    "is busy": _is_busy,
    "corrupt": _corrupt,
    "another entry": _another_entry,
    **{code.name: _code(code) for code in ERRORS},
}


@pytest.mark.parametrize("how", UNKNOWNS)
def test_whatever_is_not_a_clear_yes_or_no_is_unknown(how: str) -> None:
    fencing = SearchUnderTest()
    for bookie_id in ("b1", "b2"):
        UNKNOWNS[how](fencing, bookie_id, LAST_ENTRY)
        fencing.given_up.clear()
    fencing.fence("b3", ABSENT)
    assert isinstance(fencing.error, EntryUnknownError)
    search = fenced()
    for bookie_id in ("b1", "b2"):
        UNKNOWNS[how](search, bookie_id, 0)
        search.given_up.clear()
    search.read("b3", 0, ABSENT)
    assert search.end is None
    assert isinstance(search.error, EntryUnknownError)
    assert "b1 unknown, b2 unknown, b3 absent" in str(search.error)
    assert [(said.bookie_id, said.silent) for said in search.unclear] == [
        (bookie_id, how in ("times out", "breaks", "is busy")) for bookie_id in ("b1", "b2")
    ]


@pytest.mark.parametrize("code", [Code.NO_ENTRY, Code.NO_LEDGER])
def test_what_absent_looks_like(code: Code) -> None:
    search = SearchUnderTest()
    for entry_id in (LAST_ENTRY, 0):
        for bookie_id in ("b1", "b2"):
            search.answer(bookie_id, entry_id, code)
    assert (search.end, search.unclear) == (-1, [])


def test_unauthorized_ends_the_search_where_the_others_cannot_suffice() -> None:
    """One more answer, even "present", would not help: the password is wrong."""
    search = SearchUnderTest()
    search.answer("b1", LAST_ENTRY, Code.UNAUTHORIZED)
    assert search.error is None
    search.answer("b2", LAST_ENTRY, Code.UNAUTHORIZED)
    assert isinstance(search.error, UnauthorizedError)
    search.fence("b3", ABSENT)
    assert search.reads == []
    alone = SearchUnderTest(ledger(Quorum(2, 2, 1), (0, "b1 b2"), state=LedgerState.IN_RECOVERY))
    alone.fence("b1", ABSENT)
    alone.answer("b2", LAST_ENTRY, Code.UNAUTHORIZED)
    assert isinstance(alone.error, UnauthorizedError)


def test_a_bookie_that_knows_the_ledger_with_another_password_is_done_without() -> None:
    """It may have been silent when the writer claimed the id. Its answer is no "absent"."""
    search = SearchUnderTest()
    search.answer("b3", LAST_ENTRY, Code.UNAUTHORIZED)
    for bookie_id in ("b1", "b2"):
        search.fence(bookie_id, PRESENT, stored(1, 0))
    search.answer("b3", 1, Code.UNAUTHORIZED)
    search.read("b1", 1, PRESENT)
    search.answer("b3", 2, Code.UNAUTHORIZED)
    search.read("b1", 2, ABSENT)
    assert (search.end, search.error) == (None, None)
    search.read("b2", 2, ABSENT)
    assert search.end == 1
    with_another_silent = SearchUnderTest()
    with_another_silent.answer("b3", LAST_ENTRY, Code.UNAUTHORIZED)
    with_another_silent.fence("b1", ABSENT)
    with_another_silent.fence("b2", UNKNOWN)
    assert isinstance(with_another_silent.error, EntryUnknownError)


def test_unauthorized_without_a_key_says_so() -> None:
    search = fenced(lac=4)
    search.all_say(ABSENT, 5)
    with_key = SearchUnderTest()
    for bookie_id in ("b1", "b2"):
        search.answer(bookie_id, 4, Code.UNAUTHORIZED)
        with_key.answer(bookie_id, LAST_ENTRY, Code.UNAUTHORIZED)
    assert isinstance(search.error, UnauthorizedError)
    assert str(search.error).partition("(")[0] != str(with_key.error).partition("(")[0]


def test_an_error_that_is_no_bookies_ends_the_search() -> None:
    error: BookKeeperError = MetadataUnavailableError("the bookie's address cannot be looked up")
    search = SearchUnderTest()
    search.handle(EntryFailed(1, "b1", LAST_ENTRY, error))
    assert search.error is error


def test_an_answer_stops_its_timer() -> None:
    search = SearchUnderTest()
    search.fence("b1", ABSENT)
    assert search.timers == {(1, "b2", LAST_ENTRY), (1, "b3", LAST_ENTRY)}
    search.fence("b2", ABSENT)
    # Its answer no longer counts. The request is still cancelled at the timeout.
    search.handle(TimerFired((1, "b3", LAST_ENTRY)))
    assert search.given_up == [(1, "b3", LAST_ENTRY)]
    assert search.machine.state is SearchState.READING


def test_answers_to_another_search_do_not_count() -> None:
    search = SearchUnderTest()
    for bookie_id in ("b1", "b2", "b3"):
        entry = ReadAnswer(LEDGER, LAST_ENTRY, Code.NO_ENTRY, memoryview(b""))
        search.handle(EntryRead(2, bookie_id, LAST_ENTRY, entry))
        search.handle(TimerFired((2, bookie_id, LAST_ENTRY)))
    assert search.machine.state is SearchState.FENCING


# --- finding the end ----------------------------------------------------------------------------


def test_an_empty_ledger() -> None:
    search = SearchUnderTest()
    for bookie_id in ("b1", "b2", "b3"):
        search.fence(bookie_id, ABSENT)
    search.read("b1", 0, ABSENT)
    assert search.end is None
    search.read("b2", 0, ABSENT)
    assert (search.end, search.start, search.written) == (-1, (-1, 0), [])


def test_entries_beyond_the_lac_are_written_back_until_the_first_gap() -> None:
    search = fenced(lac=4)
    search.all_say(PRESENT, 6, 5)
    assert search.start == (4, length_of(4))
    assert search.written == [payload_of(5), payload_of(6)]
    # Entry 8 is there, but 7 is not: it was never acknowledged.
    search.all_say(PRESENT, 8)
    search.all_say(ABSENT, 7)
    assert search.end == 6
    assert search.written == [payload_of(5), payload_of(6)]


@pytest.mark.parametrize(
    ("quorum", "needed"),
    [(Quorum(3, 3, 2), 2), (Quorum(3, 3, 3), 1), (Quorum(3, 3, 1), 3), (Quorum(5, 3, 2), 2)],
    ids=str,
)
def test_absent_needed(quorum: Quorum, needed: int) -> None:
    search = SearchUnderTest(ledger(quorum))
    for bookie_id in search.fences:
        search.fence(bookie_id, ABSENT)
    for number, bookie_id in enumerate(search.asked(0), 1):
        assert (search.end is not None) is (number > needed)
        search.read(bookie_id, 0, ABSENT)
    assert search.end == -1


def test_one_replica_is_enough_for_present() -> None:
    search = fenced()
    search.read("b1", 0, ABSENT)
    search.read("b2", 0, PRESENT)
    assert search.written == [payload_of(0)]


def test_c5_c7_unknown_never_truncates() -> None:
    """A bookie lost the entry in a crash (C5) or cannot read its bytes (C7): it says unknown."""
    search = fenced()
    search.read("b1", 0, UNKNOWN)
    search.read("b2", 0, ABSENT)
    assert (search.end, search.error) == (None, None)
    search.read("b3", 0, UNKNOWN)
    assert search.end is None
    assert search.error is not None
    assert isinstance(search.error, EntryUnknownError)
    assert search.error.entry_id == 0
    for part in ("b1 unknown", "b2 absent", "b3 unknown"):
        assert part in str(search.error)


def test_unknown_beside_enough_absent_answers_is_an_end() -> None:
    search = fenced()
    search.read("b3", 0, UNKNOWN)
    search.read("b1", 0, ABSENT)
    search.read("b2", 0, ABSENT)
    assert search.end == -1


def test_c5_an_acknowledged_entry_is_found_behind_unknown_answers() -> None:
    search = fenced()
    search.read("b1", 0, UNKNOWN)
    search.read("b2", 0, ABSENT)
    search.read("b3", 0, PRESENT)
    assert search.written == [payload_of(0)]


def test_the_first_answer_of_a_bookie_counts() -> None:
    search = fenced()
    for _ in range(3):
        search.read("b1", 0, ABSENT)
    assert search.end is None
    search.read("b9", 0, ABSENT)
    search.read("b1", 99, ABSENT)
    assert search.end is None


def test_the_search_asks_the_whole_write_set() -> None:
    search = fenced(lac=2)
    search.all_say(PRESENT, 3, 4)
    assert search.length_reads == []
    for entry_id in range(3, 5 + READ_AHEAD_ENTRIES):
        assert sorted(search.asked(entry_id)) == ["b1", "b2", "b3"]


def test_reads_go_no_further_ahead_than_the_writer_follows() -> None:
    search = SearchUnderTest(follow=False)
    for bookie_id in search.fences:
        search.fence(bookie_id, PRESENT, stored(0))
    found = 0
    while search.asked(found):
        search.all_say(PRESENT, found)
        found += 1
    assert found == 4 * READ_AHEAD_ENTRIES
    assert len(search.written) == found
    assert (search.end, search.error) == (None, None)
    search.follow()
    search.all_say(PRESENT, found)
    search.all_say(ABSENT, found + 1)
    assert (search.end, len(search.written)) == (found, found + 1)


# --- length -------------------------------------------------------------------------------------


def test_the_length_comes_from_the_entry_at_the_lac_where_nothing_lies_beyond() -> None:
    search = fenced(lac=4)
    search.all_say(ABSENT, 5)
    assert (search.end, search.length_reads) == (None, [("b2", 4), ("b3", 4), ("b1", 4)])
    search.read("b2", 4, ABSENT)
    search.read("b3", 4, PRESENT)
    assert (search.end, search.start) == (4, (4, length_of(4)))


def test_the_entry_at_the_lac_was_acknowledged_absent_or_not() -> None:
    search = fenced(lac=4)
    search.all_say(ABSENT, 5)
    for bookie_id in ("b1", "b2", "b3"):
        search.read(bookie_id, 4, ABSENT)
    assert (search.end, search.error is not None) == (None, True)


def test_the_length_is_that_of_the_last_entry_written_back() -> None:
    search = fenced(lac=4)
    search.all_say(PRESENT, 5)
    search.all_say(ABSENT, 6)
    assert (search.end, search.length_reads, search.start) == (5, [], (4, length_of(4)))


# --- segments -----------------------------------------------------------------------------------


def test_c3_the_search_starts_at_the_last_segment_and_touches_no_earlier_one() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (1000, "b2 b3"), (2000, "b4 b5"), state=LedgerState.IN_RECOVERY)
    search = SearchUnderTest(metadata)
    assert search.fences == ["b4", "b5"]
    for bookie_id in ("b4", "b5"):
        search.fence(bookie_id, ABSENT)
    assert {bookie for bookie, _ in search.reads} == {"b4", "b5"}
    assert min(entry for _, entry in search.reads) == 2000
    search.read("b4", 2000, ABSENT)
    # The length lies in the segment before, which is read and not fenced.
    assert search.length_reads == [("b3", 1999), ("b2", 1999)]
    search.read("b2", 1999, PRESENT)
    assert (search.end, search.start, search.written) == (1999, (1999, length_of(1999)), [])


def test_c3_an_old_lac_does_not_lead_back_into_an_earlier_segment() -> None:
    metadata = ledger(Quorum(2, 2, 2), (0, "b1 b2"), (10, "b3 b2"))
    search = SearchUnderTest(metadata)
    search.fence("b2", PRESENT, stored(9, 2))
    search.fence("b3", PRESENT, stored(10, 2))
    assert min(entry for _, entry in search.reads) == 10
    search.all_say(PRESENT, 10)
    assert search.machine.last_add_confirmed == 9


# --- scenarios with a writer --------------------------------------------------------------------


def test_c10_the_lac_found_at_the_start_stays() -> None:
    search = fenced(lac=4)
    for entry_id in (5, 6, 7):
        search.all_say(PRESENT, entry_id)
    search.all_say(ABSENT, 8)
    assert (search.machine.last_add_confirmed, search.end) == (4, 7)


def test_c16_after_a_crash_between_write_back_and_close_the_next_ends_alike() -> None:
    first = fenced(lac=4)
    first.all_say(PRESENT, 5, 6)
    first.all_say(ABSENT, 7)
    assert (first.end, first.written) == (6, [payload_of(5), payload_of(6)])
    # The next recovery finds the write-backs, whose LAC is still 4.
    second = SearchUnderTest()
    second.fence("b1", PRESENT, stored(6, 4))
    second.fence("b2", PRESENT, stored(6, 4))
    second.all_say(PRESENT, 5, 6)
    second.all_say(ABSENT, 7)
    assert (second.end, second.written, second.start) == (first.end, first.written, first.start)


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
    assert (failed.end, failed.written, failed.machine.state) == (None, [], SearchState.ENDED)


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
    search = SearchUnderTest(ledger(quorum))
    fences, done = list(search.fences), 0
    while search.end is None and search.error is None and (fences or done < len(search.reads)):
        if fences and (done == len(search.reads) or random_.random() < 0.5):
            bookie = fences.pop(random_.randrange(len(fences)))
            held = [entry for entry in holds if bookie in holds[entry]]
            if random_.random() < 0.1:
                search.fence(bookie, UNKNOWN)
            elif held:
                lac = random_.randint(-1, min(acknowledged, max(held) - 1))
                search.fence(bookie, PRESENT, stored(max(held), lac))
            else:
                search.fence(bookie, ABSENT)
        else:
            pick = random_.randrange(done, len(search.reads))
            search.reads[done], search.reads[pick] = search.reads[pick], search.reads[done]
            bookie, entry = search.reads[done]
            done += 1
            answer = PRESENT if bookie in holds.get(entry, ()) else ABSENT
            search.read(bookie, entry, UNKNOWN if random_.random() < 0.1 else answer)
    for bookie, entry in search.length_reads:
        if search.end is None:
            search.read(bookie, entry, PRESENT if bookie in holds[entry] else ABSENT)
    if search.error is None:
        assert search.end is not None
        assert search.end >= acknowledged
        assert search.end <= pushed
        begin, length = search.start
        assert search.written == [payload_of(entry) for entry in range(begin + 1, search.end + 1)]
        assert length == length_of(begin)
