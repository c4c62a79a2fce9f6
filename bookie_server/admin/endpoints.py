"""The endpoints of the admin API: Apache's paths and JSON fields (compatibility.md §7.5), and some of our own.

Status 200 means that the request was carried out. Errors are ``{"error": "..."}``. A wrong method gets 405. Apache's
bookie usually answers 404.
"""

from __future__ import annotations

import asyncio
import itertools
from http import HTTPStatus
from typing import Final

from bookie_server.admin.actions import AdminActions
from bookie_server.admin.operations import BookieOperations
from bookie_server.admin.routes import (
    ANY_METHOD,
    HttpError,
    Request,
    Response,
    Routes,
    json_response,
    text_response,
)
from bookie_server.gc.brake import CollectionBrake, StoppedCollection
from bookie_server.gc.garbage_collector import MAJOR, MINOR
from bookie_server.metrics.exposition import CONTENT_TYPE, exposition, process_exposition
from bookie_server.metrics.metrics import MetricsRegistry

_BOOKIE: Final = "/api/v1/bookie"
#: Problems of the check of the data that an answer names.
NAMED_PROBLEMS: Final = 100


def metrics_routes(registry: MetricsRegistry) -> Routes:
    """Return only ``/metrics`` and ``/heartbeat``."""

    async def metrics(_: Request) -> Response:
        registry.sample_gauges()
        families = registry.families()
        text = await asyncio.to_thread(lambda: exposition(families) + process_exposition())
        return text_response(text, CONTENT_TYPE)

    return {**heartbeat_routes(), "/metrics": {"GET": metrics}}


def heartbeat_routes() -> Routes:
    """Return only ``/heartbeat``, which every server has."""
    return {"/heartbeat": {ANY_METHOD: _heartbeat}}


def admin_routes(actions: AdminActions) -> Routes:
    """Return the endpoints of a bookie, without ``/metrics``."""
    endpoints = _Endpoints(actions)
    return {
        f"{_BOOKIE}/state": {"GET": endpoints.state},
        f"{_BOOKIE}/state/readonly": {"GET": endpoints.read_only, "PUT": endpoints.set_read_only},
        f"{_BOOKIE}/is_ready": {"GET": endpoints.is_ready},
        f"{_BOOKIE}/info": {"GET": endpoints.info},
        f"{_BOOKIE}/last_log_mark": {"GET": endpoints.last_log_mark},
        f"{_BOOKIE}/list_disk_file": {"GET": endpoints.list_disk_file},
        f"{_BOOKIE}/gc": {"GET": endpoints.in_forced_gc, "PUT": endpoints.force_gc},
        f"{_BOOKIE}/gc_details": {"GET": endpoints.gc_details},
        f"{_BOOKIE}/gc/brake": {"GET": endpoints.brake, "PUT": endpoints.release_brake},
        f"{_BOOKIE}/gc/suspend_compaction": {"GET": endpoints.suspended, "PUT": endpoints.suspend},
        f"{_BOOKIE}/gc/resume_compaction": {"PUT": endpoints.resume},
        f"{_BOOKIE}/entry_logs": {"GET": endpoints.entry_logs},
        f"{_BOOKIE}/reasons": {"GET": endpoints.reasons},
        f"{_BOOKIE}/data_check": {"GET": endpoints.data_check},
    }


async def _heartbeat(_: Request) -> Response:
    return text_response("OK\n")


class _Endpoints:
    def __init__(self, actions: AdminActions) -> None:
        self._actions = actions
        self._operations = BookieOperations(actions)

    # --- state -------------------------------------------------------------------------------------

    async def state(self, _: Request) -> Response:
        state = self._actions.state
        return json_response(
            {
                "running": self._actions.running(),
                "readOnly": state.read_only,
                "shuttingDown": state.shutting_down,
                "availableForHighPriorityWrites": state.high_priority_adds,
            }
        )

    async def read_only(self, _: Request) -> Response:
        return json_response({"readOnly": self._actions.state.read_only})

    async def set_read_only(self, request: Request) -> Response:
        wanted = _flag(request.json_object('{"readOnly": true}'), "readOnly")
        if wanted is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, "readOnly is missing")
        await self._operations.set_read_only(wanted)
        return await self.read_only(request)

    async def is_ready(self, _: Request) -> Response:
        if self._operations.is_ready:
            return text_response("OK")
        return text_response("Bookie is not fully started yet", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def info(self, _: Request) -> Response:
        free, total = self._operations.disk_space()
        return json_response({"freeSpace": free, "totalSpace": total})

    async def reasons(self, _: Request) -> Response:
        state = self._actions.state
        return json_response(
            {
                "readOnly": state.reasons,
                "directories": self._actions.directories.failures(),
                "uncleanShutdown": state.unclean_start,
            }
        )

    async def data_check(self, _: Request) -> Response:
        progress = self._actions.data_check()
        if progress is None:
            return json_response({"known": False})
        problems = itertools.islice(progress.problems.items(), NAMED_PROBLEMS)
        return json_response(
            {
                "known": True,
                "ledgers": progress.ledgers,
                "inLimbo": progress.left,
                "recovered": progress.recovered,
                "copiedEntries": progress.entries,
                "copiedBytes": progress.size_bytes,
                "failed": len(progress.problems),
                "problems": [{"ledger": ledger_id, "reason": reason} for ledger_id, reason in problems],
            }
        )

    # --- files -------------------------------------------------------------------------------------

    async def last_log_mark(self, _: Request) -> Response:
        return json_response(
            {
                f"LastLogMark: Journal Id - {mark.journal_id}({mark.journal_id:x}.txn)": f"Pos - {mark.offset}"
                for mark in self._actions.last_marks()
            }
        )

    async def list_disk_file(self, request: Request) -> Response:
        found = await self._operations.files(request.parameters.get("file_type"))
        # Each name is followed by a tab.
        return json_response({f"{kind} files": "".join(f"{name}\t" for name in names) for kind, names in found.items()})

    async def entry_logs(self, _: Request) -> Response:
        logs = await self._actions.collection.entry_logs()
        return json_response(
            [
                {
                    "entryLogId": log.entry_log_id,
                    "directory": log.directory,
                    "bytes": log.size_bytes,
                    "liveBytes": log.live_bytes if log.live_bytes >= 0 else None,
                    "usage": round(log.usage, 4) if log.usage >= 0 else None,
                    "reason": log.reason,
                }
                for log in logs
            ]
        )

    # --- garbage collection ------------------------------------------------------------------------

    async def in_forced_gc(self, _: Request) -> Response:
        return json_response({"is_in_force_gc": _text(self._actions.collection.status().forced)})

    async def force_gc(self, request: Request) -> Response:
        options = request.json_object('{"forceMajor": true, "forceMinor": true}') if request.body.strip() else {}
        major, minor = _flag(options, "forceMajor"), _flag(options, "forceMinor")
        self._operations.collect(major=major, minor=minor)
        return json_response(f"Triggered GC on BookieServer: {self._actions.bookie_id}")

    async def gc_details(self, _: Request) -> Response:
        status = self._actions.collection.status()
        return json_response(
            [
                {
                    "forceCompacting": status.forced,
                    "majorCompacting": status.in_major,
                    "minorCompacting": status.in_minor,
                    "lastMajorCompactionTime": status.last_major_ms,
                    "lastMinorCompactionTime": status.last_minor_ms,
                    "lastEntryLocationCompactionTime": 0,
                    "majorCompactionCounter": status.major_count,
                    "minorCompactionCounter": status.minor_count,
                    "entryLocationCompactionCounter": 0,
                }
            ]
        )

    async def brake(self, _: Request) -> Response:
        stopped = [_stopped(*one) for one in self._operations.stopped()]
        return json_response({"problem": self._actions.collection.status().problem, "stopped": stopped})

    async def release_brake(self, request: Request) -> Response:
        word = request.json_object('{"word": "..."}, with the word that the stopped pass named').get("word")
        return json_response(_stopped(*self._operations.release(word)))

    async def suspended(self, _: Request) -> Response:
        collection = self._actions.collection
        return json_response(
            {
                "isMajorGcSuspended": _text(collection.is_suspended(MAJOR)),
                "isMinorGcSuspended": _text(collection.is_suspended(MINOR)),
            }
        )

    async def suspend(self, request: Request) -> Response:
        return self._set_suspended(request, "suspend", True)

    async def resume(self, request: Request) -> Response:
        return self._set_suspended(request, "resume", False)

    def _set_suspended(self, request: Request, verb: str, suspended: bool) -> Response:
        options = request.json_object(f'{{"{verb}Major": true, "{verb}Minor": true}}')
        major, minor = _flag(options, f"{verb}Major"), _flag(options, f"{verb}Minor")
        if major is None and minor is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"No {verb}Major or {verb}Minor params found")
        self._operations.suspend(major=bool(major), minor=bool(minor), suspended=suspended)
        names = [name for name, wanted in (("majorGC", major), ("minorGC", minor)) if wanted]
        done = [f"{verb.capitalize()} {name} on BookieServer: {self._actions.bookie_id}" for name in names]
        return json_response(", ".join(done))


def _stopped(brake: CollectionBrake, stopped: StoppedCollection) -> dict[str, object]:
    return {
        "kind": brake.kind,
        "ledgers": len(stopped.ledgers),
        "held": stopped.held,
        "notGiven": len(stopped.not_given),
        "countedTime": stopped.counted_ms,
        "first": stopped.named,
        "word": stopped.word,
        "released": brake.released > 0,
    }


def _flag(options: dict[str, object], name: str) -> bool | None:
    """Return a flag of a request's body, None if it is absent. ``"true"`` counts as true, as in Apache's bookie."""
    value = options.get(name)
    if value in ("true", "false"):
        return value == "true"
    if value is None or isinstance(value, bool):
        return value
    raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} must be true or false")


def _text(flag: bool) -> str:
    return "true" if flag else "false"
