"""The highest entry id that index files have room for, and a record of entries above it.

An add above the limit is refused (bookie.py). Entries above it can still be in memory: a journal is replayed that was
written when files could be longer, or the limit was lowered, or it could not be determined. A flush leaves these
entries out of the index, so that it succeeds for all others, and records the id from which the ledger lacks entries:

``<ledger dir>/current/unindexed``, in every ledger directory that can be written; at start all are read::

    one line for each ledger: its id, the lowest entry id that is not in the index

It is written before the marks release the journal. If a read of such a ledger at or above that id finds nothing, it
gets an I/O error, because "no such entry" would be wrong. The entries stay in an entry log until it is compacted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from bk_spark.protocol.errors import CorruptFileError
from bookie_server.storage.disk import files
from bookie_server.storage.records import MAX_ENTRY_ID

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "unindexed"


class EntryLimit:
    """``find`` returns the highest entry id that all index files have room for; ``directories`` are the ``current``
    directories of ledgers. Raises CorruptFileError, OSError."""

    def __init__(self, find: Callable[[], int], directories: Sequence[str]) -> None:
        self._find = find
        self._directories = tuple(directories)
        #: The highest entry id that is accepted.
        self.last = find()
        self._lacking: dict[int, int] = {}
        for directory in self._directories:
            for ledger_id, first in _read(os.path.join(directory, _NAME)):
                self._lacking[ledger_id] = min(first, self._lacking.get(ledger_id, first))

    def find_again(self) -> bool:
        """Determine the limit again after a file was too long. Return whether it is lower now."""
        before, self.last = self.last, min(self.last, self._find())
        return self.last < before

    def lacks(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a missing entry of the ledger may have been left out of the index."""
        first = self._lacking.get(ledger_id)
        return first is not None and first <= entry_id <= MAX_ENTRY_ID

    def lacks_some(self, ledger_id: int) -> bool:
        """Whether entries of the ledger were left out of the index."""
        return ledger_id in self._lacking

    def first_lacking(self, ledger_id: int) -> int:
        """The entry id from which the ledger may lack entries; above all ids if it lacks none."""
        return self._lacking.get(ledger_id, MAX_ENTRY_ID + 1)

    def note(self, left_out: dict[int, int]) -> None:
        """Durably record ledgers with their lowest entry that was left out. Raises OSError, SyncFailedError."""
        new = {ledger_id: min(first, self.first_lacking(ledger_id)) for ledger_id, first in left_out.items()}
        for ledger_id, first in left_out.items():
            _LOG.error(
                "ledger %d: entries from %d on do not fit into its index file, and their reads get an I/O error. The "
                "highest possible id is %d (file system, or ulimit -f)",
                ledger_id,
                first,
                self.last,
            )
        self._write({**self._lacking, **new})

    def forget(self, ledger_id: int) -> None:
        """Remove the record of a removed ledger. Raises OSError, SyncFailedError."""
        if ledger_id in self._lacking:
            self._write({other: first for other, first in self._lacking.items() if other != ledger_id})

    def _write(self, lacking: dict[int, int]) -> None:
        content = "".join(f"{ledger_id} {first}\n" for ledger_id, first in sorted(lacking.items())).encode()
        failures = []
        for directory in self._directories:
            try:
                files.replace_file(os.path.join(directory, _NAME), content)
            except files.SyncFailedError:
                raise
            except OSError as error:
                failures.append(error)
        if len(failures) == len(self._directories):
            raise failures[0]
        self._lacking = lacking


def _read(path: str) -> list[tuple[int, int]]:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    try:
        return [(int(ledger_id), int(first)) for ledger_id, first in (line.split() for line in lines)]
    except ValueError as error:
        raise CorruptFileError(
            f"{path} does not hold pairs of ledger and entry ids: copy it from another ledger directory. If no entry "
            "id was ever too high for an index file, move it elsewhere"
        ) from error
