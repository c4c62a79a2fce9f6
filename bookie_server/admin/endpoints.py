"""The endpoints of the admin API: Apache's paths and JSON fields (compatibility.md §7.5), and some of our own.

Status 200 means that the request was carried out. Errors are ``{"error": "..."}``. A wrong method gets 405. Apache's
bookie usually answers 404.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from bookie_server.admin.actions import AdminActions, RefusedError
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
from bookie_server.gc.garbage_collector import MAJOR, MINOR, OPERATOR, CollectionRefusedError
from bookie_server.metrics.exposition import CONTENT_TYPE, exposition, process_exposition
from bookie_server.metrics.metrics import MetricsRegistry

_BOOKIE: Final = "/api/v1/bookie"
_JOURNAL, _ENTRY_LOG, _INDEX = "journal", "entrylog", "index"
#: Problems of the check of the data that an answer names.
_NAMED_PROBLEMS: Final = 100
_FILE_TYPES: Final = (_JOURNAL, _ENTRY_LOG, _INDEX)


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
        wanted = _flag(request.json_object(), "readOnly")
        if wanted is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, "readOnly is missing")
        try:
            await self._actions.set_read_only(wanted)
        except RefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None
        except OSError as error:
            mode = "read-only" if self._actions.state.read_only else "writable"
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"the bookie is {mode}, but this could not be saved for its next start; repeat the request: {error}",
            ) from None
        state = self._actions.state
        if state.read_only != wanted:
            reasons = "; ".join(f"{source}: {reason}" for source, reason in state.reasons.items())
            raise HttpError(HTTPStatus.CONFLICT, f"the bookie is still read-only: {reasons}")
        return await self.read_only(request)

    async def is_ready(self, _: Request) -> Response:
        if self._actions.running() and not self._actions.state.shutting_down:
            return text_response("OK")
        return text_response("Bookie is not fully started yet", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def info(self, _: Request) -> Response:
        found = self._actions.disk_space()
        if found is None:
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "the disks of the ledger directories cannot be read; GET /api/v1/bookie/reasons says why",
            )
        free, total = found
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
        problems = itertools.islice(progress.problems.items(), _NAMED_PROBLEMS)
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
        asked = request.parameters.get("file_type")
        if asked is not None and asked not in _FILE_TYPES:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"file_type must be one of {', '.join(_FILE_TYPES)}, not {asked!r}")
        directories = self._actions.directories
        where: dict[str, tuple[Sequence[str], str]] = {
            _JOURNAL: (self._actions.journal_directories, ".txn"),
            _ENTRY_LOG: (directories.paths, ".log"),
            _INDEX: (directories.index_paths, ".idx"),
        }
        types = [asked] if asked is not None else _FILE_TYPES
        found = await asyncio.to_thread(lambda: {f"{kind} files": _files(*where[kind]) for kind in types})
        return json_response(found)

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
        options = request.json_object() if request.body.strip() else {}
        major, minor = _flag(options, "forceMajor"), _flag(options, "forceMinor")
        try:
            self._actions.collection.force(major=major, minor=minor)
        except CollectionRefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None
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
        collection = self._actions.collection
        stopped = [_stopped(brake, brake.stopped) for brake in collection.brakes if brake.stopped is not None]
        return json_response({"problem": collection.status().problem, "stopped": stopped})

    async def release_brake(self, request: Request) -> Response:
        word = request.json_object().get("word")
        if not isinstance(word, str) or not word:
            raise HttpError(
                HTTPStatus.BAD_REQUEST, 'the word is missing; GET this path for the word, then PUT {"word": "…"}'
            )
        try:
            brake = self._actions.collection.release(word)
        except CollectionRefusedError as error:
            raise HttpError(HTTPStatus.CONFLICT, str(error)) from None
        assert brake.stopped is not None, "a released brake waits for the next pass"
        return json_response(_stopped(brake, brake.stopped))

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
        options = request.json_object()
        major, minor = _flag(options, f"{verb}Major"), _flag(options, f"{verb}Minor")
        if major is None and minor is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"No {verb}Major or {verb}Minor params found")
        collection, done = self._actions.collection, []
        if major:
            collection.suspend(MAJOR, OPERATOR, suspended)
            done.append(f"{verb.capitalize()} majorGC on BookieServer: {self._actions.bookie_id}")
        if minor:
            collection.suspend(MINOR, OPERATOR, suspended)
            done.append(f"{verb.capitalize()} minorGC on BookieServer: {self._actions.bookie_id}")
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


def _files(directories: Sequence[str], extension: str) -> str:
    """Return the names of the files, each followed by a tab."""
    names = [
        name
        for directory in directories
        for _, _, files in os.walk(directory, onerror=_raise)
        for name in files
        if name.endswith(extension)
    ]
    return "".join(f"{name}\t" for name in sorted(names))


def _raise(error: OSError) -> None:
    raise error
