"""Group commit: while one group is being written and synced, the next one gathers.

The event loop fills the pending group; a worker thread takes it whole as soon as it is free, writes
it (journal and entry log) and reports back to the loop. A group succeeds or fails as a whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from bookie_server.storage.entry_log import LogOperation
from bookie_server.storage.files import Buffer
from bookie_server.storage.handles import LedgerHandle
from bookie_server.storage.journal import LogMark
from bookie_server.storage.records import LedgerPart, Records

#: Called in the event loop when a group is through; True if it is durable.
DoneCallback = Callable[[bool], None]


@dataclass(slots=True)
class Append:
    """Records whose index entries are set once their group is durable. ``location`` is of the first length field."""

    records: Records
    parts: list[tuple[LedgerHandle, LedgerPart]]
    location: int


@dataclass(slots=True, eq=False)
class Group:
    """What is written and synced together. Filled under the lock of :class:`GroupCommit`."""

    journal: list[Buffer] = field(default_factory=list)
    journal_bytes: int = 0
    log_operations: list[LogOperation] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    done: list[DoneCallback] = field(default_factory=list)
    mark: LogMark | None = None

    def add_journal(self, record: Buffer) -> None:
        self.journal.append(record)
        self.journal_bytes += len(record)


class GroupCommit:
    """Owns the worker thread. ``write`` runs there and gives the mark behind the group; ``finished`` is called in
    the loop with the group and the error (or None), in the order of the groups. After an error no further group
    is written: all that follow get the same error."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        write: Callable[[Group], LogMark],
        finished: Callable[[Group, Exception | None], None],
    ) -> None:
        self._loop = loop
        self._write = write
        self._finished = finished
        self._condition = threading.Condition(threading.Lock())
        self._pending = Group()
        self._in_flight: Group | None = None
        self._filled = False
        self._idle = False
        self._stopping = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self.outstanding_bytes = 0

    def start(self) -> None:
        self._thread.start()

    def add(self, fill: Callable[[Group], None]) -> Group:
        """Let ``fill`` put something into the pending group; that group."""
        with self._condition:
            group = self._pending
            before = group.journal_bytes
            fill(group)
            self.outstanding_bytes += group.journal_bytes - before
            self._filled = True
            if self._idle:
                self._idle = False
                self._condition.notify()
        return group

    def barrier(self, done: DoneCallback) -> bool:
        """Call ``done`` when everything added so far is through; False where nothing is outstanding."""
        with self._condition:
            group = self._pending if self._filled else self._in_flight
            if group is None:
                return False
            group.done.append(done)
        return True

    def stop(self) -> None:
        """Let the worker finish what is pending, then end. Blocks. Callbacks still to come run in the loop."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._filled and not self._stopping:
                    self._idle = True
                    self._condition.wait()
                if not self._filled:
                    return
                group, self._pending = self._pending, Group()
                self._filled = False
                self._in_flight = group
            if self._error is None:
                try:
                    group.mark = self._write(group)
                except Exception as error:
                    self._error = error
            self._loop.call_soon_threadsafe(self._through, group, self._error)

    def _through(self, group: Group, error: Exception | None) -> None:
        with self._condition:
            if self._in_flight is group:
                self._in_flight = None
        self.outstanding_bytes -= group.journal_bytes
        self._finished(group, error)
