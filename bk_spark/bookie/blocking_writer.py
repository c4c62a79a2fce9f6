"""The blocking handle of a ledger being written."""

from __future__ import annotations

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.write_handle import WriteHandle
from bk_spark.protocol.digest import Buffer
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.payloads import Payloads


class BlockingWriter:
    """As :class:`bk_spark.bookie.write_handle.WriteHandle`; one user at a time."""

    def __init__(self, thread: LoopThread, handle: WriteHandle) -> None:
        self._thread = thread
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._handle.last_add_pushed

    @property
    def length(self) -> int:
        return self._handle.length

    @property
    def error(self) -> BookKeeperError | None:
        return self._handle.error

    def append(self, payload: Buffer) -> int:
        """Append one entry; its id. Returns when it is under way, see :meth:`flush`."""
        return self._thread.run(self._handle.append(payload))

    def append_many(self, payloads: Payloads) -> int:
        """Append entries in order; the id of the last. Returns when they are under way."""
        return self._thread.run(self._handle.append_many(payloads))

    def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        return self._thread.run(self._handle.flush())

    def close(self) -> LedgerMetadata:
        """Flush and close the ledger; its final metadata."""
        return self._thread.run(self._handle.close())

    def abandon(self) -> None:
        """Let go without closing the ledger."""
        self._thread.finish(self._handle.abandon())
