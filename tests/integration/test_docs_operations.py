"""docs/operations.md: every procedure is run as printed, on real bookies and ZooKeeper servers.

A test brings about what the procedure is for, runs its commands, and in the end reads every entry from each of its
bookies. What a careless operator could do instead is refused.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from bk_spark import BlockingClient, ClientConfig, Quorum, errors
from bk_spark.bookie.blocking import BlockingWriter
from tests.support.copies import check_every_copy
from tests.support.runbook import PAGE, RunbookCluster, procedures

PROCEDURES = procedures()
ENTRIES = 40
QUORUMS = Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(2, 2, 2)
#: Copies that :func:`write_ledgers` makes with these quorums.
COPIES = 2 * ENTRIES * (3 + 2 + 2)
#: Which test runs which procedures.
RUN_BY = {
    "test_a_bookie_is_down_and_then_lost": ["A bookie is down", "A bookie is lost", "Add a bookie"],
    "test_disks_fail_and_bookies_are_exchanged": [
        "Let the bookie copy what it lost",
        "A disk fails",
        "Replace a bookie by another one",
        "Remove a bookie",
    ],
    "test_all_bookies_are_restarted_under_a_writer": ["Restart all bookies"],
    "test_zookeeper_loses_its_quorum_and_then_its_disks": [
        "ZooKeeper loses its quorum",
        "Most ZooKeeper servers lose their disks",
    ],
    "test_the_metadata_are_restored_from_an_older_backup": ["Back up the metadata", "Restore the metadata"],
}


def test_every_procedure_is_run_by_a_test() -> None:
    assert sorted(each for run in RUN_BY.values() for each in run) == sorted(PROCEDURES)
    assert all(name in globals() for name in RUN_BY)


def write_ledgers(uri: str, *quorums: Quorum) -> list[int]:
    """Write closed ledgers, two of each kind."""
    ledger_ids = []
    with BlockingClient(uri) as client:
        for quorum in quorums * 2:
            with closing(client.create(quorum=quorum, password=b"secret")) as writer:
                writer.append_many([b"%d" % number * 20 for number in range(ENTRIES)])
            ledger_ids.append(writer.ledger_id)
    return ledger_ids


def close(writer: BlockingWriter) -> None:
    """Close the ledger as soon as the client has found ZooKeeper again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            writer.close()
            return
        except errors.MetadataUnavailableError:
            assert time.monotonic() < deadline


@pytest.mark.turns(2)
def test_a_bookie_is_down_and_then_lost(tmp_path: Path) -> None:
    with RunbookCluster(tmp_path, bookies=4, spare=1) as cluster:
        ledger_ids = write_ledgers(cluster.uri, *QUORUMS)
        metrics = cluster.bookie_metrics(1)
        # Bookies with a port of gRPC have more (test_monitoring_files.py).
        named = set(re.findall(r"`((?:bookie|bookkeeper(?!_server_grpc)|replication)_\w+)`", PAGE.read_text("utf-8")))
        assert named
        assert [name for name in sorted(named) if not re.search(rf"^{name}\b", metrics, re.MULTILINE)] == []

        cluster.hosts[1].kill()
        for block in PROCEDURES["A bookie is down"]:
            cluster.run(block)
        assert check_every_copy(cluster.uri, ledger_ids) == COPIES

        cluster.bkctl("autorecovery", "disable")
        cluster.hosts[1].kill()
        cluster.wait_writable([cluster.hosts[number] for number in (0, 2, 3)])
        lost = cluster.hosts[1].id
        # A careless operator deletes the cookie first.
        assert f"ledgers name bookie {lost}" in cluster.bkctl("cookie", "delete", lost, "--yes")
        cluster.bkctl("autorecovery", "enable")
        for block in PROCEDURES["A bookie is lost"]:
            cluster.run(block)
        assert check_every_copy(cluster.uri, ledger_ids) == COPIES

        for block in PROCEDURES["Add a bookie"]:
            cluster.run(block)
        more = write_ledgers(cluster.uri, Quorum(4, 2, 2))
        assert cluster.named_by(more, cluster.hosts[4])
        assert check_every_copy(cluster.uri, [*ledger_ids, *more]) == COPIES + 2 * ENTRIES * 2


@pytest.mark.turns(2)
def test_disks_fail_and_bookies_are_exchanged(tmp_path: Path) -> None:
    with RunbookCluster(tmp_path, bookies=4, spare=1) as cluster:
        ledger_ids = write_ledgers(cluster.uri, *QUORUMS)
        first = cluster.hosts[0]
        losses = {
            ("disk1/journal", "disk2/ledgers", "disk3/ledgers"): "Let the bookie copy what it lost",
            ("disk2/ledgers",): "A disk fails",
            ("disk1/journal",): "A disk fails",
        }
        for lost, procedure in losses.items():
            first.kill()
            for name in lost:
                shutil.rmtree(first.directory / name)
            # A careless operator starts it as it is.
            first.start()
            assert first.wait_ended_by_itself() == 5
            told = first.log_tail()
            assert "there is no current/VERSION in" in told
            assert f"{first.directory / lost[-1]}: what was there is lost" in told
            for block in PROCEDURES[procedure]:
                cluster.run(block)
            assert check_every_copy(cluster.uri, ledger_ids) == COPIES
        for procedure in ("Replace a bookie by another one", "Remove a bookie"):
            for block in PROCEDURES[procedure]:
                cluster.run(block)
            assert check_every_copy(cluster.uri, ledger_ids) == COPIES
        gone = {cluster.hosts[2].id, cluster.hosts[3].id}
        assert not gone & set(re.findall(r"[\d.]+:\d+", cluster.bkctl("bookies")))


@pytest.mark.turns(2)
def test_all_bookies_are_restarted_under_a_writer(tmp_path: Path) -> None:
    blocks = PROCEDURES["Restart all bookies"]
    with RunbookCluster(tmp_path, bookies=4) as cluster:
        ledger_ids = write_ledgers(cluster.uri, *QUORUMS)
        before = [cluster.metadata(each) for each in ledger_ids]
        stop = threading.Event()
        with BlockingClient(cluster.uri) as client:
            # With a lower ack quorum, entries that were under way to a stopping bookie lack its copy.
            writer = client.create(quorum=Quorum(3, 3, 3))
            failed: list[Exception] = []

            def write() -> None:
                try:
                    while not stop.wait(0.005):
                        writer.append(b"while bookies restart")
                except Exception as error:
                    failed.append(error)

            thread = threading.Thread(target=write)
            thread.start()
            try:
                for block in blocks:
                    cluster.run(block)
            finally:
                stop.set()
                thread.join()
            assert not failed
            writer.close()
            entries = client.metadata(writer.ledger_id).last_entry_id + 1
        assert entries > 100
        assert check_every_copy(cluster.uri, [*ledger_ids, writer.ledger_id]) == COPIES + 3 * entries
        # Nothing was copied because of the restarts.
        assert [cluster.metadata(each) for each in ledger_ids] == before


@pytest.mark.turns(2)
def test_zookeeper_loses_its_quorum_and_then_its_disks(tmp_path: Path) -> None:
    config = ClientConfig(metadata_timeout_ms=3_000, connect_timeout_ms=3_000, zk_session_timeout_ms=60_000)
    with RunbookCluster(tmp_path, bookies=3, zookeepers=3) as cluster:
        ledger_ids = write_ledgers(cluster.uri, *QUORUMS)
        with BlockingClient(cluster.uri, config) as client:
            reader = client.open_for_reading(ledger_ids[0], b"secret")
            writer = client.create(quorum=Quorum(3, 3, 2))
            for server in cluster.zookeepers[1:]:
                server.kill()
            first, second = PROCEDURES["ZooKeeper loses its quorum"]
            cluster.run(first)
            with pytest.raises(errors.MetadataUnavailableError, match="Retry"):
                client.create(quorum=Quorum(3, 3, 2))
            with pytest.raises(errors.MetadataUnavailableError, match="no ZooKeeper server answered"):
                BlockingClient(cluster.uri, config)
            assert len(reader.read(0, ENTRIES - 1)) == ENTRIES
            writer.append_many([b"without ZooKeeper"] * ENTRIES)
            writer.flush()
            cluster.run(second)
            close(writer)
            ledger_ids.append(writer.ledger_id)
        copies = COPIES + 3 * ENTRIES
        assert check_every_copy(cluster.uri, ledger_ids) == copies

        for server in cluster.zookeepers[1:]:
            server.kill()
            shutil.rmtree(server.directory / "data" / "version-2")
        for block in PROCEDURES["Most ZooKeeper servers lose their disks"]:
            cluster.run(block)
        assert check_every_copy(cluster.uri, ledger_ids) == copies
        more = write_ledgers(cluster.uri, *QUORUMS)
        assert check_every_copy(cluster.uri, more) == COPIES


@pytest.mark.turns(2)
def test_the_metadata_are_restored_from_an_older_backup(tmp_path: Path) -> None:
    with RunbookCluster(tmp_path, bookies=3, spare=1) as cluster:
        ledger_ids = write_ledgers(cluster.uri, *QUORUMS)
        for block in PROCEDURES["Back up the metadata"]:
            cluster.run(block)
        cluster.hosts[3].start()
        cluster.wait_writable(cluster.hosts)
        lost = write_ledgers(cluster.uri, *QUORUMS)
        on_first = set(cluster.named_by(lost, cluster.hosts[0]))
        assert on_first
        cluster.hosts[3].terminate()
        stop, brake, restore, skip, start, join, look, enable, release = PROCEDURES["Restore the metadata"]
        for block in (stop, brake, restore):
            cluster.run(block)
        # What would happen without the next step: ids of ledgers that bookies hold are given again.
        assert cluster.coming_ledger_id() <= min(lost)
        found = cluster.run(skip[:-1])
        highest = max(int(each) for each in found)
        assert highest in lost
        for block in (skip[-1:], start, join, look):
            printed = cluster.run(block, HIGHEST=str(highest))
        held = re.search(r'"word": ?"(\w+)"', printed[1])
        assert held
        assert check_every_copy(cluster.uri, ledger_ids) == COPIES
        with BlockingClient(cluster.uri) as client:
            for each in lost:
                with pytest.raises(errors.NoSuchLedgerError):
                    client.metadata(each)
        # Nothing of what was lost has left the bookies, and no new ledger can be taken for it.
        assert cluster.hosts[0].held() >= on_first
        cluster.run(enable)
        cluster.wait_writable(cluster.hosts)
        more = write_ledgers(cluster.uri, *QUORUMS)
        assert min(more) > highest
        cluster.run(release, WORD=held[1])
        assert check_every_copy(cluster.uri, [*ledger_ids, *more]) == 2 * COPIES
