"""The admin API and the metrics of a real bookie process."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_spark.protocol.codes import Code
from bookie_server.local import LocalCluster
from tests.support.admin import BEARER, token_file
from tests.support.bookie import BookieProcess, free_port, stored

TIMEOUT_S = 60.0


class Admin:
    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        content = None if body is None else json.dumps(body).encode()
        headers = BEARER if method == "PUT" else {}
        request = urllib.request.Request(self.base + path, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def get(self, path: str) -> Any:
        status, content = self.ask("GET", "/api/v1/bookie/" + path)
        assert status == 200, content
        return json.loads(content)

    def put(self, path: str, body: object = None) -> tuple[int, Any]:
        status, content = self.ask("PUT", "/api/v1/bookie/" + path, body)
        return status, json.loads(content)

    def metrics(self) -> dict[str, float]:
        status, text = self.ask("GET", "/metrics")
        assert status == 200
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def bookie(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    process = BookieProcess(
        tmp_path / "bookie",
        f"zk+hierarchical://{zk_only.zookeepers[0].id}{ledgers_root}",
        httpServerEnabled="true",
        httpServerPort=str(free_port()),
        httpServerHost="127.0.0.1",
        httpServerTokenFile=token_file(tmp_path),
        persistBookieStatusEnabled="true",
        flushInterval="100",
    )
    yield process
    process.end()


@pytest.fixture
def admin(bookie: BookieProcess) -> Admin:
    bookie.start()
    return Admin(int(bookie.settings["httpServerPort"]))


def test_metrics_count_what_was_done(bookie: BookieProcess, admin: Admin) -> None:
    assert admin.ask("GET", "/heartbeat") == (200, "OK\n")
    before = admin.metrics()
    assert before["bookie_SERVER_STATUS"] == 1
    with bookie.connect() as connection:
        assert connection.add(1, range(5)) == [Code.OK] * 5
        assert connection.add(1, [5], key=b"x" * 20) == [Code.UNAUTHORIZED]
        assert connection.read(1, 4) == stored(1, 4)
        assert connection.fence(1) == stored(1, 4)
    after = admin.metrics()

    def grown(name: str) -> float:
        return after[name] - before[name]

    for name in ("ADD_ENTRY", "ADD_ENTRY_REQUEST"):
        assert grown(f'bookkeeper_server_{name}_count{{success="true"}}') == 5
        assert grown(f'bookkeeper_server_{name}_count{{success="false"}}') == 1
    assert grown('bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"}') == 1
    assert grown('bookkeeper_server_READ_ENTRY_FENCE_REQUEST_count{success="true"}') == 1
    journal = 'bookie_journal_JOURNAL_{}{{success="true", journalIndex="0"}}'
    assert grown(journal.format("ADD_ENTRY_count")) == 7  # five entries, the master key, the fence
    assert grown(journal.format("FORCE_WRITE_BATCH_ENTRIES_sum")) == 7
    entry_bytes = sum(len(stored(1, entry_id)) + 4 for entry_id in range(5))
    assert entry_bytes < grown('bookie_journal_JOURNAL_WRITE_BYTES{journalIndex="0"}') < entry_bytes + 500
    latency = after['bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="0.5"}']
    assert 0 < latency <= after['bookkeeper_server_ADD_ENTRY_REQUEST{success="true",quantile="1.0"}'] < 60_000
    assert after["bookkeeper_server_ADD_ENTRY_IN_PROGRESS"] == 0
    assert after["bookkeeper_server_ADD_ENTRY_REJECTED"] == 0
    assert after["process_resident_memory_bytes"] > 1 << 20
    admin.until(lambda: admin.metrics()['bookkeeper_server_loop_delay_count{success="true"}'] > 5)
    assert 0 <= admin.metrics()['bookkeeper_server_loop_delay{success="true",quantile="0.5"}'] < 60_000
    admin.until(lambda: admin.metrics()["bookie_flush_entries"] == 5)
    after = admin.metrics()
    assert after['bookie_flush_size_sum{success="true"}'] == entry_bytes
    assert after['bookie_flush{success="true",quantile="0.5"}'] > 0
    stored_bytes = entry_bytes - 5 * 4
    assert after["bookie_WRITE_BYTES"] == after['bookie_BOOKIE_ADD_ENTRY_BYTES_sum{success="true"}'] == stored_bytes
    assert after['bookie_BOOKIE_ADD_ENTRY_BYTES_count{success="true"}'] == 5
    assert after['bookie_BOOKIE_ADD_ENTRY_count{success="true"}'] == 5
    # One was read, another one as the last of a ledger that was fenced.
    assert after["bookie_READ_BYTES"] == len(stored(1, 4)) * 2
    assert after['bookie_BOOKIE_READ_ENTRY_BYTES_count{success="true"}'] == 2
    assert after["bookie_write_cache_hits"] + after["bookie_write_cache_misses"] == 2
    assert after["bookie_write_cache_count"] == 0


def test_a_bookie_that_repairs_shows_it(bookie: BookieProcess) -> None:
    bookie.settings |= {"autoRecoveryDaemonEnabled": "true", "zkTimeout": "4000"}
    bookie.start()
    admin = Admin(int(bookie.settings["httpServerPort"]))
    admin.until(lambda: admin.metrics().get("replication_auditor_elected") == 1)
    assert admin.metrics()["replication_replication_worker_NUM_ENTRIES_WRITTEN"] == 0
    status, answer = admin.ask("GET", "/api/v1/autorecovery/who_is_auditor")
    assert (status, answer.startswith("Auditor: ")) == (200, True)
    searches = 'replication_auditor_AUDIT_BOOKIES_TIME_count{success="true"}'
    admin.until(lambda: admin.metrics()[searches] == 1)
    assert admin.ask("PUT", "/api/v1/autorecovery/trigger_audit")[0] == 200
    admin.until(lambda: admin.metrics()[searches] == 2)


def test_read_only_by_hand(bookie: BookieProcess, admin: Admin) -> None:
    assert admin.put("state/readonly", {"readOnly": True}) == (200, {"readOnly": True})
    assert admin.get("state")["readOnly"] is True
    assert list(admin.get("reasons")["readOnly"]) == ["manual"]
    with bookie.connect() as connection:
        assert connection.add(1, range(3)) == [Code.READ_ONLY] * 3
        admin.until(lambda: admin.metrics()["bookie_SERVER_STATUS"] == 0)
        assert admin.ask("GET", "/api/v1/bookie/is_ready") == (200, "OK")
        assert bookie.stop() == 0
        assert any("SIGTERM" in line for line in bookie.lines)  # the log says who asked for the stop
    bookie.start()
    assert admin.get("state/readonly") == {"readOnly": True}
    status, answer = admin.put("state/readonly", {"readOnly": "perhaps"})
    assert (status, answer) == (400, {"error": "readOnly must be true or false"})
    assert admin.put("state/readonly", {"readOnly": False}) == (200, {"readOnly": False})
    with bookie.connect() as connection:
        assert connection.add(1, range(3)) == [Code.OK] * 3


def test_a_mode_that_cannot_be_kept_is_not_called_done(bookie: BookieProcess, admin: Admin) -> None:
    (bookie.directory / "ledgers" / "current" / "BOOKIE_STATUS").unlink(missing_ok=True)
    (bookie.directory / "ledgers" / "current" / "BOOKIE_STATUS").mkdir()
    status, answer = admin.put("state/readonly", {"readOnly": True})
    assert status == 500
    assert "could not be saved for its next start" in answer["error"]
    assert not any("Traceback" in line for line in bookie.lines)


def test_collection_by_hand_and_why_logs_stay(bookie: BookieProcess, admin: Admin) -> None:
    with bookie.connect() as connection:
        assert connection.add(7, range(20)) == [Code.OK] * 20
    admin.until(lambda: admin.metrics()["bookie_flush_entries"] == 20)
    (log,) = admin.get("entry_logs")
    assert log["entryLogId"] == 0
    assert log["directory"] == str(bookie.directory / "ledgers" / "current")
    assert log["bytes"] > sum(len(stored(7, entry_id)) for entry_id in range(20))
    assert log["reason"]
    assert admin.get("list_disk_file")["entrylog files"] == "0.log\t"
    assert admin.get("list_disk_file")["index files"] == "7.idx\t"
    (mark,) = admin.get("last_log_mark").items()
    assert mark[0].startswith("LastLogMark: Journal Id - ")
    (before,) = admin.get("gc_details")
    assert admin.put("gc", {"forceMajor": True, "forceMinor": False}) == (
        200,
        f"Triggered GC on BookieServer: {bookie.id}",
    )
    admin.until(lambda: admin.get("gc_details")[0]["majorCompactionCounter"] > before["majorCompactionCounter"])
    admin.until(lambda: admin.get("gc") == {"is_in_force_gc": "false"})
    # Ledger 7 is not in ZooKeeper, so the bookie has deleted it.
    admin.until(lambda: admin.get("list_disk_file")["index files"] == "")
    found, logs = admin.metrics(), admin.get("entry_logs")
    assert found["bookie_gc_ACTIVE_ENTRY_LOG_TOTAL"] == len(logs) == 1
    assert found["bookie_gc_ENTRY_LOG_SPACE_BYTES"] == logs[0]["bytes"]
    assert found["bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES"] == logs[0]["bytes"]  # what lives in it is not known
    assert found["bookie_gc_ACTIVE_LEDGER_TOTAL"] == 0
    assert admin.put("gc/suspend_compaction", {"suspendMajor": True})[0] == 200
    assert admin.get("gc/suspend_compaction") == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
    assert admin.put("gc/resume_compaction", {"resumeMajor": True})[0] == 200
    assert admin.get("gc/suspend_compaction") == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}


def test_an_unclean_shutdown_is_told(bookie: BookieProcess, admin: Admin) -> None:
    info = admin.get("info")
    assert 0 < info["freeSpace"] < info["totalSpace"]
    assert admin.get("reasons") == {"readOnly": {}, "directories": {}, "uncleanShutdown": False}
    bookie.crash()
    bookie.start()
    assert admin.get("reasons")["uncleanShutdown"] is True


def test_metrics_on_a_port_of_their_own(bookie: BookieProcess) -> None:
    bookie.settings |= {"httpServerEnabled": "false", "prometheusStatsHttpPort": str(free_port())}
    bookie.start()
    metrics = Admin(int(bookie.settings["prometheusStatsHttpPort"]))
    assert metrics.metrics()["bookie_SERVER_STATUS"] == 1
    status, content = metrics.ask("PUT", "/api/v1/bookie/gc")
    assert (status, json.loads(content)) == (404, {"error": "no endpoint at /api/v1/bookie/gc"})
