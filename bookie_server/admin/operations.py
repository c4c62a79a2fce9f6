"""What operators ask of one bookie, by HTTP and by gRPC: the rules of the admin API, without its JSON.

A request that is refused, or fails, raises HttpError. Other front ends translate its status.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from bookie_server.admin.actions import AdminActions, RefusedError
from bookie_server.admin.routes import HttpError
from bookie_server.gc.brake import CollectionBrake, StoppedCollection
from bookie_server.gc.garbage_collector import MAJOR, MINOR, OPERATOR, CollectionRefusedError

JOURNAL, ENTRY_LOG, INDEX = "journal", "entrylog", "index"
FILE_TYPES: Final = (JOURNAL, ENTRY_LOG, INDEX)


class BookieOperations:
    """Belongs to the event loop."""

    def __init__(self, actions: AdminActions) -> None:
        self.actions = actions

    @property
    def is_ready(self) -> bool:
        """Whether clients are served, also when read-only."""
        return self.actions.running() and not self.actions.state.shutting_down

    async def set_read_only(self, wanted: bool) -> None:
        """Set or end an operator's read-only mode."""
        state = self.actions.state
        try:
            await self.actions.set_read_only(wanted)
        except RefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None
        except OSError as error:
            mode = "read-only" if state.read_only else "writable"
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"the bookie is {mode}, but this could not be saved for its next start; repeat the request: {error}",
            ) from None
        if state.read_only != wanted:
            reasons = "; ".join(f"{source}: {reason}" for source, reason in state.reasons.items())
            raise HttpError(HTTPStatus.CONFLICT, f"the bookie is still read-only: {reasons}")

    def disk_space(self) -> tuple[int, int]:
        """Return the free and all bytes on the disks of the ledger directories."""
        found = self.actions.disk_space()
        if found is None:
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "the disks of the ledger directories cannot be read; GET /api/v1/bookie/reasons says why",
            )
        return found

    async def files(self, asked: str | None) -> Mapping[str, Sequence[str]]:
        """Return the names of the files of one type, or of each."""
        if asked is not None and asked not in FILE_TYPES:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"file_type must be one of {', '.join(FILE_TYPES)}, not {asked!r}")
        directories = self.actions.directories
        where: dict[str, tuple[Sequence[str], str]] = {
            JOURNAL: (self.actions.journal_directories, ".txn"),
            ENTRY_LOG: (directories.paths, ".log"),
            INDEX: (directories.index_paths, ".idx"),
        }
        types = [asked] if asked is not None else FILE_TYPES
        return await asyncio.to_thread(lambda: {kind: _files(*where[kind]) for kind in types})

    # --- garbage collection ------------------------------------------------------------------------

    def collect(self, *, major: bool | None, minor: bool | None) -> None:
        """Begin a collection now. ``major``, ``minor``: whether it compacts. None: if that is due."""
        try:
            self.actions.collection.force(major=major, minor=minor)
        except CollectionRefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None

    def stopped(self) -> list[tuple[CollectionBrake, StoppedCollection]]:
        """Return the collections that wait for an operator."""
        return [(brake, brake.stopped) for brake in self.actions.collection.brakes if brake.stopped is not None]

    def release(self, word: object) -> tuple[CollectionBrake, StoppedCollection]:
        """Release the stopped collection whose confirmation word is ``word``."""
        if not isinstance(word, str) or not word:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, 'the word is missing; GET this path for the word, then PUT {"word": "…"}'
            )
        try:
            brake = self.actions.collection.release(word)
        except CollectionRefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None
        assert brake.stopped is not None, "a released brake waits for the next pass"
        return brake, brake.stopped

    def suspend(self, *, major: bool, minor: bool, suspended: bool) -> None:
        """Suspend compactions, or let them go on."""
        for kind, wanted in ((MAJOR, major), (MINOR, minor)):
            if wanted:
                self.actions.collection.suspend(kind, OPERATOR, suspended)


def _files(directories: Sequence[str], extension: str) -> list[str]:
    return sorted(
        name
        for directory in directories
        for _, _, files in os.walk(directory, onerror=_raise)
        for name in files
        if name.endswith(extension)
    )


def _raise(error: OSError) -> None:
    raise error
