"""The machine that finds a ledger's end for a recovery: it fences the bookies, then reads forward.

Source: compatibility.md §4.9, §4.14. Rules:

* Every bookie of the last segment's ensemble gets a *fencing* read of its last entry. The answers suffice when no write
  quorum can still reach its ack quorum among bookies that did not answer
  (:func:`bk_spark.protocol.quorum.covered`).
* The search starts after the highest LAC heard, but never before the last segment. Entries of earlier segments were
  acknowledged when that segment was published.
* Every read of the search fences too (issue 2614). If a fence was lost on the way, no add may succeed after a bookie
  said "absent".
* An entry is *present* when one replica returns it with a right digest. It is *absent* when Qw - Qa + 1 replicas say
  so. Otherwise it is *unknown*. Unknown never truncates: the search ends with an error.
* A bookie that knows the ledger with another password has no entry of this one, but would say the same if the password
  given here were wrong. So its answer is unknown, too. The search ends at once if the others cannot suffice.
* If nothing is found beyond the LAC, the entry at the LAC gives the ledger's length. It may be in an earlier segment,
  which is read but not fenced (issue 2615).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code, FlagV2
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.errors import AWAY_REMEDY, BookKeeperError, DigestMismatchError, EntryUnknownError, PeerError
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, covered
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from bk_spark.protocol.wire.code_errors import error_of

#: Number of entries to read ahead while looking for the end.
READ_AHEAD_ENTRIES: Final = 32
#: Limit of the found entries that the writer of write-backs has not taken, in multiples of the above. Bounds memory.
_AHEAD_OF_WRITER: Final = 4

#: Checks a stored entry as a reader must. With the entry id None, any id is right. Raises DigestMismatchError.
Verify = Callable[[Buffer, int | None], Entry]


class Purpose(enum.Enum):
    """The purpose of a read."""

    FENCE = "fence"
    SEARCH = "read"
    LENGTH = "length"


FLAGS: Final[Mapping[Purpose, FlagV2]] = {
    Purpose.FENCE: FlagV2.FENCING,
    Purpose.SEARCH: FlagV2.FENCING | FlagV2.HIGH_PRIORITY,
    Purpose.LENGTH: FlagV2.NONE,
}


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Read an entry at one bookie. The answer is :class:`EntryRead` or :class:`EntryFailed` with the same first three
    fields.

    Parameters
    ----------
    attempt
        The number of the search within the recovery.
    entry_id
        LAST_ENTRY for the last entry that the bookie has.
    with_key
        Whether to send the ledger's master key.
    """

    attempt: int
    bookie_id: str
    entry_id: int
    purpose: Purpose
    flags: FlagV2
    with_key: bool

    @property
    def request_id(self) -> tuple[int, str, int]:
        """Names the read's timer, and the read in a StopRequest."""
        return self.attempt, self.bookie_id, self.entry_id


@dataclass(frozen=True, slots=True)
class Unclear:
    """Log that the bookie gave no clear answer. ``silent``: it did not answer at all, so choose it last for other
    ledgers."""

    bookie_id: str
    reason: str
    silent: bool


@dataclass(frozen=True, slots=True)
class EntryRead:
    """The bookie answered, with any result."""

    attempt: int
    bookie_id: str
    entry_id: int
    answer: ReadAnswer


@dataclass(frozen=True, slots=True)
class EntryFailed:
    """No answer came. ``error`` is a PeerError, or the reason why the bookie could not be asked."""

    attempt: int
    bookie_id: str
    entry_id: int
    error: BookKeeperError


SearchAction = ReadEntry | Unclear | StartTimer | StopTimer | StopRequest
SearchEvent = EntryRead | EntryFailed | TimerFired


class SearchState(enum.Enum):
    """How far a search has come. The values are words for logs and errors."""

    FENCING = "fencing"
    READING = "reading forward"
    READING_LENGTH = "reading the length"
    ENDED = "ended"


@dataclass(slots=True)
class _Replicas:
    """The answers of one entry's write set."""

    answers: dict[str, Answer]
    found: Entry | None = None


class EndSearch:
    """Finds the last entry of one ledger whose metadata say IN_RECOVERY. The entry's id is the result.

    Commands: :meth:`take_found`, :meth:`on_written_back`.

    Parameters
    ----------
    metadata
        The stored metadata when the search began.
    attempt
        Distinguishes the reads of this search from those of other searches of the same recovery.
    read_timeout_ms
        A bookie that has not answered after this long counts as unknown.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        verify: Verify,
        *,
        attempt: int = 1,
        read_timeout_ms: float,
        read_ahead_entries: int = READ_AHEAD_ENTRIES,
    ) -> None:
        self.outcome: Succeeded[int] | EndedBy | None = None
        self.state = SearchState.FENCING
        #: The highest LAC heard, at least the one that the last segment proves. Final once reading begins.
        self.last_add_confirmed = NO_ENTRY
        #: Bytes of payload up to ``last_add_confirmed``. None until an entry gives it.
        self.length: int | None = None
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._verify = verify
        self._attempt = attempt
        self._read_timeout_ms = read_timeout_ms
        self._read_ahead_entries = read_ahead_entries
        self._ensemble = metadata.last_segment.ensemble
        self._fence_answers = dict.fromkeys(self._ensemble, Answer.UNHEARD)
        #: Bookies that answered UNAUTHORIZED.
        self._refused: set[str] = set()
        self._next = 0
        self._asked = 0
        self._written_back = 0
        self._replicas: dict[int, _Replicas] = {}
        self._found: list[Entry] = []
        self._actions: list[SearchAction] = []
        for bookie_id in self._ensemble:
            self._read(bookie_id, LAST_ENTRY, Purpose.FENCE)

    def take_actions(self) -> list[SearchAction]:
        """Return the new reads and timers, in order, and the answers to report as unclear."""
        actions, self._actions = self._actions, []
        return actions

    def take_found(self) -> list[Entry]:
        """Return entries beyond the LAC that must be written back, each once and in order."""
        found, self._found = self._found, []
        return found

    def on_written_back(self, last_entry_id: int) -> None:
        """Report that the writer of write-backs has room again, and took the entries up to ``last_entry_id``."""
        self._written_back = last_entry_id
        if self.state is SearchState.READING:
            self._ask_ahead()

    def handle(self, event: SearchEvent) -> None:
        """Take a bookie's answer, or its timeout. Answers to another attempt, and all but a bookie's first one, do not
        count."""
        if isinstance(event, TimerFired):
            self._on_timeout(event)
            return
        bookie_id, entry_id = event.bookie_id, event.entry_id
        if event.attempt != self._attempt:
            return
        self._actions.append(StopTimer((event.attempt, bookie_id, entry_id)))
        if isinstance(event, EntryFailed) and isinstance(event.error, PeerError):
            self._actions.append(Unclear(bookie_id, str(event.error), silent=True))
        if self._waits_for(bookie_id, entry_id):
            answer, entry = self._understand(event)
            if self.outcome is None:
                self._on_answer(bookie_id, entry_id, answer, entry)

    def fail(self, error: Exception) -> None:
        """End the search without a result. Ignored after the end."""
        if self.outcome is None:
            self.state = SearchState.ENDED
            self.outcome = EndedBy(error)
            self._replicas.clear()

    # --- what answers mean ---

    def _understand(self, event: EntryRead | EntryFailed) -> tuple[Answer, Entry | None]:
        """Interpret an answer. Anything but a clear yes or no is unknown."""
        if isinstance(event, EntryFailed):
            if not isinstance(event.error, PeerError):
                self.fail(event.error)
            return self._unknown(), None
        code = event.answer.code
        if code in (Code.NO_ENTRY, Code.NO_LEDGER):
            return Answer.ABSENT, None
        if code is Code.OK:
            wanted = None if event.entry_id == LAST_ENTRY else event.entry_id
            try:
                return Answer.PRESENT, self._verify(event.answer.stored, wanted)
            except DigestMismatchError as error:
                self._actions.append(Unclear(event.bookie_id, str(error), silent=False))
                return self._unknown(), None
        if code is Code.UNAUTHORIZED:
            self._on_refusal(event)
        self._actions.append(Unclear(event.bookie_id, f"answered {code.name}", silent=False))
        return self._unknown(), None

    def _on_refusal(self, event: EntryRead) -> None:
        """A bookie does not take the password, or asks for a login. End if the others of its segment cannot suffice."""
        self._refused.add(event.bookie_id)
        segment = (
            self._metadata.last_segment if event.entry_id == LAST_ENTRY else self._metadata.segment_of(event.entry_id)
        )
        answers = [Answer.UNKNOWN if one in self._refused else Answer.ABSENT for one in segment.ensemble]
        if not covered(self._metadata.quorum, answers):
            self.fail(
                error_of(
                    Code.UNAUTHORIZED,
                    "recovery",
                    ledger_id=self._ledger_id,
                    entry_id=event.entry_id,
                    bookie_id=event.bookie_id,
                    with_key=self.state is not SearchState.READING_LENGTH,
                )
            )

    def _unknown(self) -> Answer:
        """Return the answer that counts when a bookie gave no clear one."""
        return Answer.UNKNOWN

    def _on_timeout(self, timer: TimerFired) -> None:
        assert isinstance(timer.name, tuple)
        attempt, bookie_id, entry_id = timer.name
        self._actions += [
            StopRequest(timer.name),
            Unclear(bookie_id, f"no answer in {self._read_timeout_ms:g} ms", silent=True),
        ]
        if attempt == self._attempt and self._waits_for(bookie_id, entry_id):
            self._on_answer(bookie_id, entry_id, self._unknown(), None)

    def _waits_for(self, bookie_id: str, entry_id: int) -> bool:
        """Return whether the bookie's answer still counts. Only its first answer does."""
        if entry_id == LAST_ENTRY:
            return self.state is SearchState.FENCING and self._fence_answers.get(bookie_id) is Answer.UNHEARD
        replicas = self._replicas.get(entry_id)
        return replicas is not None and replicas.answers.get(bookie_id) is Answer.UNHEARD

    def _on_answer(self, bookie_id: str, entry_id: int, answer: Answer, entry: Entry | None) -> None:
        if entry_id == LAST_ENTRY:
            self._on_fence_answer(bookie_id, answer, entry)
            return
        replicas = self._replicas[entry_id]
        replicas.answers[bookie_id] = answer
        replicas.found = replicas.found or entry
        if self.state is SearchState.READING:
            self._advance()
        else:
            self._advance_length()

    # --- fencing ---

    def _on_fence_answer(self, bookie_id: str, answer: Answer, last_entry: Entry | None) -> None:
        self._fence_answers[bookie_id] = answer
        if last_entry is not None:
            self.last_add_confirmed = max(self.last_add_confirmed, last_entry.last_add_confirmed)
        answers = [self._fence_answers[bookie] for bookie in self._ensemble]
        if covered(self._metadata.quorum, answers):
            self._begin_reading()
        elif Answer.UNHEARD not in answers:
            silent = [bookie for bookie in self._ensemble if self._fence_answers[bookie] is Answer.UNKNOWN]
            said = f"too few bookies could be fenced; no definite answer from {', '.join(silent)}"
            self._fail_unknown(f"{said}; {AWAY_REMEDY}", None)

    # --- reading ---

    def _begin_reading(self) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, self._floor())
        self.state = SearchState.READING
        self._next = self._asked = self.last_add_confirmed + 1
        self._written_back = self.last_add_confirmed
        self._ask_ahead()

    def _floor(self) -> int:
        """Return the last entry that the last segment proves to be confirmed."""
        return self._metadata.last_segment.first_entry_id - 1

    def _ask_ahead(self) -> None:
        ahead = self._read_ahead_entries
        while self._asked < min(self._next + ahead, self._written_back + 1 + _AHEAD_OF_WRITER * ahead):
            self._ask(self._asked, Purpose.SEARCH)
            self._asked += 1

    def _ask(self, entry_id: int, purpose: Purpose) -> None:
        """Read the entry at every bookie of its write set."""
        segment = self._metadata.segment_of(entry_id)
        members = [segment.ensemble[index] for index in self._metadata.quorum.write_set(entry_id)]
        self._replicas[entry_id] = _Replicas(dict.fromkeys(members, Answer.UNHEARD))
        for bookie_id in members:
            self._read(bookie_id, entry_id, purpose)

    def _read(self, bookie_id: str, entry_id: int, purpose: Purpose) -> None:
        flags = self._flags(purpose)
        read = ReadEntry(self._attempt, bookie_id, entry_id, purpose, flags, bool(flags & FlagV2.FENCING))
        self._actions += [StartTimer(read.request_id, self._read_timeout_ms), read]

    def _flags(self, purpose: Purpose) -> FlagV2:
        return FLAGS[purpose]

    def _advance(self) -> None:
        while self._next < self._asked and (entry := self._replicas[self._next].found) is not None:
            if self.length is None:
                self.length = entry.length - len(entry.payload)
            self._found.append(entry)
            del self._replicas[self._next]
            self._next += 1
            self._ask_ahead()
        if self._next == self._asked:
            return  # wait until the writer of write-backs has room
        answers = list(self._replicas[self._next].answers.values())
        if answers.count(Answer.ABSENT) >= self._metadata.quorum.absent_needed:
            self._end_at(self._next - 1)
        elif Answer.UNHEARD not in answers:
            self._fail_entry(self._next)

    def _end_at(self, last_entry_id: int) -> None:
        self._replicas.clear()
        if self.length is None and self.last_add_confirmed == NO_ENTRY:
            self.length = 0
        if self.length is None:
            # Nothing was found beyond the LAC, so no entry gave the ledger's length. The one at the LAC has it.
            self.state = SearchState.READING_LENGTH
            self._ask(last_entry_id, Purpose.LENGTH)
        else:
            self.state = SearchState.ENDED
            self.outcome = Succeeded(last_entry_id)

    def _advance_length(self) -> None:
        replicas = self._replicas[self.last_add_confirmed]
        if replicas.found is not None:
            self.length = replicas.found.length
            self._end_at(self.last_add_confirmed)
        elif Answer.UNHEARD not in replicas.answers.values():
            # The entry was acknowledged. So "absent" proves nothing here, even from all replicas.
            self._fail_entry(self.last_add_confirmed)

    def _fail_entry(self, entry_id: int) -> None:
        answers = self._replicas[entry_id].answers
        said = ", ".join(f"{bookie} {answer.value}" for bookie, answer in answers.items())
        self._fail_unknown(
            f"no replica returned the entry and it is not proven absent: {said}; {AWAY_REMEDY}", entry_id
        )

    def _fail_unknown(self, message: str, entry_id: int | None) -> None:
        self.fail(EntryUnknownError(f"recovery stopped: {message}", ledger_id=self._ledger_id, entry_id=entry_id))
