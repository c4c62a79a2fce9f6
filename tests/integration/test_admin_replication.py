"""The admin API of self-healing, on a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bookie_server.admin import replication_operations
from bookie_server.admin.replication_endpoints import replication_routes
from bookie_server.admin.routes import HttpError, Request


class Api:
    def __init__(self, zookeeper: ZooKeeper, root: str) -> None:
        self.zk: ZooKeeper | None = zookeeper
        self.routes = replication_routes(lambda: self.zk, root)
        self.store = UnderReplicationStore(zookeeper, root)
        self.switches = ReplicationSwitches(zookeeper, root)
        self.election = AuditorElection(zookeeper, root)

    def ask(self, method: str, path: str, body: bytes = b"", **parameters: str) -> str:
        async def call() -> str:
            request = Request(method, path, parameters, body)
            return (await self.routes[f"/api/v1/autorecovery/{path}"][method](request)).content.decode()

        return asyncio.run(call())

    def json(self, method: str, path: str, **parameters: str) -> Any:
        return json.loads(self.ask(method, path, **parameters))

    def refused(self, method: str, path: str, body: bytes = b"", **parameters: str) -> tuple[int, str]:
        with pytest.raises(HttpError) as caught:
            self.ask(method, path, body, **parameters)
        return caught.value.status.value, str(caught.value)


@pytest.fixture
def api(zookeeper: ZooKeeper, ledgers_root: str) -> Api:
    return Api(zookeeper, ledgers_root)


def test_status_tells_and_sets_whether_ledgers_are_repaired(api: Api) -> None:
    assert api.json("GET", "status") == {"enabled": True}
    for _ in range(2):
        assert api.json("PUT", "status", enabled="false") == {"enabled": False}
        assert api.switches.is_disabled()
    assert api.json("GET", "status") == {"enabled": False}
    assert api.json("PUT", "status", enabled="true") == {"enabled": True}
    assert not api.switches.is_disabled()
    assert api.refused("PUT", "status", enabled="yes") == (400, "the parameter enabled must be true or false")
    assert api.refused("PUT", "status")[0] == 400


def test_the_auditor_is_named(api: Api) -> None:
    assert api.refused("GET", "who_is_auditor") == (404, "no auditor is elected")
    api.store.prepare()
    api.election.vote("b1:3181")
    assert api.ask("GET", "who_is_auditor") == "Auditor: b1:3181"


def test_marked_ledgers_are_listed_by_their_missing_bookies(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.json("GET", "list_under_replicated_ledger") == []
    api.store.prepare()
    for ledger_id, missing in ((1, ["b1:1"]), (2, ["b1:1", "b2:1"]), (70_000, ["b2:1"]), (3, [])):
        api.store.mark(ledger_id, missing)
    assert sorted(api.json("GET", "list_under_replicated_ledger")) == [1, 2, 3, 70_000]
    assert sorted(api.json("GET", "list_under_replicated_ledger", missingreplica="b1:1")) == [1, 2]
    assert sorted(api.json("GET", "list_under_replicated_ledger", excludingmissingreplica="b1:1")) == [3, 70_000]
    named = api.json(
        "GET",
        "list_under_replicated_ledger",
        missingreplica="b1:1",
        excludingmissingreplica="b2:1",
        printmissingreplica="true",
    )
    assert named == {"1": ["b1:1"]}
    monkeypatch.setattr(replication_operations, "_MAX_LISTED", 3)
    status, text = api.refused("GET", "list_under_replicated_ledger")
    assert (status, "bkctl listunderreplicated" in text) == (409, True)


def test_an_audit_is_triggered(api: Api) -> None:
    assert api.ask("PUT", "trigger_audit") == "Success trigger audit."
    before = api.switches.recovery_delay()
    assert before is not None
    assert api.ask("PUT", "trigger_audit") == "Success trigger audit."
    after = api.switches.recovery_delay()
    assert after is not None
    # The same delay in a new version is what asks the auditor.
    assert (after.seconds, after.version > before.version) == (before.seconds, True)


def test_the_delay_for_lost_bookies(api: Api) -> None:
    assert api.refused("GET", "lost_bookie_recovery_delay") == (404, "lostBookieRecoveryDelay was never set")
    assert api.ask("PUT", "lost_bookie_recovery_delay", b'{"delay_seconds": 60}').endswith(" to 60")
    assert api.ask("GET", "lost_bookie_recovery_delay") == "lostBookieRecoveryDelay value: 60"
    for body in (b"{}", b'{"delay_seconds": "60"}', b'{"delay_seconds": true}', b'{"delay_seconds": -1}'):
        assert api.refused("PUT", "lost_bookie_recovery_delay", body)[0] == 400
    assert api.ask("GET", "lost_bookie_recovery_delay") == "lostBookieRecoveryDelay value: 60"


def test_without_a_session_the_answer_is_not_now(api: Api) -> None:
    api.zk = None
    assert api.refused("GET", "status") == (503, "there is no session with ZooKeeper; try again")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    conf = tmp_path / "healer.conf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        conf.write_text(
            "metadataServiceUri=zk+hierarchical://127.0.0.1:1/ledgers\nallowLoopback=true\nbookieId=healer\n"
            f"httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort={port}\n",
            "utf-8",
        )
        command = [sys.executable, "-m", "bookie_server", "autorecovery", "--conf", str(conf)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "httpServerPort" in ended.stderr.splitlines()[-1]
