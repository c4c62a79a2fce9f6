"""Settings of the ledger client, under Apache's client configuration names where they exist.

``python -m bk_spark.bookie.config`` prints docs/client-config.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bk_spark.bookie.auth.settings import LoginSettings
from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.bookie.placement.rack_names import parse_rack_table
from bk_spark.bookie.tls.contexts import key_store_of, trust_store_of
from bk_spark.bookie.tls.settings import STORE_TYPE, TlsSettings
from bk_spark.bookie.tls.stores import Store
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.settings.conf import read_conf
from bk_spark.settings.kinds import BOOLEAN, MAX_INT, OPTIONAL_TEXT, Kind, choice, did_you_mean, whole
from bk_spark.settings.setting import Setting, check_fields, declare, markdown_table, settings_of

#: An answer with an entry is longer than the ADD frame of that entry: by 12 bytes in a v2 batch read, by some 60 in a
#: v3 read. Entries stay this much smaller than a frame, so that every client can read them.
ANSWER_RESERVE_BYTES: Final = 128
#: The values of ``transport``.
NATIVE: Final = "native"
GRPC: Final = "grpc"
_TRANSPORTS: Final = choice({one: one for one in (NATIVE, GRPC)})


def _apache(name: str, default: str, kind: Kind, doc: str) -> Any:
    return declare(Setting(name, default, kind, doc))


def _ours(name: str, default: str, kind: Kind, doc: str) -> Any:
    return declare(Setting(name, default, kind, doc, apache=False))


@dataclass(frozen=True, slots=True)
class ClientConfig(ZooKeeperSettings):
    """Limits, timeouts and security of a client, as frozen fields.

    The page "Configuration of the ledger client" describes each field, its default and its bounds. Names end in their
    unit. A value out of bounds raises InvalidArgumentError.
    """

    zk_session_timeout_ms: int = _apache("zkTimeout", "10000", whole(100), "Session timeout requested from ZooKeeper.")
    zk_session_rest_ms: int = _ours(
        "zkSessionRestMs",
        "0",
        whole(),
        "End the ZooKeeper session after this long without a request; the next request starts another. 0: "
        "keep the session. Useful for many clients on one host, see ZooKeeper's `maxClientCnxns`. Not for log "
        "writers, which need their session.",
    )
    metadata_timeout_ms: int = _ours(
        "metadataTimeoutMs", "30000", whole(1), "The longest that a call waits for ZooKeeper, connected or not."
    )
    connect_timeout_ms: int = _apache(
        "clientConnectTimeoutMillis",
        "10000",
        whole(1),
        "Timeout of connecting to a bookie, and of the first connection to ZooKeeper.",
    )
    add_timeout_ms: int = _apache(
        "addEntryTimeoutSec",
        "5",
        whole(1, MAX_INT // 1000, unit=1000),
        "A bookie that does not answer an add for this long has failed.",
    )
    read_timeout_ms: int = _apache(
        "readEntryTimeoutSec",
        "5",
        whole(1, MAX_INT // 1000, unit=1000),
        "A bookie that does not answer a read for this long has failed.",
    )
    max_frame_bytes: int = _apache(
        "nettyMaxFrameSizeBytes",
        str(DEFAULT_MAX_FRAME_BYTES),
        whole(1024),
        "Largest frame. Must not exceed what the bookies accept.",
    )
    max_pending_bytes: int = _ours(
        "maxPendingBytes", "16777216", whole(1), "Bytes of entries that a writer may have unacknowledged."
    )
    max_unanswered_entries: int = _ours(
        "maxUnansweredEntries",
        "8000",
        whole(1),
        "Entries that the slowest bookie of a writer's ensemble may have unanswered. Bookies queue 10,000.",
    )
    add_quorum_timeout_ms: int | None = _apache(
        "addEntryQuorumTimeoutSec",
        "-1",
        whole(1, MAX_INT // 1000, unit=1000, off=None),
        "An entry without its ack quorum for this long ends the writer.",
    )
    max_ensemble_changes: int = _apache(
        "maxNumEnsembleChanges", str(MAX_INT), whole(), "Ensemble changes allowed for one writer. One more ends it."
    )
    explicit_lac_interval_ms: int = _apache(
        "explicitLacInterval", "0", whole(), "How often an idle writer publishes its last add confirmed. 0: never."
    )
    entry_gap_timeout_ms: int = _ours(
        "entryGapTimeoutMs",
        "30000",
        whole(1),
        "With entry ids chosen by the caller: how long an entry waits for a place in the queue of entries "
        "that wait for lower ids.",
    )
    read_ahead_bytes: int = _ours(
        "readAheadBytes", "8388608", whole(1), "Bytes of entries that a reader requests ahead of its caller."
    )
    use_v2_wire_protocol: bool = _apache(
        "useV2WireProtocol",
        "true",
        BOOLEAN,
        "Adds and reads use v2, otherwise v3. Apache's default is v3. Ours is v2, for batch reads and speed.",
    )
    transport: str = _ours(
        "transport",
        NATIVE,
        Kind(_TRANSPORTS.allowed, _TRANSPORTS.parse, lambda value: value in (NATIVE, GRPC)),
        "How bookies are reached: `native`, Apache's wire protocols, or `grpc`, which only our bookies serve "
        "(docs/grpc.md).",
    )
    max_outstanding_requests: int = _ours(
        "maxOutstandingRequests",
        "2000",
        whole(1),
        "Limit of unanswered requests per connection. Further requests wait, up to `readEntryTimeoutSec`. "
        "Each entry of a read counts; adds do not. Apache's bookies stop serving for good when all clients "
        "together exceed `maxReadsInProgressLimit` (10,000 in 4.18.0).",
    )
    batch_read_enabled: bool = _apache(
        "batchReadEnabled", "true", BOOLEAN, "Read many entries with one request where possible."
    )
    read_attempts: int = _ours(
        "readAttempts", "3", whole(1), "Attempts to read an entry that no replica returned, each with fresh metadata."
    )
    first_speculative_read_timeout_ms: int = _apache(
        "firstSpeculativeReadTimeout",
        "2000",
        whole(1),
        "A read unanswered for this long also goes to a second replica.",
    )
    max_speculative_read_timeout_ms: int = _apache(
        "maxSpeculativeReadTimeout",
        "2000",
        whole(1),
        "Further replicas are asked after twice the previous wait, at most this.",
    )
    bookie_failure_history_expiration_ms: int = _apache(
        "bookieFailureHistoryExpirationMSec",
        "60000",
        whole(),
        "How long a bookie that failed or was slow is asked last.",
    )
    max_read_range_bytes: int = _ours(
        "maxReadRangeBytes", "536870912", whole(1), "Upper bound of the batch that read_range returns."
    )
    long_poll_timeout_ms: int = _ours(
        "longPollTimeoutMs",
        "4000",
        whole(1, 3_600_000),
        "How long a bookie is asked to wait for new entries of a followed ledger.",
    )
    first_speculative_read_lac_timeout_ms: int = _apache(
        "firstSpeculativeReadLACTimeout",
        "1500",
        whole(1),
        "A long poll unanswered for this long also goes to a second replica.",
    )
    max_speculative_read_lac_timeout_ms: int = _apache(
        "maxSpeculativeReadLACTimeout",
        "5000",
        whole(1),
        "Further replicas are asked after twice the previous wait, at most this.",
    )
    tail_attempts: int = _ours(
        "tailAttempts", "10", whole(1), "Consecutive failures allowed when a ledger is followed. Pauses grow up to 5 s."
    )
    bookie_racks: str = _ours(
        "bookieRacks", "", OPTIONAL_TEXT, "Racks of bookies, `host=/rack,…`. A bookie id may stand for the host."
    )
    rack_mapping_znode: str = _ours(
        "rackMappingZnode", "", OPTIONAL_TEXT, "Znode with the racks of bookies in Pulsar's format: `/bookies`."
    )
    network_topology_script: str = _apache(
        "networkTopologyScriptFileName",
        "",
        OPTIONAL_TEXT,
        "Script that takes hosts (at most 20) and prints the rack of each.",
    )
    network_topology_script_timeout_ms: int = _ours(
        "networkTopologyScriptTimeoutMs", "5000", whole(1), "Timeout of one run of the script."
    )
    min_racks_per_write_quorum: int = _apache(
        "minNumRacksPerWriteQuorum",
        "2",
        whole(1),
        "If racks are known: the number of racks that each write quorum should span.",
    )
    enforce_min_racks_per_write_quorum: bool = _apache(
        "enforceMinNumRacksPerWriteQuorum",
        "false",
        BOOLEAN,
        "Refuse a ledger, or a replacement of a bookie, whose write quorum spans fewer racks.",
    )
    bookie_health_check_enabled: bool = _apache(
        "bookieHealthCheckEnabled",
        "true",
        BOOLEAN,
        "Choose bookies that failed lately last. Apache's default is false. The znode `disableHealthCheck` "
        "under the ledgers root switches it off for all clients.",
    )
    first_quarantine_ms: int = _ours(
        "firstQuarantineMs",
        "10000",
        whole(),
        "How long a bookie is chosen last after a failure. Doubles with each further failure.",
    )
    bookie_quarantine_time_ms: int = _apache(
        "bookieQuarantineTimeSeconds",
        "1800",
        whole(0, MAX_INT // 1000, unit=1000),
        "Upper bound of that time. Also applies to a bookie with too many failures in an interval.",
    )
    bookie_error_threshold: int = _apache(
        "bookieErrorThresholdPerInterval",
        "100",
        whole(1, 100_000),
        "Number of failures in an interval that is too many.",
    )
    bookie_health_check_interval_ms: int = _apache(
        "bookieHealthCheckIntervalSeconds",
        "60",
        whole(1, MAX_INT // 1000, unit=1000),
        "The interval. A bookie without failures for this long starts afresh.",
    )

    client_key_store_type: str = _apache("clientKeyStoreType", "", STORE_TYPE, "Wins over `tlsKeyStoreType`.")
    client_key_store: str = _apache("clientKeyStore", "", OPTIONAL_TEXT, "Wins over `tlsKeyStore`.")
    client_key_store_password_path: str = _apache(
        "clientKeyStorePasswordPath", "", OPTIONAL_TEXT, "Wins over `tlsKeyStorePasswordPath`."
    )
    client_trust_store_type: str = _apache("clientTrustStoreType", "", STORE_TYPE, "Wins over `tlsTrustStoreType`.")
    client_trust_store: str = _apache("clientTrustStore", "", OPTIONAL_TEXT, "Wins over `tlsTrustStore`.")
    client_trust_store_password_path: str = _apache(
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

        if self.transport == GRPC and self.client_auth:
            raise InvalidArgumentError(
                "clientAuthProviderFactoryClass is set, but gRPC has no logins: use certificates, or transport=native"
            )
        if self.transport == GRPC and self.tls_enabled:
            wrong = (
                (self.tls_protocols, "tlsEnabledProtocols"),
                (self.tls_cipher_suites, "tlsEnabledCipherSuites"),
                (not self.tls_hostname_verification, "tlsHostnameVerificationEnabled=false"),
            )
            for is_set, name in wrong:
                if is_set:
                    raise InvalidArgumentError(
                        f"{name} is set, which gRPC cannot obey: it uses TLSv1.3 or TLSv1.2 with its own choice of "
                        "suites, and always verifies the host; or set transport=native"
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
        for key, text in properties.items():
            if key not in known:
                raise InvalidArgumentError(f"client configuration has no key {key!r}{did_you_mean(key, known)}")
            values[known[key]] = SETTINGS[known[key]].parse(text)
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
            return cls.from_properties(read_conf(path))
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


_TLS_FIELDS: Final = {
    *settings_of(TlsSettings),
    *(field for field in SETTINGS if field.startswith(("client_key_store", "client_trust_store"))),
}


def reference() -> str:
    """Return the text of docs/client-config.md, the table of settings."""
    tls = {field: setting for field, setting in SETTINGS.items() if field in _TLS_FIELDS}
    logins = {field: one for field, one in settings_of(LoginSettings).items() if field not in tls}
    special = {*tls, *logins}
    zookeeper = {field: one for field, one in settings_of(ZooKeeperSettings).items() if field not in special}
    others = {field: one for field, one in SETTINGS.items() if field not in special and field not in zookeeper}
    columns: dict[str, Callable[[str, Setting], str]] = {
        "key": lambda _, setting: f"`{setting.name}`",
        "": lambda _, setting: "A" if setting.apache else "",
        "field": lambda field, _: f"`{field}`",
        "default of the key": lambda _, setting: f"`{setting.default}`" if setting.default else "",
        "allowed": lambda _, setting: setting.kind.allowed,
        "meaning": lambda _, setting: setting.doc,
    }
    return "\n".join(
        [
            "# Configuration of the ledger client",
            "",
            "`ClientConfig.from_properties` takes keys, `ClientConfig(...)` takes fields. An A marks keys of Apache's",
            "client configuration, which have Apache's unit. Fields count milliseconds and bytes. Unknown keys are",
            "errors. This page is printed by `python -m bk_spark.bookie.config`.",
            "",
            *markdown_table(columns, others),
            "",
            "TLS of connections to bookies. [security.md](security.md) shows how to set it up.",
            "",
            *markdown_table(columns, tls),
            "",
            "Logins at bookies. The same page shows how to set them up.",
            "",
            *markdown_table(columns, logins),
            "",
            "Sessions with ZooKeeper. `zookeeper.…` are the names of ZooKeeper's own client.",
            "",
            *markdown_table(columns, zookeeper),
            "",
        ]
    )


if __name__ == "__main__":
    print(reference(), end="")
