"""Rules of replication, broken on purpose. The histories must find these.

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from bk_spark.bookie.metadata import ledger_store
from bk_spark.bookie.metadata.proven_changes import prove_and_change
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication import under_replication_store
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import NoNodeError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp, TransactionOp
from bk_spark.protocol.replication import ledger_repair
from bk_spark.protocol.replication.actions import BookiesFound, ReplaceMembers
from bk_spark.protocol.replication.copying.fragment_copy import FragmentCopy
from bk_spark.protocol.replication.fragments import Fragment, fragments_of, with_members
from bk_spark.protocol.replication.good_copies import GoodCopies
from bk_spark.protocol.replication.ledger_check import LedgerCheck
from bk_spark.protocol.replication.ledger_repair import LedgerRepair


def repair_without_the_lock(stack: ExitStack) -> None:
    stack.enter_context(patch.object(UnderReplicationStore, "lock", lambda store, ledger_id, proof: True))


def members_are_replaced_without_proof_of_the_session(stack: ExitStack) -> None:
    _proves_nothing(stack, ledger_store, SetOp)


def locks_are_taken_without_proof_of_the_session(stack: ExitStack) -> None:
    _proves_nothing(stack, under_replication_store, CreateOp)


def marks_and_locks_are_deleted_without_proof_of_the_session(stack: ExitStack) -> None:
    _proves_nothing(stack, under_replication_store, DeleteOp)


def _proves_nothing(stack: ExitStack, module: ModuleType, kind: type[TransactionOp]) -> None:
    def change(zk: ZooKeeper, proof: str | None, operations: Sequence[TransactionOp]) -> None:
        prove_and_change(zk, None if isinstance(operations[0], kind) else proof, operations)

    stack.enter_context(patch.object(module, "prove_and_change", change))


def a_mark_is_deleted_whatever_its_version(stack: ExitStack) -> None:
    finish = UnderReplicationStore.finish

    def careless(store: UnderReplicationStore, ledger_id: int, version: int, *, proof: str) -> bool:
        return finish(store, ledger_id, -1, proof=proof)

    stack.enter_context(patch.object(UnderReplicationStore, "finish", careless))


def a_lock_of_another_session_is_given_back(stack: ExitStack) -> None:
    def careless(store: UnderReplicationStore, ledger_id: int) -> None:
        with contextlib.suppress(NoNodeError):
            store.zk.delete(store.paths.lock(ledger_id))

    stack.enter_context(patch.object(UnderReplicationStore, "release", careless))


def a_bookie_that_registered_again_counts_as_checked(stack: ExitStack) -> None:
    """The registrations after the last check are not compared with those before it."""
    handle = LedgerRepair.handle

    def careless(repair: LedgerRepair, event: Any) -> None:
        if isinstance(event, BookiesFound):
            event = replace(event, registrations=_Unchanged(event.registrations))
        handle(repair, event)

    stack.enter_context(patch.object(LedgerRepair, "handle", careless))


class _Unchanged(dict[str, int]):
    def __ne__(self, other: object) -> bool:
        return False


def what_a_bookie_held_before_it_registered_again_counts_as_good(stack: ExitStack) -> None:
    begin_round = GoodCopies.begin_round

    def trusting(good: GoodCopies, created_zxid: int, registrations: Mapping[str, int]) -> None:
        begin_round(good, created_zxid, dict.fromkeys(registrations, 1))

    stack.enter_context(patch.object(GoodCopies, "begin_round", trusting))


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
    locks_are_taken_without_proof_of_the_session,
    marks_and_locks_are_deleted_without_proof_of_the_session,
    a_lock_of_another_session_is_given_back,
    a_bookie_that_registered_again_counts_as_checked,
    what_a_bookie_held_before_it_registered_again_counts_as_good,
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
