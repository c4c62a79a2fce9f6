"""The blocking handles of a ledger being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_H = TypeVar("_H", bound=WriteHandle | AdvWriteHandle)


class _BlockingHandle(Generic[_H]):
    """What both have in common."""

    def __init__(self, thread: LoopThread, handle: _H) -> None:
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
    def last_add_acknowledged(self) -> int:
        return self._handle.last_add_acknowledged

    @property
    def length(self) -> int:
        return self._handle.length

    @property
    def error(self) -> BookKeeperError | None:
        return self._handle.error

    def flush(self) -> int:
        """Wait until everything appended is acknowledged; the last add confirmed."""
        return self._thread.run(self._handle.flush())

    def wait_confirmed(self, entry_id: int) -> None:
        """Wait until the entry is confirmed."""
        self._thread.run(self._handle.wait_confirmed(entry_id))

    def force(self) -> int:
        """Flush, and have the bookies sync what they took; the last add confirmed."""
        return self._thread.run(self._handle.force())

    def close(self) -> LedgerMetadata:
        """Flush and close the ledger; its final metadata."""
        return self._thread.run(self._handle.close())

    def abandon(self) -> None:
        """Let go without closing the ledger."""
        self._thread.finish(self._handle.abandon())


class BlockingWriter(_BlockingHandle[WriteHandle]):
    """As :class:`bk_spark.bookie.writing.write_handle.WriteHandle`; one user at a time."""

    @property
    def last_add_pushed(self) -> int:
        return self._handle.last_add_pushed

    def append(self, payload: Buffer) -> int:
        """Append one entry; its id. Returns when it is under way, see :meth:`flush`."""
        return self._thread.run(self._handle.append(payload))

    def append_many(self, payloads: Payloads | Sequence[Buffer]) -> int:
        """Append entries in order; the id of the last. Returns when they are under way."""
        return self._thread.run(self._handle.append_many(payloads))


class BlockingAdvWriter(_BlockingHandle[AdvWriteHandle]):
    """As :class:`bk_spark.bookie.writing.adv_write_handle.AdvWriteHandle`; for several threads at once."""

    def append(self, entry_id: int, payload: Buffer) -> None:
        """Append one entry. Returns when it is under way or waits for lower ids, see :meth:`flush`."""
        self._thread.run(self._handle.append(entry_id, payload))

    def append_many(
        self, entry_ids: Sequence[int] | npt.NDArray[np.int64], payloads: Payloads | Sequence[Buffer]
    ) -> None:
        """Append entries. Returns when they are under way or wait for lower ids."""
        self._thread.run(self._handle.append_many(entry_ids, payloads))
