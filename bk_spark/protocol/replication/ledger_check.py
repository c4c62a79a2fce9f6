"""The machine that checks which copies of a ledger are bad. Source: compatibility.md §6.5.

* A bookie that is not registered is *lost*. All its copies are bad, also in a fragment of which it stores no entry.
  Otherwise nobody could ever retire a bookie.
* A registered bookie is asked for the first and the last entry that it should store of each fragment, for a share of
  the others, and for every entry if there is a reason (``every``). Its copy is bad if it says "absent", or if the
  digest of an entry is wrong. If a list of the bookie's entries is known, "every" means those that the list lacks.
* Every other failure is *unknown*: nothing is repaired for it, but the ledger does not count as whole.
* The last fragment of a ledger that is not closed is checked up to the last add confirmed only. If nothing of it is
  confirmed, its first entry may or may not exist, so "absent" proves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError
from bk_spark.protocol.ledger.reading.lac import NO_ANSWER
from bk_spark.protocol.ledger.reading.read_actions import (
    EntriesRead,
    ReadEntries,
    RequestFailed,
    reason_of_failure,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, StopRequest, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.actions import RequestAction, RequestEvent
from bk_spark.protocol.replication.fragments import Fragment
from bk_spark.protocol.replication.known_entries import KnownEntries, one_by_one
from bk_spark.protocol.replication.verification import key_of, reason_of_answer, right_entries
from bk_spark.protocol.wire.code_errors import AbsentError
from bk_spark.protocol.wire.entry_availability import EntryAvailability

#: Reason of a bad copy whose bookie is not registered.
LOST: Final = "is lost"
#: By the first entry of a fragment, then by position in its ensemble: why a copy is bad or unknown.
Findings = Mapping[int, Mapping[int, str]]
#: First and last entry of a fragment, position in its ensemble, bookie.
Copy = tuple[int, int, int, str]
#: Requests under way.
_PROBES: Final = 16
#: The intended size of an answer, and the entries of a request at most. While their size is unknown, it is one.
_PROBE_BYTES: Final = 1024 * 1024
_MAX_ENTRIES: Final = 250


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The bad copies, and those of which nobody knows. ``entries`` are some that were read and verified."""

    bad: Findings = field(default_factory=dict)
    unknown: Findings = field(default_factory=dict)
    entries: KnownEntries = field(default_factory=KnownEntries)


@dataclass(slots=True)
class _Probe:
    fragment: Fragment
    position: int
    entry_ids: range
    #: Whether these are the ends of the copy.
    ends: bool = False
    #: The first of them, which were asked for.
    asked_ids: range = range(0)

    @property
    def copy(self) -> tuple[int, int]:
        return self.fragment.first_entry_id, self.position


class LedgerCheck:
    """Checks the copies of ``fragments``. Its result is a :class:`CheckResult`.

    Parameters
    ----------
    registered
        The registered bookies, writable and read-only.
    every
        Whether every entry of this fragment is to be read at this bookie.
    share
        The share of entries, besides the first and last, that are read at other bookies, and at those with a list. 0
        to 1. With 1, all entries are read.
    timeout_ms
        A bookie that does not answer for this long is unknown.
    request_ids
        Gives the ids of requests, unique among all machines that share a runner.
    good
        Copies for which it is enough that their bookies are registered (:func:`copy_of`).
    keep_bytes
        How much of what is read to keep for a copy.
    lists
        The entries that bookies say they hold (:mod:`.entry_lists`).
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        fragments: Sequence[Fragment],
        registered: Collection[str],
        *,
        every: Callable[[Fragment, str], bool],
        share: float,
        random: Random,
        timeout_ms: int,
        request_ids: Iterator[int],
        good: Collection[Copy] = (),
        keep_bytes: int = 0,
        lists: Mapping[str, EntryAvailability] | None = None,
    ) -> None:
        self.outcome: Succeeded[CheckResult] | EndedBy | None = None
        self._ledger_id = ledger_id
        self._key = key_of(ledger_id, metadata)
        self._registered = frozenset(registered)
        self._every = every
        self._share = share
        self._lists = lists or {}
        self._random = random
        self._timeout_ms = timeout_ms
        self._request_ids = request_ids
        self._good = good
        self._entries = KnownEntries(keep_bytes)
        self._at_once = 1
        if metadata.length:
            self._at_once = _entries_at_once(metadata.length / (metadata.last_entry_id + 1))
        #: Whether the metadata tell the size of entries. Otherwise that of the last ones that were read counts.
        self._size_known = metadata.length > 0
        self._bad: dict[int, dict[int, str]] = {}
        self._unknown: dict[int, dict[int, str]] = {}
        self._found = {"bad": self._bad, "unknown": self._unknown}
        #: Copies that need no more probes.
        self._decided: set[tuple[int, int]] = set()
        self._rest: deque[_Probe] = deque()
        self._probes = self._all_probes(fragments)
        self._asked: dict[int, _Probe] = {}
        self._actions: list[RequestAction] = []
        self._fill()

    def take_actions(self) -> list[RequestAction]:
        """Return the new reads, timers and stops, in order."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: RequestEvent) -> None:
        """Take an answer, and ask on. A failure or a timeout leaves the copy unknown."""
        match event:
            case EntriesRead(request_id):
                self._on_answer(request_id, event)
            case RequestFailed(int(request_id), error):
                self._decide(self._ended(request_id), "unknown", reason_of_failure(error))
            case TimerFired(int(request_id)) if request_id in self._asked:
                self._actions.append(StopRequest(request_id))
                self._decide(self._ended(request_id), "unknown", NO_ANSWER)
        self._fill()

    def fail(self, error: Exception) -> None:
        """End without a result. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _all_probes(self, fragments: Sequence[Fragment]) -> Iterator[_Probe]:
        for fragment in fragments:
            for position, bookie_id in enumerate(fragment.ensemble):
                if bookie_id not in self._registered:
                    self._decide(_Probe(fragment, position, range(0)), "bad", LOST)
                    continue
                if copy_of(fragment, position) in self._good:
                    continue
                ends = fragment.ends(position)
                # A copy that is gone as a whole is found by its ends, before the rest is read.
                if ends:
                    both = range(ends[0], ends[-1] + 1, max(1, ends[-1] - ends[0]))
                    yield _Probe(fragment, position, both, ends=True)
                for entry_ids in self._others(fragment, position, bookie_id, ends):
                    yield _Probe(fragment, position, entry_ids)

    def _others(self, fragment: Fragment, position: int, bookie_id: str, ends: tuple[int, ...]) -> Iterator[range]:
        every, listed = self._every(fragment, bookie_id), self._lists.get(bookie_id)
        for own in fragment.series((position,)):
            # The ends lie at the ends of a series.
            series = own[own[0] in ends : len(own) - (own[-1] in ends)]
            if self._share >= 1 or (every and listed is None):
                if series:
                    yield series
                continue
            sample = set(self._random.sample(series, round(len(series) * self._share)))
            if every and listed is not None:
                for entry_id in listed.lacking(series):
                    sample.discard(entry_id)
                    yield range(entry_id, entry_id + 1)
            for entry_id in sorted(sample):
                yield range(entry_id, entry_id + 1)

    def _fill(self) -> None:
        while len(self._asked) < _PROBES and self.outcome is None:
            probe = self._rest.popleft() if self._rest else next(self._probes, None)
            if probe is None:
                if not self._asked:
                    self.outcome = Succeeded(CheckResult(self._bad, self._unknown, self._entries))
                return
            if probe.copy in self._decided:
                continue
            request_id = next(self._request_ids)
            self._asked[request_id] = probe
            bookie_id = probe.fragment.ensemble[probe.position]
            probe.asked_ids = probe.entry_ids[: self._at_once]
            self._actions += [
                ReadEntries(request_id, bookie_id, probe.asked_ids),
                StartTimer(request_id, self._timeout_ms),
            ]

    def _ended(self, request_id: int) -> _Probe | None:
        probe = self._asked.pop(request_id, None)
        if probe is not None:
            self._actions.append(StopTimer(request_id))
        return probe

    def _on_answer(self, request_id: int, answer: EntriesRead) -> None:
        probe = self._ended(request_id)
        if probe is None:
            return
        try:
            right = right_entries(self._ledger_id, self._key, probe.asked_ids, answer)
        except (AbsentError, DigestMismatchError) as error:
            self._decide(probe, "bad", reason_of_answer(error))
        except BookKeeperError as error:
            self._decide(probe, "unknown", reason_of_answer(error))
        else:
            if not self._size_known:
                self._at_once = _entries_at_once(len(right.records) / len(right.entry_ids))
            # Without a password, one bookie's answer is not proven.
            if self._key is not None and probe.fragment.closed:
                # The ends lie in no series together.
                for known in one_by_one(right) if probe.ends else (right,):
                    self._entries.add(known)
            rest = probe.entry_ids[len(right.entry_ids) :]
            if rest:
                self._rest.append(_Probe(probe.fragment, probe.position, rest))

    def _decide(self, probe: _Probe | None, verdict: str, reason: str) -> None:
        if probe is None or probe.copy in self._decided:
            return
        self._decided.add(probe.copy)
        bookie_id = probe.fragment.ensemble[probe.position]
        where = f"entry {probe.entry_ids[0]}: " if probe.entry_ids else ""
        of_fragment = self._found[verdict].setdefault(probe.fragment.first_entry_id, {})
        of_fragment[probe.position] = f"{where}bookie {bookie_id} {reason}"


def _entries_at_once(average_bytes: float) -> int:
    return max(1, min(_MAX_ENTRIES, int(_PROBE_BYTES / (average_bytes + 1))))


def copy_of(fragment: Fragment, position: int) -> Copy:
    """Return what identifies a copy: the first and last entry of its fragment, its position, and its bookie."""
    return fragment.first_entry_id, fragment.last_entry_id, position, fragment.ensemble[position]
