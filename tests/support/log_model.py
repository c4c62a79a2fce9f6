"""A log in the model of ZooKeeper, and its clients, for the logs' pure decisions."""

from __future__ import annotations

import functools
from random import Random

from bk_spark.log import EntryFormat, LogSettings
from bk_spark.log.core.steps import (
    Action,
    Done,
    Event,
    ListChildren,
    Pause,
    Read,
    ReadTimer,
    ReleaseLock,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
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
from bk_spark.protocol.metadata.znodes import CreateOp
from bk_spark.protocol.quorum import Quorum
from tests.simulation.logs.zookeeper import LogsZooKeeper, Session, Weather

LOG_ID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
PATHS = LogPaths("/logs", "flights", LOG_ID)


@functools.cache
def raw_settings() -> LogSettings:
    return LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"secret")


class ModelLog(LogsZooKeeper):
    """ZooKeeper with one log, which is empty."""

    def __init__(self) -> None:
        super().__init__()
        page = encode_page(SegmentPage(LOG_ID, 0, 0, SegmentTable.of(())))
        self.transact(
            [
                CreateOp("/logs"),
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


class Client(Session):
    """One session. What it sees may be behind, but never goes back."""

    def __init__(self, zk: LogsZooKeeper, rng: Random, fault_rate: float = 0.0) -> None:
        super().__init__(zk, rng, Weather(metadata=fault_rate))

    def perform(self, action: Action) -> Event:
        event = self._perform(action)
        self.ask_next()
        return event

    def _perform(self, action: Action) -> Event:
        match action:
            case Sync() | Read() | ListChildren():
                return self.read(action).event
            case Transact(operations):
                return self.transact(operations)
            case ReadTimer():
                return TimerRead(self.zk.zxid)
            case TakeLock() | ReleaseLock() | Pause():
                return Done()
        raise AssertionError(action)
