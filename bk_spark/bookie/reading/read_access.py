"""What the readers of one client share."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.reading.failure_history import FailureHistory
from bk_spark.bookie.reading.ledger_watch import LedgerWatches
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import DigestFunction
from bk_spark.protocol.ledger.speculation import Speculation


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Metadata, connections (``pool_v3`` for what v2 cannot ask), and what was learnt about bookies."""

    services: ClusterServices
    pool: ConnectionPool[LedgerConnection]
    pool_v3: ConnectionPool[BookieConnectionV3]
    config: ClientConfig
    history: FailureHistory
    watches: LedgerWatches

    @classmethod
    def of(
        cls,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        pool_v3: ConnectionPool[BookieConnectionV3],
        config: ClientConfig,
    ) -> ReadAccess:
        history = FailureHistory(config.bookie_failure_history_expiration_ms)
        return cls(services, pool, pool_v3, config, history, LedgerWatches(services))

    @property
    def read_speculation(self) -> Speculation:
        config = self.config
        return Speculation(config.first_speculative_read_timeout_ms, config.max_speculative_read_timeout_ms)

    @property
    def poll_speculation(self) -> Speculation:
        config = self.config
        return Speculation(config.first_speculative_read_lac_timeout_ms, config.max_speculative_read_lac_timeout_ms)


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """Which ledger, and how its entries are verified."""

    ledger_id: int
    digest_type: DigestType
    digest: DigestFunction
