"""When the auditor checks which ledgers (bookie_server/replication/auditing/auditor.py)."""

from __future__ import annotations

from typing import Any

import pytest

from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.machine import StartTimer, StopTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bookie_server.replication.actions import (
    AuditedDelayRead,
    BookiesRead,
    Check,
    CheckTimeRead,
    CookiesRead,
    DelayRead,
    DisabledRead,
    EndCheck,
    MarkLedgers,
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
from bookie_server.replication.auditing.auditor import RETRY_PAUSE_MS, Auditor, AuditorEnd, AuditorSettings
from bookie_server.replication.auditing.scans import ScanSettings
from tests.support.replication_model import ROOT, VOTE, ReplicationModel, ledger

pytestmark = pytest.mark.unit

ALL = frozenset({"b1", "b2", "b3", "b4"})
B1, B2 = frozenset({"b1"}), frozenset({"b2"})


class Rig:
    """An auditor over a model. Steps are answered at once, unless ``held``. Timers fire when a test says so."""

    def __init__(
        self,
        delay_ms: int = 0,
        disabled: bool = False,
        settings: AuditorSettings | None = None,
        audited: DelayRead | None = None,
        lost: frozenset[str] = frozenset(),
        unreadable: bool = False,
    ) -> None:
        self.model = ReplicationModel()
        self.model.ledgers = {1: ledger("b1", "b2"), 2: ledger("b2", "b3"), 3: ledger("b3", "b4", closed=True)}
        self.held = False
        self.steps: list[Step] = []
        self.timers: dict[Any, float] = {}
        self.reads: list[Any] = []
        self.auditor = Auditor(
            settings or AuditorSettings(ledgers_interval_ms=0), ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE)
        )
        self.run()
        self.tell(CookiesRead(ALL), AuditedDelayRead(audited, unreadable))
        self.tell(DelayRead(delay_ms, 0), DisabledRead(disabled))
        self.tell(BookiesRead(ALL - lost))

    def tell(self, *events: Any) -> None:
        for event in events:
            self.auditor.handle(event)
            self.run()

    def run(self) -> None:
        while actions := self.auditor.take_actions():
            for action in actions:
                match action:
                    case StartTimer(("scan", _) as name, _) if not self.held:
                        self.auditor.handle(TimerFired(name))
                    case StartTimer(name, after_ms):
                        self.timers[name] = after_ms
                    case StopTimer(name):
                        self.timers.pop(name, None)
                    case Step():
                        self.steps.append(action)
                    case _:
                        self.reads.append(action)
            while self.steps and not self.held:
                self.answer(self.steps.pop(0))

    def answer(self, step: Step) -> None:
        try:
            event = self.model.answer(step.action)
        except Exception as error:
            self.auditor.handle(StepFailed(step.request_id, error))
        else:
            self.auditor.handle(StepDone(step.request_id, event))

    def release(self) -> None:
        self.held = False
        for name in [name for name in self.timers if isinstance(name, tuple) and name[0] == "scan"]:
            self.fire(name)
        while self.steps:
            self.answer(self.steps.pop(0))
            self.run()

    def fire(self, name: Any) -> None:
        del self.timers[name]
        self.tell(TimerFired(name))


def test_it_asks_for_all_it_needs_and_begins_with_a_check_of_bookies() -> None:
    rig = Rig()
    assert rig.reads == [Watch(), ReadCookies(), ReadAuditedDelay()]
    assert rig.model.ended == [Check.BOOKIES]
    assert not rig.model.marks
    assert rig.timers == {("check", Check.BOOKIES): 86_400_000}


@pytest.mark.parametrize("missing", range(5))
def test_nothing_is_begun_before_everything_is_known(missing: int) -> None:
    rig = Rig.__new__(Rig)
    rig.model, rig.held, rig.steps, rig.timers, rig.reads = ReplicationModel(), False, [], {}, []
    rig.auditor = Auditor(AuditorSettings(), ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE))
    events: list[Any] = [CookiesRead(ALL), AuditedDelayRead(None), DelayRead(0, 0), DisabledRead(False)]
    events.append(BookiesRead(ALL - B1))
    del events[missing]
    rig.run()
    rig.tell(*events, *events)
    assert not rig.model.reads
    assert not rig.model.ended


def test_bookies_that_register_while_a_cluster_starts_are_not_lost() -> None:
    rig = Rig(settings=AuditorSettings(first_wait_ms=8_000, ledgers_interval_ms=1000))
    assert rig.timers["begin"] == 8_000
    rig.tell(BookiesRead(B1), BookiesRead(B1 | B2), CheckTimeRead(Check.LEDGERS, None))
    rig.fire(("check", Check.LEDGERS))
    assert not rig.model.reads
    rig.tell(BookiesRead(ALL - B1))
    rig.fire("begin")
    assert rig.model.marks == {1: B1}
    assert rig.model.ended == [Check.BOOKIES, Check.LEDGERS]


def test_a_lost_bookie_is_audited_at_once_without_a_delay() -> None:
    rig = Rig()
    rig.tell(BookiesRead(ALL - B1))
    assert rig.model.marks == {1: B1}
    assert rig.auditor.lost_bookies == B1
    # The same news again is not another loss.
    rig.tell(BookiesRead(ALL - B1))
    assert rig.auditor.counters.audits == 2


def test_one_lost_bookie_is_waited_for() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(BookiesRead(ALL - B1))
    assert rig.timers["delay"] == 7_000
    assert not rig.model.marks
    # A check of all bookies meanwhile marks others, but not this one's.
    rig.model.ledgers[4] = ledger("b9", "b1")
    rig.fire(("check", Check.BOOKIES))
    assert rig.model.marks == {4: frozenset({"b9"})}
    rig.fire("delay")
    assert rig.model.marks == {1: B1, 4: frozenset({"b9", "b1"})}
    assert rig.auditor.counters.audits_delayed == 1
    assert rig.auditor.counters.delays_cancelled == 0
    # One scan before the loss found nothing, one found ledger 4, and one both.
    assert (rig.auditor.counters.scans, rig.auditor.counters.ledgers_found) == (3, 3)


def test_the_check_of_all_ledgers_waits_for_a_lost_bookie_too() -> None:
    rig = Rig(delay_ms=7_000, settings=AuditorSettings(ledgers_interval_ms=1000))
    rig.model.ledgers[4] = ledger("b9", "b1")
    rig.tell(CheckTimeRead(Check.LEDGERS, None), BookiesRead(ALL - B1))
    rig.fire(("check", Check.LEDGERS))
    assert rig.model.checked == [1, 2, 3, 4]
    assert rig.model.marks == {4: frozenset({"b9"})}
    # Neither does a check count it as lost that was under way when the delay began: it asks the bookie.
    rig.tell(BookiesRead(ALL))
    rig.held = True
    rig.fire(("check", Check.LEDGERS))
    rig.tell(BookiesRead(ALL - B1))
    rig.release()
    assert rig.model.ended[-1] is Check.LEDGERS
    assert rig.model.marks == {4: frozenset({"b9"})}
    # Its copies count as bad after the delay, and in every check from then on.
    rig.fire("delay")
    assert rig.model.marks == {1: B1, 4: frozenset({"b9", "b1"})}
    rig.model.marks.clear()
    rig.fire(("check", Check.LEDGERS))
    assert rig.model.marks == {1: B1, 4: frozenset({"b9", "b1"})}


def test_the_check_of_all_ledgers_marks_nothing_while_no_bookie_is_registered() -> None:
    rig = Rig(settings=AuditorSettings(ledgers_interval_ms=1000))
    rig.tell(CheckTimeRead(Check.LEDGERS, None), BookiesRead(frozenset()))
    rig.fire(("check", Check.LEDGERS))
    assert rig.model.ended[-1] is Check.LEDGERS
    assert not rig.model.marks


def test_a_bookie_that_returns_in_time_is_not_lost() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(BookiesRead(ALL - B1), BookiesRead(ALL))
    assert "delay" not in rig.timers
    assert rig.auditor.counters.delays_cancelled == 1
    rig.tell(TimerFired("delay"))  # it fired before it was stopped
    assert not rig.model.marks
    rig.tell(BookiesRead(ALL - B1))
    assert rig.timers["delay"] == 7_000
    rig.tell(BookiesRead(ALL - B1 - B2))  # nobody waits for two, but neither is back
    assert (rig.auditor.counters.audits_delayed, rig.auditor.counters.delays_cancelled) == (2, 1)


def test_several_lost_bookies_are_not_waited_for() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(BookiesRead(ALL - B1), BookiesRead(ALL - B1 - B2))
    assert "delay" not in rig.timers
    assert rig.model.marks == {1: B1 | B2, 2: B2}
    # They have been dealt with. The next one is waited for.
    rig.tell(BookiesRead(ALL - B1 - B2 - {"b3"}))
    assert rig.timers["delay"] == 7_000


def test_a_bookie_that_was_lost_before_this_auditor_began_is_waited_for() -> None:
    rig = Rig(delay_ms=7_000)
    other = Rig.__new__(Rig)
    other.model, other.held, other.steps, other.timers, other.reads = rig.model, False, [], {}, []
    other.auditor = Auditor(AuditorSettings(), ScanSettings(LedgerManager.HIERARCHICAL, ROOT, VOTE))
    known = AuditedDelayRead(rig.model.audited)
    other.tell(CookiesRead(ALL), known, DelayRead(7_000, 0), DisabledRead(False), BookiesRead(ALL - B1))
    assert not rig.model.marks
    other.fire("delay")
    assert rig.model.marks == {1: B1}


def test_a_bookie_without_a_cookie_is_lost_at_once() -> None:
    rig = Rig(delay_ms=7_000)
    rig.model.ledgers[5] = ledger("decommissioned", "b2")
    rig.fire(("check", Check.BOOKIES))
    assert rig.model.marks == {5: frozenset({"decommissioned"})}


def test_setting_the_delay_again_triggers_an_audit() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(BookiesRead(ALL - B1))
    rig.tell(DelayRead(7_000, 0))  # read again, but not set again
    assert not rig.model.marks
    rig.tell(DelayRead(7_000, 1))
    assert rig.model.marks == {1: B1}
    assert "delay" not in rig.timers


@pytest.mark.parametrize(
    ("audited", "asked"),
    [
        (None, False),
        (DelayRead(7_000, 0), False),
        (DelayRead(7_000, -1), True),
        # The delay was changed, and nothing else.
        (DelayRead(9_000, -1), False),
        # It was changed, and then set once more.
        (DelayRead(9_000, -2), True),
    ],
)
def test_a_new_auditor_knows_what_was_asked_for_before_its_election(audited: DelayRead | None, asked: bool) -> None:
    rig = Rig(delay_ms=7_000, audited=audited, lost=B1)
    assert rig.model.marks == ({1: B1} if asked else {})
    assert ("delay" in rig.timers) is not asked
    # What a complete search knew is stored.
    assert rig.model.audited == DelayRead(7_000, 0)


def test_an_audit_is_owed_if_nobody_can_read_whether_it_is() -> None:
    rig = Rig(delay_ms=7_000, unreadable=True, lost=B1)
    assert rig.model.marks == {1: B1}
    assert rig.model.audited == DelayRead(7_000, 0)


def test_an_audit_that_is_asked_for_while_a_new_auditor_waits_is_not_lost() -> None:
    settings = AuditorSettings(first_wait_ms=8_000, ledgers_interval_ms=0)
    rig = Rig(delay_ms=7_000, settings=settings, lost=B1)
    rig.tell(DelayRead(7_000, 1))
    assert not rig.model.marks
    rig.fire("begin")
    assert rig.model.marks == {1: B1}


def test_a_new_delay_is_stored_by_a_search() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(DelayRead(20_000, 1))
    assert rig.model.audited == DelayRead(20_000, 1)


def test_another_delay_counts_from_now_on() -> None:
    rig = Rig(delay_ms=7_000)
    rig.tell(BookiesRead(ALL - B1), DelayRead(20_000, 1))
    assert rig.timers["delay"] == 20_000
    rig.tell(DelayRead(0, 2))
    assert rig.model.marks == {1: B1}


def test_nothing_is_lost_while_no_bookie_is_registered() -> None:
    rig = Rig()
    rig.tell(BookiesRead(frozenset()))
    rig.tell(TimerFired(("check", Check.BOOKIES)))
    assert not rig.model.marks
    rig.tell(BookiesRead(B2))
    assert rig.model.marks[3] == {"b3", "b4"}


def test_a_search_does_not_end_while_no_bookie_is_registered() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1))
    # All registrations are gone before the search reads its first ledger.
    rig.tell(BookiesRead(frozenset()))
    for _ in range(100):
        for name in [each for each in rig.timers if isinstance(each, tuple) and each[0] == "scan"]:
            rig.fire(name)
        while rig.steps:
            rig.answer(rig.steps.pop(0))
            rig.run()
    assert not rig.model.marks
    assert rig.model.ended == [Check.BOOKIES]  # the one at the start
    rig.tell(BookiesRead(ALL - B1))
    rig.release()
    assert rig.model.marks == {1: B1}
    assert rig.model.ended == [Check.BOOKIES] * 2


@pytest.mark.parametrize("step", range(8))
def test_registrations_that_are_away_for_a_while_hide_no_loss(step: int) -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1))
    for _ in range(step):
        for name in [each for each in rig.timers if isinstance(each, tuple) and each[0] == "scan"]:
            rig.fire(name)
        if rig.steps:
            rig.answer(rig.steps.pop(0))
            rig.run()
    rig.tell(BookiesRead(frozenset()))
    for _ in range(2):
        if rig.steps:
            rig.answer(rig.steps.pop(0))
            rig.run()
    rig.tell(BookiesRead(ALL - B1))
    rig.release()
    assert rig.model.marks == {1: B1}


def test_a_bookie_lost_in_mid_scan_is_marked_in_the_same_round() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1))
    rig.answer(rig.steps.pop(0))
    rig.run()
    rig.tell(BookiesRead(ALL - B1 - B2))
    rig.release()
    assert rig.model.marks == {1: B1 | B2, 2: B2}
    assert rig.auditor.counters.audits == 2


def test_a_bookie_lost_after_its_ledgers_were_judged_is_found_by_another_round() -> None:
    """The scan is about to end. Without another round, nobody would look at these ledgers before tomorrow."""
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1))
    while not isinstance(rig.steps[0].action, EndCheck):
        rig.answer(rig.steps.pop(0))
        rig.run()
    assert rig.model.marks == {1: B1}
    rig.tell(BookiesRead(ALL - B1 - B2))
    rig.release()
    assert rig.model.marks == {1: B1 | B2, 2: B2}


def test_a_bookie_that_flaps_during_its_audit_is_audited_again() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1), BookiesRead(ALL))
    rig.release()
    assert not rig.model.marks
    rig.tell(BookiesRead(ALL - B1))
    assert rig.model.marks == {1: B1}


def test_disabled_means_that_nothing_is_begun() -> None:
    rig = Rig(disabled=True)
    rig.tell(BookiesRead(ALL - B1), BookiesRead(ALL - B1 - B2), DelayRead(0, 1))
    assert not rig.model.reads
    assert not rig.model.marks
    rig.tell(DisabledRead(False))
    assert rig.model.marks == {1: B1 | B2, 2: B2}


def test_a_scan_under_way_ends_when_replication_is_disabled_and_begins_again() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1), DisabledRead(True))
    rig.release()
    assert not rig.model.marks
    rig.tell(DisabledRead(False))
    assert rig.model.marks == {1: B1}


def test_a_failed_scan_is_not_a_complete_one_and_begins_again() -> None:
    rig = Rig()

    def fail(action: Any) -> None:
        if isinstance(action, MarkLedgers):
            raise MetadataUnavailableError("no answer")

    rig.model.before = fail
    rig.tell(BookiesRead(ALL - B1))
    assert rig.model.ended == [Check.BOOKIES]  # the one at the start
    assert rig.auditor.counters.failures == 1
    assert rig.timers[("check", Check.BOOKIES)] == RETRY_PAUSE_MS
    rig.model.before = lambda action: None
    rig.fire(("check", Check.BOOKIES))
    assert rig.model.marks == {1: B1}


def test_the_progress_of_a_newer_release_is_refused_and_stays() -> None:
    rig = Rig(settings=AuditorSettings(ledgers_interval_ms=1000))

    def refuse(action: Any) -> None:
        if getattr(action, "check", None) is Check.LEDGERS:
            raise MetadataFormatError("a version that this release does not know")

    rig.model.before = refuse
    rig.tell(CheckTimeRead(Check.LEDGERS, None))
    rig.fire(("check", Check.LEDGERS))
    assert "does not know" in rig.auditor.counters.last_error
    assert rig.timers[("check", Check.LEDGERS)] == 3_600_000
    assert rig.auditor.outcome is None


def test_checks_come_when_their_interval_is_over_and_one_at_a_time() -> None:
    settings = AuditorSettings(ledgers_interval_ms=1000, placement_interval_ms=5000)
    rig = Rig(settings=settings)
    times = [ReadCheckTime(Check.LEDGERS), ReadCheckTime(Check.PLACEMENT)]
    assert rig.reads == [Watch(), ReadCookies(), ReadAuditedDelay(), *times]
    rig.tell(ReadFailed(ReadCheckTime(Check.LEDGERS), MetadataUnavailableError("no answer")))
    rig.fire(ReadCheckTime(Check.LEDGERS))
    assert rig.reads[-1] == ReadCheckTime(Check.LEDGERS)
    rig.tell(CheckTimeRead(Check.LEDGERS, None), CheckTimeRead(Check.PLACEMENT, 4_000.0))
    assert rig.timers[("check", Check.LEDGERS)] == 0
    assert rig.timers[("check", Check.PLACEMENT)] == 1_000
    rig.held = True
    rig.fire(("check", Check.LEDGERS))
    rig.fire(("check", Check.PLACEMENT))
    assert len(rig.steps) == 1
    rig.release()
    assert rig.model.ended == [Check.BOOKIES, Check.LEDGERS, Check.PLACEMENT]
    assert rig.timers[("check", Check.LEDGERS)] == 1000
    assert rig.timers[("check", Check.PLACEMENT)] == 5000
    # A ledger on too few racks lacks no copy.
    assert rig.auditor.counters.scans == 2


def test_an_audit_does_not_wait_for_a_long_check() -> None:
    rig = Rig(settings=AuditorSettings(ledgers_interval_ms=1000))
    rig.tell(CheckTimeRead(Check.LEDGERS, None))
    rig.held = True
    rig.fire(("check", Check.LEDGERS))
    check = rig.steps.pop()
    rig.held = False
    rig.tell(BookiesRead(ALL - B1))
    assert rig.model.marks == {1: B1}
    assert rig.model.ended == [Check.BOOKIES, Check.BOOKIES]
    rig.answer(check)
    rig.run()
    assert rig.model.ended[-1] is Check.LEDGERS


def test_r4_it_stands_down_at_once_when_its_session_or_its_vote_is_gone() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1), SessionLost())
    assert rig.auditor.outcome == Succeeded(AuditorEnd.SESSION_LOST)
    rig.release()
    assert not rig.steps
    assert not rig.model.marks
    other = Rig()
    other.model.votes.clear()
    other.tell(BookiesRead(ALL - B1))
    assert other.auditor.outcome == Succeeded(AuditorEnd.VOTE_GONE)
    other.tell(BookiesRead(B2))
    assert not other.steps


def test_it_stops_on_command() -> None:
    rig = Rig()
    rig.held = True
    rig.tell(BookiesRead(ALL - B1))
    assert rig.steps
    rig.auditor.stop()
    assert rig.auditor.outcome == Succeeded(AuditorEnd.STOPPED)
    assert rig.auditor.take_actions() == []
