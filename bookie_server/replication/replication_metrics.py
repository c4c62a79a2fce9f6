"""Metrics of auditor and replication worker, under Apache's names (compatibility.md §7.6).

They belong to the process: sessions, auditors and workers come and go, and their counters stay. Latencies are in
milliseconds. ``docs/metrics.md`` explains each metric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.bookie.replication.repair_performer import CopyTotals
from bookie_server.metrics.metrics import MetricsRegistry
from bookie_server.replication.actions import Check
from bookie_server.replication.auditor import Auditor, AuditorCounters
from bookie_server.replication.worker import ReplicationWorker, WorkerCounters

#: Apache's scope of both inside a bookie. Alone they have none.
IN_BOOKIE: Final = "replication_"
#: The checks that a configuration can ask for.
_CHECK_TIMES: Final = {
    Check.BOOKIES: "AUDIT_BOOKIES_TIME",
    Check.LEDGERS: "CHECK_ALL_LEDGERS_TIME",
    Check.REPLICAS: "REPLICAS_CHECK_TIME",
}


class ReplicationMetrics:
    """Counters of the process, and the metrics that show them. Event loop only.

    Parameters
    ----------
    registry
        Where the metrics are added.
    scope
        What precedes their names: :data:`IN_BOOKIE`, or nothing.
    """

    def __init__(self, registry: MetricsRegistry, scope: str = "") -> None:
        self.auditor = auditor = AuditorCounters()
        self.worker = worker = WorkerCounters()
        self.copies = copies = CopyTotals()
        audit, work = f"{scope}auditor_", f"{scope}replication_worker_"
        self._elections = registry.counter(f"{audit}election_attempts")
        self._ledgers_checked = registry.counter(f"{audit}NUM_LEDGERS_CHECKED")
        self._check_times = {check: registry.summary(f"{audit}{name}") for check, name in _CHECK_TIMES.items()}
        self._repair_times = registry.summary(f"{work}rereplicate")
        self._repaired = registry.counter(f"{work}NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED")
        self._unreadable = registry.counter(f"{work}NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION")
        registry.totals(
            f"{audit}NUM_UNDER_REPLICATED_LEDGERS",
            lambda ok: (auditor.scans, float(auditor.ledgers_found)) if ok else (0, 0.0),
        )
        registry.totals(
            f"{work}NUM_BYTES_WRITTEN", lambda ok: (copies.entries, float(copies.size_bytes)) if ok else (0, 0.0)
        )
        for name, read in (
            (f"{audit}NUM_BOOKIE_AUDITS_DELAYED", lambda: auditor.audits_delayed),
            (f"{audit}NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", lambda: auditor.delays_cancelled),
            (f"{audit}failed_checks", lambda: auditor.failures),
            (f"{work}NUM_ENTRIES_WRITTEN", lambda: copies.entries),
            (f"{work}NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", lambda: worker.failed_attempts),
        ):
            registry.watched_counter(name, read)
        self._scopes = registry, audit, work

    def watch(self, auditor: Callable[[], Auditor | None], worker: Callable[[], ReplicationWorker | None]) -> None:
        """Show what the machines of the process do now. None: there is none."""
        registry, audit, work = self._scopes
        registry.gauge(f"{audit}elected", lambda: int(auditor() is not None))
        registry.gauge(f"{audit}lost_bookies", lambda: len(found.lost_bookies) if (found := auditor()) else 0)
        registry.gauge(f"{work}repairing", lambda: len(found.repairing) if (found := worker()) else 0)

    def election_began(self) -> None:
        self._elections.add()

    def ledgers_checked(self, count: int) -> None:
        """Record ledgers that a check read at their bookies."""
        self._ledgers_checked.add(count)

    def check_ended(self, check: Check, seconds: float) -> None:
        if check in self._check_times:
            self._check_times[check].observe(seconds * 1000)

    def repair_ended(self, seconds: float, *, ok: bool, changed: bool, unreadable: int) -> None:
        """Record the attempt to repair a ledger.

        Parameters
        ----------
        ok
            Whether nothing is bad any more.
        changed
            Whether fragments have new members.
        unreadable
            Entries that no bookie returned.
        """
        self._repair_times.observe(seconds * 1000, 1, ok)
        self._repaired.add(changed)
        self._unreadable.add(unreadable)
