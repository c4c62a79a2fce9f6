"""Results of the ledger benchmark: figures, ratios, targets and tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

import numpy as np

from benchmarks.ledger_worker import Run
from benchmarks.report import figure

NAME: Final = "ledger"
CLIENTS: Final = ("ours", "java-v2", "java-v3", "ours-v3")
_PEERS: Final = {"ours": ("java-v2", "java-v3"), "ours-v3": ("java-v3",)}
#: Operations that only our client has, and those they are compared with.
_LIKE: Final = {"add_by_call": "add", "read_range": "read_batch"}
#: Targets for the ratio of our client to Apache's on Apache's bookies, by payload bytes.
_AIMED_OPERATIONS: Final = ("add", "read_pipelined", "read_batch")
_AIMS: Final = {1024: 0.8, 65536: 1.0, 1 << 20: 1.0}
_APPEND_MANY_AIM: Final = 100_000
_QUANTILES: Final = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}


@dataclass(frozen=True, slots=True)
class Cell:
    """What was run: one operation of one client on one kind of bookie with one payload size."""

    operation: str
    size: int
    bookies: str
    client: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a cell. ``others_cores`` is the CPU time per second used by anything but the client and bookies."""

    run: Run
    in_flight: int
    bookies_cpu_seconds: float
    others_cores: float

    @property
    def rate(self) -> float:
        return self.run.count / self.run.seconds

    @property
    def client_cpu_us(self) -> float:
        return self.run.cpu_seconds / self.run.count * 1e6

    @property
    def bookies_cpu_us(self) -> float:
        return self.bookies_cpu_seconds / self.run.count * 1e6


def median(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(value(sample) for sample in samples)


def rate(sample: Sample) -> float:
    return sample.rate


def client_cpu(sample: Sample) -> float:
    return sample.client_cpu_us


class Results:
    """Samples by cell, in rounds: sample ``i`` of every cell of one size was taken in round ``i``."""

    def __init__(self) -> None:
        self._samples: dict[Cell, list[Sample]] = {}

    def add(self, cell: Cell, sample: Sample) -> None:
        self._samples.setdefault(cell, []).append(sample)

    def samples(self, cell: Cell) -> list[Sample]:
        return self._samples.get(cell, [])

    def tell(self, size: int) -> None:
        """Print the figures of one size."""
        for cell, samples in self._samples.items():
            if cell.size == size:
                _tell_cell(cell, samples)
        for cell, peer in self._client_pairs(size):
            self._tell_ratio(
                cell, peer, "client", {"bookies": cell.bookies, "client": cell.client, "peer": peer.client}
            )
        for cell in [cell for cell in self._samples if cell.size == size and cell.bookies == "ours"]:
            peer = Cell(cell.operation, size, "apache", cell.client)
            if peer in self._samples:
                self._tell_ratio(cell, peer, "bookies", {"client": cell.client, "bookies": "ours", "peer": "apache"})
        others = [s.others_cores for cell, samples in self._samples.items() if cell.size == size for s in samples]
        figure(NAME, "conditions.others", statistics.mean(others), "cores", size=size, highest=round(max(others), 2))

    def tell_append_many(self, cell: Cell) -> None:
        """Print how many entries, one copy each, the client sends per second of CPU time."""
        samples = self.samples(cell)
        _tell_cell(cell, samples)
        value = 1e6 / median(samples, client_cpu)
        figure(
            NAME, f"{cell.operation}.per_client_cpu_second", value, "entries/s", size=cell.size, bookies=cell.bookies
        )
        _aim(f"{cell.operation}.per_client_cpu_second", value, _APPEND_MANY_AIM, size=cell.size, bookies=cell.bookies)

    def tell_aims(self) -> None:
        """Compare with the faster of Apache's client's protocols, on Apache's bookies."""
        for size, least in _AIMS.items():
            for operation in _AIMED_OPERATIONS:
                ours = Cell(operation, size, "apache", "ours")
                peers = [peer for cell, peer in self._client_pairs(size) if cell == ours]
                if peers:
                    best = max(peers, key=lambda peer: median(self.samples(peer), rate))
                    _aim(
                        f"{operation}.ratio_to_client", self.ratio(ours, best, rate), least, size=size, peer=best.client
                    )

    def ratio(self, cell: Cell, peer: Cell, value: Callable[[Sample], float]) -> float:
        """Return the median over the rounds of the ratio of the two in the same round."""
        pairs = zip(self.samples(cell), self.samples(peer), strict=True)
        return statistics.median(value(mine) / max(value(theirs), 1e-9) for mine, theirs in pairs)

    def _client_pairs(self, size: int) -> Iterator[tuple[Cell, Cell]]:
        """Yield our client's cells, each with the cells of Apache's client that it is compared with."""
        for cell in list(self._samples):
            if cell.size == size and cell.client in _PEERS:
                operation = _LIKE.get(cell.operation, cell.operation)
                for peer in [Cell(operation, size, cell.bookies, client) for client in _PEERS[cell.client]]:
                    if peer in self._samples:
                        yield cell, peer

    def _tell_ratio(self, cell: Cell, peer: Cell, kind: str, who: dict[str, str]) -> None:
        for name, value in {"entries": rate, "client_cpu": client_cpu}.items():
            ratio = self.ratio(cell, peer, value)
            figure(NAME, f"{cell.operation}.{name}.ratio_to_{kind}", ratio, "ratio", size=cell.size, **who)

    def write_tables(self, out: TextIO) -> None:
        """Write Markdown for docs/design/performance.md."""
        sizes = sorted({cell.size for cell in self._samples})
        operations = list(dict.fromkeys(cell.operation for cell in self._samples))
        columns = [(bookies, client) for bookies in ("apache", "ours") for client in CLIENTS]
        head = " | ".join(f"{client} on {bookies}" for bookies, client in columns)
        for title, show in _TABLES.items():
            print(f"\n{title}\n\n| | {head} |\n|---|" + "---|" * len(columns), file=out)
            for operation in operations:
                for size in sizes:
                    cells = [Cell(operation, size, bookies, client) for bookies, client in columns]
                    texts = [show(self.samples(cell)) if cell in self._samples else "" for cell in cells]
                    if any(texts):
                        print(f"| {operation}, {size_name(size)} | {' | '.join(texts)} |", file=out)


def size_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size} B"


def _tell_cell(cell: Cell, samples: Sequence[Sample]) -> None:
    common = {"size": cell.size, "client": cell.client, "bookies": cell.bookies, "in_flight": samples[0].in_flight}
    rates = [sample.rate for sample in samples]
    spread = {"slowest": round(min(rates), 1), "fastest": round(max(rates), 1)}
    middle = statistics.median(rates)
    figure(NAME, f"{cell.operation}.entries", middle, "entries/s", **common, **spread)
    figure(NAME, f"{cell.operation}.bytes", middle * cell.size / 1e6, "MB/s", **common)
    figure(NAME, f"{cell.operation}.client_cpu", median(samples, client_cpu), "us/entry", **common)
    bookies_cpu = median(samples, lambda sample: sample.bookies_cpu_us)
    figure(NAME, f"{cell.operation}.bookies_cpu", bookies_cpu, "us/entry", **common)
    latencies = _latencies(samples)
    if len(latencies):
        for name, quantile in _QUANTILES.items():
            value = float(np.percentile(latencies, quantile)) / 1000
            figure(NAME, f"{cell.operation}.latency_{name}", value, "ms", **common, samples=len(latencies))


def _latencies(samples: Sequence[Sample]) -> np.ndarray:
    return np.concatenate([sample.run.latencies_us for sample in samples])


def _aim(name: str, value: float, least: float, **more: object) -> None:
    figure(NAME, f"aim.{name}", value, "ratio" if least < 100 else "entries/s", **more, aim=least, met=value >= least)


def _show_rate(samples: Sequence[Sample]) -> str:
    return f"{median(samples, rate):,.0f}"


def _show_cpu(samples: Sequence[Sample]) -> str:
    return f"{median(samples, client_cpu):,.1f} + {median(samples, lambda sample: sample.bookies_cpu_us):,.1f}"


def _show_latency(samples: Sequence[Sample]) -> str:
    latencies = _latencies(samples)
    if not len(latencies):
        return ""
    return " / ".join(f"{np.percentile(latencies, quantile) / 1000:.2f}" for quantile in _QUANTILES.values())


_TABLES: Final = {
    "Entries a second:": _show_rate,
    "CPU, µs per entry, of the client + of the three bookies:": _show_cpu,
    "Latency, ms, p50 / p99 / p99.9:": _show_latency,
}
