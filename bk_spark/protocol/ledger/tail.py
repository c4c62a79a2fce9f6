"""Following a ledger that is being written, as a state machine without I/O. Source: compatibility.md §1.8, §4.11, §11.

The tail knows a LAC that never goes back, and reads up to it, never further. It learns it from a LAC
read at the beginning, from LACs in the entries it reads, from segments (one begins right after the last
confirmed entry of its time), and when it has caught up, from long polls: a bookie answers one when its
LAC passes ``previous_lac``.

* One poll is under way; a second one at another bookie when the first takes long, and so on. A poll that
  was overtaken by news from elsewhere is left under way: a sound bookie will answer it at once, one that
  hangs will be found out. No bookie has two polls.
* The first bookie asked is that which holds both the next entry and the one after, which bring the news;
  then the others in turn, suspects last.
* "No such ledger" to a poll means that the bookie has no entry of it yet. When all have said so, the next
  round begins after a pause.
* A ledger in recovery gets no new entry that a poll could tell: the tail waits for its metadata to change.
* A closed ledger is read to its last entry; then the tail is finished.
* Rounds in which every bookie failed, failed reads, and failures to read the metadata, are retried after
  growing pauses, so many times in a row; then the tail fails with a retriable error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.errors import (
    AWAY_REMEDY,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    NoSuchEntryError,
)
from bk_spark.protocol.ledger.speculation import Speculation, Suspects
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Answer

#: Apache's ``firstSpeculativeReadLACTimeout`` and ``maxSpeculativeReadLACTimeout``.
DEFAULT_POLL_SPECULATION: Final = Speculation(1_500, 5_000)
#: Pauses after something failed, or after no bookie had the ledger yet.
_FIRST_PAUSE_MS: Final = 50
_MAX_QUIET_PAUSE_MS: Final = 1_000
_MAX_FAILURE_PAUSE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """After ``delay_ms`` read the ledger's metadata, and from then on watch it: :meth:`LedgerTail.on_metadata`
    or :meth:`LedgerTail.on_metadata_failed`, and :meth:`LedgerTail.on_metadata_changed` when it changes."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Read the LAC: :meth:`LedgerTail.on_lac_read`."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read the entries: :meth:`LedgerTail.on_entries` as they come, then :meth:`LedgerTail.on_range_read`, or
    :meth:`LedgerTail.on_range_failed`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LongPoll:
    """After ``delay_ms`` ask ``bookie_id`` for a LAC above ``previous_lac``: :meth:`LedgerTail.on_poll_answered`
    or :meth:`LedgerTail.on_poll_failed`, and :meth:`LedgerTail.on_poll_slow` when the
    answer takes longer than ``slow_after_ms``."""

    request_id: int
    bookie_id: str
    previous_lac: int
    delay_ms: int
    slow_after_ms: int


@dataclass(frozen=True, slots=True)
class StopPoll:
    """The answer to this poll no longer matters."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The ledger is closed and everything was read."""


@dataclass(frozen=True, slots=True)
class Failed:
    error: BookKeeperError


Action = RefreshMetadata | ReadLac | ReadRange | LongPoll | StopPoll | Finished | Failed


@dataclass(slots=True)
class _Poll:
    bookie_id: str
    previous_lac: int
    slow: bool = False


class LedgerTail:
    """Follows one ledger from entry ``first`` on. ``attempts``: how often in a row something may fail."""

    def __init__(
        self,
        ledger_id: int,
        first: int,
        *,
        attempts: int,
        speculation: Speculation = DEFAULT_POLL_SPECULATION,
        suspects: Suspects | None = None,
    ) -> None:
        if first < 0:
            raise InvalidArgumentError(f"cannot follow a ledger from entry {first} on", ledger_id=ledger_id)
        self.ledger_id = ledger_id
        self.last_add_confirmed = NO_ENTRY
        #: The next entry to be given out.
        self.next_entry_id = first
        self.over = False
        self._attempts = attempts
        self._speculation = speculation
        self._suspects: Suspects = set() if suspects is None else suspects
        self._metadata: LedgerMetadata | None = None
        self._started = False
        self._reading = False
        self._range_failures = 0
        self._refreshing = True
        self._refresh_again = False
        self._metadata_failures = 0
        #: A failed range is not read again before the metadata are.
        self._stuck = False
        self._request_id = 0
        self._polls: dict[int, _Poll] = {}
        self._turn = 0
        #: Bookies of this round that had nothing to say, and those that failed (with the reason).
        self._quiet: set[str] = set()
        self._failed: dict[str, str] = {}
        self._quiet_rounds = 0
        self._failed_rounds = 0
        self._actions: list[Action] = [RefreshMetadata(0)]

    def take_actions(self) -> list[Action]:
        """What is to be done now, in order; each action is given once."""
        actions, self._actions = self._actions, []
        return actions

    @property
    def waiting(self) -> bool:
        """All that is known to be confirmed was given out."""
        return self._started and not self._reading and not self.over

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        if self.over:
            return
        self._refreshing, self._metadata_failures, self._stuck = False, 0, False
        first_time, self._metadata = self._metadata is None, metadata
        self._hear(metadata.last_segment.first_entry_id - 1)
        self._stop_polls(keep=metadata.last_segment.ensemble if metadata.state is LedgerState.OPEN else ())
        if metadata.state is LedgerState.CLOSED:
            self._started = True
            self._hear(metadata.last_entry_id)
        elif first_time:
            self._actions.append(ReadLac())
        if self._refresh_again:
            self._refresh(0)
        self._advance()

    def on_metadata_failed(self, error: BookKeeperError) -> None:
        """Among others NoSuchLedgerError: it was deleted."""
        if self.over:
            return
        self._refreshing = False
        self._metadata_failures += 1
        if error.retriable and self._metadata_failures < self._attempts:
            self._refresh(_pause_ms(self._metadata_failures, _MAX_FAILURE_PAUSE_MS))
        else:
            self._end(Failed(error))

    def on_metadata_changed(self) -> None:
        if self._refreshing:
            # What is being read may have been read before the change.
            self._refresh_again = True
        else:
            self._refresh(0)

    def on_lac_read(self, last_add_confirmed: int | None) -> None:
        """The LAC, or None where too few bookies told it: polls will tell, if anybody can."""
        self._started = True
        if last_add_confirmed is not None:
            self._hear(last_add_confirmed)
        self._advance()

    def on_entries(self, count: int, max_lac: int) -> None:
        """The next ``count`` entries are there; ``max_lac`` is the highest LAC in them."""
        self.next_entry_id += count
        self._range_failures = 0
        self._hear(max_lac)

    def on_range_read(self) -> None:
        self._reading = False
        self._advance()

    def on_range_failed(self, error: BookKeeperError) -> None:
        """The rest of the range could not be read."""
        if self.over:
            return
        self._reading = False
        self._range_failures += 1
        if not error.retriable or self._range_failures >= self._attempts:
            self._end(Failed(error))
            return
        self._stuck = True
        self._refresh(_pause_ms(self._range_failures, _MAX_FAILURE_PAUSE_MS))

    def on_poll_answered(self, request_id: int, answer: Answer, last_add_confirmed: int, *, early: bool) -> None:
        """``answer`` ABSENT: the bookie knows no such ledger. ``early``: it did not wait as long as asked."""
        poll = self._polls.pop(request_id, None)
        if poll is None:
            return
        self._failed_rounds = 0
        if last_add_confirmed > poll.previous_lac:
            self._hear(last_add_confirmed)
        elif answer is Answer.ABSENT or early:
            self._quiet.add(poll.bookie_id)
        else:
            self._turn += 1
            self._new_round()
        self._advance()

    def on_poll_failed(self, request_id: int, reason: str) -> None:
        poll = self._polls.pop(request_id, None)
        if poll is None:
            return
        self._suspects.add(poll.bookie_id)
        self._failed[poll.bookie_id] = reason
        self._advance()

    def on_poll_slow(self, request_id: int) -> None:
        poll = self._polls.get(request_id)
        if poll is None or poll.slow:
            return
        poll.slow = True
        self._advance()

    def _hear(self, last_add_confirmed: int) -> None:
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            self._turn = self._quiet_rounds = self._failed_rounds = 0
            self._new_round()

    def _advance(self) -> None:
        metadata = self._metadata
        if self.over or self._reading or self._stuck or metadata is None or not self._started:
            return
        closed = metadata.state is LedgerState.CLOSED
        last = metadata.last_entry_id if closed else self.last_add_confirmed
        if self.next_entry_id <= last:
            self._reading = True
            self._actions.append(ReadRange(self.next_entry_id, last))
        elif closed and self.next_entry_id > last + 1:
            self._end(
                Failed(
                    NoSuchEntryError(
                        f"the ledger was closed at entry {last}: entry {self.next_entry_id} will never be there",
                        ledger_id=self.ledger_id,
                        entry_id=self.next_entry_id,
                    )
                )
            )
        elif closed:
            self._end(Finished())
        elif metadata.state is LedgerState.OPEN:
            self._poll(metadata)

    def _poll(self, metadata: LedgerMetadata) -> None:
        """Have a poll under way that is up to date and not slow, if a bookie is left for it."""
        current = [poll for poll in self._polls.values() if poll.previous_lac == self.last_add_confirmed]
        if not all(poll.slow for poll in current):
            return
        delay_ms = 0
        bookie_id = self._candidate(metadata)
        if bookie_id is None and (self._quiet or not self._polls):
            delay_ms = self._end_round()
            bookie_id = self._candidate(metadata)
        if bookie_id is None or self.over:
            return
        self._request_id += 1
        self._polls[self._request_id] = _Poll(bookie_id, self.last_add_confirmed)
        slow_after_ms = self._speculation.wait_ms(len(current))
        self._actions.append(LongPoll(self._request_id, bookie_id, self.last_add_confirmed, delay_ms, slow_after_ms))

    def _candidate(self, metadata: LedgerMetadata) -> str | None:
        ensemble = metadata.last_segment.ensemble
        turn = (self.last_add_confirmed + 2 + self._turn) % len(ensemble)
        taken = {poll.bookie_id for poll in self._polls.values()} | self._quiet | self._failed.keys()
        free = [bookie for bookie in (*ensemble[turn:], *ensemble[:turn]) if bookie not in taken]
        return min(free, key=lambda bookie: bookie in self._suspects, default=None)

    def _end_round(self) -> int:
        """Every bookie was asked. How long to pause before the next round, in ms."""
        if self._quiet:
            self._new_round()
            self._quiet_rounds += 1
            return _pause_ms(self._quiet_rounds, _MAX_QUIET_PAUSE_MS)
        said = "; ".join(f"{bookie} {reason}" for bookie, reason in self._failed.items())
        self._new_round()
        self._failed_rounds += 1
        if self._failed_rounds >= self._attempts:
            error = EntryUnknownError(
                f"no bookie could be asked for new entries: {said}; {AWAY_REMEDY}",
                ledger_id=self.ledger_id,
                entry_id=self.next_entry_id,
            )
            self._end(Failed(error))
        return _pause_ms(self._failed_rounds, _MAX_FAILURE_PAUSE_MS)

    def _new_round(self) -> None:
        self._quiet.clear()
        self._failed.clear()

    def _stop_polls(self, keep: tuple[str, ...] = ()) -> None:
        for request_id, poll in list(self._polls.items()):
            if poll.bookie_id not in keep:
                del self._polls[request_id]
                self._actions.append(StopPoll(request_id))

    def _refresh(self, delay_ms: int) -> None:
        if not self._refreshing and not self.over:
            self._refreshing, self._refresh_again = True, False
            self._actions.append(RefreshMetadata(delay_ms))

    def _end(self, action: Finished | Failed) -> None:
        self.over = True
        self._stop_polls()
        self._actions.append(action)


def _pause_ms(times: int, at_most: int) -> int:
    """After the first time :data:`_FIRST_PAUSE_MS`, then twice the pause before."""
    return min(at_most, _FIRST_PAUSE_MS << min(times - 1, 16))
