"""The keys of self-healing (compatibility.md §6, §7.1, §7.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper_settings import ZooKeeperSettings
from bk_spark.settings.kinds import BOOLEAN, MAX_LONG, TEXT, whole
from bk_spark.settings.setting import declare, key, settings_of


def _as_clients(field: str) -> Any:
    """A key of the same name, default and meaning as in a client's configuration."""
    return declare(settings_of(ClientConfig)[field])


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig(ZooKeeperSettings):
    """Settings of auditor and replication worker, of TLS and logins, and of sessions with ZooKeeper, which their client
    uses too. Times are in ms."""

    auto_recovery_enabled: bool = key(
        "autoRecoveryDaemonEnabled",
        "false",
        BOOLEAN,
        "Run auditor and replication worker in the bookie's process. `bookie-server autorecovery` runs them alone.",
    )
    lost_bookie_delay_s: int = key(
        "lostBookieRecoveryDelay",
        "0",
        whole(),
        "How long the auditor waits for one lost bookie before its ledgers are repaired, s. Only a cluster's first "
        "auditor uses it; change it later with `bkctl lostbookierecoverydelay`.",
    )
    bookie_check_interval_ms: int = key(
        "auditorPeriodicBookieCheckInterval",
        "86400",
        whole(unit=1000, off=0),
        "Time between two searches for ledgers that name a lost bookie, s. 0: only at the start of an auditor.",
    )
    ledger_check_interval_ms: int = key(
        "auditorPeriodicCheckInterval",
        "604800",
        whole(unit=1000, off=0),
        "Time between two checks of all ledgers at their bookies, s. 0: never.",
    )
    replicas_check_interval_ms: int = key(
        "auditorReplicasCheckInterval",
        "0",
        whole(unit=1000, off=0),
        "Time between two checks whether each bookie of each closed ledger has all of its entries, s. Bookies are "
        "asked for a list, and only entries that the list lacks are read. With "
        "`auditorLedgerVerificationPercentage=100` all are read. It only reports. 0: never.",
    )
    placement_check_interval_ms: int = key(
        "auditorPeriodicPlacementPolicyCheckInterval",
        "0",
        whole(unit=1000, off=0),
        "Time between two checks whether the write quorums of closed ledgers span `minNumRacksPerWriteQuorum` racks, "
        "s. Needs one of the sources of racks below. Repairs use them too, but too few racks never stop a repair. "
        "0: never.",
    )
    moves_misplaced_copies: bool = key(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        "false",
        BOOLEAN,
        "That check marks the ledgers that it finds, and workers move their copies. If false, it only reports.",
    )
    bookie_racks: str = _as_clients("bookie_racks")
    rack_mapping_znode: str = _as_clients("rack_mapping_znode")
    network_topology_script: str = _as_clients("network_topology_script")
    network_topology_script_timeout_ms: int = _as_clients("network_topology_script_timeout_ms")
    min_racks_per_write_quorum: int = _as_clients("min_racks_per_write_quorum")
    verified_percentage: int = key(
        "auditorLedgerVerificationPercentage",
        "0",
        whole(most=100),
        "Share of the entries that a check of all ledgers reads besides the first and last of each fragment, %.",
    )
    ledgers_checked_at_once: int = key(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "32",
        whole(1, 10_000),
        "Ledgers that the auditor checks at their bookies at the same time.",
    )
    scan_requests_per_s: int = key(
        "zkReplicationTaskRateLimit",
        "0",
        whole(),
        "Requests to ZooKeeper per second during a search of the auditor. 0: 1000.",
    )
    open_ledger_grace_ms: int = key(
        "openLedgerRereplicationGracePeriod",
        "30000",
        whole(most=MAX_LONG),
        "How long the last fragment of an open ledger may lack copies before the ledger is fenced and closed, ms.",
    )
    failed_ledger_longest_pause_ms: int = key(
        "lockReleaseOfFailedLedgerGracePeriod",
        "300000",
        whole(1000, MAX_LONG),
        "Longest pause before a ledger that could not be repaired is tried again, ms.",
    )
    rereplicate_backoff_ms: int = key(
        "rwRereplicateBackoffMs",
        "5000",
        whole(100, 3_600_000),
        "How long a worker waits before it looks for unlocked ledgers again, while some are marked, ms.",
    )
    replication_bytes_per_s: int = key(
        "replicationRateByBytes",
        "-1",
        whole(-1),
        "Bytes that this process copies per second. 0 or less: no limit.",
    )
    replication_entries_per_s: int = key(
        "replicationRateByEntries",
        "-1",
        whole(-1),
        "Entries that this process copies per second. 0 or less: no limit. Not a key of Apache's.",
    )
    unyielding_bytes_per_s: int = key(
        "rereplicationUnyieldingBytesPerSecond",
        "32000000",
        whole(-1),
        "Bytes that this process may always copy per second, within the limits above. What several bookies get counts "
        "once, and each fragment counts for 256 KiB more. Beyond them, copies get slower while bookies answer slowly, "
        "so that clients wait less. 0 or less: copies never get slower. Not a key of Apache's.",
    )
    copy_batch_entries: int = key(
        "rereplicationEntryBatchSize",
        "2000",
        whole(1, 100_000),
        "Entries that are copied together, at most. A batch is also limited to 256 KiB.",
    )
    ledgers_repaired_at_once: int = key(
        "rereplicationLedgersAtOnce",
        "1",
        whole(1, 1000),
        "Ledgers that this process repairs at the same time. With one, clients wait least. More are faster where "
        "ledgers are small and ZooKeeper is far away. Not a key of Apache's.",
    )

    sasl_auditor_section: str = key(
        "saslJaasAuditorSectionName",
        "Auditor",
        TEXT,
        "The section of `java.security.auth.login.config` with the user of this process's own client. It takes the "
        "place of `saslJaasClientSectionName`.",
    )

    @property
    def has_racks(self) -> bool:
        """Whether there is a source of racks."""
        return bool(self.bookie_racks or self.rack_mapping_znode or self.network_topology_script)

    def client_config(self) -> ClientConfig:
        """Return the configuration of the client that checks and repairs. Raises InvalidArgumentError."""
        shared = settings_of(ClientConfig).keys() & settings_of(AutoRecoveryConfig).keys()
        values = {field: getattr(self, field) for field in shared}
        return ClientConfig(**values | {"sasl_client_section": self.sasl_auditor_section})
