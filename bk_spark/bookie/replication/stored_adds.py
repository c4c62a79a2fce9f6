"""Writes stored entries to bookies as recovery adds, in batches."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError
from bk_spark.protocol.replication.actions import StoredEntries
from bk_spark.protocol.wire.stored_adds import stored_adds_v2, stored_adds_v3

_OK: Final = int(Code.OK)


class _Batch:
    """Entries that a bookie has not answered yet."""

    def __init__(self, entry_ids: range) -> None:
        self.entry_ids = entry_ids
        self.answered = np.zeros(len(entry_ids), np.bool_)
        self.code = _OK
        self.done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

    def take(self, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Note the answers that are about this batch. Return which of them are."""
        offsets, step = entry_ids - self.entry_ids.start, self.entry_ids.step
        indexes = offsets // step
        mine: npt.NDArray[np.bool_] = (offsets >= 0) & (offsets % step == 0) & (indexes < len(self.answered))
        mine[mine] = ~self.answered[indexes[mine]]
        self.answered[indexes[mine]] = True
        bad = codes[mine]
        bad = bad[bad != _OK]
        if len(bad) and self.code == _OK:
            self.code = int(bad[0])
        if self.answered.all() and not self.done.done():
            self.done.set_result(Code.from_v2(self.code))
        return mine


class StoredAdds:
    """The adds of one repair. ``pool`` must have no other adds of this ledger: answers are matched by entry."""

    def __init__(self, ledger_id: int, key: bytes, pool: ConnectionPool[LedgerConnection]) -> None:
        self._ledger_id = ledger_id
        self._key = key
        self._pool = pool
        self._open: dict[str, list[_Batch]] = {}
        self._used: set[LedgerConnection] = set()
        self._given_up = False

    def end(self) -> bool:
        """End the repair's adds, none of which is under way. Return whether no answer can come any more."""
        for connection in self._used:
            connection.unlisten(self._ledger_id)
        return not self._given_up

    async def write(self, bookie_id: str, entries: StoredEntries) -> Code:
        """Add the entries. Return OK when the bookie has stored all of them, else the first other code.

        Raises BookieUnavailableError. The caller limits the wait.
        """
        connection = await self._pool.get(bookie_id)
        entry_ids = entries.entry_ids
        if isinstance(connection, BookieConnectionV3):
            frames = stored_adds_v3(self._ledger_id, self._key, entry_ids, entries.records)
        else:
            frames = stored_adds_v2(self._key, len(entry_ids), entries.records)
        batch = _Batch(entry_ids)
        batches = self._open.setdefault(bookie_id, [])
        batches.append(batch)
        self._used.add(connection)
        connection.listen(self._ledger_id, self._on_answers, self._on_loss)
        try:
            connection.send([frames])
            if connection.closed:
                raise _lost(bookie_id)
            return await batch.done
        finally:
            batches.remove(batch)
            # A broken connection brings no more answers.
            self._given_up |= not batch.answered.all() and not connection.closed

    def _on_answers(self, bookie_id: str, entry_ids: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]) -> None:
        for batch in self._open.get(bookie_id, ()):
            if not len(entry_ids):
                return
            others = ~batch.take(entry_ids, codes)
            entry_ids, codes = entry_ids[others], codes[others]

    def _on_loss(self, bookie_id: str) -> None:
        for batch in self._open.get(bookie_id, ()):
            if not batch.done.done():
                batch.done.set_exception(_lost(bookie_id))


def _lost(bookie_id: str) -> BookieUnavailableError:
    return BookieUnavailableError("connection to the bookie broke", bookie_id=bookie_id)
