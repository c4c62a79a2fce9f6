"""Rules that scenario texts guard, broken on purpose: of bookies, of the store, of clients (see also mutants.py).

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from bk_spark.protocol.codes import Code, DigestType, FlagV2, OpV2
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.ledger.add_window import PendingAdds
from bk_spark.protocol.ledger.reading import lac
from bk_spark.protocol.ledger.reading.lac import LacAnswer
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import LacTold
from bk_spark.protocol.ledger.recovery import LedgerRecovery
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import AddsAnswered
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Answer as Said
from tests.simulation import readers
from tests.simulation.bytes_cache import CachedPackager, ReadSeen, code_answer, entry_in, metadata_in
from tests.simulation.events import Effect, Event, MetaCall, Way
from tests.simulation.servers import ModelBookie, ModelStore
from tests.simulation.world import World


class WritesNothingBack(LedgerRecovery):
    """It treats its write-backs as done."""

    def _write_back(self, writer: LedgerWriter, entries: list[Entry], last_add_confirmed: int) -> None:
        super()._write_back(writer, entries, last_add_confirmed)
        writer.take_actions()
        entry_ids = np.array([entry.entry_id for entry in entries])
        for bookie_id in writer.ensemble.members:
            writer.handle(AddsAnswered(bookie_id, entry_ids, np.zeros(len(entries), np.int32)))


# --- bookies ----------------------------------------------------------------------------------------


def fences_are_forgotten_in_crashes(stack: ExitStack) -> None:
    start = ModelBookie._start

    def unfenced(bookie: ModelBookie) -> None:
        start(bookie)
        bookie.fenced = bookie.fenced_on_disk = False

    stack.enter_context(patch.object(ModelBookie, "_start", unfenced))


def limbo_is_forgotten(stack: ExitStack) -> None:
    """A bookie that may have lost entries reports them as absent."""
    start = ModelBookie._start

    def sure(bookie: ModelBookie) -> None:
        start(bookie)
        bookie.limbo = False

    stack.enter_context(patch.object(ModelBookie, "_start", sure))


def damaged_is_absent(stack: ExitStack) -> None:
    read = ModelBookie._read

    def read_or_absent(bookie: ModelBookie, seen: ReadSeen) -> bytes:
        if seen.entry_id in bookie.damaged:
            return code_answer(OpV2.READ, seen.entry_id, Code.NO_ENTRY)
        return read(bookie, seen)

    stack.enter_context(patch.object(ModelBookie, "_read", read_or_absent))


def copies_are_collected_during_replication(stack: ExitStack) -> None:
    def collect(world: World, bookie: str) -> None:
        metadata = world.metadata
        assert metadata.state is LedgerState.CLOSED
        held = sorted(world.bookie(bookie).disk)
        garbage = [entry for entry in held if bookie not in metadata.segment_of(entry).ensemble]
        if garbage:
            world.command("drop", bookie, *garbage)

    stack.enter_context(patch.object(World, "collect", collect))


# --- the store --------------------------------------------------------------------------------------


def the_store_does_not_compare(stack: ExitStack) -> None:
    handle = ModelStore.handle

    def set_always(store: ModelStore, event: Event, way: Way) -> list[Effect]:
        assert isinstance(event, MetaCall)
        return handle(store, replace(event, version=store.version), way)

    stack.enter_context(patch.object(ModelStore, "handle", set_always))


# --- clients ----------------------------------------------------------------------------------------


def no_reply_means_done(stack: ExitStack, state: LedgerState | None = None) -> None:
    """A client treats a compare-and-set without a reply (to ``state``, if given) as done."""
    lose = World._lose

    def take_for_done(world: World, event: Event) -> Event:
        if isinstance(event, MetaCall) and event.data is not None and state in (None, metadata_in(event.data).state):
            return event.reply("ok", event.data, event.version + 1)
        return lose(world, event)

    stack.enter_context(patch.object(World, "_lose", take_for_done))


def no_reply_to_a_close_means_done(stack: ExitStack) -> None:
    no_reply_means_done(stack, LedgerState.CLOSED)


def a_place_is_filled_once(stack: ExitStack) -> None:
    """The second bookie that replaces a failed one gets no entries resent."""
    replace_place = PendingAdds.replace
    filled: set[int] = set()

    def replace_once(pending: PendingAdds, index: int, first_entry_id: int) -> tuple[list[memoryview], int]:
        if index in filled:
            pending.give_up(index)
            return [], 0
        filled.add(index)
        return replace_place(pending, index, first_entry_id)

    stack.enter_context(patch.object(PendingAdds, "replace", replace_once))


def the_last_entry_is_confirmed(stack: ExitStack) -> None:
    """A reader treats everything stored on a bookie as confirmed."""
    understand = lac.understand

    def trusting(ledger: LedgerKey, told: LacTold) -> LacAnswer:
        said = understand(ledger, told)
        if said.answer is not Said.PRESENT or told.last_entry is None:
            return said
        return LacAnswer(Said.PRESENT, entry_in(told.last_entry, None, ledger.digest_type).entry_id)

    stack.enter_context(patch.object(lac, "understand", trusting))


def replication_adds_as_a_writer(stack: ExitStack) -> None:
    def normal(digest_type: DigestType, flags: FlagV2) -> Any:
        return CachedPackager(digest_type, FlagV2.NONE)

    stack.enter_context(patch.object(readers, "CachedPackager", normal))
