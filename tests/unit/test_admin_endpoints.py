"""The admin API's answers, by path, with Apache's field names; nothing is called done that was not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.protocol.arrays import Int64s
from bookie_server import state as states
from bookie_server.admin.actions import AdminActions, RefusedError
from bookie_server.admin.endpoints import admin_routes, metrics_routes
from bookie_server.admin.routes import HttpError, Request, Response
from bookie_server.gc.brake import CollectionBrake, CollectionBrakeLimits
from bookie_server.gc.collector_status import EntryLogStatus, GarbageCollectorStatus
from bookie_server.gc.garbage_collector import MAJOR, MINOR, CollectionRefusedError
from bookie_server.integrity.data_check import DataCheckProgress
from bookie_server.metrics.bookie_metrics import BookieMetrics
from bookie_server.state import BookieState
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.journal.log_mark import LogMark


class Collection:
    """Garbage collection as far as the API sees it."""

    def __init__(self) -> None:
        self.suspended: dict[str, set[str]] = {MINOR: set(), MAJOR: set()}
        self.forced: list[tuple[bool | None, bool | None]] = []
        self.refuses: str | None = None
        self.brakes = [CollectionBrake("deleted", CollectionBrakeLimits(0.5, 10), lambda: 1111)]

    def force(self, *, major: bool | None, minor: bool | None) -> None:
        if self.refuses is not None:
            raise CollectionRefusedError(self.refuses)
        self.forced.append((major, minor))

    def release(self, word: str) -> CollectionBrake:
        for brake in self.brakes:
            if brake.stopped is not None and brake.stopped.word == word:
                brake.release()
                return brake
        raise CollectionRefusedError(f"no collection waits for the word {word!r}")

    def suspend(self, compaction: str, by: str, suspended: bool) -> None:
        self.suspended[compaction] = self.suspended[compaction] - {by} | ({by} if suspended else set())

    def is_suspended(self, compaction: str) -> bool:
        return bool(self.suspended[compaction])

    def status(self) -> GarbageCollectorStatus:
        problem = "too many" if any(brake.stopped for brake in self.brakes) else ""
        return GarbageCollectorStatus(
            forced=bool(self.forced),
            in_minor=True,
            minor_count=4,
            major_count=3,
            last_minor_ms=2222,
            last_major_ms=1111,
            problem=problem,
        )

    async def entry_logs(self) -> Sequence[EntryLogStatus]:
        return [
            EntryLogStatus(7, "/a/current", 1000, 250, 0.249_999, "live 25%"),
            EntryLogStatus(8, "/b/current", 0, -1, -1.0, "being written"),
        ]


class Api:
    """The routes over a state, directories and a collection of its own."""

    def __init__(self, directory: Path) -> None:
        for name in ("journal", "ledgers/0/0", "index/1/2"):
            (directory / name).mkdir(parents=True)
        self.state = BookieState()
        self.collection = Collection()
        self.directories = LedgerDirectories([str(directory / "ledgers")], [str(directory / "index")])
        self.is_running = True
        self.cannot_keep: Exception | None = None
        self.metrics = BookieMetrics()
        self.data_check: DataCheckProgress | None = None
        actions = AdminActions(
            bookie_id="b:1",
            state=self.state,
            directories=self.directories,
            journal_directories=(str(directory / "journal"),),
            collection=self.collection,
            running=lambda: self.is_running,
            disk_space=self.disk_space,
            set_read_only=self.set_read_only,
            last_marks=lambda: [LogMark(255, 512), LogMark(16, 0)],
            data_check=lambda: self.data_check,
            local_ledgers=self.local_ledgers,
        )
        self.routes = {**admin_routes(actions), **metrics_routes(self.metrics.registry)}

    def disk_space(self) -> tuple[int, int] | None:
        return 10, 30

    async def local_ledgers(self) -> Int64s:
        return np.arange(2)

    async def set_read_only(self, wanted: bool) -> None:
        if wanted:
            self.state.set_read_only(states.MANUAL, "an operator asked for it")
        else:
            self.state.clear(states.MANUAL)
        if self.cannot_keep is not None:
            raise self.cannot_keep

    def ask(self, method: str, path: str, body: object = None, **parameters: str) -> Response:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

        async def call() -> Response:
            return await self.routes[path][method](Request(method, path, parameters, content))

        return asyncio.run(call())

    def get(self, path: str, **parameters: str) -> Any:
        return json.loads(self.ask("GET", "/api/v1/bookie/" + path, **parameters).content)

    def put(self, path: str, body: object = None) -> Any:
        return json.loads(self.ask("PUT", "/api/v1/bookie/" + path, body).content)

    def refused(self, path: str, body: object = None) -> tuple[int, str]:
        with pytest.raises(HttpError) as caught:
            self.ask("PUT", "/api/v1/bookie/" + path, body)
        return caught.value.status.value, str(caught.value)


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(tmp_path)


def test_heartbeat_and_readiness(api: Api) -> None:
    assert api.ask("*", "/heartbeat").content == b"OK\n"
    ready = api.ask("GET", "/api/v1/bookie/is_ready")
    assert (ready.status, ready.content) == (200, b"OK")
    api.state.set_read_only(states.DISK, "full")
    assert api.ask("GET", "/api/v1/bookie/is_ready").status == 200
    api.state.shutting_down = True
    ready = api.ask("GET", "/api/v1/bookie/is_ready")
    assert (ready.status, ready.content) == (503, b"Bookie is not fully started yet")
    api.state.shutting_down = False
    api.is_running = False
    assert api.ask("GET", "/api/v1/bookie/is_ready").status == 503


def test_state_and_reasons(api: Api) -> None:
    assert api.get("state") == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
    }
    assert api.get("reasons") == {"readOnly": {}, "directories": {}, "uncleanShutdown": False}
    api.state.set_read_only(states.JOURNAL, "No space left on device")
    api.state.unclean_start = True
    (directory,) = api.directories.paths
    api.directories.set_writable(directory, False, "used 97 %")
    assert api.get("state")["readOnly"] is True
    assert api.get("state")["availableForHighPriorityWrites"] is False
    assert api.get("reasons") == {
        "readOnly": {"journal": "No space left on device"},
        "directories": {directory: "used 97 %"},
        "uncleanShutdown": True,
    }
    assert api.get("info") == {"freeSpace": 10, "totalSpace": 30}


def test_the_check_of_ledgers_in_limbo(api: Api) -> None:
    assert api.get("data_check") == {"known": False}
    problems = dict.fromkeys(range(150), "entry 0: nobody has it")
    api.data_check = DataCheckProgress(200, 150, 3, 70, 7000, problems)
    found = api.get("data_check")
    assert found.pop("problems") == [{"ledger": number, "reason": "entry 0: nobody has it"} for number in range(100)]
    assert found == {
        "known": True,
        "ledgers": 200,
        "inLimbo": 150,
        "recovered": 3,
        "copiedEntries": 70,
        "copiedBytes": 7000,
        "failed": 150,
    }


def test_read_only_by_an_operator(api: Api) -> None:
    assert api.get("state/readonly") == {"readOnly": False}
    assert api.put("state/readonly", {"readOnly": True}) == {"readOnly": True}
    assert api.state.manually_read_only
    assert api.put("state/readonly", {"readOnly": True}) == {"readOnly": True}
    assert api.put("state/readonly", {"readOnly": False}) == {"readOnly": False}
    assert not api.state.read_only


def test_read_only_is_not_called_done_when_it_is_not(api: Api) -> None:
    api.cannot_keep = OSError(28, "No space left on device")
    status, message = api.refused("state/readonly", {"readOnly": True})
    assert status == 500
    assert "the bookie is read-only, but this could not be saved" in message
    assert "No space left on device" in message
    api.cannot_keep = RefusedError("readOnlyModeEnabled is false")
    assert api.refused("state/readonly", {"readOnly": True}) == (409, "readOnlyModeEnabled is false")
    api.cannot_keep = None
    api.state.set_read_only(states.DISK, "/a is full")
    assert api.refused("state/readonly", {"readOnly": False}) == (
        409,
        "the bookie is still read-only: disk: /a is full",
    )
    for body, says in (
        (b"", 'not JSON: send {"readOnly": true}'),
        ([True], 'JSON object: send {"readOnly": true}'),
        ({}, "readOnly is missing"),
        ({"readOnly": 1}, "true or false"),
        (b"[" * 50_000, "not JSON"),
    ):
        status, message = api.refused("state/readonly", body)
        assert (status, says in message) == (400, True), message


def test_garbage_collection(api: Api) -> None:
    assert api.get("gc") == {"is_in_force_gc": "false"}
    assert api.put("gc") == "Triggered GC on BookieServer: b:1"
    assert api.get("gc") == {"is_in_force_gc": "true"}
    api.put("gc", {"forceMajor": False})
    api.put("gc", {"forceMajor": "true", "forceMinor": False})
    assert api.collection.forced == [(None, None), (False, None), (True, False)]
    assert api.refused("gc", {"forceMajor": "yes"}) == (400, "forceMajor must be true or false")
    assert api.refused("gc", b"{")[0] == 400
    api.collection.refuses = "the bookie is shutting down"
    assert api.refused("gc") == (409, "the bookie is shutting down")
    assert len(api.collection.forced) == 3
    assert api.get("gc_details") == [
        {
            "forceCompacting": True,
            "majorCompacting": False,
            "minorCompacting": True,
            "lastMajorCompactionTime": 1111,
            "lastMinorCompactionTime": 2222,
            "lastEntryLocationCompactionTime": 0,
            "majorCompactionCounter": 3,
            "minorCompactionCounter": 4,
            "entryLocationCompactionCounter": 0,
        }
    ]


def test_g3_what_the_brake_stopped_is_told_and_released_by_its_word(api: Api) -> None:
    assert api.get("gc/brake") == {"problem": "", "stopped": []}
    (brake,) = api.collection.brakes
    stopped = brake.stops(np.arange(3, 151), 150)
    assert stopped is not None
    told = {
        "kind": "deleted",
        "ledgers": 148,
        "held": 150,
        "notGiven": 0,
        "countedTime": 1111,
        "first": list(range(3, 13)),
        "word": stopped.word,
        "released": False,
    }
    assert api.get("gc/brake") == {"problem": "too many", "stopped": [told]}
    assert api.put("gc/brake", {"word": stopped.word}) == {**told, "released": True}
    assert api.get("gc/brake")["stopped"] == [{**told, "released": True}]
    assert api.refused("gc/brake", {"word": "tea"}) == (409, "no collection waits for the word 'tea'")
    for body in ({}, {"word": ""}, {"word": 148}):
        status, why = api.refused("gc/brake", body)
        assert (status, "word is missing" in why) == (400, True)


def test_g4_the_ids_that_zookeeper_has_not_given_are_told_first(api: Api) -> None:
    (brake,) = api.collection.brakes
    assert brake.stops(np.array([*range(20), 1 << 62]), 1000, 20) is not None
    (told,) = api.get("gc/brake")["stopped"]
    assert (told["ledgers"], told["notGiven"], told["first"]) == (21, 1, [1 << 62, *range(9)])


def test_compaction_is_suspended_and_resumed(api: Api) -> None:
    suspend, resume = "gc/suspend_compaction", "gc/resume_compaction"
    assert api.get(suspend) == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    assert "majorGC" in api.put(suspend, {"suspendMajor": True})
    assert api.get(suspend) == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
    assert "minorGC" in api.put(suspend, {"suspendMajor": False, "suspendMinor": True})
    assert api.get(suspend) == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "true"}
    api.put(resume, {"resumeMajor": True, "resumeMinor": True})
    assert api.get(suspend) == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    assert api.refused(suspend, {"resumeMajor": True}) == (400, "No suspendMajor or suspendMinor params found")
    assert api.refused(resume, {}) == (400, "No resumeMajor or resumeMinor params found")


def test_files_and_marks(api: Api, tmp_path: Path) -> None:
    for name in ("journal/ff.txn", "journal/lastMark", "ledgers/1.log", "ledgers/0.log", "index/1/2/9.idx"):
        (tmp_path / name).touch()
    assert api.get("list_disk_file") == {
        "journal files": "ff.txn\t",
        "entrylog files": "0.log\t1.log\t",
        "index files": "9.idx\t",
    }
    assert api.get("list_disk_file", file_type="index") == {"index files": "9.idx\t"}
    with pytest.raises(HttpError, match="file_type must be one of"):
        api.get("list_disk_file", file_type="all")
    assert api.get("last_log_mark") == {
        "LastLogMark: Journal Id - 255(ff.txn)": "Pos - 512",
        "LastLogMark: Journal Id - 16(10.txn)": "Pos - 0",
    }
    (tmp_path / "journal").rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        api.get("list_disk_file", file_type="journal")


def test_entry_logs_and_why_they_stay(api: Api) -> None:
    assert api.get("entry_logs") == [
        {
            "entryLogId": 7,
            "directory": "/a/current",
            "bytes": 1000,
            "liveBytes": 250,
            "usage": 0.25,
            "reason": "live 25%",
        },
        {
            "entryLogId": 8,
            "directory": "/b/current",
            "bytes": 0,
            "liveBytes": None,
            "usage": None,
            "reason": "being written",
        },
    ]


def test_metrics(api: Api) -> None:
    api.metrics.registry.counter("bookie_WRITE_BYTES").add(77)
    api.metrics.gauge("bookie_SERVER_STATUS", lambda: 1)
    answer = api.ask("GET", "/metrics")
    lines = answer.content.decode().splitlines()
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert "bookie_WRITE_BYTES 77" in lines
    assert "bookie_SERVER_STATUS 1" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
    assert set(metrics_routes(api.metrics.registry)) == {"/metrics", "/heartbeat"}
