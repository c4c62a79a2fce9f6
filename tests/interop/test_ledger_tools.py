"""Apache's shell and ``bkctl`` agree on the ledgers of our bookies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import NoSuchLedgerError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.interop.java_shell import JavaShell, Output
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms


@pytest.fixture(scope="module")
def shell() -> Iterator[JavaShell]:
    with JavaShell() as shell:
        yield shell


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own. Other tests leave ledgers that lost entries, and Apache's listing reads all ledgers."""
    with QuickCluster(
        tmp_path_factory.mktemp("tools"),
        bookies=3,
        bookie_settings=BOOKIE_SETTINGS,
        start_timeout_ms=start_timeout_ms(),
    ) as running:
        yield running


@pytest.fixture
def run(shell: JavaShell, cluster: LocalCluster, tmp_path: Path) -> Callable[..., Output]:
    conf = tmp_path / "bk.conf"
    uri = cluster.metadata_service_uri
    conf.write_text(f"metadataServiceUri={uri}\nallowLoopback=true\nadvertisedAddress=127.0.0.1\n", "utf-8")
    return lambda *args: shell.run(conf, *args)


def test_listing_and_deleting(
    run: Callable[..., Output], cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def bkctl(*arguments: str) -> list[int]:
        assert (
            main(["--metadata-service-uri", cluster.metadata_service_uri, "ledger", "list", "--json", *arguments]) == 0
        )
        return [one["ledger"] for one in json.loads(capsys.readouterr().out)]

    def apaches(*arguments: str) -> list[int]:
        output = run("listledgers", *arguments)
        assert output.status == 0, output.text
        found = [record.values for record in output.records_like("") if "ledgerId" in record.values]
        return sorted(int(values["ledgerId"]) for values in found)

    with BlockingClient(cluster.metadata_service_uri) as client:
        made = []
        for _ in range(3):
            writer = client.create(quorum=Quorum(1, 1, 1))
            writer.append(b"x")
            writer.close()
            made.append(writer.ledger_id)
        assert apaches() == bkctl()
        assert set(made) <= set(bkctl())
        for bookie in cluster.bookies:
            assert apaches("-bookieid", bookie.id) == bkctl("--bookie", bookie.id)
        shown = run("ledgermetadata", "-l", str(made[0]))
        assert shown.status == 0
        assert "state=CLOSED" in shown.text
        assert run("deleteledger", "-l", str(made[0]), "-f").status == 0
        with pytest.raises(NoSuchLedgerError):
            client.metadata(made[0])
        command = ["ledger", "delete", *map(str, made[1:]), "--yes"]
        assert main(["--metadata-service-uri", cluster.metadata_service_uri, *command]) == 0
        capsys.readouterr()
        assert run("ledgermetadata", "-l", str(made[1])).status != 0
        assert not set(made) & {*apaches(), *bkctl()}


def test_simpletest_of_apaches_leaves_no_ledger(
    run: Callable[..., Output], cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--metadata-service-uri", cluster.metadata_service_uri, "ledger", "list"]
    assert main(command) == 0
    before = capsys.readouterr().out
    assert run("simpletest", "-e", "3", "-w", "2", "-a", "2", "-n", "50").status == 0
    assert main(command) == 0
    assert capsys.readouterr().out == before
