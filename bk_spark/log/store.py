"""All logs under one root in ZooKeeper."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_clock import ClockDifference
from bk_spark.bookie.metadata.cluster_init import read_instance_id
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.catalog import FoundLog, LogCatalog
from bk_spark.log.formats.names import (
    DEFAULT_ROOT,
    LogPaths,
    check_log_name,
    check_root,
    clock_path,
    head_path,
)
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.settings import LogSettings, encode_settings
from bk_spark.log.formats.znodes import Head, Policy, encode_head, encode_policy
from bk_spark.log.gc.deletion import DeletionReport, delete_steps
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.ledgers import LogLedgers
from bk_spark.log.log import Log
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogExistsError,
    LogReplacedError,
    NoSuchLogError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.znodes import CreateOp, TransactionConflictError

_MAX_TRIES: Final = 5
#: Threads that check passwords of several logs.
_CHECKERS: Final = min(8, os.cpu_count() or 1)


class LogStore:
    """All logs below one znode. It creates, finds, opens and deletes logs. Thread-safe.

    Programs usually get one from :func:`bk_spark.connect`, as ``bk.logs``, or by :meth:`LogStore.of`.

    Parameters
    ----------
    zk
        The session with ZooKeeper. The caller closes it.
    root
        The znode that holds the logs.
    client
        The client for the logs' ledgers. The caller closes it. Without a client, logs cannot be written, read or
        maintained.
    now_ms
        Returns the cluster's time in Unix milliseconds. Default: the clock of the ZooKeeper session.

    Raises
    ------
    InvalidArgumentError
        If ``root`` is not a valid znode path.

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
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.root = check_root(root)
        self._zk = zk
        self._client = client
        self._now_ms = now_ms or zk.clock.now_ms
        self._catalog = LogCatalog(zk, self.root)

    @classmethod
    def of(
        cls, client: BlockingClient, root: str = DEFAULT_ROOT, *, now_ms: Callable[[], int] | None = None
    ) -> LogStore:
        """Create a store that uses one client for the logs and their ledgers.

        Parameters
        ----------
        client
            The client. The caller closes it.
        root
            The znode that holds the logs.
        now_ms
            Returns the cluster's time in Unix milliseconds. Default: the clock of the client's ZooKeeper session.

        Returns
        -------
        LogStore
            The store.
        """
        return cls(client.zookeeper, root, client=client, now_ms=now_ms)

    def clock_difference(self) -> ClockDifference:
        """Measure how far this machine's clock is from ZooKeeper's. Costs one write below the root of the logs.

        Returns
        -------
        ClockDifference
            The difference. If ``is_small`` is false, this machine refuses to run retention and reaping.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        self._zk.measure_time(clock_path(self.root))
        return self._zk.clock.difference()

    def create_log(self, name: str, settings: LogSettings, password: bytes | None = None) -> Log:
        """Create an empty log.

        Parameters
        ----------
        name
            The name of the log.
        settings
            Quorum, digest type, entry format, schema and password. They cannot be changed later. If this store has a
            client, the log gets the id of the client's cluster. Otherwise it keeps the ``instance_id`` given here.
        password
            The password in ``settings``. Without it, the returned log has no access to its ledgers.

        Returns
        -------
        Log
            The new log.

        Raises
        ------
        LogExistsError
            If a log with this name exists.
        InvalidArgumentError
            If the name is not valid.
        UnauthorizedError
            If ``password`` differs from the one in ``settings``.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        OutcomeUnknownError
            If the log may or may not have been created. Check whether it exists.
        """
        paths = LogPaths(self.root, check_log_name(name), str(uuid.uuid4()))
        if self._client is not None:
            settings = replace(settings, instance_id=_instance_id(self._client))
        log = self._log(FoundLog(Head(paths.log_id), paths, settings), password)
        operations = [
            CreateOp(paths.head, encode_head(Head(paths.log_id, kept_offset=0))),
            CreateOp(paths.identity),
            CreateOp(paths.settings, encode_settings(paths.log_id, settings)),
            CreateOp(paths.policy, encode_policy(Policy())),
            CreateOp(paths.pages),
            CreateOp(paths.page(0), encode_page(SegmentPage(paths.log_id, 0, 0, SegmentTable.of(())))),
            CreateOp(paths.apps),
            CreateOp(paths.ledgers),
            CreateOp(paths.lock),
        ]
        for _ in range(_MAX_TRIES):
            self._zk.ensure_path(self.root)
            try:
                self._zk.transaction(operations)
            except (OutcomeUnknownError, TransactionConflictError):
                found = self._catalog.head(name)
                if found is None:
                    continue
                if found.deleted_time_ms:
                    raise LogExistsError(_deleted(name, paths.head)) from None
                if found.log_id != paths.log_id:
                    raise LogExistsError(f"log {name} exists already (znode {paths.head})") from None
            return log
        raise OutcomeUnknownError(f"log {name} may or may not have been created: check whether it exists")

    def open_log(self, name: str, *, log_id: str | None = None, password: bytes | None = None) -> Log:
        """Open an existing log.

        Parameters
        ----------
        name
            The name of the log.
        log_id
            If given, open only the log with this id.
        password
            The password of the log. Without it, the returned log has no access to its ledgers.

        Returns
        -------
        Log
            The log.

        Raises
        ------
        NoSuchLogError
            If there is no log with this name.
        LogReplacedError
            If the log has another id than ``log_id``.
        InvalidArgumentError
            If the log's ledgers are in another cluster.
        UnauthorizedError
            If the password is wrong.
        MetadataFormatError
            If its znodes are damaged.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        found = self._catalog.find(name)
        if found is None:
            path = head_path(self.root, name)
            raise NoSuchLogError(f"there is no log {name} (no znode {path}): check the name, or write to it first")
        head = found.head
        if head.deleted_time_ms:
            raise NoSuchLogError(_deleted(name, found.paths.head))
        if log_id is not None and head.log_id != log_id:
            raise LogReplacedError(
                f"log {name} was deleted and created again: its id is {head.log_id}, expected {log_id}"
            )
        self._check_cluster([found])
        return self._log(found, password)

    def open_logs(self, names: Sequence[str], *, password: bytes | None = None) -> dict[str, Log]:
        """Open several logs with few requests to ZooKeeper.

        Parameters
        ----------
        names
            The names of the logs.
        password
            The password of all these logs. Without it, the returned logs have no access to their ledgers.

        Returns
        -------
        dict of str to Log
            The logs by name, in the order of ``names``. Logs that do not exist are left out.

        Raises
        ------
        InvalidArgumentError
            If the ledgers of one log are in another cluster.
        UnauthorizedError
            If the password of one log is wrong.
        MetadataFormatError
            If znodes of one log are damaged.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        found = {name: one for name, one in self._catalog.find_many(names).items() if not one.head.deleted_time_ms}
        self._check_cluster(found.values())
        # Checking a password takes milliseconds, outside Python's lock.
        with ThreadPoolExecutor(_CHECKERS) as checkers:
            logs = list(checkers.map(lambda one: self._log(one, password), found.values()))
        return dict(zip(found, logs, strict=True))

    def known_log(self, name: str, log_id: str, settings: LogSettings, password: bytes | None = None) -> Log:
        """Return a log that the caller has opened before. Reads nothing: errors show up when the log is used.

        Parameters
        ----------
        name
            The name of the log.
        log_id
            The id of the log.
        settings
            The settings of the log.
        password
            The password of the log. Without it, the returned log has no access to its ledgers.

        Returns
        -------
        Log
            The log.

        Raises
        ------
        UnauthorizedError
            If the password is wrong.
        """
        return self._log(FoundLog(Head(log_id), LogPaths(self.root, name, log_id), settings), password)

    def _check_cluster(self, logs: Iterable[FoundLog]) -> None:
        # Without a client, no ledger is touched.
        if self._client is not None:
            instance_id = _instance_id(self._client)
            for found in logs:
                found.settings.check_cluster(instance_id, found.paths.name)

    def _log(self, found: FoundLog, password: bytes | None) -> Log:
        ledgers = self._ledgers(found, password)
        return Log(self._zk, found.paths, found.settings, self._now_ms, ledgers)

    def _ledgers(self, found: FoundLog, password: bytes | None) -> LogLedgers | None:
        if password is None:
            return None
        found.settings.check_password(password, found.paths.name)
        return None if self._client is None else LogLedgers(self._client, found.settings, password, found.paths)

    def exists(self, name: str) -> bool:
        """Check whether a log exists. A log whose deletion has begun does not.

        Parameters
        ----------
        name
            The name of the log.

        Returns
        -------
        bool
            Whether it exists now.
        """
        head = self._catalog.head(name)
        return head is not None and not head.deleted_time_ms

    def list_logs(self, *, deleted: bool = False) -> list[str]:
        """List all logs.

        Parameters
        ----------
        deleted
            List instead the logs whose deletion has begun but is not complete.

        Returns
        -------
        list of str
            The names, sorted.
        """
        return self._catalog.names(deleted=deleted)

    def delete_log(self, name: str, password: bytes) -> DeletionReport:
        """Delete a log and its ledgers, except those added by ``append_ledger``.

        A log whose ledgers are in another cluster can be deleted, too: that cluster may have been created again. Then
        only the log is deleted. The other cluster's ledgers stay, and so do ledgers of this cluster with the same ids.

        Parameters
        ----------
        name
            The name of the log. If an earlier deletion was interrupted, this call completes it.
        password
            The password of the log.

        Returns
        -------
        DeletionReport
            How many ledgers were deleted, and which of them may not have been fenced.

        Raises
        ------
        NoSuchLogError
            If there is no log with this name.
        UnauthorizedError
            If the password is wrong.
        InvalidArgumentError
            If this store has no client.
        MetadataUnavailableError, MetadataConflictError, OutcomeUnknownError
            The deletion may have begun. Retry.
        """
        found = self._catalog.find(name)
        if found is None:
            raise NoSuchLogError(f"there is no log {name} (no znode {head_path(self.root, name)}): check the name")
        ledgers = self._ledgers(found, password)
        if ledgers is None:
            raise InvalidArgumentError(f"log {name} can only be deleted from a store that has a client")
        log = BlockingLog(self._zk, found.paths, found.settings, self._now_ms, ledgers)
        return log.run(delete_steps(found.paths, ledgers.ledger_path, self._now_ms))


def _instance_id(client: BlockingClient) -> str | None:
    return read_instance_id(client.zookeeper, client.root)


def _deleted(name: str, path: str) -> str:
    return (
        f"log {name} was deleted, but not all of its znodes and ledgers are gone yet (znode {path}): delete it again "
        "(delete_log, bkctl log delete) to finish"
    )
