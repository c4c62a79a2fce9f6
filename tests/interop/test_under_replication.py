"""Apache's marks, locks, votes and switches read by us, and ours by Apache's manager and shell."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import RecoveryDelay, ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.under_replication import PeriodicCheck
from tests.interop.java_client import JavaClient, JavaError
from tests.interop.java_shell import JavaShell, Output

B1, B2, B3 = "127.0.0.1:31831", "127.0.0.1:31832", "b3.example.org:3181"
IDS = [0, 7, 2**31, 0x123456789A, 2**63 - 1]


@dataclass
class Apaches:
    """Apache's manager of under-replication, in a session of its own."""

    java: JavaClient
    uri: str
    session: str

    def __call__(self, call: str, **arguments: Any) -> dict[str, Any]:
        return self.java.replication(self.uri, self.session, call, **arguments)

    def marks(self) -> dict[int, list[str]]:
        return {one["ledger_id"]: one["missing"] for one in self("list")["ledgers"]}


@pytest.fixture
def root(zookeeper: ZooKeeper) -> str:
    root = f"/under-replication-{uuid.uuid4().hex[:8]}"
    init_cluster(zookeeper, root)
    return root


@pytest.fixture
def uri(zookeeper: ZooKeeper, root: str) -> str:
    return f"zk+hierarchical://{zookeeper.servers}{root}"


@pytest.fixture
def apaches(java_client: JavaClient, uri: str) -> Iterator[Apaches]:
    apaches = Apaches(java_client, uri, uuid.uuid4().hex)
    # Opens the session.
    apaches("is_enabled")
    yield apaches
    java_client.end_replication(apaches.session)


@pytest.fixture
def ours(zookeeper: ZooKeeper, root: str) -> UnderReplicationStore:
    ours = UnderReplicationStore(zookeeper, root)
    ours.prepare()
    return ours


@pytest.fixture(scope="module")
def shell() -> Iterator[JavaShell]:
    with JavaShell() as shell:
        yield shell


@pytest.fixture
def run(shell: JavaShell, uri: str, tmp_path: Path) -> Callable[..., Output]:
    """A command of Apache's shell."""
    conf = tmp_path / "bk.conf"
    conf.write_text(f"metadataServiceUri={uri}\nallowLoopback=true\nadvertisedAddress=127.0.0.1\n", "utf-8")
    return lambda *args: shell.run(conf, *args)


def marks_of(ours: UnderReplicationStore) -> dict[int, list[str]]:
    ours.zk.sync("/")
    return {ledger_id: list(mark.missing) for page in ours.marks() for ledger_id, mark in page.items()}


def test_apache_lists_takes_and_finishes_our_marks(ours: UnderReplicationStore, apaches: Apaches) -> None:
    for ledger_id in IDS:
        ours.mark(ledger_id, [B1, B3])
    assert apaches.marks() == {key: [B1, B3] for key in IDS}
    listed = {one["ledger_id"]: one["ctime_ms"] for one in apaches("list")["ledgers"]}
    assert listed == {ledger_id: mark.ctime_ms for page in ours.marks() for ledger_id, mark in page.items()}
    taken = {apaches("poll")["ledger_id"] for _ in IDS}
    assert taken == set(IDS)
    assert apaches("poll")["ledger_id"] == -1
    proof = ours.begin_worker("w")
    ours.zk.sync("/")
    assert sorted(ours.locks()) == IDS
    assert all(lock.holder for lock in ours.locks().values())
    assert not any(ours.lock(ledger_id, proof=proof) for ledger_id in IDS)
    for ledger_id in IDS:
        apaches("finish", ledger_id=ledger_id)
    assert marks_of(ours) == {}
    assert ours.locks() == {}
    # Apache's deletes up to four empty directories.
    assert ours.zk.children(ours.paths.marks) == []


def test_we_list_take_and_finish_apaches_marks(ours: UnderReplicationStore, apaches: Apaches) -> None:
    for ledger_id in IDS:
        apaches("mark", ledger_id=ledger_id, missing=[B1])
        apaches("mark", ledger_id=ledger_id, missing=[B2, B1])
    assert marks_of(ours) == {key: [B1, B2] for key in IDS}
    proof = ours.begin_worker("w")
    for ledger_id in IDS:
        assert ours.lock(ledger_id, proof=proof)
        assert not apaches("acquire", ledger_id=ledger_id)["taken"]
        assert apaches("holder", ledger_id=ledger_id)["holder"] == ours.locks()[ledger_id].holder
    assert apaches("poll")["ledger_id"] == -1
    for ledger_id in IDS:
        mark = ours.read_mark(ledger_id)
        assert mark is not None
        assert ours.finish(ledger_id, mark.version, proof=proof)
    assert apaches.marks() == {}
    assert apaches("acquire", ledger_id=7)["taken"]


def test_marks_are_merged_by_both(ours: UnderReplicationStore, apaches: Apaches) -> None:
    ours.mark(7, [B1])
    apaches("mark", ledger_id=7, missing=[B2, B1])
    ours.mark(7, [B3, B2])
    assert apaches.marks() == marks_of(ours) == {7: [B1, B2, B3]}


@pytest.mark.parametrize("missing", [B1, B2], ids=["the same bookie", "another"])
def test_a_mark_of_ours_while_apaches_worker_repairs_stays(
    ours: UnderReplicationStore, apaches: Apaches, missing: str
) -> None:
    apaches("mark", ledger_id=7, missing=[B1])
    assert apaches("poll")["ledger_id"] == 7
    ours.mark(7, [missing])
    apaches("finish", ledger_id=7)
    assert list(marks_of(ours)) == [7]
    assert apaches("poll")["ledger_id"] == 7


def test_a_mark_of_apaches_while_our_worker_repairs_stays(ours: UnderReplicationStore, apaches: Apaches) -> None:
    ours.mark(7, [B1])
    proof = ours.begin_worker("w")
    assert ours.lock(7, proof=proof)
    mark = ours.read_mark(7)
    assert mark is not None
    apaches("mark", ledger_id=7, missing=[B2])
    assert not ours.finish(7, mark.version, proof=proof)
    assert marks_of(ours) == {7: [B1, B2]}


def test_switches_and_times(ours: UnderReplicationStore, apaches: Apaches, zookeeper: ZooKeeper, root: str) -> None:
    switches = ReplicationSwitches(zookeeper, root)
    assert apaches("is_enabled") == {"enabled": True}
    assert switches.disable()
    assert apaches("is_enabled") == {"enabled": False}
    with pytest.raises(JavaError):
        apaches("disable")
    apaches("enable")
    zookeeper.sync("/")
    assert not switches.is_disabled()
    apaches("disable")
    assert switches.enable()

    assert apaches("init_delay", value=60) == {"set": True}
    zookeeper.sync("/")
    assert switches.recovery_delay() == RecoveryDelay(60, 0)
    switches.set_recovery_delay(2**31 - 1)
    assert apaches("delay") == {"seconds": 2**31 - 1}
    assert apaches("init_delay", value=5) == {"set": False}
    switches.init_recovery_delay(5)
    apaches("set_delay", value=7)
    zookeeper.sync("/")
    assert switches.recovery_delay() == RecoveryDelay(7, 2)

    assert apaches("check_times") == {"times": [-1, -1, -1]}
    apaches("set_check_times", value=1_800_000_000_000)
    zookeeper.sync("/")
    times = [switches.check_time_ms(check) for check in PeriodicCheck]
    assert times == [1_800_000_000_000, 1_800_000_000_001, 1_800_000_000_002]
    for number, check in enumerate(PeriodicCheck):
        switches.set_check_time_ms(check, 5 - number)
    assert apaches("check_times") == {"times": [5, 4, 3]}


def test_one_election_of_both(
    ours: UnderReplicationStore, java_client: JavaClient, apaches: Apaches, uri: str, zookeeper: ZooKeeper, root: str
) -> None:
    election = AuditorElection(zookeeper, root)
    assert apaches("auditor") == {"bookie": None}
    mine = election.vote(B1)
    election.write_auditor(B1, proof=mine.path)
    assert apaches("auditor") == {"bookie": B1}
    candidate = Apaches(java_client, uri, uuid.uuid4().hex)
    candidate("is_enabled")
    # Waits for its turn.
    waiting = java_client.submit("replication", uri=uri, session=candidate.session, call="become_auditor", bookie=B2)
    while len(election.votes()) < 2:
        zookeeper.sync("/")
    assert not waiting.done()
    auditor = election.auditor()
    assert auditor is not None
    assert auditor.bookie_id == B1
    election.withdraw(mine)
    waiting.result(60)
    assert apaches("auditor") == {"bookie": B2}
    again = election.vote(B1)
    assert [vote.bookie_id for vote in election.votes()] == [B2, B1]
    java_client.end_replication(candidate.session)
    zookeeper.sync("/")
    assert election.votes() == [again]


def test_apaches_shell(
    ours: UnderReplicationStore, run: Callable[..., Output], zookeeper: ZooKeeper, root: str
) -> None:
    """On znodes of ours, the one for workers among them."""
    switches, election = ReplicationSwitches(zookeeper, root), AuditorElection(zookeeper, root)
    proof = ours.begin_worker("w")
    for ledger_id, missing in ((7, [B1]), (8, [B2]), (2**40, [B1, B2])):
        ours.mark(ledger_id, missing)
    assert ours.lock(8, proof=proof)

    def listed(*args: str) -> tuple[Output, list[int]]:
        output = run("listunderreplicated", *args)
        assert output.status == 0, output.text
        return output, [int(record.values["ledgerId"]) for record in output.records("Under-replicated ledger")]

    output, ids = listed("-pmr", "-prw")
    assert ids == [7, 8, 2**40]
    assert [record.values["missingReplica"] for record in output.records("Missing replica")] == [B1, B2, B1, B2]
    (worker,) = output.records("Replication worker")
    assert worker.values["replicationWorkerId"] == ours.locks()[8].holder
    assert listed("-mr", B1)[1] == [7, 2**40]
    assert listed("-mr", B1, "-emr", B2)[1] == [7]
    (count,) = listed("-c")[0].records("Under replicated ledger count")
    assert count.values == {"count": "3"}
    (recovering,) = run("queryautorecoverystatus").records("Recovering ledger")
    assert recovering.values == {"bookieId": worker.values["replicationWorkerId"], "ledgerId": "8"}

    assert run("whoisauditor").status != 0
    assert run("triggeraudit").status != 0
    election.write_auditor(B1, proof=election.vote(B1).path)
    output = run("whoisauditor")
    assert output.status == 0
    assert B1.rpartition(":")[2] in output.text

    assert run("lostbookierecoverydelay", "-s", "30").status == 0
    zookeeper.sync("/")
    assert switches.recovery_delay() == RecoveryDelay(30, 0)
    switches.set_recovery_delay(45)
    (delay,) = run("lostbookierecoverydelay", "-g").records("LostBookieRecoveryDelay value in ZK")
    assert delay.values == {"delay": "45"}
    assert run("triggeraudit").status == 0
    zookeeper.sync("/")
    assert switches.recovery_delay() == RecoveryDelay(45, 2)

    assert run("autorecovery", "-d").status == 0
    zookeeper.sync("/")
    assert switches.is_disabled()
    assert run("triggeraudit").status != 0
    assert run("autorecovery", "-e").status == 0
    zookeeper.sync("/")
    assert not switches.is_disabled()
    assert sorted(marks_of(ours)) == [7, 8, 2**40]


def test_bkctl_on_apaches_znodes(
    java_client: JavaClient, apaches: Apaches, uri: str, capsys: pytest.CaptureFixture[str], zookeeper: ZooKeeper
) -> None:
    def bkctl(*arguments: str) -> Any:
        zookeeper.sync("/")
        status = main(["--metadata-service-uri", uri, *arguments, "--json"])
        assert status == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    apaches("mark", ledger_id=7, missing=[B1, B2])
    apaches("mark", ledger_id=8, missing=[B2])
    assert apaches("acquire", ledger_id=8)["taken"]
    found = bkctl("listunderreplicated")
    assert [(one["ledger"], one["missing"], one["lock"] is None) for one in found] == [
        (7, [B1, B2], True),
        (8, [B2], False),
    ]
    assert all(one["marked_ms"] for one in found)
    assert [one["ledger"] for one in bkctl("listunderreplicated", "--missing", B1)] == [7]
    apaches("become_auditor", bookie=B1)
    assert bkctl("whoisauditor") == {"auditor": B1, "candidates": [B1]}
    status = bkctl("autorecovery", "status")
    assert (status["enabled"], status["auditor"], [one["ledger"] for one in status["repairing"]]) == (True, B1, [8])

    apaches("init_delay", value=60)
    assert bkctl("lostbookierecoverydelay", "get") == {"seconds": 60}
    bkctl("lostbookierecoverydelay", "set", "0")
    assert apaches("delay") == {"seconds": 0}
    bkctl("triggeraudit")
    assert apaches("delay") == {"seconds": 0}
    bkctl("forceauditchecks", "--all-ledgers", "--placement-policy", "--replicas")
    assert apaches("check_times") == {"times": [0, 0, 0]}
    assert bkctl("autorecovery", "disable")["changed"]
    assert apaches("is_enabled") == {"enabled": False}
    assert bkctl("autorecovery", "enable")["changed"]
    assert apaches("is_enabled") == {"enabled": True}


def test_cookies_and_the_cluster_by_both(
    run: Callable[..., Output], uri: str, zookeeper: ZooKeeper, root: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Apache's shell shows and deletes the cookie that ``bkctl`` made, and the other way round."""

    def bkctl(*arguments: str) -> str:
        zookeeper.sync("/")
        status = main(["--metadata-service-uri", uri, *arguments])
        assert status == 0, capsys.readouterr().err
        return capsys.readouterr().out

    instance_id = bkctl("whatisinstanceid").strip()
    assert instance_id in run("whatisinstanceid").text
    cookie = Cookie(B1, "/journal", encode_directories(["/l1", "/l2"]), instance_id)
    file = tmp_path / "VERSION"
    file.write_bytes(cookie.encode())
    bkctl("cookie", "create", B1, str(file))
    shown = run("cookie_get", B1)
    assert shown.status == 0, shown.text
    assert instance_id in shown.text
    assert run("cookie_delete", B1).status == 0
    zookeeper.sync("/")
    path = f"{root}/cookies/{B1}"
    assert zookeeper.exists(path) is None
    assert run("cookie_create", "-cf", str(file), B1).status == 0
    assert json.loads(bkctl("cookie", "show", B1, "--json"))["ledger_directories"] == ["/l1", "/l2"]
    bkctl("cookie", "delete", B1, "--yes")
    assert run("cookie_get", B1).status != 0
    # A cluster of ours exists for Apache's shell.
    assert run("initnewcluster").status != 0
