"""Watches the metadata while ledgers are repaired: a bookie that is named must have its copies already.

If a worker named bookies too early, a later check of all ledgers would mend it. So this is seen only meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookKeeperError, NoSuchLedgerError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.fragments import Fragment, fragments_of
from tests.faults.healing.entries import read_entries
from tests.faults.healing.watcher import Servers, Watcher
from tests.support.bookie import Connection

_PAUSE_S: Final = 0.3
_STOP_TIMEOUT_S: Final = 60.0
_MAX_PROBLEMS: Final = 20


class Inspector:
    """A thread that compares all metadata with those of its last look, and reads what new members must have.

    ``inspected`` counts the copies that were named by a repair and could be read.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._watcher = Watcher(servers)
        self._before: dict[int, LedgerMetadata] = {}
        self._stopping = threading.Event()
        self.looks = 0
        self.inspected = 0
        self.problems: list[str] = []
        self._thread = threading.Thread(target=self._run, name="inspector")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)
        self._watcher.close()

    def _run(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            # ZooKeeper is away.
            with suppress(BookKeeperError):
                self.look()

    def look(self) -> None:
        """Inspect what has changed since the last look."""
        now = self._watcher.all_metadata()
        for ledger_id, metadata in now.items():
            before = self._before.get(ledger_id)
            if before is None or before == metadata or len(self.problems) >= _MAX_PROBLEMS:
                continue
            for fragment, position in replaced(before, metadata):
                self._inspect(ledger_id, fragment, position)
        self._before = now
        self.looks += 1

    def _inspect(self, ledger_id: int, fragment: Fragment, position: int) -> None:
        bookie_id = fragment.ensemble[position]
        wanted = sorted(each for part in fragment.series((position,)) for each in part)
        bookie = next(each for each in self._servers.bookies if each.id == bookie_id)
        # A bookie that does not answer proves nothing.
        with suppress(OSError), Connection(bookie.port) as connection:
            found = read_entries(connection, ledger_id, wanted)
            absent = sorted(entry_id for entry_id, entry in found if entry in (Code.NO_ENTRY, Code.NO_LEDGER))
            self.inspected += 1
            if absent and self._is_named(ledger_id, fragment, position):
                self.problems.append(
                    f"ledger {ledger_id}: {bookie_id} was named from entry {fragment.first_entry_id} on, before it had "
                    f"{len(absent)} of {len(wanted)} entries, such as {absent[0]}"
                )

    def _is_named(self, ledger_id: int, fragment: Fragment, position: int) -> bool:
        """Whether the bookie is still a member. Otherwise its copies may have been deleted by now."""
        with suppress(NoSuchLedgerError):
            segment = self._watcher.ledgers.read(ledger_id).metadata.segment_of(fragment.first_entry_id)
            return segment.ensemble[position] == fragment.ensemble[position]
        return False


def replaced(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[tuple[Fragment, int]]:
    """Yield the positions of fragments that were closed before and have another member now."""
    fragments = {each.first_entry_id: each for each in fragments_of(after, -1)}
    for old in fragments_of(before, -1):
        new = fragments.get(old.first_entry_id)
        if not old.closed or new is None:
            continue
        for position, members in enumerate(zip(old.ensemble, new.ensemble, strict=True)):
            if members[0] != members[1]:
                yield new, position
