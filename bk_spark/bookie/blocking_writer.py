"""The blocking handles of a ledger being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.loop_thread import LoopThread
from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookie.writing.adv_write_handle import AdvWriteHandle
from bk_spark.bookie.writing.wrapped_handle import WrappedHandle
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_H = TypeVar("_H", bound=WriteHandle | AdvWriteHandle)


class _BlockingHandle(WrappedHandle[_H]):
    """The common part of both writers."""

    def __init__(self, thread: LoopThread, handle: _H) -> None:
        super().__init__(handle)
        self._thread = thread

    @documented_as(WriteHandle.flush)
    def flush(self) -> int:
        return self._thread.run(self._handle.flush())

    @documented_as(WriteHandle.wait_confirmed)
    def wait_confirmed(self, entry_id: int) -> None:
        self._thread.run(self._handle.wait_confirmed(entry_id))

    @documented_as(WriteHandle.force)
    def force(self) -> int:
        return self._thread.run(self._handle.force())

    @documented_as(WriteHandle.close)
    def close(self) -> LedgerMetadata:
        return self._thread.run(self._handle.close())

    @documented_as(WriteHandle.abandon)
    def abandon(self) -> None:
        self._thread.finish(self._handle.abandon())


class BlockingWriter(_BlockingHandle[WriteHandle]):
    """Appends entries to one ledger, with the ids 0, 1, 2 and so on. For one thread at a time.

    Entries are sent in the background. ``append`` and ``append_many`` return when the entries are on their way, and
    wait while too many are unacknowledged. ``flush`` waits until they are acknowledged. Any failure ends the writer,
    and every later call raises the same error. Entries up to ``last_add_confirmed`` are safe.

    Create it with ``create_ledger`` of a connection, or ``create`` of a client.
    """

    @property
    @documented_as(WriteHandle.last_add_pushed)
    def last_add_pushed(self) -> int:
        return self._handle.last_add_pushed

    @documented_as(WriteHandle.append)
    def append(self, payload: Buffer) -> int:
        return self._thread.run(self._handle.append(payload))

    @documented_as(WriteHandle.append_many)
    def append_many(self, payloads: Payloads | Sequence[Buffer]) -> int:
        return self._thread.run(self._handle.append_many(payloads))


class BlockingAdvWriter(_BlockingHandle[AdvWriteHandle]):
    """Appends entries to one ledger, with ids that the caller chooses. Several threads may use it at once.

    The ids are 0, 1, 2 and so on, in any order. An early entry waits here for all entries with lower ids. Any failure
    ends the writer, and every later call raises the same error.

    Create it with ``create_ledger_adv`` of a connection, or ``create_adv`` of a client.
    """

    @documented_as(AdvWriteHandle.append)
    def append(self, entry_id: int, payload: Buffer) -> None:
        self._thread.run(self._handle.append(entry_id, payload))

    @documented_as(AdvWriteHandle.append_many)
    def append_many(
        self, entry_ids: Sequence[int] | npt.NDArray[np.int64], payloads: Payloads | Sequence[Buffer]
    ) -> None:
        self._thread.run(self._handle.append_many(entry_ids, payloads))
