"""How much the ledger benchmarks keep in flight, by payload bytes: (entries, entries per call)."""

from __future__ import annotations

from typing import Final

from benchmarks.ledger_clients import Window

_IN_FLIGHT: Final = 1000
#: Maximum bytes in flight, or read ahead: our client's defaults.
_WRITE_AHEAD_BYTES: Final = 16 << 20
_READ_AHEAD_BYTES: Final = 8 << 20
_BATCH_BYTES: Final = 1 << 20


def one(size: int) -> Window:
    return 1, 1


def writes(size: int) -> Window:
    in_flight = max(1, min(_IN_FLIGHT, _WRITE_AHEAD_BYTES // size))
    return in_flight, max(1, in_flight // 4)


def writes_by_call(size: int) -> Window:
    return writes(size)[0], 1


def reads(size: int) -> Window:
    in_flight = max(1, min(_IN_FLIGHT, _READ_AHEAD_BYTES // size))
    return in_flight, max(1, in_flight // 8)


def batches(size: int) -> Window:
    # 40 bytes: overhead of an entry in a batch.
    per_call = max(1, min(10_000, _BATCH_BYTES // (size + 40)))
    return per_call * (_READ_AHEAD_BYTES // _BATCH_BYTES), per_call
