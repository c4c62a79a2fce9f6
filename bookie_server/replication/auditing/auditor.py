"""The auditor: decides when which ledgers are checked (compatibility.md §6.4).

A bookie is lost if it is known and not registered. One lost bookie is waited for as long as ``lostBookieRecoveryDelay``
says, and no check marks a ledger because of it. If several are lost, the audit begins at once. An audit and another
check may run at the same time, one of each. While no bookie is registered nothing is lost: the registrations are then
more likely gone than the bookies.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from bk_spark.protocol.errors import MetadataFormatError, SessionLostError
from bk_spark.protocol.machine import EndedBy, StartTimer, StepMachine, StopTimer, Succeeded, TimerFired
from bookie_server.replication.actions import (
    AuditedDelayRead,
    BookiesRead,
    Check,
    CheckTimeRead,
    CookiesRead,
    DelayRead,
    DisabledRead,
    ReadAuditedDelay,
    ReadCheckTime,
    ReadCookies,
    ReadFailed,
    SessionLost,
    Step,
    StepDone,
    StepFailed,
    Watch,
)
from bookie_server.replication.auditing.scans import BookieScan, ScanReport, ScanSettings, check_steps

#: The pause before a scan that failed begins again.
RETRY_PAUSE_MS: Final = 10_000


class AuditorEnd(enum.Enum):
    """Why an auditor ended."""

    STOPPED = "it was stopped"
    SESSION_LOST = "its session with ZooKeeper ended"
    VOTE_GONE = "its vote is gone"


@dataclass(frozen=True, slots=True)
class AuditorSettings:
    """Times in milliseconds.

    Parameters
    ----------
    first_wait_ms
        How long a new auditor begins nothing. When a whole cluster starts, bookies that have not registered yet would
        otherwise count as lost.
    bookies_interval_ms, ledgers_interval_ms, placement_interval_ms, replicas_interval_ms
        Intervals of the checks. 0: no further check, and for all but the check of bookies none at all.
    """

    first_wait_ms: int = 0
    bookies_interval_ms: int = 86_400_000
    ledgers_interval_ms: int = 604_800_000
    placement_interval_ms: int = 0
    replicas_interval_ms: int = 0

    def interval_ms(self, check: Check) -> int:
        """The interval of a check."""
        return {
            Check.BOOKIES: self.bookies_interval_ms,
            Check.LEDGERS: self.ledgers_interval_ms,
            Check.PLACEMENT: self.placement_interval_ms,
            Check.REPLICAS: self.replicas_interval_ms,
        }[check]


@dataclass(slots=True)
class AuditorCounters:
    """What the auditor did, for metrics and operators."""

    audits: int = 0
    audits_delayed: int = 0
    #: Delays that ended because the lost bookie was back in time.
    delays_cancelled: int = 0
    #: Scans for bad copies that ended, the ledgers that they found, and the bytes of these.
    scans: int = 0
    ledgers_found: int = 0
    bytes_found: int = 0
    ledgers_marked: int = 0
    failures: int = 0
    #: The last report of each check, and why the last scan failed.
    reports: dict[Check, ScanReport] = field(default_factory=dict)
    last_error: str = ""


@dataclass(slots=True)
class _Running:
    """A scan under way."""

    check: Check
    machine: StepMachine[Any, Any, ScanReport]
    #: Identifies the action under way.
    request_id: int = 0


Event = (
    BookiesRead
    | CookiesRead
    | AuditedDelayRead
    | DelayRead
    | DisabledRead
    | CheckTimeRead
    | ReadFailed
    | StepDone
    | StepFailed
    | SessionLost
    | TimerFired
)
Action = Watch | ReadCookies | ReadAuditedDelay | ReadCheckTime | Step | StartTimer | StopTimer


class Auditor:
    """The machine of the elected auditor. ``counters`` may go on counting for a former one."""

    def __init__(self, settings: AuditorSettings, scans: ScanSettings, counters: AuditorCounters | None = None) -> None:
        self._settings = settings
        self._scans = scans
        self.outcome: Succeeded[AuditorEnd] | EndedBy | None = None
        self.counters = counters or AuditorCounters()
        self._actions: list[Action] = [Watch(), ReadCookies(), ReadAuditedDelay()]
        self._periodic = [check for check in Check if check is not Check.BOOKIES and settings.interval_ms(check) > 0]
        self._actions += [ReadCheckTime(check) for check in self._periodic]
        #: Until a new auditor may begin something.
        self._waiting = settings.first_wait_ms > 0
        if self._waiting:
            self._start_timer("begin", settings.first_wait_ms)
        #: What is registered, None until it was read. The same for the switch and the delay.
        self._registered: frozenset[str] | None = None
        self._disabled: bool | None = None
        self._delay: DelayRead | None = None
        #: The delay that the last complete search knew. An audit that was asked for since then is still owed.
        self._audited_delay: AuditedDelayRead | None = None
        #: An audit was asked for before this auditor could begin one.
        self._asked = False
        self._judged = False
        #: Bookies with a cookie, or seen registered. None until the cookies were read.
        self._known: set[str] | None = None
        #: A lost bookie that may still return in time.
        self._delayed: frozenset[str] = frozenset()
        #: Lost bookies for which a round of the audit has begun, and those for which one has ended.
        self._auditing: frozenset[str] = frozenset()
        self._audited: frozenset[str] = frozenset()
        self._audit_wanted = True
        self._bookie_scan: BookieScan | None = None
        self._audit: _Running | None = None
        self._check: _Running | None = None
        #: Checks whose time has come.
        self._due: list[Check] = []
        self._last_request_id = 0

    # --- the contract of machines ---

    def take_actions(self) -> list[Action]:
        """The new actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: Event) -> None:
        """Take an event. Ignored after the end, as are the answers to a scan that was given up."""
        if self.outcome is not None:
            return
        match event:
            case SessionLost():
                self._end(AuditorEnd.SESSION_LOST)
            case BookiesRead(registered):
                if registered and not self._registered and self._bookie_scan is not None:
                    # Nothing was lost for what it searched meanwhile.
                    self._bookie_scan.again()
                self._registered = registered
                self._judge_losses()
            case CookiesRead(bookies):
                self._known = set(bookies)
                self._judge_losses()
            case AuditedDelayRead():
                self._audited_delay = event
                self._judge_losses()
            case DisabledRead(disabled):
                self._on_switch(disabled)
            case DelayRead():
                self._on_delay(event)
            case CheckTimeRead(check, age_ms):
                rest_ms = 0.0 if age_ms is None else max(0.0, self._settings.interval_ms(check) - age_ms)
                self._start_timer(("check", check), rest_ms)
            case ReadFailed(action):
                self._start_timer(action, RETRY_PAUSE_MS)
            case StepDone(request_id, answer):
                self._on_step(request_id, lambda machine: machine.handle(answer))
            case StepFailed(request_id, error):
                self._on_step(request_id, lambda machine: machine.fail(error))
            case TimerFired(name):
                self._on_timer(name)

    def fail(self, error: Exception) -> None:
        """An unexpected error ends the auditor, and another bookie's auditor takes over."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    # --- commands ---

    def stop(self) -> None:
        """End. What is under way is not waited for."""
        if self.outcome is None:
            self._end(AuditorEnd.STOPPED)

    # --- lost bookies ---

    @property
    def lost_bookies(self) -> frozenset[str]:
        """Known bookies that are not registered."""
        return frozenset() if not self._registered else frozenset(self._known or ()) - self._registered

    def _judge_losses(self) -> None:
        if self._waiting or self._known is None or self._registered is None:
            return
        if self._delay is None or self._disabled is None or self._audited_delay is None:
            return
        self._known |= self._registered
        if not self._judged:
            self._judged = True
            owed = self._audited_delay.unreadable or _asked_between(self._audited_delay.delay, self._delay)
            if self._asked or owed:
                self._audit_now(self.lost_bookies)
        self._auditing -= self._registered
        self._audited -= self._registered
        lost = self.lost_bookies - self._audited
        if len(lost) > 1 or (lost and self._delay.delay_ms == 0):
            if lost - self._auditing:
                self._audit_now(lost)
        elif lost and not lost <= self._auditing:
            if lost != self._delayed:
                self.counters.audits_delayed += 1
                self._delayed = lost
                self._start_timer("delay", self._delay.delay_ms)
        else:
            self.counters.delays_cancelled += bool(self._delayed)
            self._end_delay()
        self._begin()

    def _audit_now(self, lost: frozenset[str]) -> None:
        self._end_delay()
        self._auditing |= lost
        self._audit_wanted = True
        if self._bookie_scan is not None:
            self._bookie_scan.again()

    def _end_delay(self) -> None:
        if self._delayed:
            self._delayed = frozenset()
            self._actions.append(StopTimer("delay"))

    def _find_lost(self, bookies: frozenset[str]) -> frozenset[str]:
        return bookies - self._registered - self._delayed if self._registered else frozenset()

    def _on_delay(self, read: DelayRead) -> None:
        before, self._delay = self._delay, read
        if before is None:
            self._judge_losses()
        elif before.version != read.version:
            if not _asked_between(before, read):
                # A search that knows the new delay is to be complete, so that a later auditor sees what is asked.
                self._end_delay()
                self._audit_now(frozenset())
            elif self._judged:
                self._audit_now(self.lost_bookies)
            else:
                self._asked = True
            self._judge_losses()

    def _on_switch(self, disabled: bool) -> None:
        if disabled and not self._disabled:
            # What is under way may still mark a page. It begins nothing else.
            self._audit_wanted = self._audit_wanted or self._audit is not None
            if self._check is not None:
                self._due.insert(0, self._check.check)
            self._audit = self._check = self._bookie_scan = None
        self._disabled = disabled
        self._judge_losses()

    # --- scans ---

    def _begin(self) -> None:
        """Begin what is wanted and may run."""
        if self.outcome is not None or self._waiting or self._disabled is not False:
            return
        if not self._judged:
            return
        if self._audit is None and self._audit_wanted and self._registered:
            self._audit_wanted = False
            self.counters.audits += 1
            self._bookie_scan = BookieScan(
                self._scans, self._find_lost, lambda: self._delay, may_end=lambda: bool(self._registered)
            )
            self._audit = self._run(Check.BOOKIES, self._bookie_scan.steps())
        if self._check is None and self._due:
            check = self._due.pop(0)
            self._check = self._run(check, check_steps(check, self._scans, self._find_lost))

    def _run(self, check: Check, steps: Any) -> _Running:
        running = _Running(check, StepMachine(steps))
        self._perform(running)
        return running

    def _perform(self, running: _Running) -> None:
        for action in running.machine.take_actions():
            self._last_request_id += 1
            running.request_id = self._last_request_id
            if isinstance(action, StartTimer):
                self._start_timer(("scan", running.request_id), action.after_ms)
            else:
                self._actions.append(Step(running.request_id, action))

    def _on_step(self, request_id: int, tell: Any) -> None:
        running = next((each for each in (self._audit, self._check) if each and each.request_id == request_id), None)
        if running is None:
            return  # of a scan that was given up
        tell(running.machine)
        self._perform(running)
        outcome = running.machine.outcome
        if outcome is not None:
            if running is self._audit:
                self._audit = self._bookie_scan = None
            else:
                self._check = None
            self._on_scan_ended(running.check, outcome)
            self._begin()

    def _on_scan_ended(self, check: Check, outcome: Succeeded[ScanReport] | EndedBy) -> None:
        if isinstance(outcome, EndedBy):
            self._on_scan_failed(check, outcome.error)
            return
        report = outcome.result
        self.counters.reports[check] = report
        if check is not Check.PLACEMENT:
            self.counters.scans += 1
            self.counters.ledgers_found += report.found
            self.counters.bytes_found += report.found_bytes
        self.counters.ledgers_marked += report.marked
        if check is Check.BOOKIES:
            self._audited |= self._auditing
            self._auditing = frozenset()
            self._audit_wanted = False
        if self._settings.interval_ms(check) > 0:
            self._start_timer(("check", check), self._settings.interval_ms(check))

    def _on_scan_failed(self, check: Check, error: Exception) -> None:
        if isinstance(error, SessionLostError):
            self._end(AuditorEnd.VOTE_GONE)
            return
        self.counters.failures += 1
        self.counters.last_error = f"check of {check.value}: {error}"
        # A newer release's progress will not become readable soon.
        lasting = isinstance(error, MetadataFormatError)
        self._start_timer(("check", check), RETRY_PAUSE_MS * (360 if lasting else 1))

    def _on_timer(self, name: Hashable) -> None:
        match name:
            case "begin":
                self._waiting = False
                self._judge_losses()
            case "delay":
                if self._delayed:
                    self._audit_now(self._delayed)
            case ("check", Check.BOOKIES):
                self._audit_wanted = True
            case ("check", Check() as check):
                self._due.append(check)
            case ("scan", int(request_id)):
                self._on_step(request_id, lambda machine: machine.handle(TimerFired(name)))
            case ReadCookies() | ReadAuditedDelay() | ReadCheckTime() as action:
                self._actions.append(action)
        self._begin()

    def _start_timer(self, name: Hashable, after_ms: float) -> None:
        self._actions.append(StartTimer(name, after_ms))

    def _end(self, why: AuditorEnd) -> None:
        self.outcome = Succeeded(why)
        self._actions.clear()


def _asked_between(before: DelayRead | None, now: DelayRead) -> bool:
    """Return whether an operator has asked for an audit: the delay was set to its old value, to 0, or repeatedly."""
    if before is None or before.version == now.version:
        return False
    return now.delay_ms in (before.delay_ms, 0) or now.version - before.version > 1
