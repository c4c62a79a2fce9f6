"""New ledger ids from ZooKeeper's sequence counters. Source: compatibility.md §3.2.

Ids come from ephemeral sequential nodes: ``<root>/ID-`` in the flat layout, ``<root>/idgen/ID-`` in the
others. When those 31 bits run out, or once ``<root>/idgen-long`` exists, they come from
``<root>/idgen-long/HOB-<high bits>/ID-``.
"""

from __future__ import annotations

import contextlib
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import MetadataError, MetadataFormatError, MetadataUnavailableError, NoNodeError
from bk_spark.protocol.metadata.ledger_paths import FIRST_LONG_ID, LedgerManager

_HIGH_PREFIX: Final = "HOB-"
_ATTEMPTS: Final = 5


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


def _long_id(zk: ZooKeeper, long_root: str) -> int:
    for _ in range(_ATTEMPTS):
        names = [name for name in zk.children(long_root) or [] if name.startswith(_HIGH_PREFIX)]
        high = max((_number(name, _HIGH_PREFIX) for name in names), default=1)
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
