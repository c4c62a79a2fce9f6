"""A daemon's session with ZooKeeper in the model world of self-healing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from bk_spark.protocol.errors import MetadataUnavailableError, OutcomeUnknownError
from bk_spark.protocol.metadata.znodes import TransactionOp
from tests.support.zookeeper_model import ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

#: The most by which a read may be behind.
_MOST_LAG = 15


class Session(ModelSession):
    """Its server is behind; requests and replies are lost, with the chance that ``loss`` gives."""

    def __init__(self, zk: ZooKeeperModel, random: Random) -> None:
        super().__init__(zk)
        self._random = random
        self.view = zk.zxid
        self.loss: Callable[[], float] = lambda: 0.0

    def fall_behind(self) -> None:
        self.view = max(0, self.zk.zxid - self._random.randint(0, _MOST_LAG))

    def catch_up(self) -> None:
        """A watch is called: the server knows of the change."""
        self.view = self.zk.zxid

    def _look(self) -> int:
        self.view = self._random.randint(max(self.view, self.zk.zxid - _MOST_LAG), self.zk.zxid)
        return self.view

    def _is_lost(self) -> bool:
        loss = self.loss()
        return loss > 0 and self._random.random() < loss

    def _before(self) -> None:
        if self._is_lost():
            raise MetadataUnavailableError("the request was lost")

    def sync(self, path: str) -> None:
        super().sync(path)
        self.view = self.zk.zxid

    def _transact(self, operations: Sequence[TransactionOp]) -> None:
        lost = self._is_lost()
        if not lost or self._random.random() < 0.7:
            super()._transact(operations)
            self.view = self.zk.zxid
        if lost:
            raise OutcomeUnknownError("the reply was lost")
