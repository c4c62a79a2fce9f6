"""All logs under one root in ZooKeeper."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.zookeeper import CreateOp, TransactionConflictError, ZooKeeper
from bk_spark.log.formats import Head, decode_head, encode_head
from bk_spark.log.ledgers import LogLedgers
from bk_spark.log.log import Log
from bk_spark.log.names import DEFAULT_ROOT, LogPaths, check_log_name, check_root, head_path, is_log_name
from bk_spark.log.page import SegmentPage, encode_page
from bk_spark.log.segment import SegmentTable
from bk_spark.log.settings import LogSettings, decode_settings, encode_settings
from bk_spark.protocol.errors import (
    LogExistsError,
    LogReplacedError,
    MetadataFormatError,
    NoSuchLogError,
    OutcomeUnknownError,
)

_MAX_TRIES: Final = 5


def unix_time_ms() -> int:
    return time.time_ns() // 1_000_000


class LogStore:
    """Makes, finds and opens logs. Thread-safe; ``zk`` and ``client`` are shared and stay the caller's to close.

    Without ``client`` the ledgers of logs are out of reach: no log writers or readers, no maintenance.

    Examples
    --------
    >>> store = LogStore(zk)  # doctest: +SKIP
    >>> log = store.create_log("flights", LogSettings.create(quorum, digest_type, EntryFormat.RAW, b"secret"))
    ... # doctest: +SKIP
    >>> [segment.rows for segment in log.snapshot().segments()]  # doctest: +SKIP
    []
    """

    def __init__(
        self,
        zk: ZooKeeper,
        root: str = DEFAULT_ROOT,
        *,
        client: BlockingClient | None = None,
        now_ms: Callable[[], int] = unix_time_ms,
    ) -> None:
        self.root = check_root(root)
        self._zk = zk
        self._client = client
        self._now_ms = now_ms

    @classmethod
    def of(cls, client: BlockingClient, root: str = DEFAULT_ROOT) -> LogStore:
        """Logs and their ledgers through one client."""
        return cls(client.zookeeper, root, client=client)

    def create_log(self, name: str, settings: LogSettings, password: bytes | None = None) -> Log:
        """Make an empty log; ``password`` as in :meth:`open_log`.

        Raises LogExistsError, InvalidArgumentError for a name no log can have, UnauthorizedError for another
        password than that in ``settings``.
        """
        check_log_name(name)
        ledgers = self._ledgers(name, settings, password)
        paths = LogPaths(self.root, name, str(uuid.uuid4()))
        operations = [
            CreateOp(paths.head, encode_head(Head(paths.log_id))),
            CreateOp(paths.identity),
            CreateOp(paths.settings, encode_settings(paths.log_id, settings)),
            CreateOp(paths.pages),
            CreateOp(paths.page(0), encode_page(SegmentPage(paths.log_id, 0, 0, SegmentTable.of(())))),
            CreateOp(paths.apps),
            CreateOp(paths.ledgers),
        ]
        for _ in range(_MAX_TRIES):
            self._zk.ensure_path(self.root)
            try:
                self._zk.transaction(operations)
            except (OutcomeUnknownError, TransactionConflictError):
                self._zk.sync(paths.head)
                znode = self._zk.get(paths.head)
                if znode is None:
                    continue
                if decode_head(znode.data, paths.head).log_id != paths.log_id:
                    raise LogExistsError(f"log {name} exists already (znode {paths.head})") from None
            return Log(self._zk, paths, settings, self._now_ms, ledgers)
        raise OutcomeUnknownError(f"log {name} may or may not have been made: look whether it exists")

    def open_log(self, name: str, *, log_id: str | None = None, password: bytes | None = None) -> Log:
        """The log ``name``; with ``log_id`` only if it is that log. With ``password`` its ledgers are within reach.

        Raises NoSuchLogError, LogReplacedError (another id), UnauthorizedError (wrong password),
        MetadataFormatError.
        """
        check_log_name(name)
        path = head_path(self.root, name)
        self._zk.sync(path)
        for _ in range(_MAX_TRIES):
            znode = self._zk.get(path)
            if znode is None:
                raise NoSuchLogError(f"there is no log {name} (no znode {path}): check the name, or write to it first")
            found = decode_head(znode.data, path).log_id
            if log_id is not None and found != log_id:
                raise LogReplacedError(f"log {name} was deleted and made again: its id is {found}, expected {log_id}")
            paths = LogPaths(self.root, name, found)
            settings_znode = self._zk.get(paths.settings)
            if settings_znode is None:
                continue
            settings_id, settings = decode_settings(settings_znode.data, paths.settings)
            if settings_id == found:
                return Log(self._zk, paths, settings, self._now_ms, self._ledgers(name, settings, password))
        raise MetadataFormatError(f"log {name}: its settings {path}/settings are missing, or of another log")

    def _ledgers(self, name: str, settings: LogSettings, password: bytes | None) -> LogLedgers | None:
        if password is None:
            return None
        settings.check_password(password, name)
        return None if self._client is None else LogLedgers(self._client, settings, password)

    def exists(self, name: str) -> bool:
        """Whether there is a log of this name now."""
        check_log_name(name)
        path = head_path(self.root, name)
        self._zk.sync(path)
        return self._zk.exists(path) is not None

    def list_logs(self) -> list[str]:
        """Names of all logs, sorted."""
        self._zk.sync(self.root)
        return sorted(filter(is_log_name, self._zk.children(self.root) or []))
