"""The bookie's metrics, under the names that Apache's bookie gives them (compatibility.md §7.6).

This module holds the metrics that are updated once per batch. Numbers that the parts count themselves are read at each
scrape: metrics_wiring.py. ``docs/metrics.md`` explains each metric. Latencies are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_server.metrics.metrics import MetricsRegistry
from bookie_server.storage.journal.group_timing import JournalGroupStats

#: Kinds of requests, and Apache's metrics for each. Requests are not queued between receipt and execution here, so
#: the time of execution is the time of the request.
REQUEST_METRICS: Final = {
    "add": ("ADD_ENTRY_REQUEST", "ADD_ENTRY"),
    "read": ("READ_ENTRY_REQUEST", "READ_ENTRY"),
    "fence": ("READ_ENTRY_FENCE_REQUEST", "READ_ENTRY_FENCE_READ"),
    "long_poll": ("READ_ENTRY_LONG_POLL_REQUEST", "READ_ENTRY_LONG_POLL_READ"),
    "force": ("FORCE_LEDGER_REQUEST", "FORCE_LEDGER"),
    "write_lac": ("WRITE_LAC_REQUEST", "WRITE_LAC"),
    "read_lac": ("READ_LAC_REQUEST", "READ_LAC"),
    "info": ("GET_BOOKIE_INFO_REQUEST", "GET_BOOKIE_INFO"),
    "list": ("GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", "GET_LIST_OF_ENTRIES_OF_LEDGER"),
}

#: Apache's names for the same requests inside the bookie.
_INSIDE: Final = {"add": ("bookie_BOOKIE_ADD_ENTRY",), "read": ("bookie_BOOKIE_READ_ENTRY",)}

_FLUSH_REASONS: Final = {
    "queue_empty": "NUM_FLUSH_EMPTY_QUEUE",
    "max_wait": "NUM_FLUSH_MAX_WAIT",
    "threshold": "NUM_FLUSH_MAX_OUTSTANDING_BYTES",
}


class RequestMetrics:
    """Metrics of requests over all connections. Updated in the event loop."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._summaries = {
            kind: registry.summary(*(f"bookkeeper_server_{name}" for name in names), *_INSIDE.get(kind, ()))
            for kind, names in REQUEST_METRICS.items()
        }

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        """Record ``count`` requests of a kind (a key of REQUEST_METRICS), answered ``seconds`` after they arrived."""
        self._summaries[kind].observe(seconds * 1000, count, ok)


class JournalMetrics:
    """Metrics of the groups of one journal. Updated in the event loop."""

    def __init__(self, registry: MetricsRegistry, number: int) -> None:
        labels = {"journalIndex": str(number)}

        def name(short: str) -> str:
            return f"bookie_journal_JOURNAL_{short}"

        self._add_entry = registry.summary(name("ADD_ENTRY"), labels=labels)
        self._sync = registry.summary(name("SYNC"), labels=labels)
        self._flush = registry.summary(name("FLUSH_LATENCY"), labels=labels)
        self._queue = registry.summary(name("QUEUE_LATENCY"), labels=labels)
        self._process = registry.summary(name("PROCESS_TIME_LATENCY"), labels=labels)
        self._batch_entries = registry.summary(name("FORCE_WRITE_BATCH_ENTRIES"), labels=labels)
        self._batch_bytes = registry.summary(name("FORCE_WRITE_BATCH_BYTES"), labels=labels)
        self._write_bytes = registry.counter(name("WRITE_BYTES"), labels=labels)
        self._reasons = {
            reason: registry.counter(name(short), labels=labels) for reason, short in _FLUSH_REASONS.items()
        }

    def observe(self, stats: JournalGroupStats) -> None:
        """Record a group that was decided, successful or not."""
        queued, written, synced = stats.queue_seconds * 1000, stats.write_seconds * 1000, stats.sync_seconds * 1000
        entries, ok = stats.entries, stats.ok
        self._add_entry.observe(queued + written + synced, entries, ok)
        self._queue.observe(queued, entries, ok)
        self._flush.observe(written, 1, ok)
        self._sync.observe(synced, 1, ok)
        self._process.observe(written + synced, 1, ok)
        self._batch_entries.observe(entries, 1, ok)
        self._batch_bytes.observe(stats.size_bytes, 1, ok)
        self._reasons[stats.reason].add()
        if ok:
            self._write_bytes.add(stats.size_bytes)


class BookieMetrics:
    """All metrics of a bookie."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.requests = RequestMetrics(self.registry)
        self._journals: dict[int, JournalMetrics] = {}
        self._loop_delay = self.registry.summary("bookkeeper_server_loop_delay")
        self._flush = self.registry.summary("bookie_flush")
        self._flush_size = self.registry.summary("bookie_flush_size")

    def journal(self, number: int) -> JournalMetrics:
        """The metrics of a journal, from 0."""
        journal = self._journals.get(number)
        if journal is None:
            journal = self._journals[number] = JournalMetrics(self.registry, number)
        return journal

    def observe_group(self, number: int, stats: JournalGroupStats) -> None:
        """Record a journal group; the ``on_group`` of LedgerStorage."""
        self.journal(number).observe(stats)

    def observe_loop_delay(self, seconds: float) -> None:
        """Record a delay of the event loop; the ``on_loop_delay`` of NativeServer."""
        self._loop_delay.observe(seconds * 1000)

    def observe_flush(self, seconds: float, entry_bytes: int, ok: bool) -> None:
        """Record a flush; the ``on_flush`` of Flusher."""
        self._flush.observe(seconds * 1000, 1, ok)
        self._flush_size.observe(entry_bytes, 1, ok)

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Add a gauge. ``read`` is called in the event loop at every scrape and must not block."""
        self.registry.gauge(name, read, labels)
