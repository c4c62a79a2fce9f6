"""The counter of ledger ids beyond 2^30, where ZooKeeper's 32 bits with a sign turn negative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from bk_spark.bookie.metadata.ledger_ids import coming_ledger_id, skip_ledger_ids
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, TransactionOp, Znode

MANAGER = LedgerManager.HIERARCHICAL


def counter(created: int, children: int) -> Znode:
    """As ZooKeeper reports it: twice the creates minus the children that are there, in 32 bits with a sign."""
    reported = int.from_bytes(((2 * created - children) & 0xFFFF_FFFF).to_bytes(4, "big"), "big", signed=True)
    return Znode(b"", 0, 0, 0, 0, 1, children=children, child_changes=reported)


class CountingSession:
    """A session with a cluster whose counter has given ``created`` ids."""

    session_id = 7

    def __init__(self, created: int) -> None:
        self.created = created

    def exists(self, path: str) -> Znode | None:
        return None if path.endswith("/idgen-long") else counter(self.created, 0)

    def get_latest(self, path: str) -> Znode:
        return counter(self.created, 0)

    def ensure_path(self, path: str) -> None:
        pass

    def transaction(self, operations: Sequence[TransactionOp]) -> None:
        assert sum(isinstance(each, DeleteOp) for each in operations) * 2 == len(operations) > 0
        self.created += sum(isinstance(each, CreateOp) for each in operations)


def test_what_zookeeper_reports() -> None:
    assert counter(2**30 - 1, 0).child_changes == 2**31 - 2
    assert counter(2**30, 1).child_changes == 2**31 - 1
    assert counter(2**30, 0).child_changes == -(2**31)
    assert counter(2**31 - 1, 0).child_changes == -2


@pytest.mark.parametrize("children", [0, 1, 2, 1000])
@pytest.mark.parametrize("created", [1000, 2**30 - 1, 2**30, 2**30 + 1, 2**30 + 500, 2**31 - 1])
def test_every_id_of_31_bits_is_counted(created: int, children: int) -> None:
    assert counter(created, children).created_children == created


@pytest.mark.parametrize("created", [2**30 - 300, 2**30, 2**30 + 5])
def test_ids_are_skipped_beyond_2_to_the_30(created: int) -> None:
    session = CountingSession(created)
    zk = cast(ZooKeeper, cast(Any, session))
    last = 2**30 + 400
    coming = []
    for each in skip_ledger_ids(zk, "/ledgers", MANAGER, last):
        coming.append(each)
        assert len(coming) < 10, "it does not see that the counter goes on"
    assert coming[0] == created
    assert coming[-1] == session.created == last + 1
    assert coming_ledger_id(zk, "/ledgers", MANAGER) == last + 1
    # Nothing to skip.
    assert list(skip_ledger_ids(zk, "/ledgers", MANAGER, last)) == [last + 1]
