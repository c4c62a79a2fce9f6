"""Clients and logs, shared within one process.

Spark builds readers and writers many times, in several kinds of process, and ends these processes without running
exit handlers. Correctness must therefore never depend on anything kept here. The client starts a new ZooKeeper
session if one ends while a process is idle or suspended.

Log modules are imported on first use, because tasks that read entries only need a client.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyspark import TaskContext

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.connection.allocator import keep_freed_memory
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.datasource.options.client_choice import ClientChoice
from bk_spark.log.formats.settings import LogSettings

if TYPE_CHECKING:
    from bk_spark.log.log import Log
    from bk_spark.log.store import LogStore

#: Longer than the pause between two requests of one task. Starting a session takes milliseconds.
_TASK_SESSION_REST_MS: Final = 1_000
#: Each log keeps up to 131,072 decoded segments, of 64 bytes.
_MAX_LOGS: Final = 64

#: The settings of a client that none were given for.
_USUAL: Final = ClientChoice()

_T = TypeVar("_T")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One log of one cluster. A log that was deleted and created again has another place."""

    metadata_service_uri: str
    log_root: str
    name: str
    log_id: str
    #: The settings of the client.
    client: ClientChoice = _USUAL


class _Shared(Generic[_K, _T]):
    """One ``_T`` per key, made at first use. Keeps the ``limit`` most recently used. Making one does not block users
    of other keys."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._slots: OrderedDict[_K, _Slot[_T]] = OrderedDict()

    def get(self, key: _K, make: Callable[[], _T]) -> _T:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while self._limit is not None and len(self._slots) > self._limit:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.value is None:
                slot.value = make()
            return slot.value


class _Slot(Generic[_T]):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: _T | None = None


# A forked child does not have its parent's threads. The process id in the key makes it open its own connection.
_CLIENTS: Final[_Shared[tuple[int, str, ClientChoice, bool], BlockingClient]] = _Shared()
_ZOOKEEPERS: Final[_Shared[tuple[int, str, ClientChoice, bool], ZooKeeper]] = _Shared()
_LOGS: Final[_Shared[tuple[int, LogPlace, bytes], Log]] = _Shared(_MAX_LOGS)


def client_of(metadata_service_uri: str, choice: ClientChoice = _USUAL) -> BlockingClient:
    """Return the process's client of a cluster, connected at first use, with the settings of ``choice``.
    Raises MetadataUnavailableError, InvalidArgumentError.

    In a task the client closes its ZooKeeper session while idle: a host may run more tasks than the number of
    connections that ZooKeeper accepts from it. The process then keeps freed memory for the next entries.
    """
    in_task = TaskContext.get() is not None

    def connected() -> BlockingClient:
        config = choice.config()
        if in_task:
            config = replace(config, zk_session_rest_ms=_TASK_SESSION_REST_MS)
            keep_freed_memory()
        return BlockingClient(metadata_service_uri, config)

    return _CLIENTS.get((os.getpid(), metadata_service_uri, choice, in_task), connected)


def zookeeper_of(servers: str, choice: ClientChoice = _USUAL) -> ZooKeeper:
    """Return the process's session with a ZooKeeper that is not that of the bookies. Raises MetadataUnavailableError,
    InvalidArgumentError."""
    in_task = TaskContext.get() is not None

    def connected() -> ZooKeeper:
        config = choice.config()
        session = ZooKeeper(
            servers,
            session_timeout_ms=config.zk_session_timeout_ms,
            operation_timeout_ms=config.metadata_timeout_ms,
            rest_after_ms=_TASK_SESSION_REST_MS if in_task else config.zk_session_rest_ms,
            access=ZooKeeperAccess(config),
        )
        session.start(config.connect_timeout_ms)
        return session

    return _ZOOKEEPERS.get((os.getpid(), servers, choice, in_task), connected)


def logs_of(metadata_service_uri: str, log_root: str, choice: ClientChoice = _USUAL) -> LogStore:
    """Return the log store of a cluster."""
    from bk_spark.log.store import LogStore

    return LogStore.of(client_of(metadata_service_uri, choice), log_root)


def log_at(place: LogPlace, password: bytes, settings: LogSettings | None = None) -> Log:
    """Return the log at ``place``, with its ledgers. Reads ZooKeeper at first use, or never if the caller passes the
    log's ``settings``, of which only the schema may have grown since. A deleted log is only noticed when it is used.

    Raises NoSuchLogError, LogReplacedError, InvalidArgumentError if its ledgers are in another cluster,
    UnauthorizedError, MetadataUnavailableError.
    """

    def opened() -> Log:
        logs = logs_of(place.metadata_service_uri, place.log_root, place.client)
        if settings is None:
            return logs.open_log(place.name, log_id=place.log_id, password=password)
        return logs.known_log(place.name, place.log_id, settings, password)

    return _LOGS.get((os.getpid(), place, password), opened)
