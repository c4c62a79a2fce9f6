"""The auditor's scans of all ledgers, as generators (compatibility.md §6.4, §6.5).

A scan reads page after page, at a limited number of znodes a second, and keeps no more than a page. A ledger is
reported, and does not stop the scan, if its metadata cannot be read or its copies cannot be judged. Every mark carries
the auditor's vote as proof, so an auditor that lost its session marks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.machine import StartTimer
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.replication.actions import (
    Check,
    CheckLedgers,
    DelayRead,
    EndCheck,
    LedgersChecked,
    LedgersRead,
    MarkLedgers,
    ProgressRead,
    ReadLedgers,
    ReadProgress,
    ScanAction,
    SyncStore,
    WriteProgress,
)
from bookie_server.replication.auditing.ledger_walk import LedgerWalk, ReadPace
from bookie_server.replication.auditing.lost_copies import FewCopies, few_copies
from bookie_server.replication.auditing.patience import patient

#: Ledgers whose metadata are read at once.
PAGE_LEDGERS: Final = 256
#: Requests that a mark takes: its parents, the mark itself, the read of one that exists.
_REQUESTS_PER_MARK: Final = 4
#: Ledgers that a report names.
_NAMED: Final = 100

#: The pause before a scan that may not end yet asks again.
_END_PAUSE_MS: Final = 1_000
#: Pages after which the progress of a scan of bookies is stored.
_PAGES_PER_PROGRESS: Final = 16
#: Ledgers that are checked once more, at most.
_MAX_DOUBTFUL: Final = 10_000

Steps = Generator[ScanAction | StartTimer, Any, None]
Scan = Generator[ScanAction | StartTimer, Any, "ScanReport"]
#: Returns which of the named bookies are lost now.
FindLost = Callable[[frozenset[str]], frozenset[str]]


@dataclass(slots=True)
class ScanReport:
    """What a scan found."""

    ledgers: int = 0
    #: Ledgers with bad copies, and those of them that were marked.
    found: int = 0
    marked: int = 0
    #: Bytes of entries in ledgers with bad copies, each once.
    found_bytes: int = 0
    #: Why ledgers could not be judged; the first of them.
    problems: dict[int, str] = field(default_factory=dict)
    #: All of them.
    not_judged: int = 0
    #: Ledgers with an entry that lost copies. A copy of which any entry is bad counts as lost as a whole.
    few_copies: Counter[FewCopies] = field(default_factory=Counter)

    def note_bad(self, ledgers: Mapping[int, LedgerMetadata], bad: Mapping[int, frozenset[str]]) -> None:
        """Count the ledgers and their bytes by the copies that are left of an entry. ``bad`` are the bookies of lost
        copies."""
        self.found_bytes += sum(ledgers[ledger_id].length for ledger_id in bad)
        kinds = (few_copies(ledgers[ledger_id], bookies) for ledger_id, bookies in bad.items())
        self.few_copies.update(kind for kind in kinds if kind is not None)

    def note_problem(self, ledger_id: int, problem: str) -> None:
        """Count a ledger that could not be judged. The reasons of the first ones are kept."""
        self.not_judged += 1
        if len(self.problems) < _NAMED:
            self.problems[ledger_id] = problem


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """What all scans of an auditor share.

    Parameters
    ----------
    manager, root
        Where ledgers are.
    proof
        The path of the auditor's vote.
    reads_per_s
        Requests that a scan sends to ZooKeeper per second, at most.
    checked_at_once
        Ledgers that are checked at their bookies at the same time.
    mark_misplaced
        Also mark closed ledgers whose ensembles violate the placement policy.
    """

    manager: LedgerManager
    root: str
    proof: str
    reads_per_s: float = 1000
    checked_at_once: int = 32
    mark_misplaced: bool = False


class BookieScan:
    """Marks every ledger with a lost bookie in any fragment, also closed and empty ones, as Apache's auditor does.

    It walks in a circle: from where the last auditor stood to the end, and from the first ledger to there. If another
    bookie is lost meanwhile, :meth:`again` begins a new round where the scan is.

    Parameters
    ----------
    find_lost
        Returns which of the named bookies are lost now.
    delay
        Returns the delay that the auditor knows. If it changes to a value that asks for an audit, call :meth:`again`.
    may_end
        Returns whether the scan may end now. Otherwise it waits, and asks again.
    """

    def __init__(
        self,
        settings: ScanSettings,
        find_lost: FindLost,
        delay: Callable[[], DelayRead | None] = lambda: None,
        may_end: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._find_lost = find_lost
        self._delay = delay
        self._may_end = may_end
        self._pace = ReadPace(settings.reads_per_s)
        #: The last ledger that was handled.
        self._position = -1
        #: Where the next round begins, if one was asked for.
        self._begin_after: int | None = None

    def again(self) -> None:
        """Begin a new round where the scan is. A page under way belongs to it."""
        self._begin_after = self._position

    def steps(self) -> Scan:
        """The scan. It ends with its report when every ledger was seen since the last :meth:`again`."""
        report = ScanReport()
        progress: ProgressRead = yield from patient(ReadProgress(Check.BOOKIES))
        self._position = self._begin_after = round_end = progress.after
        wrapped, pages = False, 0
        walk = self._walk_after(self._position)
        while True:
            if self._begin_after is not None:
                self._position = round_end = self._begin_after
                self._begin_after, wrapped = None, False
                report.few_copies.clear()
                # A ledger that was made just before a bookie was lost must not be missed.
                yield from patient(SyncStore())
                walk = self._walk_after(round_end)
            page = yield from walk.next_page(PAGE_LEDGERS)
            if wrapped:
                page = [ledger_id for ledger_id in page if ledger_id <= round_end]
            if page:
                yield from self._judge(page, report)
                pages += 1
                if pages % _PAGES_PER_PROGRESS == 0:
                    yield from patient(WriteProgress(Check.BOOKIES, page[-1], self._settings.proof))
                if self._begin_after is None:
                    self._position = page[-1]
            elif wrapped or round_end < 0:
                while self._begin_after is None and not self._may_end():
                    yield StartTimer("end", _END_PAUSE_MS)
                if self._begin_after is None:
                    yield from patient(EndCheck(Check.BOOKIES, self._settings.proof, self._delay()))
                if self._begin_after is None:
                    return report
            else:
                wrapped, self._position = True, -1
                walk = self._walk_after(-1)

    def _walk_after(self, after: int) -> LedgerWalk:
        return LedgerWalk(self._settings.manager, self._settings.root, self._pace, after)

    def _judge(self, page: list[int], report: ScanReport) -> Steps:
        ledgers = yield from _read(page, report, self._pace)
        named = {ledger_id: self._find_lost(bookies_of(metadata)) for ledger_id, metadata in ledgers.items()}
        missing = {ledger_id: lost for ledger_id, lost in named.items() if lost}
        report.note_bad(ledgers, missing)
        yield from _mark(missing, report, self._settings, self._pace)


def check_steps(check: Check, settings: ScanSettings, find_lost: FindLost) -> Scan:
    """Check every ledger at its bookies: ``Check.LEDGERS``, ``Check.PLACEMENT`` or ``Check.REPLICAS``.

    It begins where another auditor stood. Ledgers that could not be judged are tried once more at the end. A bookie
    that is waited for is not lost here either, as in Apache's auditor, which begins no check meanwhile.
    """
    report, pace = ScanReport(), ReadPace(settings.reads_per_s)
    progress: ProgressRead = yield from patient(ReadProgress(check))
    walk = LedgerWalk(settings.manager, settings.root, pace, progress.after)
    doubtful: list[int] = []
    while page := (yield from walk.next_page(settings.checked_at_once)):
        unknown = yield from _check(check, page, report, settings, pace, find_lost)
        doubtful += list(unknown)[: _MAX_DOUBTFUL - len(doubtful)]
        report.not_judged += len(unknown)
        yield from patient(WriteProgress(check, page[-1], settings.proof))
    for first in range(0, len(doubtful), settings.checked_at_once):
        again = doubtful[first : first + settings.checked_at_once]
        unknown = yield from _check(check, again, report, settings, pace, find_lost)
        report.not_judged -= len(again)
        for ledger_id, problem in unknown.items():
            report.note_problem(ledger_id, problem)
    yield from patient(EndCheck(check, settings.proof))
    return report


def _check(
    check: Check, page: list[int], report: ScanReport, settings: ScanSettings, pace: ReadPace, find_lost: FindLost
) -> Generator[ScanAction | StartTimer, Any, Mapping[int, str]]:
    """Check some ledgers and mark those with bad copies. Return which could not be checked, and why."""
    ledgers = yield from _read(page, report, pace)
    if check is not Check.LEDGERS:
        ledgers = {each: metadata for each, metadata in ledgers.items() if metadata.state is LedgerState.CLOSED}
    if not ledgers:
        return {}
    lost = find_lost(frozenset().union(*map(bookies_of, ledgers.values())))
    checked: LedgersChecked = yield from patient(CheckLedgers(ledgers, check, lost))
    report.note_bad(ledgers, checked.bad)
    if check is Check.LEDGERS or (check is Check.PLACEMENT and settings.mark_misplaced):
        marked = {each: members for each, members in checked.bad.items() if each not in checked.unmovable}
        yield from _mark(marked, report, settings, pace)
        report.found += len(checked.bad) - len(marked)
    else:
        report.found += len(checked.bad)
    return checked.unknown


def bookies_of(metadata: LedgerMetadata) -> frozenset[str]:
    """Return all bookies that a ledger names."""
    return frozenset().union(*(segment.ensemble for segment in metadata.segments))


def _read(
    page: list[int], report: ScanReport, pace: ReadPace
) -> Generator[ScanAction | StartTimer, Any, dict[int, LedgerMetadata]]:
    read: LedgersRead = yield from patient(ReadLedgers(page))
    yield from pace.pay(len(page))
    report.ledgers += len(read.ledgers)
    ledgers = {}
    for ledger_id, metadata in read.ledgers.items():
        if isinstance(metadata, MetadataFormatError):
            report.note_problem(ledger_id, metadata.message)
        else:
            ledgers[ledger_id] = metadata
    return ledgers


def _mark(missing: Mapping[int, frozenset[str]], report: ScanReport, settings: ScanSettings, pace: ReadPace) -> Steps:
    if missing:
        yield from patient(MarkLedgers(missing, settings.proof))
        report.found += len(missing)
        report.marked += len(missing)
        yield from pace.pay(_REQUESTS_PER_MARK * len(missing))
