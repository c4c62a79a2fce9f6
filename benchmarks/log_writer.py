"""Compares a log writer with the bare ledger writer, and a log reader with the bare ledger reader.

Three bookies run on this machine and disk, with ledgers 3/3/2, CRC32C, and one blocking client. Each round writes the
same entries in every way, alternately forwards and backwards. Each time uses a new ledger or log, whose creation and
close are not counted. Figures are medians over the rounds, ratios are medians of the rounds' ratios.

Operations:
  ledger.append_many  batches of 1,000 entries to a ledger, then flush: the peer of the next two
  log.append_many     the same to a log writer
  log.append          the same entries one by one to a log writer
  ledger.append       one by one to a ledger; a tenth of the entries
  log.read            all entries of the log, by LogReader.read
  ledger.read         the same by BlockingReader.read_blocks: its peer
  roll                a log writer rolls to its next ledger: seconds from one flush to the next, with a roll between
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.report import figure
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import EntryFormat, Log, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster

NAME: Final = "log_writer"
SIZES: Final = {100: 400_000, 1024: 100_000}
PEERS: Final = {
    "log.append_many": "ledger.append_many",
    "log.append": "ledger.append_many",
    "ledger.append": "ledger.append_many",
    "log.read": "ledger.read",
}
_BATCH: Final = 1_000
_PASSWORD: Final = b"secret"
_QUORUM: Final = Quorum(3, 3, 2)
_ROLLS: Final = 20


class Ways:
    """Each method returns entries per second, for ``count`` entries of ``size`` bytes."""

    def __init__(self, client: BlockingClient, size: int, count: int) -> None:
        self._client = client
        self._batch = [bytes(size)] * _BATCH
        self._count = count // _BATCH * _BATCH
        self._written: Log | None = None

    def all(self) -> dict[str, Callable[[], float]]:
        return {
            "ledger.append_many": self.ledger_append_many,
            "log.append_many": self.log_append_many,
            "log.append": self.log_append,
            "ledger.append": self.ledger_append,
            "log.read": self.log_read,
            "ledger.read": self.ledger_read,
        }

    def new_log(self) -> Log:
        settings = LogSettings.create(_QUORUM, DigestType.CRC32C, EntryFormat.RAW, _PASSWORD)
        return LogStore.of(self._client).create_log(f"bench-{uuid.uuid4()}", settings, _PASSWORD)

    def ledger_append_many(self) -> float:
        writer = self._client.create(quorum=_QUORUM, password=_PASSWORD)
        started = time.perf_counter()
        for _ in range(0, self._count, _BATCH):
            writer.append_many(self._batch)
        writer.flush()
        rate = self._rate(started)
        writer.close()
        return rate

    def ledger_append(self) -> float:
        writer = self._client.create(quorum=_QUORUM, password=_PASSWORD)
        entry = self._batch[0]
        started = time.perf_counter()
        for _ in range(self._count // 10):
            writer.append(entry)
        writer.flush()
        rate = self._rate(started) / 10
        writer.close()
        return rate

    def log_append_many(self) -> float:
        self._written = self.new_log()
        with self._written.open_writer() as writer:
            started = time.perf_counter()
            for _ in range(0, self._count, _BATCH):
                writer.append_many(self._batch)
            writer.flush()
            return self._rate(started)

    def log_append(self) -> float:
        entry = self._batch[0]
        with self.new_log().open_writer() as writer:
            started = time.perf_counter()
            for _ in range(self._count):
                writer.append(entry)
            writer.flush()
            return self._rate(started)

    def log_read(self) -> float:
        log = self.written
        started = time.perf_counter()
        read = sum(len(block) for block in log.open_reader().read(0, self._count))
        assert read == self._count
        return self._rate(started)

    def ledger_read(self) -> float:
        (segment,) = self.written.snapshot().segments()
        started = time.perf_counter()
        reader = self.written.ledgers.reader(segment.ledger_id)
        read = sum(len(block) for block in reader.read_blocks(0, self._count - 1, known_to_exist=True))
        assert read == self._count
        return self._rate(started)

    def rolls(self) -> list[float]:
        seconds = []
        with self.new_log().open_writer(roll_entries=1) as writer:
            for _ in range(_ROLLS):
                writer.append_many(self._batch[:1])
                writer.flush()
                started = time.perf_counter()
                writer.append_many(self._batch[:1])
                writer.flush()
                seconds.append(time.perf_counter() - started)
        return seconds

    @property
    def written(self) -> Log:
        """Return the log last written by batches."""
        if self._written is None:
            self.log_append_many()
        assert self._written is not None
        return self._written

    def _rate(self, started: float) -> float:
        return self._count / (time.perf_counter() - started)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks log_writer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of entries")
    options = parser.parse_args(arguments)
    config = ClientConfig(explicit_lac_interval_ms=1_000)
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster(Path(directory), bookies=3) as cluster,
        BlockingClient(cluster.metadata_service_uri, config) as client,
    ):
        for size, count in SIZES.items():
            ways = Ways(client, size, max(_BATCH, int(count * options.scale)))
            for way in ways.all().values():
                way()
            rounds: dict[str, list[float]] = defaultdict(list)
            for number in range(options.rounds):
                for name, way in list(ways.all().items())[:: 1 if number % 2 == 0 else -1]:
                    rounds[name].append(way())
            for name, rates in rounds.items():
                figure(NAME, f"{name}.{size}B", statistics.median(rates), "entries/s")
            for name, peer in PEERS.items():
                ratios = [rate / other for rate, other in zip(rounds[name], rounds[peer], strict=True)]
                figure(NAME, f"{name}.{size}B.over_{peer}", statistics.median(ratios), "ratio")
        figure(NAME, "roll", statistics.median(ways.rolls()), "s")
