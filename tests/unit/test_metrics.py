"""Counters, gauges and summaries, and the text they are printed as."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bk_spark.protocol.replication.copying.copy_pace import CopyPace
from bookie_server.metrics.bookie_metrics import REQUEST_METRICS, BookieMetrics
from bookie_server.metrics.exposition import exposition, process_exposition
from bookie_server.metrics.metrics import QUANTILES, WINDOW_S, MetricsRegistry, Summary
from bookie_server.replication.replication_metrics import IN_BOOKIE, ReplicationMetrics

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e9])
def test_quantiles_are_right_to_half_a_bucket(scale: float) -> None:
    values = np.random.default_rng(1).lognormal(0, 2, 20_000) * scale
    summary = Summary()
    for value in values.tolist():
        summary.observe(value)
    found = summary.outcomes(True)
    assert found.count == len(values)
    assert found.total == pytest.approx(values.sum())
    exact = np.quantile(values, QUANTILES, method="inverted_cdf")
    assert found.quantiles == pytest.approx(exact, rel=1 / 64)


def test_counts_weigh_and_outcomes_are_kept_apart() -> None:
    summary = Summary()
    summary.observe(10.0, 90)
    summary.observe(1000.0, 10)
    summary.observe(0.0, 3, ok=False)
    good, bad = summary.outcomes(True), summary.outcomes(False)
    assert (good.count, good.total) == (100, 10_900.0)
    assert good.quantiles[0] == pytest.approx(10, rel=1 / 64)  # 0.5
    assert good.quantiles[2] == pytest.approx(1000, rel=1 / 64)  # 0.95
    assert (bad.count, bad.total, set(bad.quantiles)) == (3, 0.0, {0.0})


def test_buckets_hold_what_they_say() -> None:
    """Every value comes back within half a bucket, from the smallest to the largest."""
    random.seed(2)
    edges = [2.0**exponent * step / 32 for exponent in range(-40, 60) for step in range(32, 65)]
    for value in [*edges, *(math.nextafter(edge, 0) for edge in edges), *(random.lognormvariate(0, 9) for _ in edges)]:
        summary = Summary()
        summary.observe(value)
        assert summary.outcomes(True).quantiles[0] == pytest.approx(value, rel=1 / 64), value


def test_the_window_moves() -> None:
    clock = Clock()
    summary = Summary(clock=clock)
    assert all(math.isnan(value) for value in summary.outcomes(True).quantiles)
    summary.observe(5.0)
    clock.now += WINDOW_S
    summary.observe(100.0)
    assert summary.outcomes(True).quantiles[0] == pytest.approx(5, rel=1 / 64)  # the window before counts, too
    assert summary.outcomes(True).quantiles[-1] == pytest.approx(100, rel=1 / 64)
    clock.now += WINDOW_S
    assert summary.outcomes(True).quantiles[0] == pytest.approx(100, rel=1 / 64)
    clock.now += WINDOW_S
    assert math.isnan(summary.outcomes(True).quantiles[0])
    summary.observe(7.0)
    clock.now += 10 * WINDOW_S
    assert math.isnan(summary.outcomes(True).quantiles[0])
    assert summary.outcomes(True).count == 3


def test_reading_while_others_write() -> None:
    """Many buckets come into being while the summary is read and its windows turn; nothing is lost of the count."""
    ticks = itertools.count()
    summary = Summary(window_s=500, clock=lambda: float(next(ticks)))
    ended = threading.Event()

    def write() -> None:
        for step in range(30_000):
            summary.observe(1.001 ** (step % 20_000))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts = [0]
    while not ended.is_set():
        counts.append(summary.outcomes(True).count)
    writer.join()
    assert counts == sorted(counts)
    assert summary.outcomes(True).count == 30_000


def test_observe_is_cheap() -> None:
    """A bound that a busy machine keeps; it takes about a tenth of it."""
    summary = Summary()
    values = [random.lognormvariate(0, 2) for _ in range(1000)]
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for value in values:
            summary.observe(value, 5)
        best = min(best, time.perf_counter() - start)
    assert best / len(values) < 5e-6


def test_a_gauge_that_fails_is_nan_and_hides_nothing() -> None:
    registry = MetricsRegistry()
    depth = [4]
    registry.gauge("depth", lambda: depth[0])
    registry.gauge("broken", lambda: 1 // 0)
    registry.gauge("said").set(2.5)
    registry.sample_gauges()
    depth[0] = 5
    assert _values(exposition(registry.families())) == {"depth": "4", "broken": "NaN", "said": "2.5"}
    registry.sample_gauges()
    assert _values(exposition(registry.families()))["depth"] == "5"


def test_a_name_is_given_once() -> None:
    registry = MetricsRegistry()
    registry.counter("a", labels={"x": "1"})
    registry.counter("a", labels={"x": "2"})
    with pytest.raises(ValueError, match="metric a"):
        registry.counter("a", labels={"x": "1"})
    with pytest.raises(ValueError, match="metric a"):
        registry.gauge("a", labels={"x": "3"})


def test_text_as_of_apache() -> None:
    """Names, order, spaces and commas are those of Apache's PrometheusTextFormat."""
    registry = MetricsRegistry()
    summary = registry.summary("bookie_journal_JOURNAL_ADD_ENTRY", labels={"journalIndex": "0"})
    registry.counter("bookie_WRITE_BYTES").add(4096)
    registry.gauge("bookie_write_cache_size", lambda: 17, {"ledgerDir": "/a", "indexDir": '/b"\\'})
    for _ in range(4):
        summary.observe(2.0)
    registry.sample_gauges()
    assert exposition(registry.families()) == (
        """# TYPE bookie_journal_JOURNAL_ADD_ENTRY summary
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.5", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.75", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.95", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.99", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.999", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="0.9999", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY{success="false",quantile="1.0", journalIndex="0"} NaN
bookie_journal_JOURNAL_ADD_ENTRY_count{success="false", journalIndex="0"} 0
bookie_journal_JOURNAL_ADD_ENTRY_sum{success="false", journalIndex="0"} 0.0
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.5", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.75", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.95", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.99", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.999", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="0.9999", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY{success="true",quantile="1.0", journalIndex="0"} 2.03125
bookie_journal_JOURNAL_ADD_ENTRY_count{success="true", journalIndex="0"} 4
bookie_journal_JOURNAL_ADD_ENTRY_sum{success="true", journalIndex="0"} 8.0
# TYPE bookie_WRITE_BYTES counter
bookie_WRITE_BYTES 4096
# TYPE bookie_write_cache_size gauge
bookie_write_cache_size{indexDir="/b\\"\\\\",ledgerDir="/a"} 17
"""
    )


def test_every_line_is_of_the_format() -> None:
    metrics = BookieMetrics()
    metrics.journal(0)
    metrics.journal(1)
    text = exposition(metrics.registry.families()) + process_exposition()
    label = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(
        rf"[a-zA-Z_:][\w:]*(?:\{{{label}(?:, ?{label})*\}})? (?:NaN|[+-]Inf|-?\d+(?:\.\d+)?(?:e[+-]\d+)?)"
    )
    names = []
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# TYPE [a-zA-Z_:][\w:]* (?:counter|gauge|summary)", line), line
            names.append(line.split()[2])
        else:
            assert sample.fullmatch(line), line
            assert line.startswith(names[-1]), line  # samples stand under their own name
    assert len(names) == len(set(names))
    assert text.endswith("\n")


def test_requests_are_in_milliseconds_under_both_of_apaches_names() -> None:
    metrics = BookieMetrics()
    for kind in REQUEST_METRICS:
        metrics.requests.observe(kind, 3, 0.25, True)
    metrics.requests.observe("add", 2, 1.0, False)
    values = _values(exposition(metrics.registry.families()))
    for name in ("ADD_ENTRY_REQUEST", "ADD_ENTRY", "READ_ENTRY_FENCE_REQUEST", "GET_LIST_OF_ENTRIES_OF_LEDGER"):
        assert values[f'bookkeeper_server_{name}_count{{success="true"}}'] == "3"
        assert values[f'bookkeeper_server_{name}_sum{{success="true"}}'] == "750.0"
    assert values['bookkeeper_server_ADD_ENTRY_sum{success="false"}'] == "2000.0"


def test_the_process() -> None:
    values = {name: float(value) for name, value in _values(process_exposition()).items()}
    assert 0 < values["process_cpu_seconds_total"] < 100_000
    assert abs(time.time() - values["process_start_time_seconds"]) < 86_400
    assert 1 << 20 < values["process_resident_memory_bytes"] < values["process_virtual_memory_bytes"]
    assert values["process_open_fds"] <= values["process_max_fds"]
    fds = [os.open("/", os.O_RDONLY) for _ in range(50)]
    try:
        assert float(_values(process_exposition())["process_open_fds"]) >= values["process_open_fds"] + 40
    finally:
        for fd in fds:
            os.close(fd)


def _values(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("scope", ["", IN_BOOKIE])
def test_the_page_of_metrics_has_those_of_replication_and_no_others(scope: str) -> None:
    registry = MetricsRegistry()
    metrics = ReplicationMetrics(registry, scope)
    metrics.watch(lambda: None, lambda: None)
    metrics.watch_pace(CopyPace())
    registry.sample_gauges()
    types = [line.split() for line in exposition(registry.families()).splitlines() if line.startswith("# TYPE ")]
    printed = {name: kind for _, _, name, kind in types}
    documented = {}
    for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines():
        if line.startswith("| `replication_"):
            _, names, kinds, *_ = line.split("|")
            first, *others = re.findall("`(.*?)`", names)
            room = re.match("replication_(auditor|replication_worker)", first)
            assert room is not None
            full = [first, *(each.replace("\N{HORIZONTAL ELLIPSIS}", room[0]) for each in others)]
            kind = [each.strip() for each in kinds.split(",")]
            documented |= dict(zip(full, kind * len(full) if len(kind) == 1 else kind, strict=False))
    assert printed == {scope + name.removeprefix(IN_BOOKIE): kind for name, kind in documented.items()}


def test_each_of_apaches_metrics_of_replication_is_there_or_named_as_missing() -> None:
    """The names are the constants of ``ReplicationStats`` of Apache 4.18.0, without its scopes."""
    apaches = {
        "auditor_": """
            election_attempts NUM_UNDER_REPLICATED_LEDGERS UNDER_REPLICATED_LEDGERS_TOTAL_SIZE
            URL_PUBLISH_TIME_FOR_LOST_BOOKIE BOOKIE_TO_LEDGERS_MAP_CREATION_TIME CHECK_ALL_LEDGERS_TIME
            PLACEMENT_POLICY_CHECK_TIME REPLICAS_CHECK_TIME AUDIT_BOOKIES_TIME NUM_FRAGMENTS_PER_LEDGER
            NUM_BOOKIES_PER_LEDGER NUM_LEDGERS_CHECKED NUM_BOOKIE_AUDITS_DELAYED NUM_DELAYED_BOOKIE_AUDITS_CANCELLED
            NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY
            NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY
            NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY
            NUM_SKIPPING_CHECK_TASK_TIMES
        """,
        "replication_worker_": """
            rereplicate NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED NUM_ENTRIES_READ NUM_BYTES_READ NUM_ENTRIES_WRITTEN
            NUM_BYTES_WRITTEN READ_DATA_LATENCY WRITE_DATA_LATENCY exceptions
            NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION
            NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED
        """,
    }
    registry = MetricsRegistry()
    ReplicationMetrics(registry).watch(lambda: None, lambda: None)
    registry.sample_gauges()
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    (missing,) = re.findall(
        r"^Of the metrics of replication in Apache 4.18 these are missing:.*?\n\n", page, re.M | re.S
    )
    printed = exposition(registry.families())
    for scope, names in apaches.items():
        for name in names.split():
            assert (f"# TYPE {scope}{name} " in printed) != (f"`{name}`" in missing), name
