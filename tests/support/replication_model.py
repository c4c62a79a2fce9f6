"""What the auditor's scans read and write, in a dictionary of znodes. For unit tests of machines."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from bk_spark.protocol.errors import MetadataFormatError, SessionLostError
from bk_spark.protocol.machine import EndedBy, StartTimer, StepMachine, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.quorum import Quorum
from bookie_server.replication.actions import (
    Check,
    CheckLedgers,
    Children,
    DelayRead,
    Done,
    EndCheck,
    LedgersChecked,
    LedgersRead,
    ListChildren,
    MarkLedgers,
    ProgressRead,
    ReadLedgers,
    ReadProgress,
    SyncStore,
    WriteProgress,
)
from bookie_server.replication.auditing.scans import bookies_of

ROOT = "/ledgers"
VOTE = "/ledgers/underreplication/auditorelection/V_0000000001"


def ledger(*bookies: str, closed: bool = False) -> LedgerMetadata:
    """A ledger with one fragment on ``bookies``."""
    count = len(bookies)
    made = LedgerMetadata(Quorum(count, count, count), (Segment(0, bookies),))
    return made.closed(9, 90) if closed else made


class ReplicationModel:
    """Ledgers, marks and progress. ``before`` is called with each action, and may raise or change something."""

    def __init__(self, manager: LedgerManager = LedgerManager.HIERARCHICAL) -> None:
        self.manager = manager
        self.ledgers: dict[int, LedgerMetadata | MetadataFormatError] = {}
        self.marks: dict[int, frozenset[str]] = {}
        self.progress: dict[Check, int] = {}
        self.ended: list[Check] = []
        self.audited: DelayRead | None = None
        #: Bad copies that checks find.
        self.bad: dict[int, frozenset[str]] = {}
        self.unknown: dict[int, str] = {}
        self.votes = {VOTE}
        self.reads = 0
        self.paused_ms = 0.0
        self.checked: list[int] = []
        self.unmovable: frozenset[int] = frozenset()
        self.before: Callable[[Any], None] = lambda action: None

    def play(self, steps: Generator[Any, Any, Any]) -> Any:
        """Run a scan to its end. Returns its result or raises its error."""
        machine: StepMachine[Any, Any, Any] = StepMachine(steps)
        while machine.outcome is None:
            for action in machine.take_actions():
                try:
                    event = self.answer(action)
                except Exception as error:
                    machine.fail(error)
                else:
                    machine.handle(event)
        if isinstance(machine.outcome, EndedBy):
            raise machine.outcome.error
        assert isinstance(machine.outcome, Succeeded)
        return machine.outcome.result

    def answer(self, action: Any) -> Any:
        self.before(action)
        match action:
            case StartTimer(name, after_ms):
                self.paused_ms += after_ms
                return TimerFired(name)
            case SyncStore():
                return Done()
            case ListChildren(path):
                self.reads += 1
                return Children(self._children(path))
            case ReadLedgers(ledger_ids):
                self.reads += len(ledger_ids)
                return LedgersRead({each: self.ledgers[each] for each in ledger_ids if each in self.ledgers})
            case MarkLedgers(missing, proof):
                self._check_vote(proof)
                for ledger_id, bookies in missing.items():
                    self.marks[ledger_id] = self.marks.get(ledger_id, frozenset()) | bookies
                return Done()
            case CheckLedgers(ledgers, check, lost):
                self.checked += list(ledgers)
                bad = {each: self.bad[each] for each in ledgers if each in self.bad}
                if check is not Check.PLACEMENT:
                    named = {each: lost & bookies_of(metadata) for each, metadata in ledgers.items()}
                    bad |= {each: bad.get(each, frozenset()) | found for each, found in named.items() if found}
                return LedgersChecked(
                    {each: found for each, found in bad.items() if each not in self.unknown},
                    {each: why for each, why in self.unknown.items() if each in ledgers},
                    self.unmovable,
                )
            case ReadProgress(check):
                return ProgressRead(self.progress.get(check, -1))
            case WriteProgress(check, after, proof):
                self._check_vote(proof)
                self.progress[check] = after
                return Done()
            case EndCheck(check, proof, delay):
                self._check_vote(proof)
                self.audited = delay or self.audited
                self.progress.pop(check, None)
                self.ended.append(check)
                return Done()
        raise AssertionError(action)

    def _check_vote(self, proof: str) -> None:
        if proof not in self.votes:
            raise SessionLostError(f"{proof} does not exist")

    def _children(self, path: str) -> list[str] | None:
        paths = [self.manager.ledger_path(ROOT, ledger_id) for ledger_id in self.ledgers]
        names = {each[len(path) + 1 :].partition("/")[0] for each in paths if each.startswith(f"{path}/")}
        return sorted(names, reverse=True) or None
