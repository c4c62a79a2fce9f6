"""The service of administration: what the admin API offers by HTTP, with messages. Messages: admin.proto.

The rules are those of ``bookie_server/admin``. A call that takes long goes on when its caller has left: to end it could
leave its work half done.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.proto import admin_pb2 as pb
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.endpoints import NAMED_PROBLEMS
from bookie_server.admin.operations import BookieOperations
from bookie_server.admin.replication_operations import ReplicationOperations
from bookie_server.admin.routes import HttpError
from bookie_server.config.config import BookieConfig
from bookie_server.config.texts import texts_of
from bookie_server.gc.garbage_collector import MAJOR, MINOR
from bookie_server.net.grpc.access.admission import admit_operator
from bookie_server.net.grpc.calls import Call, Context, Stuck
from bookie_server.net.grpc.statuses import status_of, status_of_http
from bookie_server.net.native.shared import Shared

_LOG: Final = logging.getLogger(__name__)
#: Calls under way, also those whose callers have left.
_MAX_CALLS: Final = 32
_TIMEOUT_S: Final = 30.0
_IDS_IN_MESSAGE: Final = 10_000
_DISTRIBUTION: Final = "bk-spark"

_Q = TypeVar("_Q", bound=Message)


@dataclass(frozen=True, slots=True)
class Administration:
    """What the service works with.

    Parameters
    ----------
    config
        The bookie's configuration.
    tokens
        Those of the admin API.
    bookie, replication
        What operators may ask.
    overview
        Returns the cluster as JSON.
    """

    config: BookieConfig
    tokens: AdminAccess
    bookie: BookieOperations
    replication: ReplicationOperations
    overview: Callable[[], Awaitable[bytes]]


class AdminService:
    """Belongs to the event loop. ``shared`` and ``stuck`` bound the calls of all services."""

    name = "bk_spark.v1.Admin"

    def __init__(self, shared: Shared, stuck: Stuck, administration: Administration) -> None:
        self._shared, self._stuck = shared, stuck
        self._config, self._tokens = administration.config, administration.tokens
        self._bookie, self._replication = administration.bookie, administration.replication
        self._overview = administration.overview
        self._under_way: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End the calls whose callers have left."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def methods(self) -> dict[str, Any]:
        """Return the handlers of the service, by name."""
        return {
            "GetServer": self._unary(pb.GetServerRequest, self._server),
            "GetConfiguration": self._unary(pb.GetConfigurationRequest, self._configuration),
            "GetState": self._unary(pb.GetStateRequest, self._state),
            "SetReadOnly": self._unary(pb.SetReadOnlyRequest, self._set_read_only, changes=True),
            "GetDataCheck": self._unary(pb.GetDataCheckRequest, self._data_check),
            "GetDiskUsage": self._unary(pb.GetDiskUsageRequest, self._disk_usage),
            "ListLedgers": self._stream(pb.ListLedgersRequest, self._list_ledgers),
            "ListFiles": self._unary(pb.ListFilesRequest, self._files),
            "ListEntryLogs": self._stream(pb.ListEntryLogsRequest, self._entry_logs),
            "GetLastLogMarks": self._unary(pb.GetLastLogMarksRequest, self._last_log_marks),
            "GetGarbageCollection": self._unary(pb.GetGarbageCollectionRequest, self._collection),
            "CollectGarbage": self._unary(pb.CollectGarbageRequest, self._collect, changes=True),
            "SuspendCompaction": self._unary(pb.SuspendCompactionRequest, self._suspend, changes=True),
            "ResumeCompaction": self._unary(pb.ResumeCompactionRequest, self._resume, changes=True),
            "ReleaseCollection": self._unary(pb.ReleaseCollectionRequest, self._release, changes=True),
            "GetAutoRecovery": self._unary(pb.GetAutoRecoveryRequest, self._auto_recovery),
            "SetAutoRecovery": self._unary(pb.SetAutoRecoveryRequest, self._set_auto_recovery, changes=True),
            "SetLostBookieRecoveryDelay": self._unary(
                pb.SetLostBookieRecoveryDelayRequest, self._set_delay, changes=True
            ),
            "TriggerAudit": self._unary(pb.TriggerAuditRequest, self._trigger_audit, changes=True),
            "ListUnderReplicatedLedgers": self._stream(pb.ListUnderReplicatedLedgersRequest, self._under_replicated),
            "GetCluster": self._unary(pb.GetClusterRequest, self._cluster),
        }

    # --- the bookie --------------------------------------------------------------------------------

    async def _server(self, _: pb.GetServerRequest) -> pb.Server:
        config = self._config
        return pb.Server(
            bookie_id=config.bookie_id,
            version=importlib.metadata.version(_DISTRIBUTION),
            metadata_service_uri=str(config.metadata_service_uri),
            host=config.advertised_host,
            port=config.port,
            ledger_directories=config.ledger_directories,
            index_directories=config.index_directories,
            journal_directories=config.journal_directories,
        )

    async def _configuration(self, _: pb.GetConfigurationRequest) -> pb.Configuration:
        given = self._config.given
        return pb.Configuration(
            settings=[
                pb.Configuration.Setting(key=key, value=value, given=key in given)
                for key, value in texts_of(given).items()
            ]
        )

    async def _state(self, _: Message) -> pb.State:
        state = self._bookie.actions.state
        return pb.State(
            running=self._bookie.actions.running(),
            read_only=state.read_only,
            shutting_down=state.shutting_down,
            available_for_high_priority_writes=state.high_priority_adds,
            ready=self._bookie.is_ready,
            read_only_reasons=state.reasons,
            failed_directories=self._bookie.actions.directories.failures(),
            unclean_shutdown=state.unclean_start,
        )

    async def _set_read_only(self, request: pb.SetReadOnlyRequest) -> pb.State:
        _require(request, "read_only")
        await self._bookie.set_read_only(request.read_only)
        return await self._state(request)

    async def _data_check(self, _: pb.GetDataCheckRequest) -> pb.DataCheck:
        progress = self._bookie.actions.data_check()
        if progress is None:
            return pb.DataCheck()
        problems = itertools.islice(progress.problems.items(), NAMED_PROBLEMS)
        return pb.DataCheck(
            known=True,
            ledgers=progress.ledgers,
            in_limbo=progress.left,
            recovered=progress.recovered,
            copied_entries=progress.entries,
            copied_bytes=progress.size_bytes,
            failed=len(progress.problems),
            problems=[pb.DataCheck.Problem(ledger_id=ledger_id, reason=reason) for ledger_id, reason in problems],
        )

    # --- its disks ---------------------------------------------------------------------------------

    async def _disk_usage(self, _: pb.GetDiskUsageRequest) -> pb.DiskUsage:
        free, total = self._bookie.disk_space()
        return pb.DiskUsage(free_bytes=free, total_bytes=total)

    async def _list_ledgers(self, _: pb.ListLedgersRequest) -> Iterator[Message]:
        ids = await self._bookie.actions.local_ledgers()
        return (
            pb.LedgerIds(ledger_ids=ids[i : i + _IDS_IN_MESSAGE].tolist()) for i in range(0, len(ids), _IDS_IN_MESSAGE)
        )

    async def _files(self, request: pb.ListFilesRequest) -> pb.Files:
        found = await self._bookie.files(request.file_type or None)
        return pb.Files(by_type={kind: pb.Files.Names(names=names) for kind, names in found.items()})

    async def _entry_logs(self, _: pb.ListEntryLogsRequest) -> Iterator[Message]:
        return (
            pb.EntryLog(
                entry_log_id=log.entry_log_id,
                directory=log.directory,
                size_bytes=log.size_bytes,
                live_bytes=log.live_bytes if log.live_bytes >= 0 else None,
                usage=log.usage if log.usage >= 0 else None,
                reason=log.reason,
            )
            for log in await self._bookie.actions.collection.entry_logs()
        )

    async def _last_log_marks(self, _: pb.GetLastLogMarksRequest) -> pb.LastLogMarks:
        marks = self._bookie.actions.last_marks()
        return pb.LastLogMarks(
            marks=[pb.LastLogMarks.Mark(journal_id=mark.journal_id, offset=mark.offset) for mark in marks]
        )

    # --- its garbage collection --------------------------------------------------------------------

    async def _collection(self, _: Message) -> pb.GarbageCollection:
        collection = self._bookie.actions.collection
        status = collection.status()
        return pb.GarbageCollection(
            running=status.running,
            forced=status.forced,
            in_major_compaction=status.in_major,
            in_minor_compaction=status.in_minor,
            major_compactions=status.major_count,
            minor_compactions=status.minor_count,
            last_run_ms=status.last_run_ms,
            last_major_ms=status.last_major_ms,
            last_minor_ms=status.last_minor_ms,
            major_suspended=collection.is_suspended(MAJOR),
            minor_suspended=collection.is_suspended(MINOR),
            problem=status.problem,
            stopped=[
                pb.GarbageCollection.Stopped(
                    kind=brake.kind,
                    ledgers=len(stopped.ledgers),
                    held=stopped.held,
                    not_given=len(stopped.not_given),
                    counted_ms=stopped.counted_ms,
                    first=stopped.named,
                    word=stopped.word,
                    released=brake.released > 0,
                )
                for brake, stopped in self._bookie.stopped()
            ],
        )

    async def _collect(self, request: pb.CollectGarbageRequest) -> pb.GarbageCollection:
        self._bookie.collect(
            major=request.major if request.HasField("major") else None,
            minor=request.minor if request.HasField("minor") else None,
        )
        return await self._collection(request)

    async def _suspend(self, request: pb.SuspendCompactionRequest) -> pb.GarbageCollection:
        return await self._set_suspended(request, request.major, request.minor, True)

    async def _resume(self, request: pb.ResumeCompactionRequest) -> pb.GarbageCollection:
        return await self._set_suspended(request, request.major, request.minor, False)

    async def _set_suspended(self, request: Message, major: bool, minor: bool, suspended: bool) -> pb.GarbageCollection:
        if not major and not minor:
            raise _WrongRequestError("major or minor must be true")
        self._bookie.suspend(major=major, minor=minor, suspended=suspended)
        return await self._collection(request)

    async def _release(self, request: pb.ReleaseCollectionRequest) -> pb.GarbageCollection:
        self._bookie.release(request.word)
        return await self._collection(request)

    # --- self-healing, and the cluster -------------------------------------------------------------

    async def _auto_recovery(self, _: Message) -> pb.AutoRecovery:
        return pb.AutoRecovery(
            enabled=await self._replication.is_enabled(),
            auditor=await self._replication.auditor(),
            lost_bookie_recovery_delay_s=await self._replication.delay_s(),
        )

    async def _set_auto_recovery(self, request: pb.SetAutoRecoveryRequest) -> pb.AutoRecovery:
        _require(request, "enabled")
        await self._replication.set_enabled(request.enabled)
        return await self._auto_recovery(request)

    async def _set_delay(self, request: pb.SetLostBookieRecoveryDelayRequest) -> pb.AutoRecovery:
        _require(request, "seconds")
        await self._replication.set_delay(request.seconds)
        return await self._auto_recovery(request)

    async def _trigger_audit(self, request: pb.TriggerAuditRequest) -> pb.AutoRecovery:
        await self._replication.trigger_audit()
        return await self._auto_recovery(request)

    async def _under_replicated(self, request: pb.ListUnderReplicatedLedgersRequest) -> Iterator[Message]:
        found = await self._replication.marks(request.missing or None, request.not_missing or None)
        return (pb.UnderReplicatedLedger(ledger_id=ledger_id, missing=missing) for ledger_id, missing in found.items())

    async def _cluster(self, _: pb.GetClusterRequest) -> pb.Cluster:
        # Names of fields are those of the JSON.
        return json_format.Parse(await self._overview(), pb.Cluster(), ignore_unknown_fields=True)

    # --- calls -------------------------------------------------------------------------------------

    def _unary(self, kind: type[_Q], method: Callable[[_Q], Awaitable[Message]], *, changes: bool = False) -> Any:
        async def handle(data: bytes, context: Context) -> bytes:
            call = Call(self._shared, self._stuck, context)
            try:
                answer: Message = await self._answer(call, data, kind, method, changes)
                return answer.SerializeToString()
            finally:
                call.end()

        return grpc.unary_unary_rpc_method_handler(handle)

    def _stream(self, kind: type[_Q], method: Callable[[_Q], Awaitable[Iterable[Message]]]) -> Any:
        async def handle(data: bytes, context: Context) -> None:
            call = Call(self._shared, self._stuck, context)
            try:
                await call.check_room()
                for message in await self._answer(call, data, kind, method, changes=False):
                    await call.send(message.SerializeToString())
            finally:
                call.end()

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _answer(
        self, call: Call, data: bytes, kind: type[_Q], method: Callable[[_Q], Awaitable[Any]], changes: bool
    ) -> Any:
        """Return what ``method`` returns. An error ends the call with its status."""
        context, name = call.context, kind.DESCRIPTOR.name.removesuffix("Request")
        who = await admit_operator(self._shared, self._tokens, context, changes=changes)
        request = await call.parse(kind, data)
        if len(self._under_way) >= _MAX_CALLS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MAX_CALLS} calls of operators are under way")
        task = asyncio.ensure_future(_outcome(name, method, request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        done, _ = await asyncio.wait([task], timeout=_TIMEOUT_S)
        outcome = task.result() if done else _TOO_LATE
        if changes:
            status = outcome.status.name if isinstance(outcome, _Failure) else "OK"
            _LOG.info("changed by grpc: method=%s peer=%s by=%s status=%s", name, context.peer(), who, status)
        if isinstance(outcome, _Failure):
            await context.abort(outcome.status, outcome.text)
        return outcome


@dataclass(frozen=True, slots=True)
class _Failure:
    status: grpc.StatusCode
    text: str


_TOO_LATE: Final = _Failure(
    grpc.StatusCode.DEADLINE_EXCEEDED, f"not done within {_TIMEOUT_S:g} s; the request may still take effect"
)


class _WrongRequestError(Exception):
    """The request lacks something. The message says what."""


def _require(request: Message, field: str) -> None:
    if not request.HasField(field):
        raise _WrongRequestError(f"{field} is missing")


async def _outcome(name: str, method: Callable[[_Q], Awaitable[Any]], request: _Q) -> Any:
    try:
        return await method(request)
    except _WrongRequestError as error:
        return _Failure(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except HttpError as error:
        return _Failure(status_of_http(error.status), str(error))
    except BookKeeperError as error:
        return _Failure(status_of(error), error.message)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _LOG.error("a call of the administration failed: method=%s reason=%s", name, reason)
        return _Failure(grpc.StatusCode.INTERNAL, reason)
