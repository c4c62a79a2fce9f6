"""A model of ZooKeeper for the logs' pure decisions: an ordered history of states, seen by clients that lag.

It models what matters to them: versions, transactions, servers that are behind until synced, lost replies, and requests
that take effect only after their sender was told that the connection broke.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from posixpath import dirname
from random import Random

from bk_spark.log import EntryFormat, LogSettings
from bk_spark.log.core.steps import (
    Action,
    Conflict,
    Done,
    Event,
    Found,
    OutcomeUnknown,
    Pause,
    Read,
    ReadTimer,
    ReleaseLock,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Unavailable,
)
from bk_spark.log.formats.names import LogPaths, app_key
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.settings import encode_settings
from bk_spark.log.formats.znodes import (
    Application,
    Head,
    LedgerRegistration,
    decode_application,
    decode_head,
    encode_head,
    encode_registration,
)
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from bk_spark.protocol.quorum import Quorum

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
PATHS = LogPaths("/logs", "flights", LOG_ID)
State = dict[str, tuple[bytes, int]]


@functools.cache
def raw_settings() -> LogSettings:
    return LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"secret")


class RefusedError(Exception):
    pass


class ModelZooKeeper:
    """``states[-1]`` is the truth; a client may look at an earlier state."""

    def __init__(self) -> None:
        self.states: list[State] = [{"/": (b"", 0), "/logs": (b"", 0)}]
        page = encode_page(SegmentPage(LOG_ID, 0, 0, SegmentTable.of(())))
        self.transact(
            [
                CreateOp(PATHS.head, encode_head(Head(LOG_ID))),
                CreateOp(PATHS.identity),
                CreateOp(PATHS.settings, encode_settings(LOG_ID, raw_settings())),
                CreateOp(PATHS.pages),
                CreateOp(PATHS.page(0), page),
                CreateOp(PATHS.apps),
                CreateOp(PATHS.ledgers),
                CreateOp(PATHS.lock),
            ]
        )

    def transact(self, operations: Sequence[TransactionOp]) -> None:
        """Apply all operations or none. Raises RefusedError."""
        state = dict(self.states[-1])
        for op in operations:
            found = state.get(op.path)
            match op:
                case CreateOp():
                    if found is not None or dirname(op.path) not in state:
                        raise RefusedError(f"create {op.path}")
                    state[op.path] = (op.data, 0)
                    continue
                case SetOp() | CheckOp() | DeleteOp():
                    if found is None or op.version not in (-1, found[1]):
                        raise RefusedError(f"{type(op).__name__} {op.path}")
            if isinstance(op, SetOp):
                state[op.path] = (op.data, found[1] + 1)
            elif isinstance(op, DeleteOp):
                del state[op.path]
        self.states.append(state)

    def read(self, path: str, index: int = -1) -> Znode | None:
        found = self.states[index].get(path)
        return None if found is None else Znode(found[0], found[1], 0, 0, 0, 0)

    def register(self, app: str, run: str, *ledger_ids: int) -> None:
        for path in (PATHS.runs_at(app_key(app)), PATHS.run(app, run)):
            if self.read(path) is None:
                self.transact([CreateOp(path)])
        for ledger_id in ledger_ids:
            data = encode_registration(LedgerRegistration())
            self.transact([CreateOp(PATHS.registration(app, run, ledger_id), data)])

    def head(self) -> Head:
        znode = self.read(PATHS.head)
        assert znode is not None
        return decode_head(znode.data, PATHS.head)

    def application(self, app: str) -> Application | None:
        znode = self.read(PATHS.app(app))
        return None if znode is None else decode_application(znode.data, PATHS.app(app))

    def segments(self) -> list[Segment]:
        """Everything committed, read page by page; checks that offsets follow one another."""
        head = self.head()
        segments: list[Segment] = []
        for number in range(head.first_page, head.tail_page + 1):
            znode = self.read(PATHS.page(number))
            assert znode is not None, f"page {number} is missing"
            page = decode_page(znode.data, PATHS.page(number), log_id=LOG_ID, number=number)
            assert not segments or page.base_offset == segments[-1].end_offset
            segments += page.table
        assert (segments[-1].end_offset if segments else 0) == head.next_offset
        return [segment for segment in segments if segment.base_offset >= head.first_offset]


class Client:
    """One session. What it sees may be behind, but never goes back."""

    def __init__(self, zk: ModelZooKeeper, rng: Random, fault_rate: float = 0.0) -> None:
        self.zk = zk
        self._rng = rng
        self._fault_rate = fault_rate
        self._view = 0
        #: Transactions in flight whose sender was told that the connection broke.
        self.in_flight: list[tuple[TransactionOp, ...]] = []
        self.lost_replies = 0

    def perform(self, action: Action) -> Event:
        fault = self._rng.random() < self._fault_rate
        newest = len(self.zk.states) - 1
        match action:
            case Sync():
                if fault:
                    return Unavailable("model")
                self._view = newest
            case Read(paths):
                if fault:
                    return Unavailable("model")
                znodes = {}
                for path in paths:
                    self._view = self._rng.randint(self._view, newest)
                    znodes[path] = self.zk.read(path, self._view)
                return Found(znodes)
            case Transact(operations):
                return self._transact(operations, fault)
            case ReadTimer():
                return TimerRead(newest)
            case TakeLock() | ReleaseLock() | Pause():
                pass
        return Done()

    def deliver_late(self) -> None:
        """A request in flight when the connection broke reaches the leader."""
        operations = self.in_flight.pop(self._rng.randrange(len(self.in_flight)))
        with contextlib.suppress(RefusedError):
            self.zk.transact(operations)

    def _transact(self, operations: tuple[TransactionOp, ...], fault: bool) -> Event:
        if fault:
            fate = self._rng.choice(["lost", "late", "applied"])
            if fate == "late":
                self.in_flight.append(operations)
            elif fate == "applied":
                with contextlib.suppress(RefusedError):
                    self.zk.transact(operations)
                    self.lost_replies += 1
            return OutcomeUnknown("model")
        try:
            self.zk.transact(operations)
        except RefusedError as error:
            return Conflict(str(error))
        self._view = len(self.zk.states) - 1
        return Done()
