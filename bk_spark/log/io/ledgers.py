"""A log's ledgers: created, closed, recovered and read with the log's settings and password."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence

from bk_spark.bookie.blocking import BlockingClient, BlockingReader, BlockingWriter
from bk_spark.log.core.steps import Closed, LedgerRegistrar
from bk_spark.log.formats.names import MADE_FOR, LogPaths
from bk_spark.log.formats.settings import LogSettings
from bk_spark.log.gc.reaping import is_closed
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    DigestMismatchError,
    LedgerRefusedError,
    MetadataUnavailableError,
    UnauthorizedError,
)
from bk_spark.protocol.ledger.reading.range_windows import EntryRange, EntryRanges
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.ledger_paths import LedgerManager, parse_layout


class LogLedgers:
    """Ledgers of one log, accessed through ``client``. Methods raise the ledger client's errors.

    Thread-safe, except that a ledger created here belongs to its thread until it is closed.
    """

    def __init__(self, client: BlockingClient, settings: LogSettings, password: bytes, paths: LogPaths) -> None:
        self.client = client
        self.settings = settings
        self._name = paths.name
        self._made_for = f"{paths.name} {paths.log_id}".encode()
        self._password = password
        self._writers: dict[int, BlockingWriter] = {}
        self._manager: LedgerManager | None = None

    def __repr__(self) -> str:
        return f"LogLedgers({self.client})"

    def ledger_path(self, ledger_id: int) -> str:
        """Return the path of the ledger's metadata znode. Raises MetadataUnavailableError."""
        root = self.client.root
        if self._manager is None:
            layout = self.client.zookeeper.get(f"{root}/LAYOUT")
            if layout is None:
                raise MetadataUnavailableError(
                    f"znode {root}/LAYOUT does not exist: the cluster's metadata was removed"
                )
            self._manager = parse_layout(layout.data)
        return self._manager.ledger_path(root, ledger_id)

    def create(self, register: LedgerRegistrar) -> BlockingWriter:
        """Create a ledger and register it in the same transaction."""
        writer = self.client.create(
            quorum=self.settings.quorum,
            digest_type=self.settings.digest_type,
            password=self._password,
            custom_metadata={MADE_FOR: self._made_for},
            create_with=register,
        )
        self._writers[writer.ledger_id] = writer
        return writer

    def claim(self, ledger_id: int) -> tuple[str, ...]:
        """Check that bookies take the log's password for a ledger that was just created here. Return those that did not
        answer. Raises UnauthorizedError if somebody has used its id with another password."""
        return self._writers[ledger_id].claim()

    def writer(self, ledger_id: int) -> BlockingWriter:
        """Return the writer of a ledger that was created here and is not closed."""
        return self._writers[ledger_id]

    def close(self, ledger_id: int) -> Closed:
        """Drain and close a ledger that was created here."""
        metadata = self._writers[ledger_id].close()
        del self._writers[ledger_id]
        return Closed(ledger_id, metadata.last_entry_id, metadata.length)

    def abandon(self, ledger_id: int) -> None:
        """Abandon a ledger that was created here, without closing it. No error if that was done already."""
        writer = self._writers.pop(ledger_id, None)
        if writer is not None:
            writer.abandon()

    def recover(self, ledger_id: int) -> Closed:
        """Fence and close any ledger of the log."""
        metadata = self.client.recover_and_open(ledger_id, self._password).metadata
        return Closed(ledger_id, metadata.last_entry_id, metadata.length)

    def recover_all(
        self, ledger_ids: Sequence[int], timeout_s: float
    ) -> tuple[Mapping[int, BookKeeperError], Sequence[int]]:
        """Fence and close the given ledgers that are neither closed nor deleted, several at once. Returns the failures
        with their reasons, and the ledgers that were not done in time."""
        deadline = time.monotonic() + timeout_s
        paths = {self.ledger_path(ledger_id): ledger_id for ledger_id in ledger_ids}
        znodes = self.client.zookeeper.get_many(list(paths))
        # A closed ledger stays closed. For one that looks open, the recovery checks again.
        may_be_open = []
        for path, ledger_id in paths.items():
            znode = znodes[path]
            if znode is not None and not is_closed(znode):
                may_be_open.append(ledger_id)
        return self.client.recover_all(may_be_open, self._password, timeout_s=deadline - time.monotonic())

    def write(self, register: LedgerRegistrar, entries: tuple[bytes, ...]) -> int:
        """Create a closed ledger that holds ``entries``, and return its id."""
        writer = self.create(register)
        try:
            writer.append_many(entries)
            self.close(writer.ledger_id)
        except BaseException:
            self.abandon(writer.ledger_id)
            raise
        return writer.ledger_id

    def reader(self, ledger_id: int) -> BlockingReader:
        """Open a ledger for reading without fencing. Reads up to its end if it is closed."""
        return self.client.open_for_reading(ledger_id, self._password, read_lac=False)

    def read_series(self, ranges: EntryRanges | Sequence[EntryRange]) -> Generator[Payloads, None, None]:
        """Read entries that are known to exist, range after range, with read-ahead."""
        return self.client.read_series(ranges, self._password)

    def read_series_for(self, ranges: Sequence[EntryRange]) -> AsyncGenerator[Payloads, None]:
        """:meth:`read_series` for a caller on an event loop of its own."""
        return self.client.read_series_for(ranges, self._password)

    def tail_for(self, ledger_id: int, from_entry: int, *, max_wait_ms: int | None) -> AsyncGenerator[EntryBlock, None]:
        """Follow an open ledger, for a caller on an event loop of its own."""
        return self.client.tail_for(ledger_id, self._password, from_entry, max_wait_ms=max_wait_ms)

    def read_entry(self, ledger_id: int, entry_id: int) -> bytes:
        """Read one entry of a closed ledger."""
        (payload,) = self.reader(ledger_id).read(entry_id, entry_id)
        return payload

    def check_readable(self, ledger_id: int) -> None:
        """Read the last entry of a ledger that may become part of the log. Raises LedgerRefusedError if the log's
        password does not open it: metadata of old ledgers hold neither password nor digest."""
        metadata = self.client.metadata(ledger_id)
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id < 0:
            return  # the change refuses it and gives the reason
        try:
            self.read_entry(ledger_id, metadata.last_entry_id)
        except (UnauthorizedError, DigestMismatchError) as error:
            raise LedgerRefusedError(
                f"log {self._name}: the ledger cannot be read with the log's password, so it cannot become part of it",
                ledger_id=ledger_id,
            ) from error
