"""The shared state of one client's readers."""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_spark.bookie.config import GRPC, ClientConfig
from bk_spark.bookie.connection.interface import ControlConnection, LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.reading.failure_history import FailureHistory
from bk_spark.bookie.reading.ledger_watch import LedgerWatches
from bk_spark.bookie.services import ClusterServices
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey, LedgerView
from bk_spark.protocol.ledger.reading.read_settings import (
    GRPC_REQUEST_BYTES,
    REQUEST_BYTES,
    ReadSettings,
    Speculation,
    TailSettings,
)
from bk_spark.protocol.ledger.reading.reader import RangeReader


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Metadata, connections (``pool_v3`` for requests that v2 lacks), and knowledge about bookies."""

    services: ClusterServices
    pool: ConnectionPool[LedgerConnection]
    pool_v3: ConnectionPool[ControlConnection]
    config: ClientConfig
    history: FailureHistory
    watches: LedgerWatches
    read_settings: ReadSettings
    #: Bookies without batch reads: they closed the connection at one.
    without_batch_reads: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        services: ClusterServices,
        pool: ConnectionPool[LedgerConnection],
        pool_v3: ConnectionPool[ControlConnection],
        config: ClientConfig,
    ) -> ReadAccess:
        """Return the state for a new session: no bookie has failed, none is known to lack batch reads."""
        history = FailureHistory(config.bookie_failure_history_expiration_ms)
        return cls(services, pool, pool_v3, config, history, LedgerWatches(services), read_settings(config))

    def range_reader(
        self, ledger: LedgerKey, view: LedgerView, first: int, last: int, *, unconfirmed: bool = False
    ) -> RangeReader:
        """Return a reader of entries ``first`` to ``last`` (inclusive) that shares what is known about bookies."""
        return RangeReader(
            ledger,
            view,
            first,
            last,
            self.read_settings,
            unconfirmed=unconfirmed,
            suspects=self.history,
            without_batch_reads=self.without_batch_reads,
        )

    def tail_settings(self, max_wait_ms: int | None) -> TailSettings:
        """Return the configured settings of a tail. It ends when nothing new came for ``max_wait_ms``; None: never."""
        config = self.config
        first_ms, max_ms = config.first_speculative_read_lac_timeout_ms, config.max_speculative_read_lac_timeout_ms
        return TailSettings(
            attempts=config.tail_attempts,
            max_wait_ms=max_wait_ms,
            poll_ms=config.long_poll_timeout_ms,
            timeout_ms=config.read_timeout_ms,
            speculation=Speculation(first_ms, max_ms),
        )


def read_settings(config: ClientConfig) -> ReadSettings:
    """Return how a client with this configuration reads ranges of ledgers."""
    over_grpc = config.transport == GRPC
    batches = config.batch_read_enabled and (config.use_v2_wire_protocol or over_grpc)
    request_bytes = min(GRPC_REQUEST_BYTES if over_grpc else REQUEST_BYTES, config.max_frame_bytes)
    return ReadSettings(
        attempts=config.read_attempts,
        timeout_ms=config.read_timeout_ms,
        speculation=Speculation(config.first_speculative_read_timeout_ms, config.max_speculative_read_timeout_ms),
        requests_ahead=max(2, config.read_ahead_bytes // request_bytes),
        request_bytes=request_bytes,
        max_answer_bytes=config.max_frame_bytes if batches else None,
    )
