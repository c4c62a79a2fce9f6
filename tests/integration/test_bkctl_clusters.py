"""``bkctl initnewcluster``, ``whatisinstanceid`` and ``cookie``, on a real ZooKeeper and a real bookie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from tests.support.bookie import BookieProcess

NAME = "b1:3181"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(zookeeper: ZooKeeper, fresh_root: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit status and output of a command for the cluster at ``fresh_root``; an error is one line."""

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["--metadata-service-uri", f"zk://{zookeeper.servers}{fresh_root}", *arguments])
        printed, error = capsys.readouterr()
        assert len(error.splitlines()) == (status == 1)
        zookeeper.sync("/")
        return status, printed + error

    return run


def test_a_new_cluster(run: Run, zookeeper: ZooKeeper, fresh_root: str) -> None:
    status, printed = run("whatisinstanceid")
    assert (status, "no BookKeeper cluster" in printed) == (1, True)
    status, printed = run("initnewcluster", "--dry-run")
    uri = f"zk://{zookeeper.servers}{fresh_root}"
    assert (status, printed) == (0, f"a new cluster would be created at {uri}, with the layout hierarchical\n")
    assert zookeeper.exists(fresh_root) is None
    status, printed = run("initnewcluster", "--json")
    made = json.loads(printed)
    instance_id = made.pop("instance_id")
    assert (status, made) == (0, {"dry_run": False, "uri": uri, "layout": "hierarchical"})
    assert run("whatisinstanceid") == (0, f"{instance_id}\n")
    assert json.loads(run("whatisinstanceid", "--json")[1]) == {"instance_id": instance_id}
    for arguments in ((), ("--dry-run",)):
        status, printed = run("initnewcluster", *arguments)
        assert (status, "already exists. It may belong to a cluster" in printed) == (1, True)
    assert run("whatisinstanceid") == (0, f"{instance_id}\n")


def test_a_new_cluster_with_a_layout(zookeeper: ZooKeeper, fresh_root: str, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"zk+longhierarchical://{zookeeper.servers}{fresh_root}"
    assert main(["--metadata-service-uri", uri, "initnewcluster"]) == 0
    assert capsys.readouterr().out.startswith(f"new cluster at {uri}, instance ")
    layout = zookeeper.get(f"{fresh_root}/LAYOUT")
    assert layout is not None
    assert b"LongHierarchicalLedgerManagerFactory" in layout.data


def test_a_new_cluster_needs_an_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("BK_METADATA_SERVICE_URI", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["initnewcluster"])
    assert ended.value.code == 2
    assert "where is the cluster?" in capsys.readouterr().err
    assert main(["--metadata-service-uri", "nonsense", "initnewcluster"]) == 1
    assert "is not of the form" in capsys.readouterr().err


def test_a_cluster_without_an_instance(run: Run, zookeeper: ZooKeeper, fresh_root: str) -> None:
    run("initnewcluster")
    zookeeper.delete(f"{fresh_root}/INSTANCEID")
    status, printed = run("whatisinstanceid")
    assert (status, f"{fresh_root}/INSTANCEID does not exist" in printed) == (1, True)


def test_the_cookie_of_a_bookie_that_runs_and_of_one_that_is_stopped(
    run: Run, zookeeper: ZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    run("initnewcluster")
    bookie = BookieProcess(tmp_path, f"zk://{zookeeper.servers}{fresh_root}")
    path = f"{fresh_root}/cookies/{bookie.id}"
    try:
        bookie.start()
        status, printed = run("cookie", "show", bookie.id)
        assert status == 0
        assert printed.startswith(f"bookie    {bookie.id}\njournals  {tmp_path}/")
        shown = json.loads(run("cookie", "show", bookie.id, "--json")[1])
        assert shown["bookie"] == bookie.id
        assert len(shown["ledger_directories"]) == 1
        assert shown["index_directories"] is None
        assert run("whatisinstanceid")[1] == shown["instance_id"] + "\n"
        status, printed = run("cookie", "delete", bookie.id, "--yes")
        assert (status, f"bookie {bookie.id} is registered: it runs" in printed) == (1, True)
        assert zookeeper.exists(path) is not None
        bookie.stop()
        # Without a terminal, nobody can be asked.
        status, printed = run("cookie", "delete", bookie.id)
        assert (status, "give --yes to do so" in printed) == (1, True)
        assert run("cookie", "delete", bookie.id, "--dry-run") == (
            0,
            f"would delete the cookie of bookie {bookie.id}\n",
        )
        before = zookeeper.get(path)
        assert before is not None
        assert run("cookie", "delete", bookie.id, "--yes") == (0, f"deleted the cookie of bookie {bookie.id}\n")
        assert zookeeper.exists(path) is None
        assert run("cookie", "delete", bookie.id, "--yes")[0] == 1
        # From its own file it is made again as it was, and the bookie starts.
        (stamp,) = [file for file in tmp_path.rglob("VERSION") if "journal" in str(file)]
        assert run("cookie", "create", bookie.id, str(stamp), "--dry-run")[0] == 0
        assert zookeeper.exists(path) is None
        assert run("cookie", "create", bookie.id, str(stamp)) == (0, f"created the cookie of bookie {bookie.id}\n")
        after = zookeeper.get(path)
        assert after is not None
        assert after.data == before.data
        bookie.start()
        status, printed = run("cookie", "delete", bookie.id, "--yes", "--force", "--json")
        assert (status, json.loads(printed)) == (0, {"dry_run": False, "bookie": bookie.id, "registered": True})
        assert zookeeper.exists(path) is None
    finally:
        bookie.end()


@pytest.mark.parametrize("place", ["available", "available/readonly"])
def test_a_bookie_is_registered_in_either_place(run: Run, zookeeper: ZooKeeper, fresh_root: str, place: str) -> None:
    run("initnewcluster")
    zookeeper.create(f"{fresh_root}/cookies/{NAME}", Cookie(NAME, "/j", "1\t/l").encode(), make_parents=True)
    zookeeper.create(f"{fresh_root}/{place}/{NAME}", ephemeral=True)
    for arguments in (("--yes",), ("--dry-run",)):
        status, printed = run("cookie", "delete", NAME, *arguments)
        assert (status, "is registered" in printed) == (1, True)


def test_the_cookie_of_a_bookie_that_ledgers_name_stays(run: Run, zookeeper: ZooKeeper, fresh_root: str) -> None:
    """Without it the bookie could start with empty disks, and would deny entries that it had acknowledged."""
    run("initnewcluster")
    path = f"{fresh_root}/cookies/{NAME}"
    zookeeper.create(path, Cookie(NAME, "/j", "1\t/l").encode(), make_parents=True)
    store = LedgerStore(zookeeper, MetadataServiceUri.parse(f"zk://{zookeeper.servers}{fresh_root}"))
    quorum = Quorum(1, 1, 1)
    metadata = LedgerMetadata(quorum, segments=(Segment(0, (NAME,)),), digest_type=DigestType.CRC32C)
    ledger_id, _ = store.create(metadata)
    for arguments in (("--yes",), ("--dry-run",)):
        status, printed = run("cookie", "delete", NAME, *arguments)
        assert (status, f"1 ledgers name bookie {NAME} (the first is {ledger_id})" in printed) == (1, True), printed
        assert f"bkctl recover {NAME}" in printed
    zookeeper.create(f"{fresh_root}/00/9999/L9999", b"garbage", make_parents=True)
    store.delete(ledger_id)
    status, printed = run("cookie", "delete", NAME, "--yes")
    assert (status, "metadata of 1 ledgers cannot be read (the first is 99999999)" in printed) == (1, True), printed
    assert zookeeper.exists(path) is not None
    assert run("cookie", "delete", NAME, "--yes", "--force")[0] == 0
    assert zookeeper.exists(path) is None


def test_a_cookie_that_is_not_there(run: Run) -> None:
    run("initnewcluster")
    for command in ("show", "delete"):
        status, printed = run("cookie", command, NAME)
        assert (status, f"bookie {NAME} has no cookie" in printed) == (1, True)


def test_only_a_bookies_own_cookie_is_created(run: Run, zookeeper: ZooKeeper, fresh_root: str, tmp_path: Path) -> None:
    run("initnewcluster")
    instance_id = run("whatisinstanceid")[1].strip()
    file = tmp_path / "VERSION"
    directories = encode_directories(["/l1", "/l2"])
    for content, says in (
        (None, "cannot be read"),
        (b"7\n", "is a cookie of version 7"),
        (Cookie("b2:3181", "/j", directories, instance_id).encode(), "is the cookie of b2:3181, not of b1:3181"),
        (
            Cookie(NAME, "/j", directories, "other").encode(),
            f"belongs to the cluster other, and this one is {instance_id}",
        ),
    ):
        if content is not None:
            file.write_bytes(content)
        status, printed = run("cookie", "create", NAME, str(file))
        assert (status, says in printed) == (1, True), printed
    assert zookeeper.exists(f"{fresh_root}/cookies/{NAME}") is None
    file.write_bytes(Cookie(NAME, "/j1,/j2", directories, instance_id, encode_directories(["/i"])).encode())
    status, printed = run("cookie", "create", NAME, str(file), "--json")
    made = {
        "bookie": NAME,
        "journal_directories": ["/j1", "/j2"],
        "ledger_directories": ["/l1", "/l2"],
        "index_directories": ["/i"],
        "instance_id": instance_id,
    }
    assert (status, json.loads(printed)) == (0, {"dry_run": False} | made)
    assert json.loads(run("cookie", "show", NAME, "--json")[1]) == made
    assert run("cookie", "show", NAME)[1].splitlines()[2:4] == ["ledgers   /l1,/l2", "index     /i"]
    for arguments in ((), ("--dry-run",)):
        status, printed = run("cookie", "create", NAME, str(file), *arguments)
        assert (status, f"bookie {NAME} has a cookie already" in printed) == (1, True)
