"""The continuous writer of a log: one producer that holds the log's tail open.

Entries go to one ledger after another. Each ledger is in the list before anything is written to it (see
:mod:`bk_spark.log.core.writer_steps`). Single entries are collected while others are in flight, and sent together. They
are sent at the latest when a thread of the writer gets its turn.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from bk_spark.log.blocking import BlockingLog
from bk_spark.log.core.reading import sync_steps
from bk_spark.log.core.roll import RollLimits
from bk_spark.log.core.steps import Closed
from bk_spark.log.core.tail import KeepTail, ReleaseTail, SealTail, TailPlace
from bk_spark.log.core.writer_steps import Roll, drain_steps, fenced_error, open_steps
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.formats.znodes import Owner
from bk_spark.log.rolling import WrittenTail
from bk_spark.log.tail_keeper import TailKeeper
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    LogFencedError,
    LogReplacedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerState

_LOG: Final = logging.getLogger(__name__)

#: Limits for single entries waiting to be sent.
_GATHERED_BYTES: Final = 4 * 1024 * 1024
_GATHERED_ENTRIES: Final = 10_000
#: Without a new ledger the writer keeps using the old one, so there is no hurry to retry.
_ROLL_AGAIN_S: Final = 10.0
_RELEASE_MS: Final = 5_000


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
        self._now_ms = now_ms = log.now_ms
        self._limits = limits
        self._max_payload_bytes = config.max_payload_bytes(log.settings.digest_type)
        self._owner = Owner(str(uuid.uuid4()), socket.gethostname(), os.getpid(), now_ms())
        #: Held while entries are sent and ledgers are changed. Acquired before ``_changed``.
        self._sending = threading.Lock()
        #: Guards the fields below; notified when they change.
        self._changed = threading.Condition()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._closing = False
        self._failure: BookKeeperError | None = None
        self._abandoned = False
        #: The owner's znode must not be created again.
        self._ending = False
        #: Where the last ledger ended, once it is closed; and where the log ended, once it is sealed.
        self._closed: Closed | None = None
        self._end_offset: int | None = None
        self._tail = self._tail_at(log.run(open_steps(log.paths, self._owner, now_ms, take_over=take_over)))
        self._next_offset = self._tail.place.base_offset
        self._keeper = TailKeeper(log.zk, log.paths.owner, self._look)
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
        return self._owner.writer_id

    @property
    def next_offset(self) -> int:
        """The offset of the next entry to be appended."""
        return self._next_offset

    @property
    def acknowledged_offset(self) -> int:
        """All entries below this offset are permanently in the log."""
        return self._tail.acknowledged_offset

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
        if self._gathered_bytes + size > _GATHERED_BYTES or len(self._gathered) >= _GATHERED_ENTRIES:
            with self._sending:
                self._send_gathered()
        with self._changed:
            self._check_open()
            if not self._gathered:
                self._changed.notify()
            self._gathered.append(entry)
            self._gathered_bytes += size
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
                self._check_open()
                # Entries appended in between have lower offsets, so they go first.
                gathered = self._take_gathered()
                start = self._next_offset
                self._next_offset = start + len(payloads)
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
            try:
                self._tail.ledger.flush()
            except BookKeeperError as error:
                self._fail(error)
            return self._tail.acknowledged_offset

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
            try:
                self._raise_failure()
                if self._end_offset is None:
                    self._end_offset = self._close()
            finally:
                if self._failure is not None:
                    self._let_go()
            return self._end_offset

    def abandon(self) -> None:
        """Stop writing without sealing the tail. The next writer or the next commit seals it. Safe to repeat.

        Pending calls in other threads raise LedgerClosedError.
        """
        self._closing = True
        # First: release the threads that wait for bookies.
        self._tail.ledger.abandon()
        self._stop()
        with self._sending:
            self._let_go()
            self._abandoned = True
            if self._failure is None and self._end_offset is None:
                self._failure = LedgerClosedError(f"log {self._log.name}: this log writer was abandoned")

    # --- sending ---

    def _check_open(self) -> None:
        self._raise_failure()
        if self._closing:
            raise LedgerClosedError(f"log {self._log.name}: this log writer is closed")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _too_large(self, size_bytes: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"log {self._log.name}: entry of {size_bytes} bytes is larger than a bookie's frame limit allows: at most "
            f"{self._max_payload_bytes} bytes; split it, or raise nettyMaxFrameSizeBytes on bookies and client"
        )

    def _take_gathered(self) -> list[bytes]:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return gathered

    def _send_gathered(self) -> None:
        with self._changed:
            self._raise_failure()
            gathered = self._take_gathered()
        self._send(gathered, Payloads.offsets_of(gathered))

    def _send(self, payloads: Payloads | Sequence[Buffer], offsets: npt.NDArray[np.int64]) -> None:
        """Send the payloads. ``offsets`` are theirs, as in :class:`Payloads`."""
        first, count = 0, len(payloads)
        try:
            while first < count:
                self._roll_if_due()
                tail = self._tail
                last = tail.part_end(offsets, first)
                if last - first < count:
                    part = payloads.part(first, last) if isinstance(payloads, Payloads) else payloads[first:last]
                else:
                    part = payloads
                last_entry = tail.ledger.append_many(part)
                tail.entries += last - first
                tail.size_bytes += int(offsets[last] - offsets[first])
                assert last_entry == tail.entries - 1, "offsets were given out that are not the entries'"
                first = last
        except BookKeeperError as error:
            self._fail(error)
        except BaseException:
            # The entries' offsets were given out, and it is unknown which entries were sent.
            self._end(LedgerClosedError(f"log {self._log.name}: this log writer was interrupted while it sent entries"))
            raise

    def _serve(self) -> None:
        """Send collected entries, and close ledgers that have reached the age limit."""
        while True:
            with self._changed:
                while not self._gathered and not self._closing and self._failure is None:
                    due_in_s = self._tail.due_in_s
                    if due_in_s <= 0:
                        break
                    self._changed.wait(due_in_s)
                if self._closing or self._failure is not None:
                    return
            with self._sending:
                try:
                    self._send_gathered()
                    self._roll_if_due()
                except BookKeeperError as error:
                    # The next call raises the error.
                    self._end(error)
                    return

    # --- ledgers ---

    def _tail_at(self, place: TailPlace) -> WrittenTail:
        return WrittenTail(place, self._log.ledgers.writer(place.ledger_id), self._limits)

    def _roll_if_due(self) -> None:
        if self._tail.due_in_s > 0:
            return
        log = self._log
        roll = Roll(log.paths, self._owner, self._ledger_id, self._now_ms)
        try:
            place = log.run(roll.steps())
            if place is None:
                _LOG.warning(
                    "log %s: no new ledger, going on with ledger %d: %s", log.name, self._ledger_id, roll.put_off_by
                )
                self._tail.put_off(_ROLL_AGAIN_S)
                return
            assert place.base_offset == self._tail.place.base_offset + self._tail.entries
            self._tail = self._tail_at(place)
        except BaseException:
            if roll.next_ledger_id is not None:
                log.ledgers.abandon(roll.next_ledger_id)
            raise

    @property
    def _ledger_id(self) -> int:
        return self._tail.place.ledger_id

    def _close(self) -> int:
        log, owner = self._log, self._owner
        if self._closed is None:
            self._send_gathered()
            try:
                self._closed = log.run(drain_steps(log.paths, owner, self._ledger_id))
            except MetadataUnavailableError:
                # The ledger may be closed already. The caller can retry.
                raise
            except BookKeeperError as error:
                self._fail(error)
        return log.change(SealTail(log.paths, owner, self._closed))

    # --- the end ---

    def _stop(self) -> None:
        """Stop the writer's threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._keeper.stop()
        self._sender.join()

    def _fail(self, error: BookKeeperError) -> NoReturn:
        """Raise the error that ended the writer, see :meth:`_end`."""
        raise self._end(error)

    def _end(self, error: BookKeeperError) -> BookKeeperError:
        """End the writer with ``error``, unless it has ended already. Return what ended it. Requires ``_sending``."""
        if self._failure is not None:
            return self._failure
        self._ending = True
        became = self._release()
        if isinstance(error, LedgerFencedError | LogFencedError | NoSuchLedgerError):
            error = self._fenced_error(became, error)
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        return error

    def _fenced_error(self, became: str, cause: BookKeeperError) -> LogFencedError:
        acknowledged = self.acknowledged_offset
        error = LogFencedError(
            f"log {self._log.name}: log writer {self.writer_id} holds the tail no more: "
            f"{became or 'its ledger was fenced by another writer or by a commit'}. Entries below offset "
            f"{acknowledged} were acknowledged and are in the log; of later ones that is not known",
            ledger_id=self._ledger_id,
        )
        error.acknowledged_offset = acknowledged
        error.__cause__ = cause
        return error

    def _release(self) -> str:
        """Remove the owner's znode, so that nobody waits for this writer. Return the state of the tail, if known."""
        log = self._log
        try:
            with log.zk.within(_RELEASE_MS):
                return log.change(ReleaseTail(log.paths, self._owner))
        except (NoSuchLogError, LogReplacedError) as error:
            return error.message
        except BookKeeperError as error:
            _LOG.info("log %s: the tail's owner %s could not be removed: %s", log.name, self.writer_id, error)
            return ""

    def _let_go(self) -> None:
        if self._end_offset is None:
            self._log.ledgers.abandon(self._ledger_id)
            self._release()

    def _look(self) -> None:
        """Check the tail after the owner's znode or the session changed. Called by the keeper."""
        log = self._log
        while not (self._ending or self._closing):
            tail = self._tail
            try:
                # A ledger fenced by someone else is lost. Keeping the tail would only keep that other writer out.
                if log.ledgers.client.metadata(tail.place.ledger_id).state is LedgerState.OPEN:
                    log.change(KeepTail(log.paths, self._owner))
                    return
                lost: BookKeeperError = fenced_error(log.paths, self._owner, tail.place.ledger_id)
            except (LogFencedError, NoSuchLedgerError, NoSuchLogError, LogReplacedError) as error:
                lost = error
            with self._sending:
                # Skip this if the writer rolled or closed the tail itself.
                if self._tail is tail and not self._closing:
                    self._end(lost)
