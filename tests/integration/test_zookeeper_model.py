"""The model of ZooKeeper answers like a real one, and the comparison finds models that do not."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from bookie_server.local import LocalCluster
from tests.support.zookeeper_model import RefusedError, Watch, ZooKeeperModel
from tests.support.zookeeper_operations import SESSIONS, Comparison, DifferenceError

#: ``ZOOKEEPER_MODEL_SEQUENCES=500`` tries more.
SEQUENCES = int(os.environ.get("ZOOKEEPER_MODEL_SEQUENCES", "40"))
#: If this many sequences do not find a broken model, they have lost their power.
MOST_SEQUENCES = 60


@pytest.fixture
def sessions(zk_only: LocalCluster) -> Iterator[list[ZooKeeper]]:
    with ExitStack() as stack:
        found = [ZooKeeper(zk_only.zookeepers[0].id) for _ in range(SESSIONS)]
        for session in found:
            stack.callback(session.close)
            session.start()
        yield found


def compare(seed: str, sessions: list[ZooKeeper], model: type[ZooKeeperModel] = ZooKeeperModel) -> None:
    comparison = Comparison(seed, f"/model-{uuid.uuid4().hex[:12]}", sessions, model)
    try:
        comparison.run()
    except DifferenceError as error:
        story = "\n".join(comparison.told)
        raise DifferenceError(f"{error}\n{story}\nagain: ZOOKEEPER_MODEL_SEED={seed}") from None


def test_the_model_answers_like_zookeeper(sessions: list[ZooKeeper]) -> None:
    """With other sequences every day; ``ZOOKEEPER_MODEL_SEED`` repeats one."""
    wanted = os.environ.get("ZOOKEEPER_MODEL_SEED")
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    seeds = [wanted] if wanted else [f"{day}.{number}" for number in range(SEQUENCES)]
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    for seed in seeds:
        compare(seed, sessions)


class VersionsStay(ZooKeeperModel):
    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        super().transact(operations, session)
        for op in operations:
            if isinstance(op, SetOp) and (found := self.read(op.path)) is not None:
                self._nodes[op.path].append((self.zxid, replace(found, version=found.version - 1, children=0)))


class TransactionsArePartial(ZooKeeperModel):
    """What precedes the operation that fails takes effect."""

    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        for op in operations:
            super().transact([op], session)


class EphemeralsStay(ZooKeeperModel):
    def expire(self, session: int) -> None:
        del self._ephemeral[session]


class EphemeralsHaveChildren(ZooKeeperModel):
    def _create(self, draft: Any, op: CreateOp, found: Znode | None, session: int) -> None:
        try:
            super()._create(draft, op, found, session)
        except RefusedError as error:
            if error.reason != "NoChildrenForEphemeralsError":
                raise
            draft.create(op, session)


class VersionsAreNotChecked(ZooKeeperModel):
    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        super().transact([op if isinstance(op, CreateOp) else replace(op, version=-1) for op in operations], session)


class SequencesCountTheChildren(ZooKeeperModel):
    """The next number is that of the children that are there."""

    def next_name(self, path: str) -> str:
        return f"{path}{len(self.children(path.rpartition('/')[0] or '/') or ()):010d}"


class WatchesStay(ZooKeeperModel):
    def watch_data(self, path: str, watch: Watch) -> None:
        def call(called: str) -> None:
            watch(called)
            self._data_watches.setdefault(path, []).append(call)

        super().watch_data(path, call)


class WatchesOfChildrenMissTheEnd(ZooKeeperModel):
    """A watch of the children is not called when the znode itself is deleted."""

    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        gone = {op.path: self._child_watches.pop(op.path, []) for op in operations if isinstance(op, DeleteOp)}
        try:
            super().transact(operations, session)
        finally:
            for path, watches in gone.items():
                self._child_watches.setdefault(path, []).extend(watches)


class TransactionsHaveSeveralIds(ZooKeeperModel):
    def _apply(self, draft: Any) -> None:
        for number, (path, znode) in enumerate(draft.nodes_after.items()):
            if znode is not None and not znode.version:
                draft.nodes_after[path] = replace(znode, created_zxid=znode.created_zxid + number)
        super()._apply(draft)
        self.zxid += len(draft.nodes_after)


class FullDirectoriesAreDeleted(ZooKeeperModel):
    def transact(self, operations: Sequence[TransactionOp], session: int = 0) -> None:
        for op in operations:
            if isinstance(op, DeleteOp) and (names := self.children(op.path)) and op.version == -1:
                self.transact([DeleteOp(f"{op.path}/{name}") for name in names], session)
        super().transact(operations, session)


BROKEN = [
    VersionsStay,
    TransactionsArePartial,
    EphemeralsStay,
    EphemeralsHaveChildren,
    VersionsAreNotChecked,
    SequencesCountTheChildren,
    WatchesStay,
    WatchesOfChildrenMissTheEnd,
    TransactionsHaveSeveralIds,
    FullDirectoriesAreDeleted,
]


@pytest.mark.parametrize("model", BROKEN)
def test_a_model_that_differs_is_found(sessions: list[ZooKeeper], model: type[ZooKeeperModel]) -> None:
    for number in range(MOST_SEQUENCES):
        try:
            compare(f"broken.{number}", sessions, model)
        except DifferenceError as error:
            print(f"found by sequence {number}: {str(error).splitlines()[0]}")
            return
    raise AssertionError(f"not found by {MOST_SEQUENCES} sequences")
