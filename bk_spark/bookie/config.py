"""Settings of the ledger client, under Apache's client configuration names where they exist.

How a field is written: see :mod:`bk_spark.bookie.properties`. ``python -m bk_spark.bookie.config`` prints
docs/client-config.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bk_spark.bookie.placement.rack_names import parse_rack_table
from bk_spark.bookie.properties import check_settings, parse_properties, settings_table
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.wire.add_frames import EntryPackager

#: What an answer that carries an entry may have beyond the ADD frame that carried it: a v2 batch read 12
#: bytes, a v3 read some 60. Entries stay that much smaller than a frame, so that every client can read them.
ANSWER_RESERVE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Limits and timeouts. Raises InvalidArgumentError for a value out of bounds."""

    zk_session_timeout_ms: int = field(
        default=10_000,
        metadata={"apache": "zkTimeout", "unit_ms": 1, "least": 100, "doc": "Session timeout asked of ZooKeeper."},
    )
    zk_session_rest_ms: int = field(
        default=0,
        metadata={
            "least": 0,
            "doc": "End the session with ZooKeeper when nothing was asked for so long, and begin another with the next "
            "question; 0: keep it. For many clients on one host, see `maxClientCnxns` there. No log writers then.",
        },
    )
    metadata_timeout_ms: int = field(
        default=30_000,
        metadata={"least": 1, "doc": "The longest that a call waits for ZooKeeper, also while there is no connection."},
    )
    connect_timeout_ms: int = field(
        default=10_000,
        metadata={
            "apache": "clientConnectTimeoutMillis",
            "unit_ms": 1,
            "least": 1,
            "doc": "Connecting to a bookie, or to ZooKeeper at the start.",
        },
    )
    add_timeout_ms: int = field(
        default=5_000,
        metadata={
            "apache": "addEntryTimeoutSec",
            "unit_ms": 1000,
            "least": 1,
            "doc": "A bookie that leaves an add unanswered so long has failed.",
        },
    )
    read_timeout_ms: int = field(
        default=5_000,
        metadata={
            "apache": "readEntryTimeoutSec",
            "unit_ms": 1000,
            "least": 1,
            "doc": "A bookie that leaves a read unanswered so long has failed.",
        },
    )
    max_frame_bytes: int = field(
        default=DEFAULT_MAX_FRAME_BYTES,
        metadata={
            "apache": "nettyMaxFrameSizeBytes",
            "least": 1024,
            "doc": "Largest frame; must not exceed what the bookies accept.",
        },
    )
    max_pending_bytes: int = field(
        default=16 * 1024 * 1024,
        metadata={"least": 1, "doc": "Bytes of entries that a writer may have unacknowledged."},
    )
    max_unanswered_entries: int = field(
        default=8_000,
        metadata={
            "least": 1,
            "doc": "Entries that the slowest bookie of a writer's ensemble may have unanswered; bookies queue 10,000.",
        },
    )
    add_quorum_timeout_ms: int | None = field(
        default=None,
        metadata={
            "apache": "addEntryQuorumTimeoutSec",
            "unit_ms": 1000,
            "least": 1,
            "doc": "An entry that lacks its ack quorum for so long ends the writer.",
        },
    )
    max_ensemble_changes: int = field(
        default=2**31 - 1,
        metadata={"apache": "maxNumEnsembleChanges", "doc": "Ensemble changes of one writer; one more ends it."},
    )
    explicit_lac_interval_ms: int = field(
        default=0,
        metadata={
            "apache": "explicitLacInterval",
            "unit_ms": 1,
            "doc": "How often a writer that pauses tells readers its last add confirmed; 0 is never.",
        },
    )
    entry_gap_timeout_ms: int = field(
        default=30_000,
        metadata={
            "least": 1,
            "doc": "Wait of an entry whose id the caller chose for room among those that wait for lower ids.",
        },
    )
    read_ahead_bytes: int = field(
        default=8 * 1024 * 1024,
        metadata={"least": 1, "doc": "Bytes of entries that a reader asks for ahead of its caller."},
    )
    use_v2_wire_protocol: bool = field(
        default=True,
        metadata={
            "apache": "useV2WireProtocol",
            "doc": "Adds and reads over v2, else v3. Apache's default is v3; ours is v2, for batch reads and speed.",
        },
    )
    max_outstanding_requests: int = field(
        default=2_000,
        metadata={
            "least": 1,
            "doc": "While a connection has so many requests unanswered, others wait, as long as "
            "`readEntryTimeoutSec`. Each entry of a read counts, adds do not. Apache's bookies stop serving for good "
            "when all clients together have more reads under way than `maxReadsInProgressLimit`, 10,000 in 4.18.0.",
        },
    )
    batch_read_enabled: bool = field(
        default=True,
        metadata={"apache": "batchReadEnabled", "doc": "Read many entries by one request where it can be."},
    )
    read_attempts: int = field(
        default=3,
        metadata={
            "least": 1,
            "doc": "Tries for a read of which no replica gave an entry, with fresh metadata each time.",
        },
    )
    first_speculative_read_timeout_ms: int = field(
        default=2_000,
        metadata={
            "apache": "firstSpeculativeReadTimeout",
            "unit_ms": 1,
            "least": 1,
            "doc": "A read unanswered so long is sent to a second replica too.",
        },
    )
    max_speculative_read_timeout_ms: int = field(
        default=2_000,
        metadata={
            "apache": "maxSpeculativeReadTimeout",
            "unit_ms": 1,
            "least": 1,
            "doc": "To further ones after twice the wait before, at most this.",
        },
    )
    bookie_failure_history_expiration_ms: int = field(
        default=60_000,
        metadata={
            "apache": "bookieFailureHistoryExpirationMSec",
            "unit_ms": 1,
            "least": 0,
            "doc": "How long a bookie that failed a read, or was slow, is asked last.",
        },
    )
    max_read_range_bytes: int = field(
        default=512 * 1024 * 1024,
        metadata={
            "least": 1,
            "most": 2**31 - 1,
            "doc": "The most that read_range gives as one batch.",
        },
    )
    long_poll_timeout_ms: int = field(
        default=4_000,
        metadata={
            "least": 1,
            "most": 3_600_000,
            "doc": "How long a bookie is asked to wait for new entries of a ledger that is followed.",
        },
    )
    first_speculative_read_lac_timeout_ms: int = field(
        default=1_500,
        metadata={
            "apache": "firstSpeculativeReadLACTimeout",
            "unit_ms": 1,
            "least": 1,
            "doc": "A long poll unanswered so long is sent to a second replica too.",
        },
    )
    max_speculative_read_lac_timeout_ms: int = field(
        default=5_000,
        metadata={
            "apache": "maxSpeculativeReadLACTimeout",
            "unit_ms": 1,
            "least": 1,
            "doc": "To further ones after twice the wait before, at most this.",
        },
    )
    tail_attempts: int = field(
        default=10,
        metadata={
            "least": 1,
            "doc": "How often in a row a ledger that is followed may fail to be read, with growing pauses up to 5 s.",
        },
    )
    bookie_racks: str = field(
        default="",
        metadata={"doc": "Racks of bookies, `host=/rack,…`; a bookie id may stand for the host."},
    )
    rack_mapping_znode: str = field(
        default="",
        metadata={"doc": "Znode with the racks of bookies, in Pulsar's format: `/bookies`."},
    )
    network_topology_script: str = field(
        default="",
        metadata={
            "apache": "networkTopologyScriptFileName",
            "doc": "Script that is given hosts (20 at most) and writes the rack of each.",
        },
    )
    network_topology_script_timeout_ms: int = field(
        default=5_000, metadata={"least": 1, "doc": "How long the script may take, for all hosts together."}
    )
    min_racks_per_write_quorum: int = field(
        default=2,
        metadata={
            "apache": "minNumRacksPerWriteQuorum",
            "least": 1,
            "doc": "Where racks are known: in how many each write quorum should be.",
        },
    )
    enforce_min_racks_per_write_quorum: bool = field(
        default=False,
        metadata={
            "apache": "enforceMinNumRacksPerWriteQuorum",
            "doc": "Rather no ledger, and no replacement of a bookie, than a write quorum in fewer racks.",
        },
    )
    bookie_health_check_enabled: bool = field(
        default=True,
        metadata={
            "apache": "bookieHealthCheckEnabled",
            "doc": "Choose bookies that failed lately last. Apache's default is false. The znode `disableHealthCheck` "
            "under the ledgers root switches it off for all clients.",
        },
    )
    first_quarantine_ms: int = field(
        default=10_000,
        metadata={"least": 0, "doc": "How long a bookie is chosen last after a failure; twice as long after the next."},
    )
    bookie_quarantine_time_ms: int = field(
        default=1_800_000,
        metadata={
            "apache": "bookieQuarantineTimeSeconds",
            "unit_ms": 1000,
            "least": 0,
            "doc": "The longest time; also that of a bookie with too many failures in an interval.",
        },
    )
    bookie_error_threshold: int = field(
        default=100,
        metadata={
            "apache": "bookieErrorThresholdPerInterval",
            "least": 1,
            "most": 100_000,
            "doc": "So many failures in an interval are too many.",
        },
    )
    bookie_health_check_interval_ms: int = field(
        default=60_000,
        metadata={
            "apache": "bookieHealthCheckIntervalSeconds",
            "unit_ms": 1000,
            "least": 1,
            "doc": "The interval; a bookie without failures for so long starts afresh.",
        },
    )

    def __post_init__(self) -> None:
        check_settings(self)
        parse_rack_table(self.bookie_racks)
        sources = (self.bookie_racks, self.rack_mapping_znode, self.network_topology_script)
        if self.enforce_min_racks_per_write_quorum and not any(sources):
            raise InvalidArgumentError(
                "enforceMinNumRacksPerWriteQuorum needs to know the racks: set bookieRacks, rackMappingZnode or "
                "networkTopologyScriptFileName"
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientConfig:
        """Settings by their keys. Raises InvalidArgumentError for a key that is none, with the nearest that is
        one, and for a wrong value, with what is allowed."""
        return cls(**parse_properties(cls, properties, "client configuration"))

    def max_payload_bytes(self, digest_type: DigestType) -> int:
        """The largest payload that every bookie takes and every client can read back."""
        return self.max_frame_bytes - EntryPackager.overhead(digest_type) - ANSWER_RESERVE_BYTES


def reference() -> str:
    """docs/client-config.md: the table of settings."""
    return "\n".join(
        [
            "# Configuration of the ledger client",
            "",
            "`ClientConfig.from_properties` takes the keys, `ClientConfig(...)` the fields. Keys with an A are",
            "Apache's client configuration keys, in Apache's unit; fields count milliseconds and bytes. A key that",
            "does not exist is an error. This page is printed by `python -m bk_spark.bookie.config`.",
            "",
            *settings_table(ClientConfig),
            "",
        ]
    )


if __name__ == "__main__":
    print(reference(), end="")
