"""The machine that asks bookies which entries of a ledger they hold (compatibility.md §1.8).

A list only spares reads: what it names need not be read. What it lacks is read, and only the answer to that read says
that an entry is absent. So a bookie that gives no list, or a wrong one, costs reads and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bk_spark.protocol.errors import BookieTimeoutError, BookieUnavailableError
from bk_spark.protocol.ledger.reading.read_actions import RequestFailed
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.wire.entry_availability import EntryAvailability


@dataclass(frozen=True, slots=True)
class ListEntries:
    """Ask the bookie for the list of the ledger's entries: :class:`EntriesListed` or ``RequestFailed``."""

    request_id: int
    bookie_id: str


@dataclass(frozen=True, slots=True)
class EntriesListed:
    """The answer to :class:`ListEntries`."""

    request_id: int
    entries: EntryAvailability


@dataclass(frozen=True, slots=True)
class ListsFound:
    """The ``lists`` by bookie. Those that are ``unanswered`` may not know the request: do not ask them soon again."""

    lists: Mapping[str, EntryAvailability]
    unanswered: frozenset[str]


class EntryLists:
    """Asks all ``bookies`` at once. Its result is :class:`ListsFound`."""

    def __init__(self, bookies: Collection[str], *, timeout_ms: int, request_ids: Iterator[int]) -> None:
        self.outcome: Succeeded[ListsFound] | EndedBy | None = None
        self._asked = {next(request_ids): bookie_id for bookie_id in sorted(bookies)}
        self._lists: dict[str, EntryAvailability] = {}
        self._unanswered: set[str] = set()
        self._actions: list[ListEntries | StartTimer | StopTimer | StopRequest] = []
        for request_id, bookie_id in self._asked.items():
            self._actions += [ListEntries(request_id, bookie_id), StartTimer(request_id, timeout_ms)]
        self._end_if_answered()

    def take_actions(self) -> list[ListEntries | StartTimer | StopTimer | StopRequest]:
        """Return the questions, which come with the first call, and later the timers and requests to stop."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: EntriesListed | RequestFailed | TimerFired) -> None:
        """Take a bookie's list, its error or its timeout. The last one ends the machine. It never fails because of a
        bookie."""
        match event:
            case EntriesListed(request_id, entries) if request_id in self._asked:
                self._lists[self._ended(request_id)] = entries
            case RequestFailed(int(request_id), error) if request_id in self._asked:
                bookie_id = self._ended(request_id)
                if isinstance(error, BookieTimeoutError | BookieUnavailableError):
                    self._unanswered.add(bookie_id)
            case TimerFired(int(request_id)) if request_id in self._asked:
                self._actions.append(StopRequest(request_id))
                self._unanswered.add(self._ended(request_id))
        self._end_if_answered()

    def fail(self, error: Exception) -> None:
        """End without the lists. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _ended(self, request_id: int) -> str:
        self._actions.append(StopTimer(request_id))
        return self._asked.pop(request_id)

    def _end_if_answered(self) -> None:
        if not self._asked and self.outcome is None:
            self.outcome = Succeeded(ListsFound(self._lists, frozenset(self._unanswered)))
