"""Ledgers that stay open between tasks of one process.

A Spark worker process runs tasks of many micro-batches, one after another. After a task, its ledger waits here for the
next task of the same run, so that the number of ledgers grows with time and bytes, not with batches. Spark ends
processes that are idle for a minute, without running exit handlers. A ledger not closed by then stays open until its
run is retired. That only costs a recovery.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bk_spark.datasource.connections import LogPlace
from bk_spark.log.tables.append_ledgers import KeptLedgers, OpenLedger

_LOG: Final = logging.getLogger(__name__)

#: Shorter than the minute after which Spark ends an idle worker.
IDLE_CLOSE_S: Final = 30.0
#: Maximum of waiting ledgers in one process. Each task takes one.
MAX_WAITING: Final = 64


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """The owner of a ledger: only the run that made a ledger may commit from it."""

    place: LogPlace
    app: str
    run: str


class _OfRun:
    """The ledgers of one owner in a cache."""

    def __init__(self, cache: IdleLedgers, key: LedgerKey) -> None:
        self._cache = cache
        self._key = key

    def take(self) -> OpenLedger | None:
        return self._cache.take(self._key)

    def give_back(self, ledger: OpenLedger) -> None:
        self._cache.give_back(self._key, ledger)

    def close(self, ledger: OpenLedger) -> None:
        self._cache.close(ledger)


class IdleLedgers:
    """Open ledgers that no task uses now. Thread-safe. A thread closes ledgers idle for ``idle_s`` and ends when none
    are left."""

    def __init__(self, idle_s: float = IDLE_CLOSE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        #: Guards the fields below. Notified when there is work for the closer.
        self._changed = threading.Condition()
        #: By ledger id, longest idle first: key, ledger, idle since.
        self._waiting: OrderedDict[int, tuple[LedgerKey, OpenLedger, float]] = OrderedDict()
        self._to_close: deque[OpenLedger] = deque()
        self._closer: threading.Thread | None = None

    def of(self, key: LedgerKey) -> KeptLedgers:
        """Return the ledgers of ``key``."""
        return _OfRun(self, key)

    def take(self, key: LedgerKey) -> OpenLedger | None:
        """Hand over the most recently returned ledger of ``key`` that is not known to be lost."""
        while (ledger := self._take(key)) is not None and ledger.writer.error is not None:
            ledger.abandon()
        return ledger

    def give_back(self, key: LedgerKey, ledger: OpenLedger) -> None:
        """Keep ``ledger`` for its next user. All its entries must be acknowledged."""
        with self._changed:
            self._waiting[ledger.writer.ledger_id] = (key, ledger, self._clock())
            if len(self._waiting) > MAX_WAITING:
                _, (_, oldest, _) = self._waiting.popitem(last=False)
                self._to_close.append(oldest)
            self._wake_closer()

    def close(self, ledger: OpenLedger) -> None:
        """Close ``ledger`` in the background."""
        with self._changed:
            self._to_close.append(ledger)
            self._wake_closer()

    def close_all(self) -> None:
        """Close all waiting ledgers, and wait for the closer to end."""
        with self._changed:
            while self._waiting:
                self._to_close.append(self._waiting.popitem(last=False)[1][1])
            closer = self._closer
            self._changed.notify_all()
        if closer is not None:
            closer.join()

    def _take(self, key: LedgerKey) -> OpenLedger | None:
        with self._changed:
            for ledger_id in reversed(self._waiting):
                if self._waiting[ledger_id][0] == key:
                    return self._waiting.pop(ledger_id)[1]
        return None

    def _wake_closer(self) -> None:
        if self._closer is None:
            self._closer = threading.Thread(target=self._close_idle, name="bk-ledger-closer", daemon=True)
            self._closer.start()
        self._changed.notify_all()

    def _close_idle(self) -> None:
        while (ledger := self._next_to_close()) is not None:
            try:
                ledger.close()
            except Exception:  # still close the others
                _LOG.warning("%s was not closed", ledger, exc_info=True)

    def _next_to_close(self) -> OpenLedger | None:
        """Wait for a ledger to close. None if no ledgers are left, which ends the closer."""
        with self._changed:
            while not self._to_close:
                if not self._waiting:
                    self._closer = None
                    return None
                _, ledger, since = next(iter(self._waiting.values()))
                left_s = since + self._idle_s - self._clock()
                if left_s <= 0:
                    del self._waiting[ledger.writer.ledger_id]
                    return ledger
                self._changed.wait(left_s)
            return self._to_close.popleft()


_LOCK: Final = threading.Lock()
_CACHES: Final[dict[int, IdleLedgers]] = {}


def idle_ledgers() -> IdleLedgers:
    """Return this process's cache. A forked child has its own."""
    with _LOCK:
        return _CACHES.setdefault(os.getpid(), IdleLedgers())
