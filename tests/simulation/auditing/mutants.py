"""Rules of self-healing, broken on purpose. The checks must find these.

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bk_spark.protocol.errors import MetadataUnavailableError
from bookie_server.replication import worker as worker_module
from bookie_server.replication.actions import Check, DelayRead, EndCheck
from bookie_server.replication.auditing import auditor as auditor_module
from bookie_server.replication.auditing.auditor import Auditor
from bookie_server.replication.auditing.scans import BookieScan, FindLost, Scan, ScanReport, ScanSettings, check_steps
from bookie_server.replication.worker import ReplicationWorker
from bookie_server.replication.worker_actions import Finish, Release
from tests.simulation.auditing.cluster import ROOT
from tests.simulation.auditing.world import World


def an_auditor_acts_after_its_session(stack: ExitStack) -> None:
    """Its marks do not carry its vote as proof."""
    stack.enter_context(patch.object(World, "proof_of", lambda world, vote: ROOT))


def the_delay_is_ignored(stack: ExitStack) -> None:
    on_delay = Auditor._on_delay
    stack.enter_context(
        patch.object(Auditor, "_on_delay", lambda auditor, read: on_delay(auditor, DelayRead(0, read.version)))
    )


def a_check_of_all_bookies_takes_no_account_of_the_delay(stack: ExitStack) -> None:
    stack.enter_context(
        patch.object(Auditor, "_find_lost", lambda auditor, bookies: bookies - (auditor._registered or bookies))
    )


def a_check_of_all_ledgers_takes_no_account_of_the_delay(stack: ExitStack) -> None:
    def hasty(check: Check, settings: ScanSettings, find_lost: FindLost) -> Scan:
        auditor: Auditor = find_lost.__self__  # type: ignore[attr-defined]
        return check_steps(check, settings, lambda bookies: bookies - (auditor._registered or bookies))

    stack.enter_context(patch.object(auditor_module, "check_steps", hasty))


def a_scan_stops_at_the_first_error_and_counts_as_complete(stack: ExitStack) -> None:
    steps = BookieScan.steps

    def hasty(scan: BookieScan) -> Any:
        inner, event = steps(scan), None
        while True:
            try:
                action = inner.send(event)
            except StopIteration as end:
                return end.value
            try:
                event = yield action
            except MetadataUnavailableError:
                yield EndCheck(Check.BOOKIES, scan._settings.proof)
                return ScanReport()

    stack.enter_context(patch.object(BookieScan, "steps", hasty))


def a_bookie_lost_in_mid_scan_begins_no_new_round(stack: ExitStack) -> None:
    stack.enter_context(patch.object(BookieScan, "again", lambda scan: None))


def a_mark_is_deleted_though_it_was_made_again(stack: ExitStack) -> None:
    take_actions = ReplicationWorker.take_actions

    def careless(worker: ReplicationWorker) -> list[Any]:
        return [replace(each, mark_version=-1) if isinstance(each, Finish) else each for each in take_actions(worker)]

    stack.enter_context(patch.object(ReplicationWorker, "take_actions", careless))


def a_lock_is_given_back_before_the_repair_has_ended(stack: ExitStack) -> None:
    let_go = ReplicationWorker._let_go

    def hasty(worker: ReplicationWorker) -> None:
        repairing = worker.repairing
        let_go(worker)
        worker._actions += [Release(ledger_id) for ledger_id in repairing]

    stack.enter_context(patch.object(ReplicationWorker, "_let_go", hasty))


def what_cannot_be_repaired_is_tried_without_a_pause(stack: ExitStack) -> None:
    stack.enter_context(patch.object(worker_module, "_FIRST_PAUSE_SHARE", 0.0))


def pauses_do_not_grow(stack: ExitStack) -> None:
    rest = ReplicationWorker._rest

    def forgetful(worker: ReplicationWorker, ledger_id: int, reason: str) -> None:
        worker._failing.clear()
        rest(worker, ledger_id, reason)

    stack.enter_context(patch.object(ReplicationWorker, "_rest", forgetful))


def an_auditor_ignores_the_switch(stack: ExitStack) -> None:
    on_switch = Auditor._on_switch
    stack.enter_context(patch.object(Auditor, "_on_switch", lambda auditor, disabled: on_switch(auditor, False)))


def a_worker_ignores_the_switch(stack: ExitStack) -> None:
    stack.enter_context(
        patch.object(ReplicationWorker, "_may_begin", property(lambda worker: worker._disabled is not None))
    )


def what_was_wanted_while_disabled_is_forgotten(stack: ExitStack) -> None:
    on_switch = Auditor._on_switch

    def forgetful(auditor: Auditor, disabled: bool) -> None:
        on_switch(auditor, disabled)
        if disabled:
            auditor._audit_wanted = False

    stack.enter_context(patch.object(Auditor, "_on_switch", forgetful))


MUTANTS = [
    an_auditor_acts_after_its_session,
    the_delay_is_ignored,
    a_check_of_all_bookies_takes_no_account_of_the_delay,
    a_check_of_all_ledgers_takes_no_account_of_the_delay,
    a_scan_stops_at_the_first_error_and_counts_as_complete,
    a_bookie_lost_in_mid_scan_begins_no_new_round,
    a_mark_is_deleted_though_it_was_made_again,
    a_lock_is_given_back_before_the_repair_has_ended,
    what_cannot_be_repaired_is_tried_without_a_pause,
    pauses_do_not_grow,
    an_auditor_ignores_the_switch,
    a_worker_ignores_the_switch,
    what_was_wanted_while_disabled_is_forgotten,
]
