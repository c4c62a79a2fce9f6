"""``bkctl ledger list``, ``ledger delete`` and ``simpletest`` on real bookies."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import InvalidArgumentError, NoSuchLedgerError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.registrations import kill_and_forget

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(metadata_service_uri: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        status = main(["--metadata-service-uri", metadata_service_uri, *arguments])
        printed, error = capsys.readouterr()
        return status, printed + error

    return run


def make(client: BlockingClient, entries: int, *, copies: int = 1, closed: bool = True) -> int:
    writer = client.create(quorum=Quorum(copies, copies, copies))
    for _ in range(entries):
        writer.append(b"x" * 10)
    if closed:
        writer.close()
    else:
        writer.flush()
        writer.abandon()
    return writer.ledger_id


def test_listing(cluster: LocalCluster, run: Run) -> None:
    with BlockingClient(cluster.metadata_service_uri) as client:
        made = [
            make(client, 3),
            make(client, 0),
            make(client, 2, closed=False),
            make(client, 3, copies=3),
        ]
        ensembles = {one: set(client.metadata(one).segments[0].ensemble) for one in made}
        client.zookeeper.create("/ledgers/00/9999/L9999", b"garbage", make_parents=True)
    try:
        status, printed = run("ledger", "list")
        ids = [int(line) for line in printed.splitlines()]
        assert status == 0
        assert ids == sorted(ids)
        assert {*made, 99999999} <= set(ids)
        records = {one["ledger"]: one for one in json.loads(run("ledger", "list", "--json")[1])}
        assert [*records] == ids
        assert records[made[0]] == {
            "ledger": made[0], "state": "CLOSED", "entries": 3, "length_bytes": 30, "segments": 1, "problem": None
        }  # fmt: skip
        assert [(records[one]["state"], records[one]["entries"]) for one in made[1:3]] == [
            ("CLOSED", 0),
            ("OPEN", None),
        ]
        assert records[99999999]["state"] is None
        assert records[99999999]["problem"]
        lines = {line.split("\t")[0]: line for line in run("ledger", "list", "--long")[1].splitlines()}
        assert lines[str(made[0])] == f"{made[0]}\tCLOSED\t3\t30\t1"
        assert lines[str(made[2])] == f"{made[2]}\tOPEN\t\t\t1"
        for bookie in cluster.bookies:
            listed = [one["ledger"] for one in json.loads(run("ledger", "list", "--json", "--bookie", bookie.id)[1])]
            assert {one for one in made if bookie.id in ensembles[one]} == set(made) & set(listed)
            # What cannot be read may name the bookie.
            assert 99999999 in listed
        status, printed = run("ledger", "list", "--state", "OPEN")
        assert str(made[2]) in printed.splitlines()
        assert str(made[0]) not in printed.splitlines()
        assert "bkctl: ledger 99999999: " in printed
    finally:
        with BlockingClient(cluster.metadata_service_uri) as client:
            client.delete(99999999)


@pytest.mark.parametrize("more", [(), ("--json",), ("--state", "OPEN")], ids=["ids", "json", "state"])
def test_a_bookie_with_a_typo_is_not_one_without_ledgers(
    cluster: LocalCluster, run: Run, more: tuple[str, ...]
) -> None:
    """An empty list would say that the bookie can go."""
    status, printed = run("ledger", "list", "--bookie", "bookie-17:3181", *more)
    assert status == 1
    assert printed.startswith("bkctl: bookie bookie-17:3181 is unknown: ")
    assert "no ledger names it" in printed


def test_deleting(cluster: LocalCluster, run: Run) -> None:
    with BlockingClient(cluster.metadata_service_uri) as client:
        first, second = make(client, 1), make(client, 1, closed=False)
        status, printed = run("ledger", "delete", str(first), "999999998", "--yes")
        assert (status, "ledger 999999998" in printed) == (1, True)
        status, printed = run("ledger", "delete", str(first), str(second))
        named = f"{first} (CLOSED), {second} (OPEN)"
        assert (status, f"ledgers {named} would be deleted with all their entries" in printed) == (1, True)
        status, printed = run("ledger", "delete", str(first), str(second), "--dry-run")
        assert (status, printed) == (0, f"would delete ledgers {named}\n")
        assert client.metadata(first)
        assert run("ledger", "delete", str(first), "--yes") == (0, f"deleted ledgers {first} (CLOSED)\n")
        assert json.loads(run("ledger", "delete", str(second), "--yes", "--json")[1]) == {
            "dry_run": False,
            "ledgers": [second],
        }
        for ledger_id in (first, second):
            with pytest.raises(NoSuchLedgerError):
                client.metadata(ledger_id)


def test_a_ledger_of_a_log_is_not_deleted(
    cluster: LocalCluster, run: Run, fresh_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--log-root", fresh_root, "log", "create", "events")[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert run("--log-root", fresh_root, "log", "append", "events")[0] == 0
    with BlockingClient(cluster.metadata_service_uri) as client:
        log = LogStore.of(client, fresh_root).open_log("events")
        (table,) = log.snapshot().tables(0, 1)
        (ledger_id,) = map(int, table.ledger_id)
        for arguments in (("--yes",), ("--dry-run",)):
            status, printed = run("ledger", "delete", str(ledger_id), *arguments)
            assert (status, f"ledger {ledger_id} belongs to log events" in printed) == (1, True)
        assert client.metadata(ledger_id)
        assert run("ledger", "delete", str(ledger_id), "--yes", "--force")[0] == 0


def test_the_names_of_apaches_shell_are_the_same_commands(cluster: LocalCluster, run: Run) -> None:
    with BlockingClient(cluster.metadata_service_uri) as client:
        made = [make(client, 3), make(client, 0, closed=False)]
    for ledger_id in map(str, made):
        for own, apaches in (("show", "ledgermetadata"), ("read", "readledger")):
            printed = run("ledger", own, ledger_id)
            assert run(apaches, ledger_id) == printed
            assert printed[0] == 0
            assert run(apaches, ledger_id, "--json") == run("ledger", own, ledger_id, "--json")
    assert run("readledger", str(made[0]), "--first", "1", "--last", "1") == (0, "x" * 10 + "\n")
    status, printed = run("listledgers", "--long", "--state", "OPEN")
    assert (status, f"{made[1]}\tOPEN\t" in printed) == (0, True)
    status, printed = run("deleteledger", *map(str, made))
    assert (status, "would be deleted with all their entries" in printed) == (1, True)
    status, printed = run("deleteledger", *map(str, made), "--yes")
    assert (status, printed) == (0, f"deleted ledgers {made[0]} (CLOSED), {made[1]} (OPEN)\n")
    status, printed = run("ledgermetadata", str(made[0]))
    assert (status, f"ledger {made[0]}" in printed) == (1, True)


def test_simpletest(cluster: LocalCluster, run: Run) -> None:
    before = run("ledger", "list")[1]
    status, printed = run("simpletest", "--entries", "2500")
    assert (status, printed.startswith("2500 entries written in ")) == (0, True)
    found = json.loads(run("simpletest", "--ensemble-size", "3", "--write-quorum-size", "3", "--json")[1])
    assert found["entries"] == 1000
    assert found["write_seconds"] > 0
    assert run("ledger", "list")[1] == before
    status, printed = run("simpletest", "--ensemble-size", "9")
    assert (status, "9" in printed) == (1, True)
    status, printed = run("simpletest", "--ack-quorum-size", "3")
    assert status == 1


def test_simpletest_deletes_its_ledger_when_it_fails(mended_cluster: LocalCluster, run: Run) -> None:
    before = run("ledger", "list")[1]
    down = mended_cluster.bookies[0]
    down.kill()
    status, _ = run("simpletest", "--ensemble-size", "3", "--write-quorum-size", "3", "--ack-quorum-size", "3")
    assert status == 1
    assert run("ledger", "list")[1] == before


def test_bookiesanity_tests_the_bookie_that_is_named_and_no_other(cluster: LocalCluster, run: Run) -> None:
    before = run("ledger", "list")[1]
    for bookie in cluster.bookies:
        status, printed = run("bookiesanity", bookie.id)
        assert (status, printed.startswith(f"bookie {bookie.id}: 10 entries written in ")) == (0, True), printed
        found = json.loads(run("bookiesanity", bookie.id, "--entries", "2500", "--timeout", "20", "--json")[1])
        assert (found["bookie"], found["entries"]) == (bookie.id, 2500)
        assert found["read_seconds"] > 0
    assert run("ledger", "list")[1] == before
    status, printed = run("bookiesanity", "127.0.0.1:1")
    assert (status, printed) == (1, "bkctl: bookie 127.0.0.1:1 is unknown. bkctl bookies lists all bookies\n")


def test_bookiesanity_of_a_bookie_that_does_not_serve(mended_cluster: LocalCluster, run: Run) -> None:
    """It is suspended: the writer would go on with another bookie, which proves nothing of this one."""
    before = run("ledger", "list")[1]
    bookie = mended_cluster.bookies[0]
    bookie.suspend()
    try:
        status, printed = run("bookiesanity", bookie.id, "--timeout", "1")
    finally:
        bookie.resume()
    assert status == 1
    assert f"bookie {bookie.id} did not store the entries" in printed
    assert run("ledger", "list")[1] == before
    kill_and_forget(mended_cluster, bookie)
    with BlockingClient(mended_cluster.metadata_service_uri) as client:
        while bookie.id in {one.bookie_id for one in client.bookies()}:
            time.sleep(0.1)
        status, printed = run("bookiesanity", bookie.id)
        assert (status, f"bookie {bookie.id} is not registered: it is down" in printed) == (1, True)
        client.zookeeper.create(f"/ledgers/available/readonly/{bookie.id}", ephemeral=True)
        status, printed = run("bookiesanity", bookie.id)
        assert (status, f"bookie {bookie.id} is read-only, so it takes no new ledger" in printed) == (1, True)


def test_ensembles_of_the_caller(cluster: LocalCluster) -> None:
    ids = sorted(bookie.id for bookie in cluster.bookies)
    with BlockingClient(cluster.metadata_service_uri) as client:
        for chosen in (ids[:2], ids[:0:-1]):
            writer = client.create(quorum=Quorum(2, 2, 2), ensemble=chosen)
            assert client.metadata(writer.ledger_id).segments[0].ensemble == tuple(chosen)
            writer.append(b"x")
            writer.close()
            client.delete(writer.ledger_id)
        for wrong in ([], ids[:1], ids, [ids[0], ids[0]]):
            with pytest.raises(InvalidArgumentError, match="ensemble must name 2 different bookies"):
                client.create(quorum=Quorum(2, 2, 2), ensemble=wrong)
