"""The ledgers that one task of a write appends to."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from bk_spark.bookie.blocking import BlockingWriter
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.protocol.errors import BookKeeperError

_LOG: Final = logging.getLogger(__name__)


class WrittenLog(Protocol):
    """A log, as writes need it: see :class:`bk_spark.log.log.Log`."""

    name: str

    @property
    def ledgers(self) -> LogLedgers:
        """Closes and abandons ledgers. Raises InvalidArgumentError if the log was opened without its password."""
        ...

    def create_ledger(self, app: str, run: str) -> BlockingWriter:
        """Create a ledger, registered for a run of an application, and return its writer."""
        ...

    def check_run(self, app: str, run: str) -> None:
        """Raise RunRetiredError if another run of the application has taken over."""
        ...


class KeptLedgers(Protocol):
    """Ledgers of one run that stay open between its tasks."""

    def take(self) -> OpenLedger | None:
        """Hand over a ledger that waits, or None."""

    def give_back(self, ledger: OpenLedger) -> None:
        """Keep ``ledger`` for the next task. All its entries must be acknowledged."""

    def close(self, ledger: OpenLedger) -> None:
        """Close ``ledger`` in the background."""


class OpenLedger:
    """A ledger being written, registered in ``log``. One user at a time."""

    def __init__(self, log: WrittenLog, writer: BlockingWriter, opened_s: float) -> None:
        self.writer = writer
        self.opened_s = opened_s
        self._log = log

    def __repr__(self) -> str:
        return f"OpenLedger({self.writer.ledger_id})"

    def close(self) -> None:
        """Close the ledger at its last entry. Failures are only logged: acknowledged entries are safe, and readers do
        not need the ledger closed."""
        ledger_id = self.writer.ledger_id
        try:
            self._log.ledgers.close(ledger_id)
        except BookKeeperError as error:
            _LOG.info("log %s: ledger %d was not closed: %s", self._log.name, ledger_id, error)
            self.abandon()

    def abandon(self) -> None:
        """Release the ledger without closing it."""
        self._log.ledgers.abandon(self.writer.ledger_id)


class TaskLedgers:
    """Provides a task's ledgers. Without a ``cache`` they are created for the task and closed after it; with one they
    stay open there between tasks of a run."""

    def __init__(self, log: WrittenLog, app: str, run: str, roll: RollLimits, cache: KeptLedgers | None = None) -> None:
        self._log = log
        self._app = app
        self._run = run
        self._roll = roll
        self._cache = cache

    def take(self) -> OpenLedger:
        """Return a ledger to append to. Raises what creating one raises."""
        if self._cache is not None:
            while (waiting := self._cache.take()) is not None:
                if not self.is_due(waiting):
                    return waiting
                self._cache.close(waiting)
        writer = self._log.create_ledger(self._app, self._run)
        _LOG.info("log %s: run %s writes to ledger %d", self._log.name, self._run, writer.ledger_id)
        return OpenLedger(self._log, writer, time.monotonic())

    def is_due(self, ledger: OpenLedger) -> bool:
        """Whether to roll to another ledger."""
        age_ms = (time.monotonic() - ledger.opened_s) * 1000
        return self._roll.is_due(ledger.writer.length, ledger.writer.last_add_pushed + 1, age_ms)

    def give_back(self, ledger: OpenLedger) -> None:
        """Return a ``ledger`` that the task no longer needs. All its entries must be acknowledged."""
        if self._cache is None:
            ledger.close()
        elif self.is_due(ledger):
            self._cache.close(ledger)
        else:
            self._cache.give_back(ledger)

    def check_run(self) -> None:
        """Raise RunRetiredError if another run took over."""
        self._log.check_run(self._app, self._run)
