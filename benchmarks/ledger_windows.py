"""How much the benchmarks of ledgers have in flight, by the payload's bytes: (entries, entries of one call)."""

from __future__ import annotations

from typing import Final

from benchmarks.ledger_clients import Window

_IN_FLIGHT: Final = 1000
#: What is in flight, or asked for ahead, has at most so many bytes: our client's defaults.
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
    # 40 bytes: what a batch has of an entry beside its payload.
    per_call = max(1, min(10_000, _BATCH_BYTES // (size + 40)))
    return per_call * (_READ_AHEAD_BYTES // _BATCH_BYTES), per_call
