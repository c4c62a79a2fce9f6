"""New ledger ids from ZooKeeper's sequence counters. Source: compatibility.md §3.2.

Ids come from ephemeral sequential nodes: ``<root>/ID-`` in the flat layout, ``<root>/idgen/ID-`` in the
others. When those 31 bits run out, or once ``<root>/idgen-long`` exists, they come from
``<root>/idgen-long/HOB-<high bits>/ID-``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoNodeError,
)
from bk_spark.protocol.metadata.ledger_paths import FIRST_LONG_ID, LedgerManager
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, TransactionOp

_HIGH_PREFIX: Final = "HOB-"
#: The high bits of an id end here, since ids have 63 bits.
_HIGH_END: Final = 2**31
#: The highest id that can be skipped. Half of all ids are left then, more than anybody can use.
MOST_SKIPPED_ID: Final = 2**62 - 1
_ATTEMPTS: Final = 5
#: Ids skipped in one transaction.
_SKIPPED_AT_ONCE: Final = 250


def next_ledger_id(zk: ZooKeeper, root: str, manager: LedgerManager) -> int:
    """Return an id that no other client got. Raises MetadataUnavailableError, MetadataError."""
    if manager is LedgerManager.FLAT:
        number = _sequence(zk, f"{root}/ID-")
        if number is None:
            raise MetadataError(f"the flat ledger manager at {root} has used up its 31-bit ids")
        return number
    long_root = f"{root}/idgen-long"
    if zk.exists(long_root) is None:
        number = _sequence(zk, f"{root}/idgen/ID-")
        if number is not None:
            return number
        zk.ensure_path(f"{long_root}/{_HIGH_PREFIX}{1:010d}")
    return _long_id(zk, long_root)


def coming_ledger_id(zk: ZooKeeper, root: str, manager: LedgerManager) -> int:
    """Return the id that the next client would get. It takes none. Raises MetadataUnavailableError, MetadataError."""
    if manager is LedgerManager.FLAT:
        return _created_children(zk, root)
    long_root = f"{root}/idgen-long"
    if zk.exists(long_root) is None:
        return _created_children(zk, f"{root}/idgen")
    high = _highest(zk, long_root)
    return high << 32 | _created_children(zk, f"{long_root}/{_HIGH_PREFIX}{high:010d}")


def check_skipped(zk: ZooKeeper, root: str, manager: LedgerManager, last_id: int) -> int:
    """Return the id that comes next before ids up to ``last_id`` are skipped.

    Raises InvalidArgumentError if the counter cannot reach such ids, or would come too near to its end,
    MetadataUnavailableError, MetadataError.
    """
    coming = coming_ledger_id(zk, root, manager)
    if coming > last_id:
        return coming
    if not _has_long_ids(zk, root, manager) and last_id >= FIRST_LONG_ID - 1:
        raise InvalidArgumentError(
            f"ledger {last_id} has an id that a client chose: the ids of this cluster's counter end at "
            f"{FIRST_LONG_ID - 1}. Give the highest id below that"
        )
    if last_id > MOST_SKIPPED_ID:
        raise InvalidArgumentError(
            f"ledger {last_id} has an id that a client chose: ids up to {MOST_SKIPPED_ID} can be skipped, so that the "
            f"counter, which ends at {2**63 - 1}, never runs out. Give the highest id up to that"
        )
    return coming


def skip_ledger_ids(zk: ZooKeeper, root: str, manager: LedgerManager, last_id: int) -> Iterator[int]:
    """Let all clients get ids above ``last_id`` only. Yield the id that comes next, again and again until it is above.

    A lost reply skips some more. Raises InvalidArgumentError, as :func:`check_skipped` does, MetadataUnavailableError,
    MetadataError.
    """
    parent = root if manager is LedgerManager.FLAT else f"{root}/idgen"
    long_root = f"{root}/idgen-long"
    coming = check_skipped(zk, root, manager, last_id)
    if coming <= last_id and _has_long_ids(zk, root, manager):
        zk.ensure_path(f"{long_root}/{_HIGH_PREFIX}{max(last_id >> 32, 0) + 1:010d}")
        coming = coming_ledger_id(zk, root, manager)
    yield coming
    child = f"{parent}/skipped-{zk.session_id:x}"
    while coming <= last_id:
        zk.ensure_path(parent)
        # The counter counts every child that is created, whatever its name.
        pair: list[TransactionOp] = [CreateOp(child), DeleteOp(child)]
        zk.transaction(pair * min(_SKIPPED_AT_ONCE, last_id + 1 - coming))
        coming = coming_ledger_id(zk, root, manager)
        yield coming


def _has_long_ids(zk: ZooKeeper, root: str, manager: LedgerManager) -> bool:
    return manager is not LedgerManager.FLAT and zk.exists(f"{root}/idgen-long") is not None


def _created_children(zk: ZooKeeper, path: str) -> int:
    found = zk.get_latest(path)
    return 0 if found is None else found.created_children


def _highest(zk: ZooKeeper, long_root: str) -> int:
    names = [name for name in zk.children(long_root) or [] if name.startswith(_HIGH_PREFIX)]
    return max((_number(name, _HIGH_PREFIX) for name in names), default=1)


def _long_id(zk: ZooKeeper, long_root: str) -> int:
    for _ in range(_ATTEMPTS):
        high = _highest(zk, long_root)
        if high >= _HIGH_END:
            raise MetadataError(f"the counter of ledger ids at {long_root} has used up its 63 bits")
        low = _sequence(zk, f"{long_root}/{_HIGH_PREFIX}{high:010d}/ID-")
        if low is not None:
            return high << 32 | low
        zk.ensure_path(f"{long_root}/{_HIGH_PREFIX}{high + 1:010d}")
    raise MetadataError(f"no ledger id could be allocated below {long_root}")


def _sequence(zk: ZooKeeper, prefix: str) -> int | None:
    """Return the number of a new sequential node. None if the counter has overflowed."""
    path = zk.create(prefix, ephemeral=True, sequence=True, make_parents=True)
    # If it cannot be deleted now, it ends with the session.
    with contextlib.suppress(NoNodeError, MetadataUnavailableError):
        zk.delete(path)
    number = _number(path.rpartition("/")[2], "ID-")
    return number if 0 <= number < FIRST_LONG_ID else None


def _number(name: str, prefix: str) -> int:
    try:
        return int(name.removeprefix(prefix))
    except ValueError:
        raise MetadataFormatError(f"{name!r} is not {prefix}<number>") from None
