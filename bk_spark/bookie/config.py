"""Settings of the ledger client, under Apache's client configuration names where they exist.

``python -m bk_spark.bookie.config_page`` prints docs/client-config.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.bookie.placement.rack_names import parse_rack_table
from bk_spark.bookie.tls.contexts import key_store_of, trust_store_of
from bk_spark.bookie.tls.settings import STORE_TYPE
from bk_spark.bookie.tls.stores import Store
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.settings.conf import read_conf
from bk_spark.settings.kinds import BOOLEAN, MAX_INT, OPTIONAL_TEXT, Kind, choice, did_you_mean, whole
from bk_spark.settings.setting import Setting, check_fields, key, settings_of

_LOG: Final = logging.getLogger(__name__)

#: An answer with an entry is longer than the ADD frame of that entry: by 12 bytes in a v2 batch read, by some 60 in a
#: v3 read. Entries stay this much smaller than a frame, so that every client can read them.
ANSWER_RESERVE_BYTES: Final = 128
#: The values of ``transport``.
NATIVE: Final = "native"
GRPC: Final = "grpc"
_TRANSPORTS: Final = choice({one: one for one in (NATIVE, GRPC)})


@dataclass(frozen=True, slots=True)
class ClientConfig(ZooKeeperSettings):
    """Limits, timeouts and security of a client, as frozen fields.

    The page "Configuration of the ledger client" describes each field, its default and its bounds. Names end in their
    unit. A value out of bounds raises InvalidArgumentError.
    """

    zk_session_timeout_ms: int = key("zkTimeout", "10000", whole(100), "Session timeout requested from ZooKeeper.")
    zk_session_rest_ms: int = key(
        "zkSessionRestMs",
        "0",
        whole(),
        "End the ZooKeeper session after this long without a request; the next request starts another. 0: "
        "keep the session. Useful for many clients on one host, see ZooKeeper's `maxClientCnxns`. Not for log "
        "writers, which need their session.",
        apache=False,
    )
    metadata_timeout_ms: int = key(
        "metadataTimeoutMs",
        "30000",
        whole(1),
        "The longest that a call waits for ZooKeeper, connected or not.",
        apache=False,
    )
    connect_timeout_ms: int = key(
        "clientConnectTimeoutMillis",
        "10000",
        whole(1),
        "Timeout of connecting to a bookie, and of the first connection to ZooKeeper.",
    )
    add_timeout_ms: int = key(
        "addEntryTimeoutSec",
        "5",
        whole(1, MAX_INT // 1000, unit=1000),
        "A bookie that does not answer an add for this long has failed.",
    )
    read_timeout_ms: int = key(
        "readEntryTimeoutSec",
        "5",
        whole(1, MAX_INT // 1000, unit=1000),
        "A bookie that does not answer a read for this long has failed.",
    )
    max_frame_bytes: int = key(
        "nettyMaxFrameSizeBytes",
        str(DEFAULT_MAX_FRAME_BYTES),
        whole(1024),
        "Largest frame. Must not exceed what the bookies accept.",
    )
    max_pending_bytes: int = key(
        "maxPendingBytes", "16777216", whole(1), "Bytes of entries that a writer may have unacknowledged.", apache=False
    )
    max_unanswered_entries: int = key(
        "maxUnansweredEntries",
        "8000",
        whole(1),
        "Entries that the slowest bookie of a writer's ensemble may have unanswered. Bookies queue 10,000.",
        apache=False,
    )
    add_quorum_timeout_ms: int | None = key(
        "addEntryQuorumTimeoutSec",
        "-1",
        whole(1, MAX_INT // 1000, unit=1000, off=None),
        "An entry without its ack quorum for this long ends the writer.",
    )
    max_ensemble_changes: int = key(
        "maxNumEnsembleChanges", str(MAX_INT), whole(), "Ensemble changes allowed for one writer. One more ends it."
    )
    explicit_lac_interval_ms: int = key(
        "explicitLacInterval", "0", whole(), "How often an idle writer publishes its last add confirmed. 0: never."
    )
    entry_gap_timeout_ms: int = key(
        "entryGapTimeoutMs",
        "30000",
        whole(1),
        "With entry ids chosen by the caller: how long an entry waits for a place in the queue of entries "
        "that wait for lower ids.",
        apache=False,
    )
    read_ahead_bytes: int = key(
        "readAheadBytes",
        "8388608",
        whole(1),
        "Bytes of entries that a reader requests ahead of its caller.",
        apache=False,
    )
    use_v2_wire_protocol: bool = key(
        "useV2WireProtocol",
        "true",
        BOOLEAN,
        "Adds and reads use v2, otherwise v3. Apache's default is v3. Ours is v2, for batch reads and speed.",
    )
    transport: str = key(
        "transport",
        NATIVE,
        Kind(_TRANSPORTS.allowed, _TRANSPORTS.parse, lambda value: value in (NATIVE, GRPC)),
        "How bookies are reached: `native`, Apache's wire protocols, or `grpc`, which only our bookies serve "
        "(docs/grpc.md).",
        apache=False,
    )
    max_outstanding_requests: int = key(
        "maxOutstandingRequests",
        "2000",
        whole(1),
        "Limit of unanswered requests per connection. Further requests wait, up to `readEntryTimeoutSec`. "
        "Each entry of a read counts; adds do not. Apache's bookies stop serving for good when all clients "
        "together exceed `maxReadsInProgressLimit` (10,000 in 4.18.0).",
        apache=False,
    )
    batch_read_enabled: bool = key(
        "batchReadEnabled", "true", BOOLEAN, "Read many entries with one request where possible."
    )
    read_attempts: int = key(
        "readAttempts",
        "3",
        whole(1),
        "Attempts to read an entry that no replica returned, each with fresh metadata.",
        apache=False,
    )
    first_speculative_read_timeout_ms: int = key(
        "firstSpeculativeReadTimeout",
        "2000",
        whole(1),
        "A read unanswered for this long also goes to a second replica.",
    )
    max_speculative_read_timeout_ms: int = key(
        "maxSpeculativeReadTimeout",
        "2000",
        whole(1),
        "Further replicas are asked after twice the previous wait, at most this.",
    )
    bookie_failure_history_expiration_ms: int = key(
        "bookieFailureHistoryExpirationMSec",
        "60000",
        whole(),
        "How long a bookie that failed or was slow is asked last.",
    )
    max_read_range_bytes: int = key(
        "maxReadRangeBytes", "536870912", whole(1), "Upper bound of the batch that read_range returns.", apache=False
    )
    long_poll_timeout_ms: int = key(
        "longPollTimeoutMs",
        "4000",
        whole(1, 3_600_000),
        "How long a bookie is asked to wait for new entries of a followed ledger.",
        apache=False,
    )
    first_speculative_read_lac_timeout_ms: int = key(
        "firstSpeculativeReadLACTimeout",
        "1500",
        whole(1),
        "A long poll unanswered for this long also goes to a second replica.",
    )
    max_speculative_read_lac_timeout_ms: int = key(
        "maxSpeculativeReadLACTimeout",
        "5000",
        whole(1),
        "Further replicas are asked after twice the previous wait, at most this.",
    )
    tail_attempts: int = key(
        "tailAttempts",
        "10",
        whole(1),
        "Consecutive failures allowed when a ledger is followed. Pauses grow up to 5 s.",
        apache=False,
    )
    bookie_racks: str = key(
        "bookieRacks",
        "",
        OPTIONAL_TEXT,
        "Racks of bookies, `host=/rack,…`. A bookie id may stand for the host.",
        apache=False,
    )
    rack_mapping_znode: str = key(
        "rackMappingZnode",
        "",
        OPTIONAL_TEXT,
        "Znode with the racks of bookies in Pulsar's format: `/bookies`.",
        apache=False,
    )
    network_topology_script: str = key(
        "networkTopologyScriptFileName",
        "",
        OPTIONAL_TEXT,
        "Script that takes hosts (at most 20) and prints the rack of each.",
    )
    network_topology_script_timeout_ms: int = key(
        "networkTopologyScriptTimeoutMs", "5000", whole(1), "Timeout of one run of the script.", apache=False
    )
    min_racks_per_write_quorum: int = key(
        "minNumRacksPerWriteQuorum",
        "2",
        whole(1),
        "If racks are known: the number of racks that each write quorum should span.",
    )
    enforce_min_racks_per_write_quorum: bool = key(
        "enforceMinNumRacksPerWriteQuorum",
        "false",
        BOOLEAN,
        "Refuse a ledger, or a replacement of a bookie, whose write quorum spans fewer racks.",
    )
    bookie_health_check_enabled: bool = key(
        "bookieHealthCheckEnabled",
        "true",
        BOOLEAN,
        "Choose bookies that failed lately last. Apache's default is false. The znode `disableHealthCheck` "
        "under the ledgers root switches it off for all clients.",
    )
    first_quarantine_ms: int = key(
        "firstQuarantineMs",
        "10000",
        whole(),
        "How long a bookie is chosen last after a failure. Doubles with each further failure.",
        apache=False,
    )
    bookie_quarantine_time_ms: int = key(
        "bookieQuarantineTimeSeconds",
        "1800",
        whole(0, MAX_INT // 1000, unit=1000),
        "Upper bound of that time. Also applies to a bookie with too many failures in an interval.",
    )
    bookie_error_threshold: int = key(
        "bookieErrorThresholdPerInterval",
        "100",
        whole(1, 100_000),
        "Number of failures in an interval that is too many.",
    )
    bookie_health_check_interval_ms: int = key(
        "bookieHealthCheckIntervalSeconds",
        "60",
        whole(1, MAX_INT // 1000, unit=1000),
        "The interval. A bookie without failures for this long starts afresh.",
    )

    client_key_store_type: str = key("clientKeyStoreType", "", STORE_TYPE, "Wins over `tlsKeyStoreType`.")
    client_key_store: str = key("clientKeyStore", "", OPTIONAL_TEXT, "Wins over `tlsKeyStore`.")
    client_key_store_password_path: str = key(
        "clientKeyStorePasswordPath", "", OPTIONAL_TEXT, "Wins over `tlsKeyStorePasswordPath`."
    )
    client_trust_store_type: str = key("clientTrustStoreType", "", STORE_TYPE, "Wins over `tlsTrustStoreType`.")
    client_trust_store: str = key("clientTrustStore", "", OPTIONAL_TEXT, "Wins over `tlsTrustStore`.")
    client_trust_store_password_path: str = key(
        "clientTrustStorePasswordPath", "", OPTIONAL_TEXT, "Wins over `tlsTrustStorePasswordPath`."
    )

    def __post_init__(self) -> None:
        check_fields(self)
        parse_rack_table(self.bookie_racks)
        sources = (self.bookie_racks, self.rack_mapping_znode, self.network_topology_script)
        if self.enforce_min_racks_per_write_quorum and not any(sources):
            raise InvalidArgumentError(
                "enforceMinNumRacksPerWriteQuorum needs to know the racks: set bookieRacks, rackMappingZnode or "
                "networkTopologyScriptFileName"
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientConfig:
        """Read settings from keys and values as text. Keys and units are Apache's where Apache has them.

        Parameters
        ----------
        properties
            The keys and their values, such as ``{"addEntryTimeoutSec": "10"}``.

        Returns
        -------
        ClientConfig
            The settings. Missing keys have their defaults.

        Raises
        ------
        InvalidArgumentError
            If a key does not exist, or a value is wrong. The error names the nearest key or the allowed values.
        """
        known = {setting.name: field for field, setting in SETTINGS.items()}
        values = {}
        for name, text in properties.items():
            if name not in known:
                raise InvalidArgumentError(f"client configuration has no key {name!r}{did_you_mean(name, known)}")
            values[known[name]] = SETTINGS[known[name]].parse(text)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ClientConfig:
        """Read settings from a file of Apache's form: lines ``key=value``, and comments after ``#``.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        ClientConfig
            The settings. Missing keys have their defaults.

        Raises
        ------
        InvalidArgumentError
            If the file cannot be read, a key does not exist, or a value is wrong. The error names the file.
        """
        try:
            texts, warnings = read_conf(path)
            for warning in warnings:
                _LOG.warning("%s", warning)
            return cls.from_properties(texts)
        except InvalidArgumentError as error:
            text = str(error)
            raise InvalidArgumentError(text if str(path) in text else f"{path}: {text}") from None

    def key_store(self) -> Store:
        """Return where the client's private key is."""
        return _store(self, "key", key_store_of(self))

    def trust_store(self) -> Store:
        """Return where the certificates of trusted authorities are."""
        return _store(self, "trust", trust_store_of(self))

    def max_payload_bytes(self, digest_type: DigestType) -> int:
        """Compute the largest payload that every bookie accepts and every client can read back.

        Parameters
        ----------
        digest_type
            The digest type of the ledger.

        Returns
        -------
        int
            Bytes.
        """
        return self.max_frame_bytes - EntryPackager.overhead(digest_type) - ANSWER_RESERVE_BYTES


def _store(config: ClientConfig, what: str, shared: Store) -> Store:
    """Return ``shared`` with what the keys that begin with ``client`` say instead."""
    given = {
        part: getattr(config, f"client_{what}_store{field}")
        for part, field in (("kind", "_type"), ("path", ""), ("password_path", "_password_path"))
    }
    names = {
        "path": ("path_key", f"client{what.capitalize()}Store"),
        "kind": ("type_key", f"client{what.capitalize()}StoreType"),
        "password_path": ("password_key", f"client{what.capitalize()}StorePasswordPath"),
    }
    changes = {part: value for part, value in given.items() if value}
    changes |= {key: name for part, (key, name) in names.items() if given[part]}
    return replace(shared, **changes)


#: Every setting, by the name of its field.
SETTINGS: Final[dict[str, Setting]] = settings_of(ClientConfig)
