"""Sessions of logs with the model of ZooKeeper: servers that are behind until synced, lost replies, and requests that
take effect only after their sender was told that the connection broke.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bk_spark.log.core.steps import (
    Conflict,
    Done,
    Event,
    Found,
    InSession,
    ListChildren,
    Listed,
    OutcomeUnknown,
    Read,
    Sync,
    Unavailable,
)
from bk_spark.protocol.metadata.znodes import DeleteOp, TransactionOp
from tests.support.zookeeper_model import RefusedError, ZooKeeperModel

#: The most by which a new session's server may be behind.
MOST_LAG = 40
#: The fates of a transaction whose sender gets no reply: it was never sent (and the sender knows), was lost, is still
#: in flight, or took effect.
FATES = ("unsent", "lost", "late", "applied")


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a transaction: the kind of process, and when its session last synced."""

    kind: str = ""
    synced_ms: int = 0


class LogsZooKeeper(ZooKeeperModel):
    """ZooKeeper, requests that are still in flight, and who sends what."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        super().__init__(now_ms)
        #: Transactions in flight whose sender was told that the connection broke, with their sessions.
        self.late: list[tuple[int, tuple[TransactionOp, ...], Origin]] = []
        #: The origin of the transaction being applied.
        self.origin = Origin()
        #: New sessions connect to the server that is furthest behind, and stay behind until they sync.
        self.lags_most = False

    def deliver_late(self, random: Random) -> None:
        """A request in flight when its sender's connection broke reaches the leader."""
        session, operations, self.origin = self.late.pop(random.randrange(len(self.late)))
        with contextlib.suppress(RefusedError):
            self.transact(operations, session)


@dataclass(frozen=True, slots=True)
class Look:
    """Like Read, for code that itself checks whether its session is still the one that synced."""

    paths: tuple[str, ...]


@dataclass(slots=True)
class Weather:
    """Probabilities, per action, that the connection to ZooKeeper breaks, and that bookies fail it."""

    metadata: float = 0.0
    ledgers: float = 0.0


class Session:
    """One process's connection. What it sees may be behind, but never goes back, unless its session ended."""

    def __init__(self, zk: LogsZooKeeper, random: Random, weather: Weather | None = None) -> None:
        self.zk = zk
        self.weather = weather or Weather()
        self._random = random
        self._view = 0
        #: The state at the last sync; later reads show that or a newer one.
        self.synced_zxid = 0
        self.synced_ms = 0
        #: Of the transactions to come.
        self.origin = Origin()
        self.session = zk.new_session()
        #: The state and the time when the process sent its current request: both of the end of the one before.
        self._asked_zxid, self._asked_ms = zk.zxid, zk.now_ms()
        self.lost_replies = 0
        #: The fate of the next transaction (one of FATES), if it is not drawn.
        self.next_fate = ""

    def read(self, action: Sync | Read | ListChildren) -> InSession:
        self._renew()
        return InSession(action, self._read(action), self.session, self.session)

    def ask_next(self) -> None:
        """The process sends its next request now. It takes effect between now and its answer."""
        self._asked_zxid, self._asked_ms = self.zk.zxid, self.zk.now_ms()

    def look(self, action: Look) -> Event:
        self._renew()
        return self._read(action)

    def _read(self, action: Sync | Read | Look | ListChildren) -> Event:
        if self._random.random() < self.weather.metadata:
            return Unavailable("model")
        match action:
            case Sync():
                self._sync(self.zk.zxid)
                return Done()
            case Look(paths) | Read(paths):
                if isinstance(action, Read) and action.after_sync:
                    self._sync(self._random.randint(self._asked_zxid, self.zk.zxid))
                return Found({path: self.zk.read(path, self._look()) for path in paths})
            case ListChildren(path):
                return Listed(self.zk.children(path, self._look()))

    def _sync(self, zxid: int) -> None:
        self.synced_zxid = zxid
        self._view = max(self._view, zxid)
        self.synced_ms = self.zk.now_ms() if zxid == self.zk.zxid else self._asked_ms

    def transact(self, operations: tuple[TransactionOp, ...]) -> Event:
        self._renew()
        self.zk.origin = self.origin
        if self.next_fate or self._random.random() < self.weather.metadata:
            fate, self.next_fate = self.next_fate or self._random.choice(FATES), ""
            return self._lose(operations, fate)
        try:
            self.zk.transact(operations, self.session)
        except RefusedError as error:
            return Conflict(str(error))
        self._view = self.zk.zxid
        return Done()

    def release_locks(self) -> Done:
        for path in self.zk.ephemerals(self.session):
            if "/lock/" in path:
                self.zk.transact([DeleteOp(path)])
        return Done()

    def _look(self) -> int:
        if not self.zk.lags_most:
            self._view = self._random.randint(self._view, self.zk.zxid)
        return self._view

    def _lose(self, operations: tuple[TransactionOp, ...], fate: str) -> Event:
        if fate == "unsent":
            return Unavailable("model")
        if fate == "late":
            self.zk.late.append((self.session, operations, self.origin))
        elif fate == "applied":
            with contextlib.suppress(RefusedError):
                self.zk.transact(operations, self.session)
                self.lost_replies += 1
        return OutcomeUnknown("model")

    def _renew(self) -> None:
        """If the old session has ended, start a new one with another server, which may be behind what was seen."""
        if not self.zk.is_alive(self.session):
            self.session = self.zk.new_session()
            behind = max(0, self.zk.zxid - MOST_LAG)
            self.ask_next()
            self._view = behind if self.zk.lags_most else self._random.randint(behind, self.zk.zxid)
