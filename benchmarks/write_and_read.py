"""Writes a ledger and reads it in several ways, in turn, and compares the ways."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from benchmarks.processes import cpu_seconds
from benchmarks.report import figure
from bk_spark import BlockingClient, ClientConfig, Quorum

_ALONE: Final = Quorum(1, 1, 1)
#: Payload that a caller hands over at a time.
_BATCH_BYTES: Final = 16_000_000


@dataclass(frozen=True, slots=True)
class Way:
    """A cluster of one bookie, its process, and the settings of its client."""

    uri: str
    pid: int
    config: ClientConfig


def compare(name: str, ways: Mapping[str, Way], size: int, megabytes: int, rounds: int) -> None:
    """Print megabytes of payload per second of the median round, CPU seconds of bookie and client per gigabyte, and for
    both the ratio of each way to the first: the median of the rounds' ratios, since other programs may use the machine
    more in one round than in another.

    Parameters
    ----------
    name
        The benchmark.
    ways
        What is compared.
    size
        Bytes of an entry.
    megabytes
        Payload of a round.
    rounds
        Rounds of each way that count. One before them warms up.
    """
    count = max(1, megabytes * 1_000_000 // size)
    taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        # Another one begins each round, so that none always follows the same.
        turn = number % len(ways)
        for label in [*list(ways)[turn:], *list(ways)[:turn]]:
            way = ways[label]
            for what, one in _round(way, count, size).items():
                if number:
                    taken.setdefault((what, label), []).append(one)
    total = count * size
    base, *others = ways
    for what in ("write", "read"):
        for label in ways:
            seconds, cpu = zip(*taken[what, label], strict=True)
            spread = {"fastest_s": round(min(seconds), 3), "slowest_s": round(max(seconds), 3)}
            figure(name, f"{what}.{label}.bytes", total / 1e6 / statistics.median(seconds), "MB/s", size=size, **spread)
            figure(name, f"{what}.{label}.cpu", statistics.median(cpu) / total * 1e9, "s/GB", size=size)
        for label in others:
            pairs = list(zip(taken[what, base], taken[what, label], strict=True))
            ratio = statistics.median(first[0] / other[0] for first, other in pairs)
            cost = statistics.median(other[1] / first[1] for first, other in pairs)
            figure(name, f"{what}.{label}_over_{base}", ratio, "ratio", size=size)
            figure(name, f"{what}.cpu_{label}_over_{base}", cost, "ratio", size=size)


def _round(way: Way, count: int, size: int) -> dict[str, tuple[float, float]]:
    """Seconds, and CPU seconds of bookie and client, of writing a ledger and of reading it."""
    payload, most = os.urandom(size), max(1, _BATCH_BYTES // size)
    taken = {}
    with BlockingClient(way.uri, way.config) as client:
        with closing(client.create(quorum=_ALONE)) as writer:
            started, cpu = time.perf_counter(), _cpu(way.pid)
            for first in range(0, count, most):
                writer.append_many([payload] * min(most, count - first))
            writer.flush()
            taken["write"] = time.perf_counter() - started, _cpu(way.pid) - cpu
        reader = client.open_for_reading(writer.ledger_id)
        started, cpu = time.perf_counter(), _cpu(way.pid)
        read = sum(len(block.payloads) for block in reader.read_blocks(0, count - 1))
        taken["read"] = time.perf_counter() - started, _cpu(way.pid) - cpu
        assert read == count
        client.delete(writer.ledger_id)
    return taken


def _cpu(pid: int) -> float:
    return cpu_seconds(pid) + time.process_time()
