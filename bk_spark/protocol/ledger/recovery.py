"""Recovery of a ledger as a state machine without I/O: fence, find the end, write back, close.

Source: compatibility.md §4.9, §4.14; docs/design/client.md. Rules:

* Every bookie of the last segment's ensemble gets a *fencing* read of the last entry. Enough answers
  are there when no write quorum can still reach its ack quorum among bookies that did not answer
  (:func:`bk_spark.protocol.quorum.covered`).
* The search begins after the highest LAC heard, but never before the last segment: entries of earlier
  segments were acknowledged when that segment was published.
* Every recovery read fences too (issue 2614): a fence lost on the way must not let an add through
  after a bookie said "absent".
* An entry is *present* when one replica gives it with a right digest; *absent* when Qw - Qa + 1
  replicas say so; else *unknown*, and unknown never truncates: recovery stops with an error.
* What is found beyond the LAC is written back to its whole write quorum, with the LAC that was found at
  the start, so that no reader sees an entry which a concurrent recovery cuts off.
* Where nothing is found beyond the LAC, the entry at the LAC tells the ledger's length. It may lie in an
  earlier segment, which recovery reads but does not touch (issue 2615).
* The closing compare-and-set publishes the end together with the ensemble changes made meanwhile.
  Whoever finds the ledger closed takes over that end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import AWAY_REMEDY, BookKeeperError, EntryUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, covered

#: Entries read ahead of the end that is being looked for.
READ_AHEAD_ENTRIES: Final = 32
#: How many times that may be read beyond what the writer of write-backs took over; bounds what is held here.
_AHEAD_OF_WRITER: Final = 4


@dataclass(frozen=True, slots=True)
class FenceBookie:
    """Fence ``bookie_id`` and read its last entry; answer with :meth:`LedgerRecovery.on_fence_answer`."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class FencingRead:
    """Read ``entry_id`` at ``bookie_id``, fencing; answer with :meth:`LedgerRecovery.on_read_answer`."""

    bookie_id: str
    entry_id: int


@dataclass(frozen=True, slots=True)
class LengthRead:
    """Read ``entry_id`` at ``bookie_id`` without fencing; answer with :meth:`LedgerRecovery.on_read_answer`."""

    bookie_id: str
    entry_id: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Add ``payloads`` after the entries written back so far, with ``last_add_confirmed`` in their
    headers, to the whole write quorum; then call :meth:`LedgerRecovery.on_written_back`."""

    payloads: Payloads
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class StartWriteBack:
    """Begin the writer that writes back: it stands at ``last_entry_id`` with ``length`` bytes."""

    last_entry_id: int
    length: int


@dataclass(frozen=True, slots=True)
class EndFound:
    """The ledger ends at ``last_entry_id``. When all write-backs are acknowledged, close it there."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    error: BookKeeperError


Action = FenceBookie | FencingRead | LengthRead | StartWriteBack | WriteBack | EndFound | RecoveryFailed


class RecoveryState(enum.Enum):
    FENCING = "fencing"
    READING = "reading forward"
    READING_LENGTH = "reading the length"
    ENDED = "end found"
    FAILED = "failed"


@dataclass(slots=True)
class _Search:
    """What the write set of one entry said."""

    answers: dict[str, Answer]
    found: Entry | None = None


class LedgerRecovery:
    """Finds the end of one ledger whose metadata says IN_RECOVERY (``metadata``, as first read)."""

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, *, read_ahead_entries: int = READ_AHEAD_ENTRIES
    ) -> None:
        self.ledger_id = ledger_id
        self.state = RecoveryState.FENCING
        self._metadata = metadata
        self._read_ahead_entries = read_ahead_entries
        self._ensemble = metadata.last_segment.ensemble
        self._fence_answers = dict.fromkeys(self._ensemble, Answer.UNHEARD)
        self._lac = NO_ENTRY
        self._next = 0
        self._asked = 0
        self._written_back = 0
        self._searches: dict[int, _Search] = {}
        self._writing = False
        self._actions: list[Action] = [FenceBookie(bookie) for bookie in self._ensemble]

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    def on_fence_answer(self, bookie_id: str, answer: Answer, last_entry: Entry | None = None) -> None:
        """``last_entry`` is the (verified) highest entry of a bookie whose answer is PRESENT."""
        if self.state is not RecoveryState.FENCING:
            return
        self._fence_answers[bookie_id] = answer
        if last_entry is not None and last_entry.last_add_confirmed > self._lac:
            self._lac = last_entry.last_add_confirmed
        answers = [self._fence_answers[bookie] for bookie in self._ensemble]
        if covered(self._metadata.quorum, answers):
            self._begin_reading()
        elif Answer.UNHEARD not in answers:
            silent = [bookie for bookie in self._ensemble if self._fence_answers[bookie] is Answer.UNKNOWN]
            said = f"too few bookies could be fenced; no definite answer from {', '.join(silent)}"
            self._fail(f"{said}; {AWAY_REMEDY}", None)

    def on_read_answer(self, bookie_id: str, entry_id: int, answer: Answer, entry: Entry | None = None) -> None:
        """``entry`` is verified, and there exactly when ``answer`` is PRESENT."""
        search = self._searches.get(entry_id)
        if search is None or search.answers.get(bookie_id) is not Answer.UNHEARD:
            return
        search.answers[bookie_id] = answer
        if entry is not None and search.found is None:
            search.found = entry
        if self.state is RecoveryState.READING:
            self._advance()
        elif self.state is RecoveryState.READING_LENGTH:
            self._advance_length()

    def on_written_back(self, last_entry_id: int) -> None:
        """Write-backs up to ``last_entry_id`` are under way."""
        self._written_back = last_entry_id
        if self.state is RecoveryState.READING:
            self._ask_ahead()

    def _begin_reading(self) -> None:
        self.state = RecoveryState.READING
        self._lac = max(self._lac, self._metadata.last_segment.first_entry_id - 1)
        self._next = self._asked = self._lac + 1
        self._written_back = self._lac
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        ahead = self._read_ahead_entries
        while self._asked < min(self._next + ahead, self._written_back + 1 + _AHEAD_OF_WRITER * ahead):
            self._actions += [FencingRead(bookie, self._asked) for bookie in self._ask(self._asked)]
            self._asked += 1

    def _ask(self, entry_id: int) -> list[str]:
        segment = self._metadata.segment_of(entry_id)
        members = [segment.ensemble[index] for index in self._metadata.quorum.write_set(entry_id)]
        self._searches[entry_id] = _Search(dict.fromkeys(members, Answer.UNHEARD))
        return members

    def _advance(self) -> None:
        found: list[Entry] = []
        while self._next < self._asked and (entry := self._searches[self._next].found) is not None:
            if not self._writing:
                self._start_writing(entry.length - len(entry.payload))
            found.append(entry)
            del self._searches[self._next]
            self._next += 1
            self._ask_ahead()
        if found:
            self._actions.append(WriteBack(Payloads.of([entry.payload for entry in found]), self._lac))
        if self._next == self._asked:
            return  # until the writer of write-backs follows
        answers = list(self._searches[self._next].answers.values())
        if answers.count(Answer.ABSENT) >= self._metadata.quorum.absent_needed:
            self._end()
        elif Answer.UNHEARD not in answers:
            self._fail_unknown(self._next)

    def _end(self) -> None:
        self._searches.clear()
        if self._writing or self._lac == NO_ENTRY:
            if not self._writing:
                self._start_writing(0)
            self.state = RecoveryState.ENDED
            self._actions.append(EndFound(self._next - 1))
        else:
            # Nothing lies beyond the LAC, so no entry told the ledger's length: that at the LAC does.
            self.state = RecoveryState.READING_LENGTH
            self._actions += [LengthRead(bookie, self._lac) for bookie in self._ask(self._lac)]

    def _advance_length(self) -> None:
        search = self._searches[self._lac]
        if search.found is not None:
            self._start_writing(search.found.length)
            self.state = RecoveryState.ENDED
            self._searches.clear()
            self._actions.append(EndFound(self._lac))
        elif Answer.UNHEARD not in search.answers.values():
            # It was acknowledged: here even "absent" from all replicas proves nothing.
            self._fail_unknown(self._lac)

    def _start_writing(self, length: int) -> None:
        self._writing = True
        self._actions.append(StartWriteBack(self._lac, length))

    def _fail_unknown(self, entry_id: int) -> None:
        answers = self._searches[entry_id].answers
        said = ", ".join(f"{bookie} {answer.value}" for bookie, answer in answers.items())
        self._fail(f"no replica gave the entry and it is not proven absent: {said}; {AWAY_REMEDY}", entry_id)

    def _fail(self, message: str, entry_id: int | None) -> None:
        self.state = RecoveryState.FAILED
        self._searches.clear()
        self._actions.append(
            RecoveryFailed(
                EntryUnknownError(f"recovery stopped: {message}", ledger_id=self.ledger_id, entry_id=entry_id)
            )
        )
