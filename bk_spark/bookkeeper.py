"""One connection to a cluster, with its ledgers and its logs: what :func:`bk_spark.connect` returns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from bk_spark.bookie.blocking import BlockingAdvWriter, BlockingClient, BlockingReader, BlockingWriter
from bk_spark.bookie.client import DEFAULT_QUORUM
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.passwords import password_in
from bk_spark.log.formats.names import DEFAULT_ROOT, check_root
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.gc.deletion import DeletionReport
from bk_spark.log.log import Log
from bk_spark.log.store import LogStore
from bk_spark.log.tables.table_data import new_schema_text
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum

#: Log writers need an interval. A second is soon enough for people, and costs bookies one small request a second.
_EXPLICIT_LAC_INTERVAL_MS: Final = "1000"


class BookKeeper:
    """A connection to a cluster: ledgers, logs, and one password for both.

    Made by :func:`bk_spark.connect`. It owns a client and its session with ZooKeeper. Use it as a context manager, or
    call :meth:`close`. It is thread-safe. A process that was forked from its creator's needs a connection of its own.

    Parameters
    ----------
    client
        The client to use. It is closed with this object.
    log_root
        The znode that holds the logs.
    password
        The password of all ledgers and logs that are made and opened here.

    Examples
    --------
    >>> import bk_spark
    >>> with bk_spark.connect("zk://127.0.0.1:2181/ledgers", password="secret") as bk:  # doctest: +SKIP
    ...     with bk.create_log("orders").open_writer() as writer:
    ...         writer.append(b"first")
    0
    """

    def __init__(self, client: BlockingClient, log_root: str, password: bytes) -> None:
        self._client = client
        self._logs = LogStore.of(client, log_root)
        self._password = password

    def __repr__(self) -> str:
        return f"BookKeeper({self._client.metadata_service_uri}, logs in {self._logs.root})"

    def __enter__(self) -> BookKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client, and with it all ledgers and logs that came from here. May be repeated.

        A ledger whose writer was not closed stays open until a client recovers it.
        """
        self._client.close()

    @property
    def client(self) -> BlockingClient:
        """The ledger client: all operations on ledgers and bookies, each with a password of its own."""
        return self._client

    @property
    def logs(self) -> LogStore:
        """The store of logs: all operations on logs, each with a password of its own."""
        return self._logs

    def create_ledger(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
    ) -> BlockingWriter:
        """Create an empty ledger and open it for writing.

        Parameters
        ----------
        quorum
            Ensemble size, write quorum and ack quorum.
        digest_type
            The checksum of each entry.
        custom_metadata
            Names and values to keep in the ledger's metadata.
        deferred_sync
            Let bookies acknowledge entries before they sync them. Entries are confirmed only by ``force`` or ``close``.

        Returns
        -------
        BlockingWriter
            The writer of the new ledger. The cluster chooses the ledger's id and the ids of its entries.

        Raises
        ------
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return self._client.create(
            quorum=quorum,
            digest_type=digest_type,
            password=self._password,
            custom_metadata=custom_metadata,
            deferred_sync=deferred_sync,
        )

    def create_ledger_adv(
        self,
        *,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        ledger_id: int | None = None,
    ) -> BlockingAdvWriter:
        """Create an empty ledger whose entry ids the caller chooses.

        Parameters
        ----------
        quorum, digest_type, custom_metadata, deferred_sync
            As for :meth:`create_ledger`.
        ledger_id
            The id of the new ledger. By default the cluster chooses it. Use an id once: see :meth:`Client.create_adv`.

        Returns
        -------
        BlockingAdvWriter
            The writer of the new ledger.

        Raises
        ------
        LedgerExistsError
            If a ledger with the id ``ledger_id`` exists.
        NotEnoughBookiesError
            If fewer bookies are writable than the ensemble needs.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return self._client.create_adv(
            quorum=quorum,
            digest_type=digest_type,
            password=self._password,
            custom_metadata=custom_metadata,
            deferred_sync=deferred_sync,
            ledger_id=ledger_id,
        )

    def open_ledger_for_reading(self, ledger_id: int) -> BlockingReader:
        """Open a ledger without fencing it: its writer, if there is one, is not disturbed.

        Parameters
        ----------
        ledger_id
            The ledger to read.

        Returns
        -------
        BlockingReader
            A reader of the ledger up to its last add confirmed.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the ledger has another password.
        EntryUnknownError
            If the ledger is open and too few of its bookies answer.
        """
        return self._client.open_for_reading(ledger_id, self._password)

    def recover_and_open_ledger(self, ledger_id: int) -> BlockingReader:
        """Fence a ledger, close it at its last entry, and open it for reading. A writer of the ledger is ended.

        Parameters
        ----------
        ledger_id
            The ledger to recover. A closed ledger is only opened.

        Returns
        -------
        BlockingReader
            A reader of the closed ledger.

        Raises
        ------
        NoSuchLedgerError
            If there is no such ledger.
        UnauthorizedError
            If the ledger has another password.
        EntryUnknownError
            If too few of its bookies answer.
        NotEnoughBookiesError
            If entries must be copied and fewer bookies are writable than the ensemble needs.
        """
        return self._client.recover_and_open(ledger_id, self._password)

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. Bookies reclaim its space later.

        Parameters
        ----------
        ledger_id
            The ledger to delete. It is no error if there is none.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        self._client.delete(ledger_id)

    def create_log(
        self,
        name: str,
        *,
        schema: object = None,
        quorum: Quorum = DEFAULT_QUORUM,
        digest_type: DigestType = DigestType.CRC32C,
    ) -> Log:
        """Create an empty log: an ``arrow`` log with columns, or a ``raw`` one, whose entries are rows of bytes.

        Parameters
        ----------
        name
            The name of the log.
        schema
            The columns of an ``arrow`` log: a ``pyarrow.Schema``, or Arrow, pandas or polars data that has the columns.
            Every column may hold nulls, even if the schema says otherwise. Without it the log is ``raw``.
        quorum
            Ensemble size, write quorum and ack quorum of the log's ledgers.
        digest_type
            The checksum of each entry.

        Returns
        -------
        Log
            The new log.

        Raises
        ------
        LogExistsError
            If a log with this name exists.
        InvalidArgumentError
            If no log can have this name, or a column has a type that Spark does not have.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        entry_format = EntryFormat.RAW if schema is None else EntryFormat.ARROW
        text = None if schema is None else new_schema_text(schema)
        settings = LogSettings.create(quorum, digest_type, entry_format, self._password, text)
        return self._logs.create_log(name, settings, self._password)

    def log(self, name: str) -> Log:
        """Open a log that exists.

        Parameters
        ----------
        name
            The name of the log.

        Returns
        -------
        Log
            The log, with access to its ledgers.

        Raises
        ------
        NoSuchLogError
            If there is no log with this name.
        InvalidArgumentError
            If the log's ledgers are in another cluster.
        UnauthorizedError
            If the log has another password.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        return self._logs.open_log(name, password=self._password)

    def delete_log(self, name: str) -> DeletionReport:
        """Delete a log and the ledgers that were made for it.

        Parameters
        ----------
        name
            The name of the log. If an earlier deletion was interrupted, this call completes it.

        Returns
        -------
        DeletionReport
            What was deleted.

        Raises
        ------
        NoSuchLogError
            If there is no log with this name.
        UnauthorizedError
            If the log has another password.
        MetadataUnavailableError
            If ZooKeeper does not answer. The deletion may have begun: retry.
        """
        return self._logs.delete_log(name, self._password)


def connect(
    metadata_service_uri: str,
    *,
    password: str | bytes = b"",
    password_file: str | Path | None = None,
    config: ClientConfig | Mapping[str, str] | None = None,
    log_root: str = DEFAULT_ROOT,
) -> BookKeeper:
    """Connect to a cluster.

    Parameters
    ----------
    metadata_service_uri
        Where the cluster's metadata are, such as ``zk://host1:2181;host2:2181/ledgers``.
    password
        The password of the ledgers and logs to make and to open. A string is encoded as UTF-8. Default: none.
    password_file
        A file that holds the password, instead of ``password``. Line ends after the password are ignored.
    config
        Settings of the client: a :class:`ClientConfig`, or Apache's keys and their values as text. Without ``config``,
        or without the key ``explicitLacInterval``, that interval is 1000 ms, because log writers need one.
    log_root
        The znode that holds the logs.

    Returns
    -------
    BookKeeper
        The connection. Close it after use.

    Raises
    ------
    InvalidArgumentError
        If an argument is wrong, or the password file cannot be read.
    MetadataUnavailableError
        If ZooKeeper does not answer.
    """
    if password_file is not None:
        if password:
            raise InvalidArgumentError("password and password_file are both given: give one of them")
        password = password_in(password_file, "password_file")
    elif isinstance(password, str):
        password = password.encode()
    if not isinstance(config, ClientConfig):
        config = ClientConfig.from_properties({"explicitLacInterval": _EXPLICIT_LAC_INTERVAL_MS, **(config or {})})
    check_root(log_root)
    return BookKeeper(BlockingClient(metadata_service_uri, config), log_root, password)
