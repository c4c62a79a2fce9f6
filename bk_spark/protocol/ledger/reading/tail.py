"""The machine that follows a ledger that is being written. Source: docs/design/compatibility.md §1.8, §4.11, §11.

The tail knows a LAC that never decreases, and never reads beyond it. It learns the LAC from a LAC read at the start,
from the entries it reads, and from segments (one begins right after the last confirmed entry of its time). When it has
caught up, it uses long polls: a bookie answers one when its LAC passes ``previous_lac``.

* The LAC in a poll's answer is only a claim. READ_LAC must prove it by a digest before entries are read up to it.
* One poll is under way. When it is slow, a second one goes to another bookie, and so on. A poll that is outdated by
  news from elsewhere stays under way: a healthy bookie answers it at once, and a timeout finds one that hangs. No
  bookie has two polls.
* The first bookie asked holds both the next entry and the one after, which bring the news. The others follow in turn,
  suspects last.
* "No such ledger" in answer to a poll means that the bookie has no entry of it yet. When all have said so, the next
  round begins after a pause. The same holds for a round of polls that ended before they had waited.
* Polls find no new entries in a ledger in recovery. The tail waits for its metadata to change.
* A closed ledger is read to its last entry. Then the tail ends.
* Rounds in which every bookie failed, failed reads, and failed metadata reads are retried after growing pauses. After
  ``attempts`` consecutive failures the tail ends with a retriable error.
"""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.errors import (
    AWAY_REMEDY,
    BookKeeperError,
    EntryUnknownError,
    InvalidArgumentError,
    NoSuchEntryError,
)
from bk_spark.protocol.ledger.metadata_calls import MetadataFailed, MetadataFound
from bk_spark.protocol.ledger.reading.lac import NO_ANSWER, understand
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.poll_rounds import Poll, PollRounds, growing_pause_ms
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
    reason_of_failure,
)
from bk_spark.protocol.ledger.reading.read_settings import Suspects, TailSettings
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.wire.code_errors import reason_of

#: Timers: the pause before the metadata are read, and the caller's wait.
METADATA_PAUSE: Final = "metadata"
WAIT: Final = "wait"
#: Timers of a poll: the pause before it begins, when it counts as slow, until when an answer counts as early, and when
#: it is given up.
POLL_PAUSE: Final = "pause"
SLOW: Final = "slow"
EARLY: Final = "early"
LATE: Final = "late"


Action = WatchMetadata | ReadLac | ReadRange | LongPoll | AskLac | ReportFailure | StartTimer | StopTimer | StopRequest


Event = (
    MetadataFound
    | MetadataFailed
    | MetadataChanged
    | LacHeard
    | EntriesGiven
    | RangeRead
    | RangeFailed
    | PollAnswered
    | LacTold
    | RequestFailed
    | TimerFired
)


class LedgerTail:
    """Follows one ledger from entry ``first`` on. The result is None: the end was reached, or nothing new came for
    ``max_wait_ms``.

    Parameters
    ----------
    view
        The shared knowledge of the ledger. The tail updates it.
    suspects
        Bookies that are asked last. Those that fail are added.

    The caller calls :meth:`wait` when it has taken everything and waits for more.
    """

    def __init__(
        self, ledger: LedgerKey, view: LedgerView, first: int, settings: TailSettings, *, suspects: Suspects
    ) -> None:
        if first < 0:
            raise InvalidArgumentError(f"cannot follow a ledger from entry {first} on", ledger_id=ledger.ledger_id)
        if settings.max_wait_ms is not None and settings.max_wait_ms < 0:
            raise InvalidArgumentError(f"max_wait_ms must not be negative, got {settings.max_wait_ms}")
        self.outcome: Succeeded[None] | EndedBy | None = None
        self.last_add_confirmed = NO_ENTRY
        #: The next entry to return.
        self.next_entry_id = first
        self._ledger = ledger
        self._view = view
        self._settings = settings
        self._metadata: LedgerMetadata | None = None
        self._started = False
        self._reading = False
        self._range_failures = 0
        self._refreshing = False
        self._refresh_again = False
        self._metadata_failures = 0
        #: A failed range is read again only after the metadata.
        self._stuck = False
        #: The caller waits. The wait is being timed. The wait is over.
        self._wanted = False
        self._timing = False
        self._waited_enough = False
        self._request_id = 0
        self._polls: dict[int, Poll] = {}
        self._rounds = PollRounds(suspects)
        self._actions: list[Action] = []
        self._refresh(0)

    @property
    def waiting(self) -> bool:
        """Whether all entries known to be confirmed were returned."""
        return self._started and not self._reading and self.outcome is None

    def take_actions(self) -> list[Action]:
        """Return the new actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def wait(self) -> None:
        """Report that the caller has taken all returned entries, and waits for more."""
        self._wanted = True
        self._time_the_wait()

    def handle(self, event: Event) -> None:
        """Take an event. Ignored after the end, as are answers to polls that were stopped."""
        if self.outcome is not None:
            return
        match event:
            case MetadataFound(metadata, _):
                self._view.learn_metadata(metadata)
                self._on_metadata(metadata)
            case MetadataFailed(error):
                self._on_metadata_failed(error)
            case MetadataChanged():
                if self._refreshing:
                    # The read under way may have seen the state before the change.
                    self._refresh_again = True
                else:
                    self._refresh(0)
            case LacHeard(lac):
                # Without an answer, polls find the LAC.
                self._started = True
                self._hear(NO_ENTRY if lac is None else lac)
                self._advance()
            case EntriesGiven(count, max_lac):
                self.next_entry_id += count
                self._range_failures = 0
                self._stop_the_wait()
                self._hear(max_lac)
            case RangeRead():
                self._reading = False
                self._advance()
            case RangeFailed(error):
                self._on_range_failed(error)
            case PollAnswered(request_id, code, max_lac) if request_id in self._polls:
                self._on_poll_answered(request_id, code, max_lac)
            case LacTold(int(request_id)) if request_id in self._polls:
                self._on_proof(request_id, event)
            case RequestFailed(int(request_id), error) if request_id in self._polls:
                self._on_poll_failed(request_id, reason_of_failure(error))
            case TimerFired():
                self._on_timer(event)
        self._time_the_wait()

    def fail(self, error: Exception) -> None:
        """End with this error, without a retry. Ignored after the end."""
        if self.outcome is None:
            self._end(EndedBy(error))

    # --- metadata and ranges ---

    def _on_metadata(self, metadata: LedgerMetadata) -> None:
        self._refreshing, self._metadata_failures, self._stuck = False, 0, False
        first_time, self._metadata = self._metadata is None, metadata
        self._hear(metadata.last_segment.first_entry_id - 1)
        self._stop_polls(keep=metadata.last_segment.ensemble if metadata.state is LedgerState.OPEN else ())
        if metadata.state is LedgerState.CLOSED:
            self._started = True
            self._hear(metadata.last_entry_id)
        elif first_time:
            self._actions.append(ReadLac(metadata))
        if self._refresh_again:
            self._refresh(0)
        self._advance()

    def _on_metadata_failed(self, error: Exception) -> None:
        self._refreshing = False
        self._metadata_failures += 1
        if _retriable(error) and self._metadata_failures < self._settings.attempts:
            self._refresh(growing_pause_ms(self._metadata_failures))
        else:
            self._end(EndedBy(error))

    def _on_range_failed(self, error: Exception) -> None:
        self._reading = False
        self._range_failures += 1
        if self._waited_enough:
            self._end(Succeeded(None))
        elif not _retriable(error) or self._range_failures >= self._settings.attempts:
            self._end(EndedBy(error))
        else:
            self._stuck = True
            self._refresh(growing_pause_ms(self._range_failures))

    def _refresh(self, pause_ms: int) -> None:
        if self._refreshing:
            return
        self._refreshing, self._refresh_again = True, False
        if pause_ms:
            self._actions.append(StartTimer(METADATA_PAUSE, pause_ms))
        else:
            self._read_metadata()

    def _read_metadata(self) -> None:
        known = self._view.metadata if self._metadata is None else self._metadata
        if known.state is LedgerState.CLOSED:
            # A closed ledger needs no watch. One would stay until the ledger is deleted.
            self._on_metadata(known)
        else:
            self._actions.append(WatchMetadata())

    # --- the caller's wait ---

    def _time_the_wait(self) -> None:
        wait_ms = self._settings.max_wait_ms
        if wait_ms is not None and self._wanted and self.waiting and not self._timing:
            self._timing = True
            self._actions.append(StartTimer(WAIT, wait_ms))

    def _stop_the_wait(self) -> None:
        if self._timing:
            self._actions.append(StopTimer(WAIT))
        self._wanted = self._timing = self._waited_enough = False

    def _on_timer(self, event: TimerFired) -> None:
        match event.name:
            case "metadata":
                self._read_metadata()
            case "wait" if self._reading:
                self._waited_enough = True
            case "wait":
                self._end(Succeeded(None))
            case (str(kind), int(request_id)) if request_id in self._polls:
                self._on_poll_timer(kind, request_id, self._polls[request_id])

    # --- polls ---

    def _on_poll_timer(self, kind: str, request_id: int, poll: Poll) -> None:
        if kind == POLL_PAUSE:
            self._start_poll(request_id, poll)
        elif kind == EARLY:
            poll.early = False
        elif kind == SLOW:
            poll.slow = True
            self._advance()
        else:
            self._actions += (StopRequest(request_id), ReportFailure(poll.bookie_id))
            self._on_poll_failed(request_id, NO_ANSWER)

    def _on_poll_answered(self, request_id: int, code: Code, max_lac: int | None) -> None:
        poll = self._polls[request_id]
        if code not in (Code.OK, Code.NO_LEDGER, Code.NO_ENTRY):
            self._on_poll_failed(request_id, reason_of(code))
        elif code is Code.OK and max_lac is not None and max_lac > poll.previous_lac:
            poll.claimed_lac = max_lac
            self._actions.append(AskLac(request_id, poll.bookie_id))
        else:
            self._forget_poll(request_id)
            self._rounds.on_silence(poll.bookie_id, waited=code is Code.OK and not poll.early)
            self._advance()

    def _on_proof(self, request_id: int, told: LacTold) -> None:
        poll, lac = self._polls[request_id], understand(self._ledger, told).lac
        if lac <= poll.previous_lac:
            self._on_poll_failed(request_id, f"claims a last add confirmed of {poll.claimed_lac} without proof")
            return
        self._forget_poll(request_id)
        self._rounds.failed_rounds = 0
        self._hear(lac)
        self._advance()

    def _on_poll_failed(self, request_id: int, reason: str) -> None:
        poll = self._forget_poll(request_id)
        self._rounds.on_failure(poll.bookie_id, reason)
        self._advance()

    def _hear(self, last_add_confirmed: int) -> None:
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
            self._view.learn_lac(last_add_confirmed)
            self._rounds.on_news()

    def _advance(self) -> None:
        metadata = self._metadata
        if self.outcome is not None or self._reading or self._stuck or metadata is None or not self._started:
            return
        closed = metadata.state is LedgerState.CLOSED
        last = metadata.last_entry_id if closed else self.last_add_confirmed
        if self.next_entry_id <= last:
            self._reading = True
            self._actions.append(ReadRange(self.next_entry_id, last))
        elif closed and self.next_entry_id > last + 1:
            self._end(
                EndedBy(
                    NoSuchEntryError(
                        f"the ledger was closed at entry {last}: entry {self.next_entry_id} will never exist",
                        ledger_id=self._ledger.ledger_id,
                        entry_id=self.next_entry_id,
                    )
                )
            )
        elif closed:
            self._end(Succeeded(None))
        elif metadata.state is LedgerState.OPEN:
            self._poll(metadata)

    def _poll(self, metadata: LedgerMetadata) -> None:
        """Start a poll, unless one is under way that is current and not slow, or no bookie is left."""
        current = [poll for poll in self._polls.values() if poll.previous_lac == self.last_add_confirmed]
        if not all(poll.slow for poll in current):
            return
        delay_ms = 0
        bookie_id = self._candidate(metadata)
        if bookie_id is None and (self._rounds.has_quiet or not self._polls):
            failures = self._rounds.failures
            delay_ms = self._rounds.end()
            bookie_id = self._candidate(metadata)
            if self._rounds.failed_rounds >= self._settings.attempts:
                error = EntryUnknownError(
                    f"no bookie could be asked for new entries: {failures}; {AWAY_REMEDY}",
                    ledger_id=self._ledger.ledger_id,
                    entry_id=self.next_entry_id,
                )
                self._end(EndedBy(error))
        if bookie_id is None or self.outcome is not None:
            return
        self._request_id += 1
        poll = Poll(bookie_id, self.last_add_confirmed, self._settings.speculation.wait_ms(len(current)))
        self._polls[self._request_id] = poll
        if delay_ms:
            self._actions.append(StartTimer((POLL_PAUSE, self._request_id), delay_ms))
        else:
            self._start_poll(self._request_id, poll)

    def _candidate(self, metadata: LedgerMetadata) -> str | None:
        polled = [poll.bookie_id for poll in self._polls.values()]
        return self._rounds.candidate(metadata.last_segment.ensemble, self.last_add_confirmed, polled)

    def _start_poll(self, request_id: int, poll: Poll) -> None:
        wait_ms = self._settings.poll_ms
        self._actions += (
            LongPoll(request_id, poll.bookie_id, poll.previous_lac, wait_ms),
            StartTimer((SLOW, request_id), poll.slow_after_ms),
            StartTimer((EARLY, request_id), wait_ms / 2),
            StartTimer((LATE, request_id), wait_ms + self._settings.timeout_ms),
        )

    def _forget_poll(self, request_id: int) -> Poll:
        self._actions += (StopTimer((kind, request_id)) for kind in (POLL_PAUSE, SLOW, EARLY, LATE))
        return self._polls.pop(request_id)

    def _stop_polls(self, keep: tuple[str, ...] = ()) -> None:
        for request_id, poll in list(self._polls.items()):
            if poll.bookie_id not in keep:
                self._forget_poll(request_id)
                self._actions.append(StopRequest(request_id))

    def _end(self, outcome: Succeeded[None] | EndedBy) -> None:
        self.outcome = outcome
        self._stop_polls()


def _retriable(error: Exception) -> bool:
    return isinstance(error, BookKeeperError) and error.retriable
