"""Maintenance in the background of a process that commits."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final, Protocol

from bk_spark.log.gc.maintenance import INTERVAL_MS, MaintenanceReport

_LOG: Final = logging.getLogger(__name__)
#: The longest time a commit waits for maintenance. Usually enough to finish. The rest continues while the process
#: lives.
WAIT_S: Final = 2.0

_LOCK: Final = threading.Lock()
#: (process, log) -> when this process last began its maintenance, and the thread. A forked child shares no threads.
_BACKGROUND: Final[dict[tuple[int, str], tuple[float, threading.Thread]]] = {}


class MaintainedLog(Protocol):
    """A log, as its maintenance needs it: see :class:`bk_spark.log.log.Log`."""

    name: str
    log_id: str

    def maintain(self) -> MaintenanceReport:
        """Do what is due of the log's maintenance. May raise any error."""
        ...


def look_after(log: MaintainedLog) -> None:
    """Like :func:`start_in_background`, then wait up to WAIT_S: a job that commits once may end right after."""
    thread = start_in_background(log)
    if thread is not None:
        thread.join(WAIT_S)


def start_in_background(log: MaintainedLog) -> threading.Thread | None:
    """Maintain ``log`` in a separate thread. Returns None if this process has done so within INTERVAL_MS.

    Never raises: errors are logged. The thread ends with the process. The next round does what it leaves undone.
    """
    key, now = (os.getpid(), log.log_id), time.monotonic()
    with _LOCK:
        begun, running = _BACKGROUND.get(key, (None, None))
        if begun is not None and (now - begun < INTERVAL_MS / 1000 or (running is not None and running.is_alive())):
            return None
        thread = threading.Thread(target=_maintain_quietly, args=(log,), name="bk-maintenance", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _LOG.warning("log %s: no thread for maintenance: %s", log.name, error)
            return None
        _BACKGROUND[key] = (now, thread)
        return thread


def _maintain_quietly(log: MaintainedLog) -> None:
    try:
        report = log.maintain()
        if report.reaped is not None:
            _LOG.info(
                "maintenance of log %s: %d ledgers condemned, %d deleted, %d wait, %d not fenced, %d failures",
                log.name,
                len(report.reaped.condemned),
                len(report.reaped.deleted),
                len(report.reaped.waiting),
                len(report.reaped.refused),
                len(report.failed) + len(report.reaped.failed),
            )
    except Exception as error:  # nobody waits for the thread, and the next round does what it leaves undone
        _LOG.warning("maintenance of log %s was not done: %s", log.name, error)
