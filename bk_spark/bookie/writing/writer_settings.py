"""Derives the settings of writers from a client's configuration."""

from __future__ import annotations

from bk_spark.bookie.config import GRPC, ClientConfig
from bk_spark.protocol.codes import DigestType, FlagV2
from bk_spark.protocol.ledger.writer_actions import UNLIMITED, WriterLimits
from bk_spark.protocol.wire.add_frames import EntryPackager, Packager
from bk_spark.protocol.wire.v3.add_frames_v3 import EntryPackagerV3


def packager_of(
    config: ClientConfig,
    ledger_id: int,
    digest_type: DigestType,
    password: bytes,
    flags: FlagV2 = FlagV2.NONE,
    *,
    deferred_sync: bool = False,
) -> Packager:
    """Return the packager for the ledger's wire protocol: v3 with deferred sync, else as configured.

    gRPC takes frames of v2, and makes batches of them. It has no deferred sync: our bookies sync before they answer.
    """
    if config.transport == GRPC or (config.use_v2_wire_protocol and not deferred_sync):
        return EntryPackager(ledger_id, digest_type, password, flags)
    return EntryPackagerV3(ledger_id, digest_type, password, flags, deferred_sync=deferred_sync)


def limits_of(config: ClientConfig, *, recovers: bool = False) -> WriterLimits:
    """Return the limits of a writer. A recovery has no limit of ensemble changes, and sends no explicit LAC."""
    return WriterLimits(
        max_unanswered_entries=config.max_unanswered_entries,
        max_pending_bytes=config.max_pending_bytes,
        add_timeout_ms=config.add_timeout_ms,
        add_quorum_timeout_ms=config.add_quorum_timeout_ms,
        max_ensemble_changes=UNLIMITED if recovers else config.max_ensemble_changes,
        explicit_lac_interval_ms=0 if recovers else config.explicit_lac_interval_ms,
    )
