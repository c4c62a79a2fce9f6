"""Metrics of auditor and replication worker, under Apache's names (compatibility.md §7.6).

They belong to the process: sessions, auditors and workers come and go, and their counters stay. Latencies are in
milliseconds. ``docs/metrics.md`` explains each metric.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from bk_spark.bookie.replication.repair_performer import CopyTotals
from bk_spark.protocol.replication.copying.copy_pace import CopyPace
from bookie_server.metrics.metrics import MetricsRegistry, Summary
from bookie_server.replication.actions import Check
from bookie_server.replication.auditing.auditor import Auditor, AuditorCounters
from bookie_server.replication.auditing.lost_copies import FewCopies
from bookie_server.replication.worker import ReplicationWorker, WorkerCounters

#: Apache's scope of auditor and worker inside a bookie. In a process of their own they have none.
IN_BOOKIE: Final = "replication_"
_CHECK_TIMES: Final = {
    Check.BOOKIES: "AUDIT_BOOKIES_TIME",
    Check.LEDGERS: "CHECK_ALL_LEDGERS_TIME",
    Check.PLACEMENT: "PLACEMENT_POLICY_CHECK_TIME",
    Check.REPLICAS: "REPLICAS_CHECK_TIME",
}
_FEW_COPIES: Final = {
    FewCopies.NONE: "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
    FewCopies.BELOW_ACK_QUORUM: "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
    FewCopies.BELOW_WRITE_QUORUM: "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
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
        audit, work = f"{scope}auditor_", f"{scope}replication_worker_"
        self.read = read = CopyTotals(told=_observe(registry.summary(f"{work}READ_DATA_LATENCY")))
        self.written = written = CopyTotals(told=_observe(registry.summary(f"{work}WRITE_DATA_LATENCY")))
        self._elections = registry.counter(f"{audit}election_attempts")
        self._ledgers_checked = registry.counter(f"{audit}NUM_LEDGERS_CHECKED")
        self._fragments = registry.summary(f"{audit}NUM_FRAGMENTS_PER_LEDGER")
        self._bookies = registry.summary(f"{audit}NUM_BOOKIES_PER_LEDGER")
        self._check_times = {check: registry.summary(f"{audit}{name}") for check, name in _CHECK_TIMES.items()}
        self._repair_times = registry.summary(f"{work}rereplicate")
        self._repaired = registry.counter(f"{work}NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED")
        self._moved = registry.counter(f"{work}NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED")
        self._unreadable = registry.counter(f"{work}NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION")
        registry.totals(
            f"{audit}NUM_UNDER_REPLICATED_LEDGERS",
            lambda ok: (auditor.scans, float(auditor.ledgers_found)) if ok else (0, 0.0),
        )
        registry.totals(
            f"{audit}UNDER_REPLICATED_LEDGERS_TOTAL_SIZE",
            lambda ok: (auditor.scans, float(auditor.bytes_found)) if ok else (0, 0.0),
        )
        registry.totals(f"{work}NUM_BYTES_READ", lambda ok: (read.entries, float(read.size_bytes)) if ok else (0, 0.0))
        registry.totals(
            f"{work}NUM_BYTES_WRITTEN", lambda ok: (written.entries, float(written.size_bytes)) if ok else (0, 0.0)
        )
        for name, value in (
            (f"{audit}NUM_BOOKIE_AUDITS_DELAYED", lambda: auditor.audits_delayed),
            (f"{audit}NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", lambda: auditor.delays_cancelled),
            (f"{audit}failed_checks", lambda: auditor.failures),
            (f"{work}NUM_ENTRIES_READ", lambda: read.entries),
            (f"{work}NUM_ENTRIES_WRITTEN", lambda: written.entries),
            (f"{work}NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", lambda: worker.failed_attempts),
        ):
            registry.watched_counter(name, value)
        self._scopes = registry, audit, work

    def watch(self, auditor: Callable[[], Auditor | None], worker: Callable[[], ReplicationWorker | None]) -> None:
        """Show what the auditor and the worker of the process do now. They return None while there is none."""
        registry, audit, work = self._scopes
        registry.gauge(f"{audit}elected", lambda: int(auditor() is not None))
        registry.gauge(f"{audit}lost_bookies", lambda: len(found.lost_bookies) if (found := auditor()) else 0)
        registry.gauge(
            f"{audit}NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY", lambda: _last_found(auditor(), Check.PLACEMENT)
        )
        for kind, name in _FEW_COPIES.items():
            registry.gauge(f"{audit}{name}", partial(_with_few_copies, auditor, worker, kind))
        registry.gauge(f"{work}repairing", lambda: len(found.repairing) if (found := worker()) else 0)
        registry.gauge(f"{work}disabled", lambda: int(found.disabled) if (found := worker()) else 0)

    def watch_pace(self, pace: CopyPace) -> None:
        """Show how fast the process may copy."""
        registry, _, work = self._scopes
        registry.gauge(f"{work}pace_bytes_per_second", lambda: pace.bytes_per_s)

    def election_began(self) -> None:
        """Record that a session takes part in the election."""
        self._elections.add()

    def ledger_checked(self, fragments: int, bookies: int) -> None:
        """Record a ledger that a check read at its bookies."""
        self._ledgers_checked.add()
        self._fragments.observe(fragments)
        self._bookies.observe(bookies)

    def check_ended(self, check: Check, seconds: float) -> None:
        """Record a check of the auditor that is complete."""
        self._check_times[check].observe(seconds * 1000)

    def repair_ended(self, seconds: float, *, ok: bool, changed: bool, moved: bool, unreadable: int) -> None:
        """Record the attempt to repair a ledger.

        Parameters
        ----------
        ok
            Whether nothing is bad any more.
        changed
            Whether fragments have new members.
        moved
            Whether copies were moved because of the placement policy.
        unreadable
            Entries that no bookie returned.
        """
        self._repair_times.observe(seconds * 1000, 1, ok)
        self._repaired.add(changed)
        self._moved.add(moved)
        self._unreadable.add(unreadable)


def _observe(summary: Summary) -> Callable[[float, bool], None]:
    return lambda latency_ms, ok: summary.observe(latency_ms, 1, ok)


def _with_few_copies(
    auditor: Callable[[], Auditor | None], worker: Callable[[], ReplicationWorker | None], kind: FewCopies
) -> int:
    """Return how many ledgers of this kind the last checks found. Several checks find the same ledgers, so the largest
    number counts. The checks that mark ledgers count only while a ledger is marked."""
    elected, repairer = auditor(), worker()
    if elected is None or repairer is None:
        return 0
    checks = [Check.REPLICAS, *((Check.BOOKIES, Check.LEDGERS) if repairer.some_marked else ())]
    reports = (elected.counters.reports.get(check) for check in checks)
    return max((report.few_copies[kind] for report in reports if report is not None), default=0)


def _last_found(auditor: Auditor | None, check: Check) -> int:
    """Return how many ledgers the last check found. Only the elected auditor's process says so."""
    report = auditor.counters.reports.get(check) if auditor is not None else None
    return report.found if report is not None else 0
