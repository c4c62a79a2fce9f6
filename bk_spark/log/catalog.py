"""Finds logs by name: their heads and settings in ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.formats.names import LogPaths, check_log_name, head_path, is_log_name, settings_path
from bk_spark.log.formats.settings import LogSettings, decode_settings
from bk_spark.log.formats.znodes import Head, decode_head
from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.metadata.znodes import Znode

_MAX_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log as it was found. Its deletion may have begun."""

    head: Head
    paths: LogPaths
    settings: LogSettings


class LogCatalog:
    """The logs below the znode ``root``. Each method sees every change that was acknowledged before the call.

    Methods raise MetadataUnavailableError if ZooKeeper does not answer.
    """

    def __init__(self, zk: ZooKeeper, root: str) -> None:
        self._zk = zk
        self._root = root

    def head(self, name: str) -> Head | None:
        """Return the head of a log, or None. Raises MetadataFormatError, and InvalidArgumentError for a wrong name."""
        path = head_path(self._root, check_log_name(name))
        znode = self._zk.get_latest(path)
        return None if znode is None else decode_head(znode.data, path)

    def find(self, name: str) -> FoundLog | None:
        """Return the log with this name, or None. Raises the errors of :meth:`head`."""
        for _ in range(_MAX_TRIES):
            head = self.head(name)
            if head is None:
                return None
            paths = LogPaths(self._root, name, head.log_id)
            found = _found(head, paths, self._zk.get(paths.settings))
            if found is not None:
                return found
            # The log was deleted, and perhaps created again, between the two reads.
        raise MetadataFormatError(f"log {name}: its settings {paths.settings} are missing, or of another log")

    def find_many(self, names: Sequence[str]) -> dict[str, FoundLog]:
        """Like :meth:`find` for each name, with one sync and pipelined reads. Leaves out logs that do not exist."""
        znodes = self._read(
            [path(self._root, check_log_name(name)) for name in names for path in (head_path, settings_path)]
        )
        logs = {}
        for name in names:
            path = head_path(self._root, name)
            znode = znodes[path]
            if znode is not None:
                head = decode_head(znode.data, path)
                paths = LogPaths(self._root, name, head.log_id)
                found = _found(head, paths, znodes[paths.settings]) or self.find(name)
                if found is not None:
                    logs[name] = found
        return logs

    def names(self, *, deleted: bool) -> list[str]:
        """Return the names of all logs, sorted. With ``deleted``, return those of logs whose deletion has begun."""
        self._zk.sync(self._root)
        names = sorted(filter(is_log_name, self._zk.children(self._root) or []))
        paths = [head_path(self._root, name) for name in names]
        znodes = self._zk.get_many(paths)
        return [
            name
            for name, path in zip(names, paths, strict=True)
            if (znode := znodes[path]) is not None and _is_deleted(znode.data, path) == deleted
        ]

    def _read(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        for _ in range(_MAX_TRIES):
            session = self._zk.session_id
            self._zk.sync(self._root)
            znodes = self._zk.get_many(paths)
            # The server of another session may be behind.
            if session and self._zk.session_id == session:
                return znodes
        raise MetadataUnavailableError(f"sessions with ZooKeeper ended {_MAX_TRIES} times while logs were opened")


def _found(head: Head, paths: LogPaths, znode: Znode | None) -> FoundLog | None:
    """Return the log, or None if the znode of settings is missing or of another log."""
    if znode is None:
        return None
    log_id, settings = decode_settings(znode.data, paths.settings)
    return FoundLog(head, paths, settings) if log_id == head.log_id else None


def _is_deleted(data: bytes, path: str) -> bool:
    try:
        return decode_head(data, path).deleted_time_ms != 0
    except MetadataFormatError:
        # One log of a newer release must not hide the others. Opening that log raises the error.
        return False
