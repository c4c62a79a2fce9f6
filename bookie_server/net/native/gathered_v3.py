"""v3 adds on their way to storage: a run that was parsed as an array, or single ones that are stored together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.entry import ENTRY_HEADER
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame
from bk_spark.protocol.wire.v3.request_runs_v3 import AddRunV3
from bookie_server.storage.records import Records, gather_int64

#: Up to this many entries, numpy's fixed costs exceed the work.
_FEW: Final = 8


@dataclass(slots=True)
class AddsV3:
    """Adds with one master key and equal flags. The ids are the requests' own, for their answers."""

    master_key: bytes
    recovery: bool
    high_priority: bool
    txn_ids: list[int] | Int64s
    ledger_ids: list[int] | Int64s
    entry_ids: list[int] | Int64s
    records: Records

    @classmethod
    def of(cls, run: AddRunV3) -> AddsV3:
        """The adds of a run. Their ids are copied, because the run refers to the receive buffer."""
        ledger_ids, entry_ids, lacs = (run.stored_ids[:, column].copy() for column in range(3))
        records = Records(ledger_ids, entry_ids, lacs, run.records, run.offsets)
        kind = run.master_key, run.recovery, run.high_priority
        return cls(*kind, run.txn_ids, run.ledger_ids, run.entry_ids, records)

    def first(self, count: int) -> AddsV3:
        """The first ``count`` adds."""
        ids = self.txn_ids[:count], self.ledger_ids[:count], self.entry_ids[:count]
        return AddsV3(self.master_key, self.recovery, self.high_priority, *ids, self.records.first(count))


class GatheredAdds:
    """Adds that arrived one by one and are stored together."""

    def __init__(self, master_key: bytes, recovery: bool, high_priority: bool) -> None:
        self.kind = master_key, recovery, high_priority
        self._txn_ids: list[int] = []
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._bodies: list[bytes] = []

    def append(self, txn_id: int, ledger_id: int, entry_id: int, body: bytes) -> None:
        """Add one add. ``body`` is the stored entry."""
        self._txn_ids.append(txn_id)
        self._ledger_ids.append(ledger_id)
        self._entry_ids.append(entry_id)
        self._bodies.append(body)

    def all(self) -> AddsV3:
        """All of them, in the order of their arrival."""
        return AddsV3(*self.kind, self._txn_ids, self._ledger_ids, self._entry_ids, _records(self._bodies))


def _records(bodies: list[bytes]) -> Records:
    """Stored entries as records. Each has at least an entry header."""
    if len(bodies) == 1:  # from a client that waits for each answer: numpy would take longer than the request
        (body,) = bodies
        numbers = np.array((*ENTRY_HEADER.unpack_from(body)[:3], 0, LENGTH_BYTES + len(body)), np.int64)
        return Records(numbers[:1], numbers[1:2], numbers[2:3], memoryview(frame(body)), numbers[3:])
    if len(bodies) <= _FEW:
        ids = np.array([ENTRY_HEADER.unpack_from(body)[:3] for body in bodies], np.int64).T
        ends = accumulate((LENGTH_BYTES + len(body) for body in bodies), initial=0)
        offsets = np.fromiter(ends, np.int64, len(bodies) + 1)
        return Records(ids[0], ids[1], ids[2], memoryview(b"".join(map(frame, bodies))), offsets)
    sizes = np.array([len(body) for body in bodies], np.int64)
    offsets = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum(sizes + LENGTH_BYTES, out=offsets[1:])
    data = b"".join(map(frame, bodies))
    ids = gather_int64(np.frombuffer(data, np.uint8), offsets[:-1] + LENGTH_BYTES, 3)
    return Records(ids[:, 0].copy(), ids[:, 1].copy(), ids[:, 2].copy(), memoryview(data), offsets)
