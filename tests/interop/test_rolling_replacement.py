"""Bookies of a running cluster are replaced one after the other, Apache's by ours and back, while Apache's Java client
writes ledgers, one Spark query writes a log, another reads it, and auditor and workers of both kinds watch."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.under_replication import PeriodicCheck
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import LASTING, STOP_TIMEOUT_MS, ApacheBookie, Bookies
from tests.interop.autorecovery import ApacheAutoRecovery, AutoRecovery, daemons_of
from tests.interop.copies import Missing, check_copies
from tests.interop.java_client import JavaClient
from tests.interop.java_shell import JavaShell
from tests.interop.payloads import fingerprint
from tests.interop.traffic import PASSWORD, JavaTraffic, Streams
from tests.support.streams import wait_until

pytestmark = [pytest.mark.timeout(1200), pytest.mark.turns(3)]

on_demand = pytest.mark.skipif("ROLLING_RING" not in os.environ, reason="on demand: make rolling")

OURS, APACHES = LocalBookie, ApacheBookie
#: As an operator sets it for an upgrade: longer than any bookie is away.
_RECOVERY_DELAY_S: Final = 600
_BOOKIE_SETTINGS: Final = {**ApacheBookie.sizes, **LASTING}
_DAEMON_SETTINGS: Final = {
    "lostBookieRecoveryDelay": str(_RECOVERY_DELAY_S),
    "openLedgerRereplicationGracePeriod": "5000",
}


@dataclass
class Ring:
    """A cluster with traffic, and what an operator does to it."""

    directory: Path
    bookies: Bookies
    java: JavaClient
    zk: ZooKeeper
    traffic: JavaTraffic
    streams: Streams
    marks: UnderReplicationStore
    ledgers: LedgerStore
    began_s: float = field(default_factory=time.monotonic)

    @property
    def uri(self) -> str:
        return self.bookies.metadata_service_uri

    @property
    def conf_path(self) -> Path:
        """Of Apache's shell."""
        return self.directory / "shell.conf"

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:.1f} s: {text}")

    def replace(self, bookie: LocalBookie, kind: type[LocalBookie]) -> None:
        """In place: with the same directories, port and configuration. The next one may follow when clients know it."""
        began_s = time.monotonic()
        self.bookies.replace(bookie, kind)
        away_s = time.monotonic() - began_s
        assert away_s < _RECOVERY_DELAY_S
        self.wait_well()
        self.say(f"{bookie.id} is {kind.__name__} after {away_s:.1f} s away")

    def wait_well(self) -> None:
        """Until the Java client sees all bookies, and all traffic has gone on."""
        expected = sorted(bookie.id for bookie in self.bookies.bookies if bookie.running)
        wait_until(lambda: self.java.list_bookies(self.uri)[0] == expected, "all bookies in Java's eyes")
        self.traffic.wait_progress()
        self.streams.wait_progress()

    def stop_for_good(self, bookie: LocalBookie) -> None:
        assert bookie.terminate(STOP_TIMEOUT_MS), bookie.failure("the bookie did not stop in order")
        path = f"{MetadataServiceUri.parse(self.uri).root}/available/{bookie.id}"
        wait_until(lambda: self.zk.exists(path) is None, f"end of {bookie.id}")

    def closed(self) -> dict[int, int]:
        """The version of the metadata of each closed ledger."""
        found = {}
        for page in self.ledgers.list_ledgers():
            for ledger_id in page:
                read = self.ledgers.read_latest(ledger_id)
                if read.metadata.state is LedgerState.CLOSED:
                    found[ledger_id] = read.version
        return found

    def assert_not_copied(self, before: Mapping[int, int]) -> None:
        """Bookies that come back in time are waited for: what was closed before is where it was."""
        after = self.closed()
        assert {ledger_id: after[ledger_id] for ledger_id in before} == before

    def named(self) -> set[str]:
        """The bookies that any ledger's metadata name."""
        return {
            bookie_id
            for page in self.ledgers.list_ledgers()
            for ledger_id in page
            for segment in self.ledgers.read_latest(ledger_id).metadata.segments
            for bookie_id in segment.ensemble
        }

    def holes(self) -> tuple[int, list[Missing]]:
        """How many copies of the Java client's entries are there, and those that are missing."""
        total, missing = 0, []
        for ledger in self.traffic.written:
            metadata = self.ledgers.read_latest(ledger.ledger_id).metadata
            found, lost = check_copies(ledger.ledger_id, metadata, ledger.payloads)
            total += found
            missing += lost
        return total, missing

    def replace_by_new(self, old: LocalBookie, kind: type[LocalBookie], decommission: Callable[[str], None]) -> None:
        """With a new bookie: it is started, the old one is stopped, and its copies are made again elsewhere."""
        new = self.bookies.add(kind)
        self.wait_well()
        self.stop_for_good(old)
        began_s = time.monotonic()
        decommission(old.id)
        took_s = time.monotonic() - began_s
        assert old.id not in self.named()
        cookies = f"{MetadataServiceUri.parse(self.uri).root}/cookies"
        assert set(self.zk.children(cookies) or ()) == {each.id for each in self.bookies.bookies if each.running}
        self.wait_well()
        self.say(f"{old.id} went, {new.id} is {kind.__name__}; to decommission took {took_s:.1f} s")

    def decommission_by_us(self, bookie_id: str) -> None:
        assert self.bkctl("decommission", bookie_id, "--patience", "100") == 0
        assert self.bkctl("cookie", "delete", bookie_id, "--yes") == 0

    def decommission_by_apaches_shell(self, bookie_id: str) -> None:
        # It waits 30 s, and then 3 s for each ledger that is left, all at once.
        with JavaShell() as shell:
            output = shell.run(self.conf_path, "decommissionbookie", "-bookieid", bookie_id, timeout_ms=400_000)
        assert output.status == 0, output.text

    def bkctl(self, *arguments: str) -> int:
        return main(["--metadata-service-uri", self.uri, *arguments])

    def check_all_ledgers(self) -> None:
        """As an operator does at the end: let an auditor that begins ask all bookies, and wait until it is content."""
        assert self.bkctl("forceauditchecks", "--all-ledgers") == 0
        switches = ReplicationSwitches(self.zk, MetadataServiceUri.parse(self.uri).root)
        forced_ms = switches.check_time_ms(PeriodicCheck.ALL_LEDGERS)
        with daemons_of([AutoRecovery], self.directory / "daemons-after", self.uri, _DAEMON_SETTINGS) as daemons:

            def content() -> bool:
                assert daemons[0].running, daemons[0].failure("the daemon ended")
                checked = switches.check_time_ms(PeriodicCheck.ALL_LEDGERS) != forced_ms
                return checked and not self.marks.any_marks() and not self.marks.locks()

            wait_until(content, "end of the check of all ledgers")

    def assert_nothing_lost(self) -> None:
        """Both clients read what was acknowledged, and each entry is on each bookie of its write set."""
        _, missing = self.holes()
        assert not missing
        with BlockingClient(self.uri) as client:
            for ledger in self.traffic.written:
                payloads = ledger.payloads
                metadata = self.ledgers.read_latest(ledger.ledger_id).metadata
                assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, len(payloads) - 1)
                read = self.java.read(self.uri, ledger.ledger_id, recovery=False, password=PASSWORD)
                assert (read.count, read.fingerprint) == (len(payloads), fingerprint(payloads))
                if payloads:
                    assert (
                        client.open_for_reading(ledger.ledger_id, PASSWORD.encode()).read(0, len(payloads) - 1)
                        == payloads
                    )


@contextmanager
def ring_of(
    kinds: list[type[LocalBookie]],
    healers: list[type[AutoRecovery]],
    directory: Path,
    zk_only: LocalCluster,
    java: JavaClient,
    spark: SparkSession,
) -> Iterator[Ring]:
    """A cluster with traffic and daemons. Afterwards nothing may be lost."""
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    root = f"/rolling-{uuid.uuid4().hex[:8]}"
    uri = MetadataServiceUri(servers, root, "hierarchical")
    with ExitStack() as stack:
        zk = ZooKeeper(servers)
        zk.start()
        stack.callback(zk.close)
        init_cluster(zk, root)
        bookies = stack.enter_context(Bookies(directory / "bookies", str(uri), kinds, _BOOKIE_SETTINGS))
        stack.callback(java.forget, str(uri))
        marks = UnderReplicationStore(zk, root)
        marks.prepare()
        streams = Streams(spark, str(uri), directory / "streams", root.strip("/"))
        stack.callback(streams.stop)
        traffic = JavaTraffic(java, str(uri))
        ring = Ring(directory, bookies, java, zk, traffic, streams, marks, LedgerStore(zk, uri))
        ring.conf_path.write_text(
            f"metadataServiceUri={uri}\nallowLoopback=true\nadvertisedAddress=127.0.0.1\n", "utf-8"
        )
        with daemons_of(healers, directory / "daemons", str(uri), _DAEMON_SETTINGS), traffic:
            streams.start()
            ring.wait_well()
            ring.say("all runs")
            yield ring
            rows = streams.check()
            ring.say(f"{rows} rows are in each of the two logs")
        copies, missing = ring.holes()
        entries = sum(len(ledger.payloads) for ledger in traffic.written)
        ring.say(
            f"{entries} entries of {len(traffic.written)} ledgers, {copies} copies, {len(missing)} missing of "
            f"{len({each.ledger_id for each in missing})} ledgers; the slowest append took {traffic.slowest_s:.1f} s"
        )
        ring.check_all_ledgers()
        ring.assert_nothing_lost()
        ring.say("nothing is lost")


def test_a_bookie_of_each_kind_is_replaced_in_place_and_comes_back(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, spark: SparkSession
) -> None:
    with ring_of([APACHES, APACHES, OURS, OURS], [AutoRecovery], tmp_path, zk_only, java_client, spark) as ring:
        before = ring.closed()
        for number, kind in ((0, OURS), (2, APACHES), (0, APACHES)):
            ring.replace(ring.bookies.bookies[number], kind)
        assert before
        ring.assert_not_copied(before)


@on_demand
def test_the_whole_ring_is_replaced_by_ours_and_back(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, spark: SparkSession
) -> None:
    healers: list[type[AutoRecovery]] = [AutoRecovery, ApacheAutoRecovery]
    with ring_of([APACHES] * 4, healers, tmp_path, zk_only, java_client, spark) as ring:
        before = ring.closed()
        for bookie in list(ring.bookies.bookies):
            ring.replace(bookie, OURS)
        ring.assert_not_copied(before)
        ring.streams.stop()
        ring.streams.start()
        ring.say("both queries went on from their checkpoints")
        # With new bookies: one of Apache's takes the place of one of ours, and one of ours the place of that one.
        ring.replace_by_new(ring.bookies.bookies[0], APACHES, ring.decommission_by_apaches_shell)
        ring.replace_by_new(ring.bookies.bookies[4], OURS, ring.decommission_by_us)
        before = ring.closed()
        for bookie in [each for each in ring.bookies.bookies if each.running]:
            ring.replace(bookie, APACHES)
        ring.assert_not_copied(before)
