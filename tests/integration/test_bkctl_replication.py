"""``bkctl`` on under-replication: each command on a real ZooKeeper, and what it says when it must not go on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bk_spark.bkctl import main, replication
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import RecoveryDelay, ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.metadata.replication_notes import RepairFailure, reason_path
from bk_spark.protocol.metadata.under_replication import PeriodicCheck

B1, B2 = "b1:3181", "b2:3181"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(zookeeper: ZooKeeper, ledgers_root: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit status and output of a command; an error is one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["--metadata-service-uri", f"zk://{zookeeper.servers}{ledgers_root}", *arguments])
        printed, error = capsys.readouterr()
        assert (status in (1, 2)) == bool(error)
        assert len(error.splitlines()) == (status in (1, 2))
        zookeeper.sync("/")
        return status, printed + error

    return run


@pytest.fixture
def record(run: Run) -> Callable[..., Any]:
    """What a command prints with --json."""

    def record(*arguments: str) -> Any:
        status, printed = run(*arguments, "--json")
        assert status == 0
        return json.loads(printed)

    return record


@pytest.fixture
def store(zookeeper: ZooKeeper, ledgers_root: str) -> UnderReplicationStore:
    store = UnderReplicationStore(zookeeper, ledgers_root, wall_ms=lambda: 1_800_000_000_000)
    store.prepare()
    return store


def test_disable_and_enable(run: Run, record: Callable[..., Any], zookeeper: ZooKeeper, ledgers_root: str) -> None:
    switches = ReplicationSwitches(zookeeper, ledgers_root)
    assert run("autorecovery", "disable", "--dry-run") == (0, "autorecovery would be disabled\n")
    assert zookeeper.exists(f"{ledgers_root}/underreplication") is None
    assert run("autorecovery", "disable") == (0, "autorecovery is disabled\n")
    assert switches.is_disabled()
    assert run("autorecovery", "disable") == (0, "autorecovery is disabled already\n")
    assert record("autorecovery", "disable", "--dry-run") == {"dry_run": True, "enabled": False, "changed": False}
    assert record("autorecovery", "status")["enabled"] is False
    assert run("autorecovery", "enable", "--dry-run") == (0, "autorecovery would be enabled\n")
    assert switches.is_disabled()
    assert record("autorecovery", "enable") == {"dry_run": False, "enabled": True, "changed": True}
    assert not switches.is_disabled()
    assert run("autorecovery", "enable") == (0, "autorecovery is enabled already\n")


def test_status(
    run: Run,
    record: Callable[..., Any],
    store: UnderReplicationStore,
    ledgers_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("autorecovery", "status") == (
        0,
        "autorecovery  enabled\nauditor       no auditor is elected\n"
        "marked        0 ledgers\nlocked        0 ledgers\nunder repair  0 ledgers\n",
    )
    AuditorElection(store.zk, ledgers_root).vote(B1)
    store.mark(7, [B2])
    store.mark(8, [B2])
    proof = store.begin_worker("w")
    # What is locked and not marked is being collected.
    assert store.lock(7, proof=proof)
    assert store.lock(9, proof=proof)
    found = record("autorecovery", "status")
    (repairing,) = found.pop("repairing")
    assert found == {"enabled": True, "auditor": B1, "marked": 2, "marked_more": False, "locked": 2}
    assert repairing["ledger"] == 7
    assert int(repairing["session"], 16) == store.zk.session_id % 2**64
    status, printed = run("autorecovery", "status")
    assert status == 0
    monkeypatch.setattr(replication, "MAX_COUNTED_MARKS", 1)
    assert "marked        more than 1 ledgers\n" in run("autorecovery", "status")[1]
    assert re.search(r"^under repair  1 ledgers\nledger 7  by \S+ since \d{4}-\d\d-\d\dT\S+Z$", printed, re.MULTILINE)


def test_listing(run: Run, record: Callable[..., Any], store: UnderReplicationStore) -> None:
    assert run("listunderreplicated") == (0, "")
    assert record("listunderreplicated") == []
    store.mark(7, [B1])
    store.mark(8, [B2])
    store.mark(2**40, [B1, B2])
    store.zk.create(store.paths.mark(9), b"garbage", make_parents=True)
    store.zk.create(store.paths.mark(10), b"", make_parents=True)
    assert store.lock(8, proof=store.begin_worker("w"))
    found = record("listunderreplicated")
    holder = found[1]["lock"]["holder"]
    assert [(one["ledger"], one["missing"], bool(one["lock"])) for one in found] == [
        (7, [B1], False),
        (8, [B2], True),
        (9, [], False),
        (10, [], False),
        (2**40, [B1, B2], False),
    ]
    assert found[0] == {
        "ledger": 7,
        "missing": [B1],
        "marked_ms": 1_800_000_000_000,
        "problem": None,
        "lock": None,
        "failure": None,
    }
    assert "is not a mark" in found[2]["problem"]
    status, printed = run("listunderreplicated")
    lines = [line.split("\t") for line in printed.splitlines()]
    assert status == 0
    assert lines[0] == ["7", B1, "2027-01-15T08:00:00.000Z", "", ""]
    assert lines[1] == ["8", B2, "2027-01-15T08:00:00.000Z", holder, ""]
    assert lines[2][0] == "9"
    assert "is not a mark" in lines[2][1]
    assert lines[3] == ["10", "", "", "", ""]
    assert lines[4][:2] == [str(2**40), f"{B1},{B2}"]


def test_listing_by_bookie(
    run: Run, record: Callable[..., Any], store: UnderReplicationStore, zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    """The filters are Apache's: with both, both must hold."""
    for ledger_id, missing in ((1, [B1]), (2, [B2]), (3, [B1, B2]), (4, [])):
        store.mark(ledger_id, missing)

    def ids(*arguments: str) -> list[int]:
        return [one["ledger"] for one in record("listunderreplicated", *arguments)]

    assert ids("--missing", B1) == [1, 3]
    assert ids("--excluding", B1) == [2, 4]
    assert ids("--missing", B1, "--excluding", B2) == [1]
    for option in ("--missing", "--excluding"):
        assert run("listunderreplicated", option, "b3:3181") == (
            1,
            "bkctl: bookie b3:3181 is unknown: it has no cookie, is not registered, and no mark names it. "
            "bkctl bookies lists all bookies\n",
        )
    zookeeper.create(f"{ledgers_root}/cookies/b3:3181", b"", make_parents=True)
    assert ids("--missing", "b3:3181") == []
    assert run("listunderreplicated", "--count", "--missing", B1) == (0, "2\n")
    assert record("listunderreplicated", "--count") == {"count": 4}


def test_listing_says_why_a_ledger_could_not_be_repaired(
    run: Run, record: Callable[..., Any], store: UnderReplicationStore, ledgers_root: str
) -> None:
    for ledger_id in (1, 2, 3):
        store.mark(ledger_id, [B1])
    failure = RepairFailure("entry 5:\nall copies are lost", 3)
    store.zk.create(reason_path(ledgers_root, 2), failure.encode(), make_parents=True)
    store.zk.create(reason_path(ledgers_root, 3), b"from the future")
    found = {one["ledger"]: one["failure"] for one in record("listunderreplicated")}
    assert found[1] is None
    assert found[2] == {"reason": "entry 5:\nall copies are lost", "attempts": 3}
    assert "unknown format" in found[3]["reason"]
    lines = run("listunderreplicated")[1].splitlines()
    assert lines[1].endswith("\t\tentry 5: all copies are lost")
    assert len(lines) == 3


def test_the_auditor(run: Run, store: UnderReplicationStore, ledgers_root: str) -> None:
    assert run("whoisauditor") == (3, "no auditor is elected\n")
    election = AuditorElection(store.zk, ledgers_root)
    vote = election.vote(B1)
    assert run("whoisauditor") == (0, f"{B1}\n")
    store.zk.create(store.paths.vote_prefix, b'bookieId: "b2:3181"', sequence=True)
    status, printed = run("whoisauditor", "--json")
    assert (status, json.loads(printed)) == (0, {"auditor": B1, "candidates": [B1, B2]})
    election.withdraw(vote)
    assert run("whoisauditor") == (0, f"{B2}\n")


def test_an_audit_now(run: Run, store: UnderReplicationStore, ledgers_root: str) -> None:
    switches = ReplicationSwitches(store.zk, ledgers_root)
    status, printed = run("triggeraudit")
    assert (status, "no auditor is elected: start autorecovery" in printed) == (1, True)
    AuditorElection(store.zk, ledgers_root).vote(B1)
    switches.disable()
    status, printed = run("triggeraudit")
    assert (status, "bkctl autorecovery enable" in printed) == (1, True)
    switches.enable()
    switches.set_recovery_delay(60)
    assert run("triggeraudit", "--dry-run") == (0, f"the auditor of {B1} would be asked to look for lost bookies now\n")
    assert switches.recovery_delay() == RecoveryDelay(60, 0)
    assert run("triggeraudit") == (0, f"the auditor of {B1} was asked to look for lost bookies now\n")
    assert switches.recovery_delay() == RecoveryDelay(60, 1)
    status, printed = run("triggeraudit", "--json")
    assert json.loads(printed) == {"dry_run": False, "auditor": B1}


def test_the_delay(run: Run, record: Callable[..., Any], zookeeper: ZooKeeper, ledgers_root: str) -> None:
    assert run("lostbookierecoverydelay", "get") == (0, "not set: the auditor sets it from its configuration\n")
    assert record("lostbookierecoverydelay", "get") == {"seconds": None}
    assert "would be told to wait 30 s" in run("lostbookierecoverydelay", "set", "30", "--dry-run")[1]
    assert record("lostbookierecoverydelay", "get") == {"seconds": None}
    assert run("lostbookierecoverydelay", "set", "30") == (0, "the auditor is told to wait 30 s for a lost bookie\n")
    assert record("lostbookierecoverydelay", "set", "0") == {"dry_run": False, "seconds": 0, "seconds_before": 30}
    assert run("lostbookierecoverydelay", "get") == (0, "0\n")


def test_checks_at_once(run: Run, record: Callable[..., Any], zookeeper: ZooKeeper, ledgers_root: str) -> None:
    switches = ReplicationSwitches(zookeeper, ledgers_root)
    status, printed = run("forceauditchecks")
    assert (status, "give --all-ledgers, --placement-policy, --replicas" in printed) == (2, True)
    status, printed = run("forceauditchecks", "--replicas", "--dry-run")
    assert (status, printed) == (0, "the next auditor would do at its start: replicas\n")
    assert zookeeper.exists(f"{ledgers_root}/underreplication") is None
    for check in PeriodicCheck:
        switches.set_check_time_ms(check, 1_800_000_000_000)
    assert record("forceauditchecks", "--all-ledgers", "--replicas") == {
        "dry_run": False,
        "checks": ["all-ledgers", "replicas"],
    }
    assert [switches.check_time_ms(check) for check in PeriodicCheck] == [0, 1_800_000_000_000, 0]
    assert record("forceautorecoverychecks", "--placement-policy")["checks"] == ["placement-policy"]
    assert [switches.check_time_ms(check) for check in PeriodicCheck] == [0, 0, 0]
    assert record("queryautorecoverystatus") == record("autorecovery", "status")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lostbookierecoverydelay", "set", "-1"], "argument SECONDS"),
        (["lostbookierecoverydelay", "set", "2147483648"], "argument SECONDS: '2147483648' must be"),
        (["lostbookierecoverydelay", "set", "soon"], "argument SECONDS: 'soon' must be"),
        (["listunderreplicated", "--missing", "a/b"], "argument --missing: 'a/b' is not a bookie id"),
        (["cookie", "show", ".."], "argument BOOKIE: '..' is not a bookie id"),
        (["autorecovery", "pause"], "argument enable|disable|status"),
    ],
)
def test_wrong_command_lines(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--metadata-service-uri", "zk://localhost:1/ledgers", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [["autorecovery", "disable"], ["autorecovery", "status"], ["listunderreplicated"],
     ["lostbookierecoverydelay", "set", "5"]],
    ids=" ".join,
)  # fmt: skip
def test_a_layout_of_the_future_is_left_alone(
    run: Run, zookeeper: ZooKeeper, ledgers_root: str, command: list[str]
) -> None:
    path = f"{ledgers_root}/underreplication/LAYOUT"
    zookeeper.create(path, b'type: "NEW"\nversion: 2\n', make_parents=True)
    status, printed = run(*command)
    assert (status, "names the layout 'NEW' version 2" in printed) == (1, True)
    assert zookeeper.children(f"{ledgers_root}/underreplication") == ["LAYOUT"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["autorecovery", "enable"],
        ["autorecovery", "disable"],
        ["autorecovery", "status"],
        ["listunderreplicated"],
        ["whoisauditor"],
        ["triggeraudit"],
        ["forceauditchecks", "--all-ledgers"],
        ["lostbookierecoverydelay", "get"],
        ["lostbookierecoverydelay", "set", "5"],
        ["recover", B1],
        ["decommission", B1],
        ["decommission", B1, "--force"],
        ["cookie", "delete", B1, "--yes"],
        ["ledger", "delete", "1", "--yes"],
        ["ledger", "skip-ids", "5"],
    ],
    ids=" ".join,
)
def test_a_place_that_is_no_cluster_stays_as_it_is(
    zookeeper: ZooKeeper, fresh_root: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Somebody else's znodes, and a path that does not exist."""
    zookeeper.create(fresh_root, b"somebody's")
    before = zookeeper.exists(fresh_root)
    for root in (fresh_root, f"{fresh_root}/nowhere"):
        assert main(["--metadata-service-uri", f"zk://{zookeeper.servers}{root}", *arguments]) == 1
        printed, error = capsys.readouterr()
        assert not printed
        assert re.fullmatch(r"bkctl: no BookKeeper cluster at .*/LAYOUT does not exist; check the path.*\n", error)
    zookeeper.sync("/")
    assert zookeeper.children(fresh_root) == []
    assert zookeeper.exists(fresh_root) == before
