"""The continuous writer of a log: one producer that holds the log's tail open.

Entries go to one ledger after another. Each ledger is in the list before anything is written to it. Single entries are
collected while others are in flight, and sent together. They are sent at the latest when a thread of the writer gets
its turn.

:class:`bk_spark.log.core.tail.writing.TailWriting` decides what to do. Here are its threads, its locks and its ledger.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Final, TypeVar

import numpy as np

from bk_spark.bookie.blocking import BlockingWriter
from bk_spark.log.core.reading import sync_steps
from bk_spark.log.core.steps import Done, Event, Failed, Steps
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.core.tail.writer_actions import (
    Acknowledged,
    AskConfirmed,
    AskFailure,
    FlushLedger,
    SendEntries,
    Sent,
    TakeTurn,
    UseTail,
    WatchOwner,
    WriterAction,
)
from bk_spark.log.core.tail.writing import TailWriting
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.formats.znodes import Owner
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.znode_watch import ZnodeWatch
from bk_spark.log.tail_keeper import TailKeeper
from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import EntryGatherer, Payloads
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError

#: Limits for single entries waiting to be sent.
_GATHERED_BYTES: Final = 4 * 1024 * 1024
_GATHERED_ENTRIES: Final = 10_000

_T = TypeVar("_T")


class LogWriter:
    """Appends entries to a raw log, in order. It holds the log's tail. Thread-safe.

    ``append`` and ``append_many`` return once the entries are handed over for sending. :meth:`flush` waits until they
    are acknowledged. Any error except InvalidArgumentError ends the writer, and every later call raises the same error.
    Entries below ``acknowledged_offset`` are then in the log. Some later entries may be in the log too.

    Use it as a context manager, or call :meth:`close` or :meth:`abandon`. An error inside the ``with`` block abandons
    the writer. Made by :meth:`Log.open_writer`.
    """

    def __init__(self, log: BlockingLog, limits: RollLimits, *, take_over: bool = False) -> None:
        config = log.ledgers.client.config
        if log.settings.entry_format is not EntryFormat.RAW:
            raise InvalidArgumentError(
                f"log {log.name} has entryFormat {log.settings.entry_format.value}: a log writer writes raw logs only"
            )
        if not config.explicit_lac_interval_ms:
            raise InvalidArgumentError(
                "a log writer needs explicitLacInterval (explicit_lac_interval_ms of ClientConfig, such as 1000): "
                "without it readers do not see the last entries of a writer that pauses"
            )
        # The owner's znode records when it was created, in cluster time.
        log.run(sync_steps(log.paths))
        self._log = log
        self._max_payload_bytes = config.max_payload_bytes(log.settings.digest_type)
        #: Held while steps of the writer run. Acquired before ``_changed``.
        self._sending = threading.Lock()
        #: Guards ``_gathered`` and ``_next_offset``. Notified when the sender has something to do, and at the end.
        self._changed = threading.Condition()
        self._gathered = EntryGatherer(_GATHERED_BYTES, _GATHERED_ENTRIES)
        self._abandoned = False
        owner = Owner(str(uuid.uuid4()), socket.gethostname(), os.getpid(), log.now_ms())
        self._writing = TailWriting(log.paths, owner, limits, log.now_ms, _elapsed_ms)
        #: The offset where the ledger being written begins, and the ledger.
        self._tail: tuple[int, BlockingWriter]
        #: Set when the owner's znode changed, or the ledger's writer failed.
        self._to_check = threading.Event()
        self._watch = ZnodeWatch(log.zk, log.paths.owner, self._to_check)
        self._run(self._writing.open_steps(take_over=take_over))
        self._next_offset = self._writing.place.base_offset
        self._keeper = TailKeeper(log.paths.owner, self._to_check, self._keep)
        self._sender = threading.Thread(target=self._serve, name=f"log-writer {log.name}", daemon=True)
        self._keeper.start()
        self._sender.start()

    def __repr__(self) -> str:
        return f"LogWriter({self._log.name}, {self.writer_id})"

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self._abandoned:
            self.close()

    @property
    def writer_id(self) -> str:
        """The id of this writer. Errors of other writers name it."""
        return self._writing.owner.writer_id

    @property
    def next_offset(self) -> int:
        """The offset of the next entry to be appended."""
        return self._next_offset

    @property
    def acknowledged_offset(self) -> int:
        """All entries below this offset are permanently in the log."""
        base_offset, ledger = self._tail
        confirmed: int = ledger.last_add_confirmed
        return base_offset + confirmed + 1

    def append(self, payload: Buffer) -> int:
        """Append one entry.

        Parameters
        ----------
        payload
            The bytes of the entry.

        Returns
        -------
        int
            The entry's offset.

        Raises
        ------
        InvalidArgumentError
            If the entry is larger than a bookie accepts.
        LogFencedError
            If another writer or a commit took the tail.
        LedgerClosedError
            If this writer was closed or abandoned.
        """
        # The caller may change its buffer later, so copy it.
        entry = payload if isinstance(payload, bytes) else bytes(memoryview(payload))
        size = len(entry)
        if size > self._max_payload_bytes:
            raise self._too_large(size)
        if not self._gathered.has_room(size):
            with self._sending:
                self._send_gathered()
        with self._changed:
            self._writing.check_open()
            if not len(self._gathered):
                self._changed.notify()
            self._gathered.add(entry, size)
            offset = self._next_offset
            self._next_offset = offset + 1
        return offset

    def append_many(self, payloads: Payloads | Sequence[Buffer]) -> range:
        """Append entries in order. This is the fastest way.

        Parameters
        ----------
        payloads
            The bytes of each entry. They must not change before the call returns.

        Returns
        -------
        range
            The entries' offsets.

        Raises
        ------
        InvalidArgumentError
            If an entry is larger than a bookie accepts. No entry was appended.
        LogFencedError
            If another writer or a commit took the tail.
        LedgerClosedError
            If this writer was closed or abandoned.
        """
        offsets = payloads.offsets if isinstance(payloads, Payloads) else Payloads.offsets_of(payloads)
        largest = int(np.diff(offsets).max(initial=0))
        if largest > self._max_payload_bytes:
            raise self._too_large(largest)
        with self._sending:
            self._send_gathered()
            with self._changed:
                self._writing.check_open()
                # Entries appended in between have lower offsets, so they go first.
                gathered = self._gathered.take()
                start = self._next_offset
                self._next_offset = start + len(payloads)
            if gathered:
                self._send(gathered, Payloads.offsets_of(gathered))
            self._send(payloads, offsets)
        return range(start, start + len(payloads))

    def flush(self) -> int:
        """Wait until all appended entries are acknowledged.

        Returns
        -------
        int
            The offset after the last acknowledged entry.

        Raises
        ------
        LogFencedError
            If another writer or a commit took the tail.
        BookKeeperError
            The error that ended the writer.
        """
        with self._sending:
            self._send_gathered()
            self._run(self._writing.flush_steps())
            return self.acknowledged_offset

    def close(self) -> int:
        """Flush, then seal the tail. Safe to repeat.

        Returns
        -------
        int
            The end of the log.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer. Call it again, or abandon the writer.
        LogFencedError
            If another writer or a commit took the tail.
        BookKeeperError
            The error that ended the writer.
        """
        self._stop()
        with self._sending:
            gathered = self._take_gathered()
            return self._run(self._writing.close_steps(gathered, Payloads.offsets_of(gathered)))

    def abandon(self) -> None:
        """Stop writing without sealing the tail. The next writer or the next commit seals it. Safe to repeat.

        Pending calls in other threads raise LedgerClosedError.
        """
        self._writing.stop()
        # First: release the threads that wait for bookies.
        self._tail[1].abandon()
        self._stop()
        with self._sending:
            self._run(self._writing.abandon_steps())
            self._abandoned = True

    # --- sending ---

    def _too_large(self, size_bytes: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"log {self._log.name}: entry of {size_bytes} bytes is larger than a bookie's frame limit allows: at most "
            f"{self._max_payload_bytes} bytes; split it, or raise nettyMaxFrameSizeBytes on bookies and client"
        )

    def _take_gathered(self) -> list[bytes]:
        with self._changed:
            return self._gathered.take()

    def _send_gathered(self) -> None:
        gathered = self._take_gathered()
        self._send(gathered, Payloads.offsets_of(gathered))

    def _send(self, payloads: Payloads | Sequence[Buffer], offsets: Int64s) -> None:
        """Send the payloads. ``offsets`` are theirs, as in :class:`Payloads`. Requires ``_sending``."""
        self._run_sending(self._writing.send_steps(payloads, offsets))

    def _serve(self) -> None:
        """Send collected entries, and close ledgers that have reached the age limit."""
        while True:
            with self._changed:
                while (idle_ms := self._writing.idle_ms(has_entries=len(self._gathered) > 0)) != 0:
                    if idle_ms is None:
                        return
                    self._changed.wait(idle_ms / 1000)
            with self._sending:
                gathered = self._take_gathered()
                # The writer keeps the error, and the next call raises it.
                with contextlib.suppress(BookKeeperError):
                    self._run_sending(self._writing.serve_steps(gathered, Payloads.offsets_of(gathered)))

    # --- machines ---

    def _run_sending(self, steps: Steps[None]) -> None:
        try:
            self._run(steps)
        except BookKeeperError:
            raise
        except BaseException:
            self._run(self._writing.interrupt_steps())
            raise

    def _run(self, steps: Steps[_T], turn: contextlib.ExitStack | None = None) -> _T:
        """Run steps of the writer. Those that take a ``turn`` give it back by closing it. Others require
        ``_sending``."""
        try:
            return self._log.run(steps, lambda action: self._perform(action, turn))
        finally:
            if self._writing.failure is not None:
                with self._changed:
                    self._changed.notify_all()

    def _perform(self, action: WriterAction, turn: contextlib.ExitStack | None) -> Event:
        match action:
            case SendEntries(_, payloads):
                return Sent(self._tail[1].append_many(payloads))
            case FlushLedger():
                return Acknowledged(self._tail[1].flush())
            case AskConfirmed():
                return Acknowledged(self._tail[1].last_add_confirmed)
            case AskFailure():
                failure = self._tail[1].failure
                return Done() if failure is None else Failed(failure)
            case UseTail(ledger_id, base_offset):
                ledger = self._log.ledgers.writer(ledger_id)
                self._tail = base_offset, ledger
                ledger.call_on_failure(self._to_check.set)
            case WatchOwner():
                self._watch.arm()
            case TakeTurn():
                assert turn is not None
                turn.enter_context(self._sending)
        return Done()

    def _keep(self) -> float | None:
        """Check the tail. Called by the keeper."""
        with contextlib.ExitStack() as turn:
            return self._run(self._writing.keep_steps(), turn)

    def _stop(self) -> None:
        """Stop the writer's threads."""
        with self._changed:
            self._writing.stop()
            self._changed.notify_all()
        self._keeper.stop()
        self._sender.join()


def _elapsed_ms() -> float:
    return time.monotonic() * 1000
