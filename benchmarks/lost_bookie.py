"""A cluster that loses a bookie, as often as wanted: each loss begins with the same files."""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.steady_writer import PASSWORD
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import MARK_DEPTH
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.wire_v2 import read_requests
from bookie_server.local import LocalBookie, LocalCluster
from bookie_server.local.state import PortChooser
from tests.interop.matrix import answer_of

BOOKIES: Final = 5
_DIGEST: Final = DigestType.CRC32C
#: No collection runs for an hour. Journals are deleted once checkpointed, to save disk.
_SETTINGS: Final = {"gcWaitTime": "3600000", "journalMaxSizeMB": "256", "journalMaxBackups": "0"}
_WRITERS: Final = 4
#: All three copies are there before the loss. With an ack quorum of two, the end of a ledger leaves some out.
_QUORUM: Final = Quorum(3, 3, 3)
_BATCH_BYTES: Final = 4 << 20
_START_TIMEOUT_MS: Final = 120_000
_METRICS_TIMEOUT_S: Final = 30.0
#: How much of the copies is read back.
_CHECKED_LEDGERS: Final = 40
_CHECKED_ENTRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Case:
    """Closed ledgers that are written before the loss, 3/3/2."""

    name: str
    ledgers: int
    entries: int
    entry_bytes: int

    @property
    def stored_entry_bytes(self) -> int:
        return self.entry_bytes + ENTRY_HEADER_BYTES + _DIGEST.digest_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """What bookies read and wrote for clients, in bytes of entries as they are stored, and in entries."""

    read_bytes: int
    written_bytes: int
    read_entries: int
    written_entries: int

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.read_bytes - before.read_bytes,
            self.written_bytes - before.written_bytes,
            self.read_entries - before.read_entries,
            self.written_entries - before.written_entries,
        )


class SavedCluster:
    """ZooKeeper, five of our bookies and the ledgers of ``case`` below ``directory``, written once."""

    def __init__(self, directory: Path, case: Case, zk_timeout_ms: int) -> None:
        self.case = case
        self._settings = {**_SETTINGS, "zkTimeout": str(zk_timeout_ms)}
        self._live, self._saved = directory / "cluster", directory / "saved"
        self._ports: dict[str, int] = {}
        #: The bookie that most ledgers name, and these ledgers.
        self.victim = ""
        self.affected: list[int] = []
        with self._cluster() as cluster:
            ids = self._write(cluster.metadata_service_uri)
            self._choose_victim(cluster, ids)
            conf_paths = {bookie.id: bookie.conf_path for bookie in cluster.bookies}
        chooser = PortChooser(set())
        for bookie_id, path in conf_paths.items():
            self._ports[bookie_id] = port = chooser.choose()
            with path.open("a", encoding="utf-8") as conf:
                conf.write(f"httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort={port}\n")
        self._live.rename(self._saved)

    @property
    def needed_bytes(self) -> int:
        """What must be read, and written, at least: the lost copies."""
        return self.needed_entries * self.case.stored_entry_bytes

    @property
    def needed_entries(self) -> int:
        return len(self.affected) * self.case.entries

    @contextmanager
    def restored(self) -> Iterator[LocalCluster]:
        """Run the cluster as it was written. Its paths and ports are always the same."""
        shutil.rmtree(self._live, ignore_errors=True)
        shutil.copytree(self._saved, self._live)
        # Nothing of these gigabytes is left to be written during the run: who syncs a file would wait for it.
        os.sync()
        with self._cluster() as cluster:
            yield cluster

    def traffic(self, cluster: LocalCluster) -> Traffic:
        """Return what the bookies that run have read and written since they began."""
        found = [self._metrics(bookie) for bookie in cluster.bookies if bookie.running and bookie.id != self.victim]

        def total(name: str) -> int:
            return sum(int(metrics.get(name, 0)) for metrics in found)

        return Traffic(
            total("bookie_READ_BYTES"),
            total("bookie_WRITE_BYTES"),
            total('bookie_BOOKIE_READ_ENTRY_BYTES_count{success="true"}'),
            total('bookie_BOOKIE_ADD_ENTRY_BYTES_count{success="true"}'),
        )

    def _metrics(self, bookie: LocalBookie) -> dict[str, float]:
        url = f"http://127.0.0.1:{self._ports[bookie.id]}/metrics"
        with urllib.request.urlopen(url, timeout=_METRICS_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for line in lines if line[:1] != "#" for name, _, value in [line.rpartition(" ")]}

    def _cluster(self) -> LocalCluster:
        return LocalCluster(
            self._live, bookies=BOOKIES, bookie_settings=self._settings, start_timeout_ms=_START_TIMEOUT_MS
        )

    def _write(self, uri: str) -> list[int]:
        case = self.case
        at_once = max(1, min(case.entries, _BATCH_BYTES // case.entry_bytes))
        payload = Random(1).randbytes(case.entry_bytes)

        def write(_: int) -> int:
            with closing(client.create(quorum=_QUORUM, password=PASSWORD, digest_type=_DIGEST)) as writer:
                for first in range(0, case.entries, at_once):
                    writer.append_many([payload] * min(at_once, case.entries - first))
            return writer.ledger_id

        with BlockingClient(uri) as client, ThreadPoolExecutor(_WRITERS) as threads:
            return list(threads.map(write, range(case.ledgers)))

    def _choose_victim(self, cluster: LocalCluster, ids: list[int]) -> None:
        with LossWatch(cluster.metadata_service_uri) as watch:
            names = {bookie.id: watch.naming(bookie.id, ids) for bookie in cluster.bookies}
        self.victim = max(names, key=lambda bookie_id: len(names[bookie_id]))
        self.affected = names[self.victim]


class LossWatch:
    """What ZooKeeper says about a loss, read in a session of its own. A context manager."""

    def __init__(self, uri: str) -> None:
        parsed = MetadataServiceUri.parse(uri)
        self.root = parsed.root
        self.zk = ZooKeeper(parsed.servers)
        self.zk.start()
        self._ledgers = LedgerStore(self.zk, parsed)
        self._marks = UnderReplicationStore(self.zk, parsed.root)

    def __enter__(self) -> LossWatch:
        return self

    def __exit__(self, *error: object) -> None:
        self.zk.close()

    def registered(self, bookie_id: str) -> bool:
        return self.zk.exists(f"{self.root}/available/{bookie_id}") is not None

    def marked(self) -> set[int]:
        """Return the ledgers that seem marked. Cheap: reads directories only, and empty ones count."""
        groups = [""]
        for _ in range(MARK_DEPTH):
            groups = [
                f"{group}/{name}"
                for group in groups
                for name in self.zk.children(self._marks.paths.marks + group) or ()
            ]
        return {int(group.replace("/", ""), 16) for group in groups}

    def any_mark(self) -> bool:
        return any(page for page in self._marks.marks())

    def naming(self, bookie_id: str, ids: list[int]) -> list[int]:
        """Return those of the ledgers whose metadata name the bookie."""
        return [each for each in ids if bookie_id in self.ensemble(each)]

    def ensemble(self, ledger_id: int) -> tuple[str, ...]:
        """Return the members of a ledger with one segment."""
        (segment,) = self._ledgers.read(ledger_id).metadata.segments
        return segment.ensemble

    def check_copies(self, saved: SavedCluster) -> None:
        """Read a sample of the entries at every member. Raises if one is missing, or names a lost bookie."""
        random, ids = Random(2), saved.affected
        for ledger_id in random.sample(ids, min(len(ids), _CHECKED_LEDGERS)):
            entry_ids = {0, saved.case.entries - 1, *random.choices(range(saved.case.entries), k=_CHECKED_ENTRIES)}
            for bookie_id in self.ensemble(ledger_id):
                for entry_id in sorted(entry_ids):
                    answer = answer_of(bookie_id, read_requests(ledger_id, [entry_id]))
                    if any(answer[4:8]) or len(answer) < saved.case.entry_bytes:
                        raise RuntimeError(f"bookie {bookie_id} lacks entry {entry_id} of ledger {ledger_id}")


def wait_until(what: str, met: object, timeout_s: float, poll_s: float = 0.05) -> float:
    """Call ``met`` until it returns true. Return when the call began that did (monotonic, s)."""
    assert callable(met)
    deadline = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        if met():
            return asked
        if asked > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(poll_s)
