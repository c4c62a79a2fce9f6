"""Rules of replication, broken on purpose. The histories must find these.

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication import ledger_repair
from bk_spark.protocol.replication.actions import BookiesFound, ReplaceMembers
from bk_spark.protocol.replication.fragment_copy import FragmentCopy
from bk_spark.protocol.replication.fragments import Fragment, fragments_of, with_members
from bk_spark.protocol.replication.ledger_check import LedgerCheck
from bk_spark.protocol.replication.ledger_repair import LedgerRepair
from tests.simulation.replication.actors import WorkerActor


def repair_without_the_lock(stack: ExitStack) -> None:
    stack.enter_context(patch.object(WorkerActor, "takes_the_lock", False))


def members_are_replaced_without_proof_of_the_session(stack: ExitStack) -> None:
    stack.enter_context(patch.object(WorkerActor, "proves_its_session", False))


def a_mark_is_deleted_whatever_its_version(stack: ExitStack) -> None:
    stack.enter_context(patch.object(WorkerActor, "checks_the_version", False))


def metadata_before_copies(stack: ExitStack) -> None:
    choose = LedgerRepair._choose

    def steps(
        repair: LedgerRepair, metadata: LedgerMetadata, fragment: Fragment, *arguments: Any
    ) -> Generator[Any, Any, Any]:
        targets, refusal = yield from choose(repair, metadata, fragment, *arguments)
        if targets:
            stored = yield ledger_repair.ReadLedger()
            changed = with_members(stored.metadata, fragment, targets)
            if changed is not None:
                yield ReplaceMembers(changed, stored.version)
        return targets, refusal

    stack.enter_context(patch.object(LedgerRepair, "_choose", steps))


def open_fragments_are_repaired_at_once_and_not_fenced(stack: ExitStack) -> None:
    def fragments(metadata: LedgerMetadata, last_add_confirmed: int) -> list[Fragment]:
        return [replace(each, closed=True) for each in fragments_of(metadata, last_add_confirmed)]

    stack.enter_context(patch.object(ledger_repair, "fragments_of", fragments))


def unknown_counts_as_absent(stack: ExitStack) -> None:
    decide = LedgerCheck._decide

    def bad(check: LedgerCheck, probe: Any, verdict: str, reason: str) -> None:
        decide(check, probe, "bad", reason)

    stack.enter_context(patch.object(LedgerCheck, "_decide", bad))


def entries_that_nobody_returned_are_left_out(stack: ExitStack) -> None:
    settle = FragmentCopy._settle

    def skip(copy: FragmentCopy, batch: Any) -> None:
        if batch.copies:
            settle(copy, batch)
        else:
            copy._open -= 1

    stack.enter_context(patch.object(FragmentCopy, "_settle", skip))


def a_target_need_not_acknowledge_everything(stack: ExitStack) -> None:
    stack.enter_context(patch.object(FragmentCopy, "_on_target_failed", lambda copy, target, reason: None))


def only_the_entries_of_a_neighbour_are_copied(stack: ExitStack) -> None:
    series = Fragment.series

    def shifted(fragment: Fragment, positions: Collection[int]) -> Any:
        size = fragment.quorum.ensemble_size
        return series(fragment, [(position + 1) % size for position in positions])

    stack.enter_context(patch.object(Fragment, "series", shifted))


def _exclude(stack: ExitStack, excluded: Any) -> None:
    choose = LedgerRepair._choose

    def steps(
        repair: LedgerRepair,
        metadata: LedgerMetadata,
        fragment: Fragment,
        bad: Collection[int],
        bookies: BookiesFound,
        failed: Collection[str],
    ) -> Generator[Any, Any, Any]:
        inner = choose(repair, metadata, fragment, bad, bookies, failed)
        try:
            action = next(inner)
            while True:
                action = replace(action, exclude=excluded(action, bookies))
                try:
                    answer = yield action
                except Exception as error:
                    action = inner.throw(error)
                else:
                    action = inner.send(answer)
        except StopIteration as end:
            return end.value

    stack.enter_context(patch.object(LedgerRepair, "_choose", steps))


def copies_go_to_read_only_bookies(stack: ExitStack) -> None:
    _exclude(stack, lambda action, bookies: action.exclude - (bookies.read_only - frozenset(action.ensemble)))


def copies_go_to_members_of_the_ensemble(stack: ExitStack) -> None:
    _exclude(stack, lambda action, bookies: action.exclude - frozenset(action.ensemble))


MUTANTS = [
    repair_without_the_lock,
    members_are_replaced_without_proof_of_the_session,
    metadata_before_copies,
    open_fragments_are_repaired_at_once_and_not_fenced,
    unknown_counts_as_absent,
    entries_that_nobody_returned_are_left_out,
    a_target_need_not_acknowledge_everything,
    only_the_entries_of_a_neighbour_are_copied,
    a_mark_is_deleted_whatever_its_version,
    copies_go_to_read_only_bookies,
    copies_go_to_members_of_the_ensemble,
]
