"""Each side's commands on the other's bookies: Apache's shell on ours, ``bkctl`` on Apache's. They show the cluster,
make the copies of a lost bookie again, and take a bookie out. Then each entry is read from each bookie of its write
set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bkctl import main
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import ApacheBookie
from tests.interop.autorecovery import ApacheAutoRecovery, AutoRecovery, daemons_of
from tests.interop.java_client import JavaClient
from tests.interop.java_shell import JavaShell, Output
from tests.interop.repaired import ENTRIES, PASSWORD, cluster_of, payload

pytestmark = [pytest.mark.timeout(900), pytest.mark.turns(3)]

on_demand = pytest.mark.skipif("ROLLING_RING" not in os.environ, reason="on demand: make rolling")

#: Apache's command waits 30 s for the auditor, whatever there is to do, and then 3 s for each ledger that is left.
_DECOMMISSION_TIMEOUT_MS = 150_000
#: The auditor waits for bookies that are lost, unless it is asked.
_DAEMON_SETTINGS = {"lostBookieRecoveryDelay": "600"}


class ApachesShell:
    """Commands of Apache's shell for a cluster; each must succeed."""

    def __init__(self, process: JavaShell, conf: Path, uri: str) -> None:
        self._process, self._conf = process, conf
        keys = {"metadataServiceUri": uri, "passwd": PASSWORD.decode(), "allowLoopback": "true"}
        conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()), "utf-8")

    def __call__(self, *arguments: str) -> Output:
        output = self._process.run(self._conf, *arguments, timeout_ms=_DECOMMISSION_TIMEOUT_MS)
        assert output.status == 0, output.text
        return output


@pytest.fixture
def process() -> Iterator[JavaShell]:
    with JavaShell() as process:
        yield process


def test_apaches_shell_looks_and_recovers_on_our_bookies(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, process: JavaShell
) -> None:
    with (
        cluster_of([LocalBookie] * 4, tmp_path / "ours", zk_only, java_client, "/shell-recovers") as ours,
        daemons_of([AutoRecovery], tmp_path / "daemon", ours.uri, _DAEMON_SETTINGS),
    ):
        shell = ApachesShell(process, tmp_path / "shell.conf", ours.uri)
        ours.write()
        ours.wait_auditor()
        listed = shell("listbookies", "-rw", "-h").text
        assert all(str(bookie.port) in listed for bookie in ours.bookies.bookies)
        listed = shell("listledgers").text
        assert all(f"ledgerId={ledger_id}" in listed for ledger_id in ours.written)
        ledger_id = min(ours.written)
        assert "state=CLOSED" in shell("ledgermetadata", "-l", str(ledger_id)).text
        read = shell("readledger", "-m", "-l", str(ledger_id))
        assert read.printed() == [payload(entry_id).decode() for entry_id in range(ENTRIES)]
        assert not shell("listunderreplicated").records("Under-replicated ledger")
        assert "4100" in shell("whoisauditor").text
        shell("autorecovery", "-d")
        lost = ours.busiest(LocalBookie)
        ours.lose(lost)
        shell("recover", "-f", "-d", lost.id)
        assert lost.id not in ours.named | ours.cookies()
        shell("autorecovery", "-e")
        assert not list(ours.marks.marks())
        ours.assert_whole()


def test_bkctl_looks_recovers_and_decommissions_on_apaches_bookies(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, capsys: pytest.CaptureFixture[str]
) -> None:
    with cluster_of([ApacheBookie] * 5, tmp_path / "apaches", zk_only, java_client, "/bkctl-recovers") as apaches:

        def bkctl(*arguments: str) -> Any:
            capsys.readouterr()
            status = main(["--metadata-service-uri", apaches.uri, *arguments, "--json"])
            printed, error = capsys.readouterr()
            assert status == 0, printed + error
            return json.loads(printed) if printed else None

        apaches.write()
        shown = bkctl("bookies")
        assert {each["bookie"] for each in shown} == {each.id for each in apaches.bookies.bookies}
        assert {each["state"] for each in shown} == {"writable"}
        assert {each["ledger"] for each in bkctl("ledger", "list")} == set(apaches.written)
        lost = apaches.busiest(ApacheBookie)
        apaches.lose(lost)
        bkctl("recover", lost.id)
        bkctl("cookie", "delete", lost.id, "--yes")
        assert lost.id not in apaches.named | apaches.cookies()
        with daemons_of([ApacheAutoRecovery], tmp_path / "daemon", apaches.uri, _DAEMON_SETTINGS) as daemons:
            apaches.wait_auditor()
            assert bkctl("whoisauditor")["auditor"] == "127.0.0.1:4100"
            leaving = apaches.busiest(ApacheBookie)
            apaches.lose(leaving)
            assert bkctl("decommission", leaving.id)["left"] == []
            bkctl("cookie", "delete", leaving.id, "--yes")
            assert leaving.id not in apaches.named | apaches.cookies()
            apaches.wait_repaired(leaving.id, daemons)
        assert bkctl("listunderreplicated") == []
        apaches.assert_whole()


@on_demand
def test_apaches_decommissionbookie_on_our_bookies(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, process: JavaShell
) -> None:
    with (
        cluster_of([LocalBookie] * 4, tmp_path / "ours", zk_only, java_client, "/shell-decommissions") as ours,
        daemons_of([AutoRecovery], tmp_path / "daemon", ours.uri, _DAEMON_SETTINGS) as daemons,
    ):
        ours.write()
        ours.wait_auditor()
        leaving = ours.busiest(LocalBookie)
        ours.lose(leaving)
        ApachesShell(process, tmp_path / "shell.conf", ours.uri)("decommissionbookie", "-bookieid", leaving.id)
        assert leaving.id not in ours.named | ours.cookies()
        ours.wait_repaired(leaving.id, daemons)
        ours.assert_whole()
