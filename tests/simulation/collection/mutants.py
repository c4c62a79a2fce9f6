"""Rules of collection, broken on purpose. The checks must find these.

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.metadata.znodes import Znode
from bookie_server.gc import collection_steps
from bookie_server.gc.brake import CollectionBrake
from bookie_server.gc.collection_steps import (
    MARKED_AT_ONCE,
    CollectionReport,
    LockedLedger,
    MarkLedgers,
    ReadLedgers,
    ReadLocked,
    RemoveLedgers,
    Step,
    Steps,
    SyncMetadata,
    UnmarkLedgers,
    and_finally,
)
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.identity.cluster_identity import ClusterIdentity


def any_cluster_is_believed(stack: ExitStack) -> None:
    """The former behaviour: the first instance found counts."""

    def believe(identity: ClusterIdentity, found: Mapping[str, Znode | None]) -> None:
        assert set(identity.paths) <= set(found)

    stack.enter_context(patch.object(ClusterIdentity, "check", believe))


def _remove(report: CollectionReport, ledger_ids: list[int]) -> Steps:
    deleted, _ = yield RemoveLedgers(ledger_ids)
    report.deleted += deleted


def _removal(stack: ExitStack, remove_some: Callable[[CollectionReport, list[int]], Steps]) -> None:
    def steps(report: CollectionReport, victims: Int64s) -> Steps:
        for first in range(0, len(victims), MARKED_AT_ONCE):
            yield from remove_some(report, victims[first : first + MARKED_AT_ONCE].tolist())

    stack.enter_context(patch.object(collection_steps, "_remove_all_absent", steps))


def victims_are_not_read_again(stack: ExitStack) -> None:
    """The former behaviour: up to 256 are read, and removed one after the other."""

    def steps(report: CollectionReport, ledger_ids: list[int]) -> Steps:
        marked, _ = yield MarkLedgers(ledger_ids)
        yield from and_finally(_remove(report, marked), UnmarkLedgers(marked))

    _removal(stack, steps)


def victims_are_read_again_before_they_are_marked(stack: ExitStack) -> None:
    def steps(report: CollectionReport, ledger_ids: list[int]) -> Steps:
        yield SyncMetadata()
        contents = yield ReadLedgers(ledger_ids)
        marked, _ = yield MarkLedgers([ledger_id for ledger_id in ledger_ids if contents[ledger_id] is None])
        yield from and_finally(_remove(report, marked), UnmarkLedgers(marked))

    _removal(stack, steps)


def the_server_is_not_brought_up_to_date_after_the_mark(stack: ExitStack) -> None:
    def remove_absent(report: CollectionReport, marked: list[int]) -> Steps:
        contents = yield ReadLedgers(marked)
        yield from _remove(report, [ledger_id for ledger_id in marked if contents[ledger_id] is None])

    stack.enter_context(patch.object(collection_steps, "_remove_absent", remove_absent))


def a_new_session_is_as_good_as_the_old_one(stack: ExitStack) -> None:
    stack.enter_context(patch.object(LedgerMetadataReads, "_check_session", lambda reads: None))


def the_lock_is_not_looked_at(stack: ExitStack) -> None:
    """Its session may have ended, and another worker may hold it."""
    read = LedgerMetadataReads.locked_ledger

    def locked(reads: LedgerMetadataReads, ledger_id: int) -> LockedLedger:
        return replace(read(reads, ledger_id), locked=True)

    stack.enter_context(patch.object(LedgerMetadataReads, "locked_ledger", locked))


def copies_are_not_read_again_under_the_lock(stack: ExitStack) -> None:
    def steps(report: CollectionReport, ledger_id: int, bookie_id: str) -> Steps:
        yield SyncMetadata()
        yield ReadLocked(ledger_id)
        yield from _remove(report, [ledger_id])

    stack.enter_context(patch.object(collection_steps, "_remove_superfluous", steps))


def a_failed_step_releases_nothing(stack: ExitStack) -> None:
    def and_then(steps: Steps, last: Step) -> Steps:
        yield from steps
        yield last

    stack.enter_context(patch.object(collection_steps, "and_finally", and_then))


def there_is_no_brake(stack: ExitStack) -> None:
    stack.enter_context(patch.object(CollectionBrake, "stops", lambda brake, victims, held, next_id=0: None))


def a_word_releases_whatever_comes(stack: ExitStack) -> None:
    stops = CollectionBrake.stops

    def once_released(brake: CollectionBrake, victims: Any, held: int, next_id: int = 0) -> Any:
        if brake.released:
            brake._released = None
            return None
        return stops(brake, victims, held, next_id)

    stack.enter_context(patch.object(CollectionBrake, "stops", once_released))


def a_word_holds_for_ever(stack: ExitStack) -> None:
    stops = CollectionBrake.stops

    def kept(brake: CollectionBrake, victims: Any, held: int, next_id: int = 0) -> Any:
        released, waiting = brake._released, brake.stopped
        stopped = stops(brake, victims, held, next_id)
        if stopped is None:
            brake._released, brake.stopped = released, None if released is not None else waiting
        return stopped

    stack.enter_context(patch.object(CollectionBrake, "stops", kept))


def an_id_that_was_not_given_does_not_matter(stack: ExitStack) -> None:
    stops = CollectionBrake.stops
    careless: Any = lambda brake, victims, held, next_id=0: stops(brake, victims, held)  # noqa: E731
    stack.enter_context(patch.object(CollectionBrake, "stops", careless))


MUTANTS = [
    any_cluster_is_believed,
    victims_are_not_read_again,
    victims_are_read_again_before_they_are_marked,
    the_server_is_not_brought_up_to_date_after_the_mark,
    a_new_session_is_as_good_as_the_old_one,
    the_lock_is_not_looked_at,
    copies_are_not_read_again_under_the_lock,
    a_failed_step_releases_nothing,
    there_is_no_brake,
    a_word_releases_whatever_comes,
    a_word_holds_for_ever,
    an_id_that_was_not_given_does_not_matter,
]
