"""``bkctl recover`` and ``bkctl decommission`` on real bookies: one is killed, and every copy is made again."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.bookie_recovery import RecoveredLedger, RecoverySettings, recover_bookies
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.support.copies import check_every_copy
from tests.support.nursery import QuickCluster
from tests.support.registrations import kill_and_forget
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

ENTRIES = 100
Run = Callable[..., tuple[int, Any]]


class Stage:
    """Bookies without auditor, and what metadata say, read in a session of its own."""

    def __init__(self, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self.uri = MetadataServiceUri.parse(cluster.metadata_service_uri)
        self.zk = ZooKeeper(self.uri.servers)
        self.zk.start()
        self.ledgers = LedgerStore(self.zk, self.uri)
        self.store = UnderReplicationStore(self.zk, self.uri.root)
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output of a command; an error is one line."""
        self._capsys.readouterr()
        status = main(["--metadata-service-uri", str(self.uri), *arguments])
        printed, error = self._capsys.readouterr()
        assert len(error.splitlines()) == (status == 1)
        return status, printed + error

    def record(self, *arguments: str) -> tuple[int, Any]:
        status, printed = self.run(*arguments, "--json")
        return status, json.loads(printed)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.ledgers.read_latest(ledger_id).metadata

    def members(self, ledger_id: int) -> set[str]:
        return {each for segment in self.metadata(ledger_id).segments for each in segment.ensemble}

    def versions(self) -> dict[int, int]:
        return {i: self.ledgers.read_latest(i).version for page in self.ledgers.list_ledgers() for i in page}

    def others(self, *bookies: str) -> list[str]:
        return [each.id for each in self.cluster.bookies if each.id not in bookies]

    def write(self, quorum: Quorum, *, with_bookie: str | None = None, without: str | None = None) -> int:
        """Write a closed ledger whose ensemble has, or does not have, a bookie."""
        with BlockingClient(str(self.uri)) as client:
            for _ in range(50):
                with closing(client.create(quorum=quorum, password=b"secret")) as writer:
                    ensemble = writer.metadata.last_segment.ensemble
                    right = (with_bookie is None or with_bookie in ensemble) and without not in ensemble
                    if right:
                        writer.append_many([b"%d" % number * 20 for number in range(ENTRIES)])
                if right:
                    return writer.ledger_id
                client.delete(writer.ledger_id)
        raise AssertionError("no such ensemble")

    def kill(self, bookie_id: str) -> None:
        """Kill a bookie for good."""
        kill_and_forget(self.cluster, self.bookie(bookie_id))
        self.zk.sync("/")

    def bookie(self, bookie_id: str) -> LocalBookie:
        return next(each for each in self.cluster.bookies if each.id == bookie_id)

    def delete_all(self) -> None:
        """Delete every ledger."""
        for page in self.ledgers.list_ledgers():
            for ledger_id in page:
                self.ledgers.delete(ledger_id)

    def check_every_copy(self, ledger_id: int) -> int:
        """Read each entry at each bookie of its write set, and compare. Return how many copies there are."""
        return check_every_copy(str(self.uri), [ledger_id])


@pytest.fixture
def stage(cluster_of_six: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Iterator[Stage]:
    stage = Stage(cluster_of_six, capsys)
    # Of tests before this one.
    stage.delete_all()
    yield stage
    stage.delete_all()
    stage.zk.close()


def test_every_copy_of_a_killed_bookie_is_made_again(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    quorums = (Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 2, 2), Quorum(2, 2, 2))
    ledgers = [stage.write(quorum, with_bookie=victim) for quorum in quorums]
    other = stage.write(Quorum(2, 2, 2), without=victim)
    with BlockingClient(str(stage.uri)) as client:
        empty = client.create(quorum=Quorum(4, 4, 2))
        empty.close()
    stage.kill(victim)
    named = sorted(each for each in [*ledgers, empty.ledger_id] if victim in stage.members(each))
    # Each stores its share of the entries, and each entry of 20 to 40 bytes.
    before = stage.versions()
    status, plan = stage.record("recover", victim, "--dry-run")
    assert status == 0
    assert [each["ledger"] for each in plan["ledgers"]] == named
    shares = {each["ledger"]: each["entries"] for each in plan["ledgers"]}
    assert [shares[each] for each in ledgers] == [100, pytest.approx(67, abs=1), 50, 100]
    assert plan["size_bytes"] == pytest.approx(plan["entries"] * 38, rel=0.05)
    assert stage.run("recover", victim, "--dry-run")[1].endswith(
        f"would be copied: {len(named)} ledgers, {plan['entries']} entries, about {plan['size_bytes']} bytes\n"
    )
    assert stage.versions() == before

    status, done = stage.record("recover", victim)
    assert status == 0
    assert sorted(each["ledger"] for each in done["ledgers"]) == named
    assert {each["ledger"]: each["entries"] for each in done["ledgers"]} == shares
    assert (done["recovered"], done["not_recovered"], done["still_registered"]) == (len(named), 0, [])
    for ledger_id, quorum in zip(ledgers, quorums, strict=True):
        assert victim not in stage.members(ledger_id)
        assert stage.check_every_copy(ledger_id) == ENTRIES * quorum.write_quorum_size
    assert stage.ledgers.read_latest(other).version == before[other]
    assert not stage.store.locks()
    assert stage.run("recover", victim) == (0, "0 ledgers recovered, 0 not; 0 entries, 0 bytes copied\n")


def test_an_open_ledger_is_fenced_after_the_grace_period(stage: Stage) -> None:
    victim = stage.cluster.bookies[1].id
    with BlockingClient(str(stage.uri)) as client:
        for _ in range(50):
            writer = client.create(quorum=Quorum(3, 3, 2))
            if victim in writer.metadata.last_segment.ensemble:
                break
            writer.close()
            client.delete(writer.ledger_id)
        writer.append_many([b"open"] * 20)
        writer.flush()
        writer.abandon()
    stage.kill(victim)
    status, plan = stage.record("recover", victim, "--dry-run")
    assert (status, plan["ledgers"][0]["open_fragment"], plan["ledgers"][0]["size_bytes"]) == (0, True, None)
    status, printed = stage.run("recover", victim, "--open-ledger-grace", "1")
    assert status == 0
    assert printed.startswith(f"{writer.ledger_id}\trecovered\t")
    assert "fenced and closed" in printed
    assert stage.metadata(writer.ledger_id).state is LedgerState.CLOSED
    assert stage.check_every_copy(writer.ledger_id) == 60


def test_copies_go_only_to_the_targets(stage: Stage) -> None:
    victim, target = stage.cluster.bookies[0].id, stage.cluster.bookies[3].id
    free = stage.write(Quorum(2, 2, 2), with_bookie=victim, without=target)
    for _ in range(50):
        taken = stage.write(Quorum(4, 4, 2), with_bookie=victim)
        if target in stage.members(taken):
            break
    stage.kill(victim)
    before = stage.metadata(taken)
    status, done = stage.record("recover", victim, "--to", target)
    assert status == 3
    found = {each["ledger"]: each for each in done["ledgers"]}
    assert found[free]["recovered"]
    assert target in stage.members(free)
    assert stage.check_every_copy(free) == 2 * ENTRIES
    assert f"{target} is in the ensemble already" in found[taken]["reason"]
    assert stage.metadata(taken) == before
    assert not stage.store.locks()
    status, printed = stage.run("recover", victim, "--to", target)
    assert f"{taken}\tnot recovered\t" in printed
    assert status == 3
    # Any other bookie can.
    assert stage.run("recover", victim)[0] == 0
    assert stage.check_every_copy(taken) == 4 * ENTRIES


def test_the_rate_of_copies_is_limited(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    ledger_id = stage.write(Quorum(3, 3, 2), with_bookie=victim)
    stage.kill(victim)
    size_bytes = stage.record("recover", victim, "--dry-run")[1]["size_bytes"]
    begun_s = time.monotonic()
    # Four batches of a second each. The first does not wait.
    assert stage.run("recover", victim, "--replication-rate", str(size_bytes // 4))[0] == 0
    assert time.monotonic() - begun_s > 2.5
    assert stage.check_every_copy(ledger_id) == 3 * ENTRIES


def test_what_is_refused(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    victim, live, target = (stage.cluster.bookies[number].id for number in (0, 1, 2))
    stage.write(Quorum(6, 6, 3))
    stage.kill(victim)
    stage.zk.create(f"{stage.uri.root}/available/readonly/b9:3181", ephemeral=True, make_parents=True)
    before = stage.versions()
    for arguments, says in (
        (["nobody:3181"], "bookie nobody:3181 is unknown"),
        ([victim, "nobody:3181", "--dry-run"], "bookie nobody:3181 is unknown"),
        ([live], f"bookie {live} is registered"),
        ([victim, live, "--dry-run"], f"bookie {live} is registered"),
        (["b9:3181"], "bookie b9:3181 is registered"),
        ([victim, "--to", victim], "copies need another bookie"),
        ([victim, "--to", "b9:3181"], "the bookie is read-only"),
        ([victim, "--to", target, "nobody:3181"], "--to nobody:3181: the bookie is unknown"),
        ([*[each.id for each in stage.cluster.bookies], "--force"], "no other bookie is writable"),
    ):
        status, printed = stage.run("recover", *arguments)
        assert (status, says in printed) == (1, True), printed
    for command in ("recover", "decommission"):
        assert main(["--metadata-service-uri", f"zk://{stage.uri.servers}/nowhere", command, victim]) == 1
        assert "no BookKeeper cluster at " in capsys.readouterr().err
    # A lost bookie is no target.
    stage.kill(target)
    status, printed = stage.run("recover", victim, "--to", target)
    assert (status, f"--to {target}: the bookie is not registered" in printed) == (1, True)
    # No bookie is left outside the ensemble.
    status, done = stage.record("recover", victim)
    assert status == 3
    assert "no writable bookie is left" in done["ledgers"][0]["reason"]
    assert stage.versions() == before
    assert not stage.store.locks()


def test_a_bookie_that_runs_is_emptied_by_force(stage: Stage) -> None:
    victim = stage.cluster.bookies[2].id
    # Only this bookie has the entries.
    single, wide = stage.write(Quorum(1, 1, 1), with_bookie=victim), stage.write(Quorum(4, 3, 2), with_bookie=victim)
    status, printed = stage.run("recover", victim, "--force")
    assert status == 0, printed
    assert f"bookie {victim} is still registered" in printed
    for ledger_id, copies in ((single, 1), (wide, 3)):
        assert victim not in stage.members(ledger_id)
        assert stage.check_every_copy(ledger_id) == copies * ENTRIES
    status, done = stage.record("recover", victim, "--force")
    assert (status, done["ledgers"], done["still_registered"]) == (0, [], [victim])


def test_a_locked_ledger_is_waited_for_and_reported(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    ledger_id, other = (stage.write(Quorum(3, 3, 2), with_bookie=victim) for _ in range(2))
    stage.kill(victim)
    stage.store.prepare()
    assert stage.store.lock(ledger_id, proof=stage.store.begin_worker("test"))
    status, done = stage.record("recover", victim, "--lock-wait", "1", "--ledgers-at-once", "1")
    assert status == 3
    assert {each["ledger"]: each["recovered"] for each in done["ledgers"]} == {ledger_id: False, other: True}
    assert "for longer than 1 s" in next(each["reason"] for each in done["ledgers"] if not each["recovered"])
    # It is released while the command waits.
    release = threading.Timer(2, stage.store.release, [ledger_id])
    release.start()
    try:
        status, done = stage.record("recover", victim)
    finally:
        release.join()
    assert (status, [each["ledger"] for each in done["ledgers"]]) == (0, [ledger_id])
    assert stage.check_every_copy(ledger_id) == 3 * ENTRIES


def test_two_operators_at_once_do_no_harm(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    ledgers = [stage.write(Quorum(3, 2, 2), with_bookie=victim) for _ in range(8)]
    stage.kill(victim)
    before = stage.versions()
    statuses = []
    command = ["--metadata-service-uri", str(stage.uri), "recover", victim]
    operators = [threading.Thread(target=lambda: statuses.append(main(command))) for _ in range(2)]
    for each in operators:
        each.start()
    for each in operators:
        each.join(60)
    assert statuses == [0, 0]
    for ledger_id in ledgers:
        assert victim not in stage.members(ledger_id)
        # Changed once.
        assert stage.ledgers.read_latest(ledger_id).version == before[ledger_id] + 1
        assert stage.check_every_copy(ledger_id) == 2 * ENTRIES
    assert not stage.store.locks()


def test_without_its_session_it_stops_and_says_what_was_not_tried(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    ledgers = [stage.write(Quorum(3, 2, 2), with_bookie=victim) for _ in range(12)]
    stage.kill(victim)
    stage.store.prepare()
    stopped = threading.Event()

    def end_the_session() -> None:
        """As if it had expired: the proof is gone."""
        workers = stage.store.paths.workers
        while not stopped.wait(0.001):
            for each in stage.zk.children(workers) or ():
                stage.zk.delete(f"{workers}/{each}")
                stopped.set()

    ending = threading.Thread(target=end_the_session)
    ending.start()
    try:
        status, done = stage.record("recover", victim, "--ledgers-at-once", "1")
    finally:
        stopped.set()
        ending.join()
    assert status == 3
    found = {each["ledger"]: each for each in done["ledgers"]}
    assert sorted(found) == ledgers
    assert found[ledgers[-1]]["reason"].startswith("not tried: the session with ZooKeeper has ended")
    assert {each for each in ledgers if victim not in stage.members(each)} == {
        each for each in ledgers if found[each]["recovered"]
    }
    assert stage.run("recover", victim)[0] == 0
    assert all(stage.check_every_copy(each) == 2 * ENTRIES for each in ledgers)


def test_a_bookie_that_is_back_keeps_its_ledgers(stage: Stage) -> None:
    """It registered between the check of the command line and the repair."""
    back = stage.cluster.bookies[0].id
    ledger_id = stage.write(Quorum(3, 3, 2), with_bookie=back)
    before = stage.metadata(ledger_id)
    told: list[RecoveredLedger] = []
    asyncio.run(
        recover_bookies(stage.uri, ClientConfig(), RecoverySettings(frozenset([back])), [ledger_id], told.append)
    )
    assert told == [RecoveredLedger(ledger_id, f"{back} is registered again and has every entry")]
    assert stage.metadata(ledger_id) == before


def test_an_interrupted_command_leaves_nothing(stage: Stage) -> None:
    victim = stage.cluster.bookies[0].id
    ledger_id, other = (stage.write(Quorum(3, 3, 2), with_bookie=victim) for _ in range(2))
    stage.kill(victim)
    stage.store.prepare()
    proof = stage.store.begin_worker("test")
    assert stage.store.lock(ledger_id, proof=proof)
    command = [sys.executable, "-m", "bk_spark.bkctl", "--metadata-service-uri", str(stage.uri), "recover", victim]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(b"%d\trecovered\t" % other)
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    # The session was closed, and did not expire.
    stage.zk.sync("/")
    assert [f"{stage.store.paths.workers}/{each}" for each in stage.zk.children(stage.store.paths.workers) or ()] == [
        proof
    ]
    assert list(stage.store.locks()) == [ledger_id]


def test_a_mark_goes_with_the_repair_and_a_terminal_shows_the_progress(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = stage.cluster.bookies[0].id
    ledger_id = stage.write(Quorum(3, 3, 2), with_bookie=victim)
    stage.kill(victim)
    stage.store.prepare()
    stage.store.mark(ledger_id, [victim])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["--metadata-service-uri", str(stage.uri), "recover", victim]) == 0
    shown = capsys.readouterr().err
    assert "ledgers searched: 0" in shown
    assert re.search(r"ledgers \[-+\]   0%  0 of 1\r", shown)
    assert re.search(r"ledgers \[#+\] 100%  1 of 1\r\x1b\[K$", shown)
    assert stage.store.read_mark(ledger_id) is None
    assert stage.check_every_copy(ledger_id) == 3 * ENTRIES


def test_a_decommission_without_an_auditor_is_refused(stage: Stage) -> None:
    victim, live = stage.cluster.bookies[0].id, stage.cluster.bookies[1].id
    ledger_id = stage.write(Quorum(3, 3, 2), with_bookie=victim)
    stage.kill(victim)
    status, printed = stage.run("decommission", live)
    assert (status, f"bookie {live} is registered" in printed) == (1, True)
    status, printed = stage.run("decommission", victim)
    assert (status, "no auditor is elected" in printed) == (1, True)
    assert f"bkctl recover {victim}" in printed
    assert "bookie-server autorecovery" in printed
    switches = ReplicationSwitches(stage.zk, stage.uri.root)
    switches.disable()
    status, printed = stage.run("decommission", victim)
    switches.enable()
    assert (status, "bkctl autorecovery enable" in printed) == (1, True)
    # After a recovery nobody is needed.
    assert victim in stage.members(ledger_id)
    assert stage.run("recover", victim)[0] == 0
    status, done = stage.record("decommission", victim)
    assert (status, done["left"]) == (0, [])


def test_a_bookie_that_runs_is_decommissioned_by_force(stage: Stage) -> None:
    victim = stage.cluster.bookies[1].id
    ledger_id = stage.write(Quorum(3, 3, 2), with_bookie=victim)
    status, printed = stage.run("decommission", victim, "--force")
    assert status == 0, printed
    assert f"no ledger names bookie {victim} any more: stop it, and then delete its cookie" in printed
    assert victim not in stage.members(ledger_id)
    assert stage.check_every_copy(ledger_id) == 3 * ENTRIES


def test_ledgers_of_which_nobody_can_tell_are_counted(stage: Stage) -> None:
    victim = stage.cluster.bookies[1].id
    damaged = [stage.write(Quorum(3, 3, 2), with_bookie=victim) for _ in range(2)]
    stage.write(Quorum(3, 3, 2), with_bookie=victim)
    for ledger_id in damaged:
        path = stage.ledgers.manager.ledger_path(stage.uri.root, ledger_id)
        stage.zk.set(path, b"garbage", stage.zk.get(path).version)
    status, printed = stage.run("decommission", victim, "--force")
    assert (status, printed.splitlines()[-1]) == (
        3,
        f"2 of 3 ledgers still need bookie {victim}: keep its directories",
    )
    status, done = stage.record("decommission", victim, "--force")
    assert (status, done["ledgers"], done["left"]) == (3, 2, [])
    assert [each["ledger"] for each in done["unreadable"]] == sorted(damaged)


def decommission_at_once(stage: Stage, *bookies: str, force: bool = False) -> list[int]:
    """Exit statuses of as many operators, each with one of the bookies."""
    statuses: dict[int, int] = {}

    def decommission(number: int, bookie: str) -> None:
        options = ["--force"] if force else ["--patience", "100"]
        statuses[number] = main(["--metadata-service-uri", str(stage.uri), "decommission", bookie, *options])

    operators = [threading.Thread(target=decommission, args=each) for each in enumerate(bookies)]
    for each in operators:
        each.start()
    for each in operators:
        each.join(200)
    return [statuses[number] for number in range(len(bookies))]


def test_two_operators_empty_two_bookies_that_run(stage: Stage) -> None:
    """Each may choose the other's bookie as a target. Both bookies still run, so nothing is lost meanwhile."""
    first, second = stage.cluster.bookies[0].id, stage.cluster.bookies[1].id
    ledgers = [stage.write(Quorum(3, 2, 2), with_bookie=each) for each in (first, second) for _ in range(4)]
    statuses = decommission_at_once(stage, first, second, force=True)
    assert set(statuses) <= {0, 3}
    for ledger_id in ledgers:
        assert stage.check_every_copy(ledger_id) == 2 * ENTRIES
    # Who was told of ledgers that began to name the bookie meanwhile tries again.
    for bookie in (first, second):
        assert stage.run("recover", first, second, "--force")[0] == 0
        assert stage.run("decommission", bookie, "--force")[0] == 0
    for ledger_id in ledgers:
        assert not {first, second} & stage.members(ledger_id)
        assert stage.check_every_copy(ledger_id) == 2 * ENTRIES
    assert not stage.store.locks()


class HealingStage(Stage):
    """The sessions of auditors and workers matter here, so they expire."""

    def kill(self, bookie_id: str) -> None:
        self.bookie(bookie_id).kill()
        deadline = time.monotonic() + 60
        while self.zk.exists(f"{self.uri.root}/available/{bookie_id}") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def healing_cluster(directory: Path, capsys: pytest.CaptureFixture[str], bookies: int) -> Iterator[HealingStage]:
    settings = {
        **BOOKIE_SETTINGS,
        "autoRecoveryDaemonEnabled": "true",
        "rwRereplicateBackoffMs": "300",
        "lockReleaseOfFailedLedgerGracePeriod": "8000",
        "openLedgerRereplicationGracePeriod": "1000",
        "zkTimeout": "4000",
        # Only the command begins the audit.
        "lostBookieRecoveryDelay": "3600",
    }
    timeout_ms = start_timeout_ms()
    with QuickCluster(directory, bookies, bookie_settings=settings, start_timeout_ms=timeout_ms) as cluster:
        stage = HealingStage(cluster, capsys)
        yield stage
        stage.zk.close()


@pytest.fixture
def healing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[HealingStage]:
    """Bookies with auditor and worker."""
    yield from healing_cluster(tmp_path, capsys, 4)


@pytest.fixture
def healing_five(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[HealingStage]:
    yield from healing_cluster(tmp_path, capsys, 5)


def test_two_lost_bookies_are_decommissioned_by_three_operators_at_once(healing_five: HealingStage) -> None:
    """Two of them have the same bookie. Each ledger has a third copy elsewhere."""
    stage = healing_five
    first, second = stage.cluster.bookies[0].id, stage.cluster.bookies[1].id
    ledgers = [stage.write(Quorum(3, 3, 2), with_bookie=each) for each in (first, second) for _ in range(4)]
    for each in (first, second):
        stage.kill(each)
    assert decommission_at_once(stage, first, second, first) == [0, 0, 0]
    for ledger_id in ledgers:
        assert not {first, second} & stage.members(ledger_id)
        assert stage.check_every_copy(ledger_id) == 3 * ENTRIES
    for each in (first, second):
        assert stage.run("cookie", "delete", each, "--yes")[0] == 0
    assert not any(stage.store.marks())
    assert not stage.store.locks()


def test_a_lost_bookie_is_decommissioned(healing: HealingStage) -> None:
    stage, victim = healing, healing.cluster.bookies[3].id
    ledgers = [stage.write(Quorum(3, 2, 2), with_bookie=victim) for _ in range(5)]
    stage.kill(victim)
    status, plan = stage.record("decommission", victim, "--dry-run")
    assert (status, [each["ledger"] for each in plan["ledgers"]]) == (0, ledgers)
    assert all(victim in stage.members(each) for each in ledgers)
    before = stage.versions()
    for refused, says in (
        (["nobody:3181"], "bookie nobody:3181 is unknown"),
        (["nobody:3181", "--dry-run"], "bookie nobody:3181 is unknown"),
        ([stage.others(victim)[0]], "is registered: it runs, or was killed a moment ago"),
        ([stage.others(victim)[0], "--dry-run"], "is registered: it runs, or was killed a moment ago"),
    ):
        status, printed = stage.run("decommission", *refused)
        assert (status, says in printed) == (1, True), printed
    assert stage.versions() == before
    # No audit was asked for, either.
    assert not any(stage.store.marks())
    status, printed = stage.run("decommission", victim, "--patience", "100")
    assert status == 0, printed
    assert printed == (
        f"no ledger names bookie {victim} any more: delete its cookie with bkctl cookie delete {victim}\n"
    )
    for ledger_id in ledgers:
        assert victim not in stage.members(ledger_id)
        assert stage.check_every_copy(ledger_id) == 2 * ENTRIES
    assert stage.run("cookie", "delete", victim, "--yes")[0] == 0

    # What cannot be repaired is named. The auditor is lost, too: its successor has to be asked again.
    auditor = AuditorElection(stage.zk, stage.uri.root).auditor()
    assert auditor is not None
    assert auditor.bookie_id is not None
    second = auditor.bookie_id
    lonely = stage.write(Quorum(1, 1, 1), with_bookie=second)
    wide = stage.write(Quorum(3, 3, 2))
    stage.kill(second)
    before = stage.versions()
    status, printed = stage.run("decommission", second)
    assert (status, f"ledger {wide} needs 3 for its write quorum" in printed) == (1, True)
    assert stage.versions() == before
    for ledger_id in (*ledgers, wide):
        stage.ledgers.delete(ledger_id)
    status, done = stage.record("decommission", second, "--patience", "100")
    assert status == 3
    (left,) = done["left"]
    assert left["ledger"] == lonely
    assert "entry 0: " in left["reason"]
