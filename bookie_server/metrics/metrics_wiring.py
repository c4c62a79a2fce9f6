"""Metrics of what the bookie's parts count themselves. They are read at each scrape, in the event loop, and cost the
parts no extra work."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bookie_server.bookie import Bookie
from bookie_server.disks.disk_monitor import DiskMonitor
from bookie_server.gc.collector_status import CollectionTiming
from bookie_server.gc.garbage_collector import GarbageCollector
from bookie_server.identity.registration import RegistrationManager
from bookie_server.metrics.bookie_metrics import BookieMetrics
from bookie_server.net.native.server import NativeServer
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.journal.group_timing import JournalGroupStats
from bookie_server.storage.ledger_storage import LedgerStorage

if TYPE_CHECKING:
    from bookie_server.integrity.data_check import DataCheckProgress
    from bookie_server.net.grpc.gate import Gate  # its packages are an extra

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_:]")


def journal_observer(metrics: BookieMetrics, journals: int) -> Callable[[int, JournalGroupStats], None]:
    """Return the callback for the groups of a journal, called with the journal's number and the group's figures. The
    journals' metrics are created here."""
    for number in range(journals):
        metrics.journal(number)
    return metrics.observe_group


def watch_storage(metrics: BookieMetrics, storage: LedgerStorage, journal_memory_bytes: int) -> None:
    """Journals, write cache, flushes and index pages. Above ``journal_memory_bytes`` no socket is read."""
    registry, journals, write_cache, cache = metrics.registry, storage.journals, storage.write_cache, storage.cache
    metrics.gauge("bookie_JOURNAL_DIRS", lambda: len(journals))
    metrics.gauge("bookie_journal_JOURNAL_QUEUE_SIZE", lambda: journals.queued_entries)
    metrics.gauge("bookie_journal_JOURNAL_MEMORY_USED", lambda: journals.outstanding_bytes)
    metrics.gauge("bookie_journal_JOURNAL_MEMORY_MAX", lambda: journal_memory_bytes)

    def write_cache_bytes() -> int:
        flushing = write_cache.flushing
        return write_cache.active.size_bytes + (flushing.size_bytes if flushing is not None else 0)

    metrics.gauge("bookie_write_cache_size", write_cache_bytes)

    def write_cache_entries() -> int:
        flushing = write_cache.flushing
        return write_cache.active.entry_count + (flushing.entry_count if flushing is not None else 0)

    metrics.gauge("bookie_write_cache_count", write_cache_entries)
    storage.flusher.on_flush = metrics.observe_flush
    flushes = storage.flusher.counters
    registry.watched_counter("bookie_flush_entries", lambda: flushes.entries)
    metrics.gauge("bookie_flush_last_milliseconds", lambda: flushes.last_seconds * 1000)
    registry.watched_counter("bookie_LEDGER_CACHE_HIT", lambda: cache.hits)
    registry.watched_counter("bookie_LEDGER_CACHE_MISS", lambda: cache.misses)
    metrics.gauge("bookie_index_cache_size", lambda: cache.size_bytes)


def watch_bookie(metrics: BookieMetrics, bookie: Bookie) -> None:
    """Entries that clients wrote and read, and how many of them were in the write cache."""
    registry, counters = metrics.registry, bookie.counters
    registry.watched_counter("bookie_WRITE_BYTES", lambda: counters.bytes_added)
    registry.watched_counter("bookie_READ_BYTES", lambda: counters.bytes_read)
    registry.totals(
        "bookie_BOOKIE_ADD_ENTRY_BYTES",
        lambda ok: (counters.entries_added, float(counters.bytes_added)) if ok else (0, 0.0),
    )
    registry.totals(
        "bookie_BOOKIE_READ_ENTRY_BYTES",
        lambda ok: (counters.entries_read, float(counters.bytes_read)) if ok else (0, 0.0),
    )
    registry.watched_counter("bookie_write_cache_hits", lambda: counters.cache_hits)
    registry.watched_counter("bookie_write_cache_misses", lambda: counters.cache_misses)


def add_gauges(
    metrics: BookieMetrics, directories: LedgerDirectories, monitor: DiskMonitor, registration: RegistrationManager
) -> None:
    """Whether the bookie is registered (1: writable, 0: read-only, -1: not registered); how many ledger directories
    take new files; and how full each is, in percent."""
    metrics.gauge("bookie_SERVER_STATUS", lambda: registration.status)
    metrics.gauge("bookie_ledger_num_dirs", lambda: len(directories.paths))
    metrics.gauge("bookie_ledger_writable_dirs", lambda: len(directories.writable()))
    names = set()
    for path in directories.paths:
        name = f"bookie_ledger_dir_{_NOT_IN_NAMES.sub('_', path.removesuffix('/current'))}_usage"
        if name not in names:  # two paths may give the same name; then the first one has it
            names.add(name)
            metrics.gauge(name, partial(_percent, monitor, path))


def watch_server(metrics: BookieMetrics, server: NativeServer) -> None:
    """Connections, waiting requests, and requests refused because there were too many."""
    load = server.load
    metrics.gauge("bookkeeper_server_ADD_ENTRY_IN_PROGRESS", lambda: load.adds)
    metrics.gauge("bookkeeper_server_READ_ENTRY_IN_PROGRESS", lambda: load.reads)
    metrics.gauge("bookkeeper_server_connections", lambda: server.connection_count)
    metrics.gauge("bookkeeper_server_unsent_bytes", lambda: load.unsent_bytes)
    for name, read in (
        ("ADD_ENTRY_REJECTED", lambda: load.rejected_adds),
        ("READ_ENTRY_REJECTED", lambda: load.rejected_reads),
        ("connections_rejected", lambda: server.rejected_connections),
        ("connections_evicted", lambda: server.evicted_connections),
        ("stalled_peers", lambda: server.shared.stalled_peers),
        ("incomplete_frames", lambda: server.shared.half_frames.closed),
        ("tls_handshakes", lambda: server.handshakes),
        ("tls_handshakes_failed", lambda: server.failed_handshakes),
        ("connections_in_clear_refused", lambda: server.refused_in_clear),
        ("logins_failed", lambda: server.failed_logins),
        ("roles_refused", lambda: server.refused_roles),
        ("requests_unauthorized", lambda: server.refused_requests),
    ):
        metrics.registry.watched_counter(f"bookkeeper_server_{name}", read)


def watch_grpc(metrics: BookieMetrics, gate: Gate) -> None:
    """Calls over gRPC, those that were refused, and bytes of messages."""
    counters = gate.counters
    metrics.gauge("bookkeeper_server_grpc_calls_in_progress", lambda: len(gate.places))
    metrics.gauge("bookkeeper_server_grpc_sessions", lambda: len(gate.sessions))
    for name, read in (
        ("calls", lambda: counters.calls),
        ("calls_unauthorized", lambda: counters.unauthorized),
        ("calls_rejected", lambda: counters.rejected),
        ("calls_failed", lambda: counters.failed),
        ("received_bytes", lambda: counters.received_bytes),
        ("sent_bytes", lambda: counters.sent_bytes),
    ):
        metrics.registry.watched_counter(f"bookkeeper_server_grpc_{name}", read)


def watch_collector(metrics: BookieMetrics, collector: GarbageCollector) -> None:
    """Passes of garbage collection, what they removed, and how long they took."""
    registry, counters = metrics.registry, collector.counters
    for name, read in (
        ("DELETED_LEDGER_TOTAL", lambda: counters.ledgers_deleted + counters.over_replicated_deleted),
        ("RECLAIM_FAILED_TO_DELETE", lambda: counters.failed_deletions),
        ("RECLAIMED_DELETION_SPACE_BYTES", lambda: counters.reclaimed_by_deletion_bytes),
        ("RECLAIMED_COMPACTION_SPACE_BYTES", lambda: counters.reclaimed_by_compaction_bytes),
        ("MINOR_COMPACTION_TOTAL", lambda: collector.status().minor_count),
        ("MAJOR_COMPACTION_TOTAL", lambda: collector.status().major_count),
        ("REMOVED_ENTRY_LOG_TOTAL", lambda: counters.entry_logs_removed),
        ("COMPACTED_ENTRY_LOG_TOTAL", lambda: counters.entry_logs_compacted),
        ("MOVED_ENTRY_TOTAL", lambda: counters.entries_moved),
    ):
        registry.watched_counter(f"bookie_gc_{name}", read)
    for name, total in (
        ("ACTIVE_ENTRY_LOG_TOTAL", lambda: collector.entry_log_totals().logs),
        ("ENTRY_LOG_SPACE_BYTES", lambda: collector.entry_log_totals().size_bytes),
        ("ACTIVE_ENTRY_LOG_SPACE_BYTES", lambda: collector.entry_log_totals().live_bytes),
        ("ACTIVE_LEDGER_TOTAL", lambda: collector.entry_log_totals().ledgers),
    ):
        metrics.gauge(f"bookie_gc_{name}", total)
    metrics.gauge("bookie_gc_foreign_cluster", lambda: int(collector.status().foreign_cluster))
    metrics.gauge(
        "bookie_gc_stopped_ledgers",
        lambda: sum(len(brake.stopped.ledgers) for brake in collector.brakes if brake.stopped is not None),
    )
    for name, timing in (
        ("THREAD_RUNTIME", counters.passes),
        ("GC_LEDGER_RUNTIME", counters.ledgers),
        ("EXTRACT_META_RUNTIME", counters.logs),
        ("COMPACT_RUNTIME", counters.compactions),
    ):
        registry.totals(f"bookie_gc_{name}", partial(_count_and_milliseconds, timing))


def watch_data_check(metrics: BookieMetrics, progress: Callable[[], DataCheckProgress | None]) -> None:
    """Ledgers that are in limbo, and what was copied for those that are whole again. 0 without a check."""
    for name, read in (
        ("LIMBO_LEDGERS", lambda found: found.left),
        ("FAILED_LEDGERS", lambda found: len(found.problems)),
    ):
        metrics.gauge(f"bookie_data_check_{name}", partial(_of_check, progress, read))
    for name, read in (
        ("COPIED_ENTRIES", lambda found: found.entries),
        ("COPIED_BYTES", lambda found: found.size_bytes),
    ):
        metrics.registry.watched_counter(f"bookie_data_check_{name}", partial(_of_check, progress, read))


def _of_check(progress: Callable[[], DataCheckProgress | None], read: Callable[[DataCheckProgress], int]) -> int:
    found = progress()
    return 0 if found is None else read(found)


def _count_and_milliseconds(timing: CollectionTiming, ok: bool) -> tuple[int, float]:
    return (timing.done, timing.seconds * 1000) if ok else (timing.failed, timing.failed_seconds * 1000)


def _percent(monitor: DiskMonitor, path: str) -> float:
    return monitor.used(path) * 100
