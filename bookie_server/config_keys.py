"""Keys of Apache's bookie configuration that are no field of :class:`~bookie_server.config.BookieConfig`."""

from __future__ import annotations

from typing import Final

PAGE_BYTES: Final = 8192

#: Keys that are read outside the table of settings.
OTHER_KEYS: Final = {
    "metadataServiceUri": "Where the cluster is: `zk+hierarchical://host:2181;host2:2181/ledgers`. Required.",
    "bookieId": "Name of the bookie in the cluster; the advertised address and port where it is missing.",
    "advertisedAddress": "Host that clients are told; the address of `listeningInterface` or of this host's name.",
    "listeningInterface": "Listen on the address of this network interface alone.",
    "useHostNameAsBookieID": "`true`: this host's name, not its address, where `advertisedAddress` is missing.",
    "allowLoopback": "`true`: the advertised address may be one that other hosts cannot reach.",
}
#: Keys that may only have the value that this bookie has by nature.
FIXED_VALUES: Final = {
    "journalWriteData": ("true", "this bookie acknowledges only what the journal holds"),
    "journalFormatVersionToWrite": ("6", "other formats are read only"),
    "fileInfoFormatVersionToWrite": ("1", "other formats are read only"),
    "journalAlignmentSize": ("512", "groups are sealed at this size"),
    "pageSize": (str(PAGE_BYTES), "index files are made of such pages"),
}
#: Keys whose meaning is always kept; the value that would mean less is a warning.
ALWAYS_SO: Final = {
    "verifyMetadataOnGC": "is always so here: a ledger's metadata are read again before it is deleted",
    "useTransactionalCompaction": "is always so here: a compacted log is complete before it takes the old one's place",
    "entryLogFilePreallocationEnabled": "is as the file system has it",
}

#: Apache's other keys: accepted, without effect in this release.
KNOWN_KEYS: Final = frozenset(
    {
        "allowMultipleDirsUnderSameDiskPartition", "auditorLedgerVerificationPercentage",
        "auditorPeriodicBookieCheckInterval", "auditorPeriodicCheckInterval", "autoRecoveryDaemonEnabled",
        "bookieAuthProviderFactoryClass", "bookieDeathWatchInterval", "clientAuthProviderFactoryClass",
        "compactionMaxOutstandingRequests", "dataIntegrityChecking", "dataIntegrityStampMissingCookies",
        "enforceMinNumRacksPerWriteQuorum", "entryLogPerLedgerEnabled", "extraServerComponents",
        "flushEntrylogBytes", "gcOverreplicatedLedgerMaxConcurrentRequests", "httpServerClass", "journalQueueSize",
        "journalReuseFiles", "journalWriteBufferSizeKB", "ledgerManagerFactoryClass", "ledgerMetadataVersion",
        "ledgerStorageClass", "localConsistencyCheckOnStartup", "lockReleaseOfFailedLedgerGracePeriod",
        "lostBookieRecoveryDelay", "minNumRacksPerWriteQuorum", "numAddWorkerThreads",
        "numHighPriorityWorkerThreads", "numJournalCallbackThreads", "numLongPollWorkerThreads",
        "numReadWorkerThreads", "openLedgerRereplicationGracePeriod", "readBufferSizeBytes",
        "replicationRateByBytes", "rereplicationEntryBatchSize", "rwRereplicateBackoffMs",
        "sanityCheckMetricsEnabled", "serverTcpNoDelay", "skipReplayJournalInvalidRecord", "statsProviderClass",
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime", "tlsProviderFactoryClass",
        "waitTimeoutOnResponseBackpressureMs", "writeBufferSizeBytes", "zkEnableSecurity",
        "zkLedgersRootPath", "zkReplicationTaskRateLimit", "zkServers",
    }
)  # fmt: skip
