"""Keys of Apache's bookie configuration that are no field of :class:`~bookie_server.config.config.BookieConfig`."""

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
    # Who asks for protection must not get a bookie without it.
    "bookieAuthProviderFactoryClass": ("null", "clients are not authenticated"),
    "tlsProviderFactoryClass": ("null", "connections are not encrypted"),
    "httpServerTlsEnable": ("false", "the admin API is not encrypted"),
    "zkEnableSecurity": ("false", "znodes are made without access lists"),
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
        "allocatorExitOnOutOfMemory", "allocatorLeakDetectionPolicy", "allocatorOutOfMemoryPolicy",
        "allocatorPoolingConcurrency", "allocatorPoolingPolicy", "allowEphemeralPorts",
        "allowMultipleDirsUnderSameDiskPartition", "allowShadedLedgerManagerFactoryClass",
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec", "auditorLedgerVerificationPercentage",
        "auditorMaxNumberOfConcurrentOpenLedgerOperations", "auditorPeriodicBookieCheckInterval",
        "auditorPeriodicCheckInterval", "auditorPeriodicPlacementPolicyCheckInterval", "auditorReplicasCheckInterval",
        "authorizedRoles", "autoRecoveryDaemonEnabled", "bookieAddressResolverEnabled", "bookieDeathWatchInterval",
        "byteBufAllocatorSizeInitial", "byteBufAllocatorSizeMax", "byteBufAllocatorSizeMin",
        "clientAuthProviderFactoryClass", "closeChannelOnResponseTimeout", "codahaleStatsCSVEndpoint",
        "codahaleStatsGraphiteEndpoint", "codahaleStatsJmxEndpoint", "codahaleStatsOutputFrequencySeconds",
        "codahaleStatsPrefix", "codahaleStatsSlf4jEndpoint", "compactionMaxOutstandingRequests",
        "dataIntegrityChecking", "dataIntegrityStampMissingCookies",
        "dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds", "dbStorage_directIOEntryLoggerReadBufferSizeMB",
        "dbStorage_directIOEntryLoggerTotalReadBufferSizeMB", "dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB",
        "dbStorage_readAheadCacheBatchBytesSize", "dbStorage_readAheadCacheBatchSize",
        "dbStorage_readAheadCacheMaxSizeMb", "dbStorage_rocksDB_blockCacheSize", "dbStorage_rocksDB_blockSize",
        "dbStorage_rocksDB_bloomFilterBitsPerKey", "dbStorage_rocksDB_checksum_type",
        "dbStorage_rocksDB_format_version", "dbStorage_rocksDB_logPath", "dbStorage_rocksDB_maxSizeInLevel1MB",
        "dbStorage_rocksDB_numFilesInLevel0", "dbStorage_rocksDB_numLevels", "dbStorage_rocksDB_sstSizeInMB",
        "dbStorage_rocksDB_writeBufferSizeMB", "dbStorage_writeCacheMaxSizeMb", "defaultRocksdbConf",
        "desiredNumZonesPerWriteQuorum", "digestType", "disableServerSocketBind", "dlog.bkcAckQuorumSize",
        "dlog.bkcEnsembleSize", "dlog.bkcWriteQuorumSize", "enableBusyWait", "enableDigestTypeAutodetection",
        "enableHealthCheck", "enableLocalTransport", "enableTaskExecutionStats", "enforceMinNumFaultDomainsForWrite",
        "enforceMinNumRacksPerWriteQuorum", "enforceStrictZoneawarePlacement", "ensemblePlacementPolicy",
        "entryFormatterClass", "entryLocationCompactionInterval", "entryLocationRocksdbConf",
        "entrylogMapAccessExpiryTimeInSeconds", "entryLogPerLedgerCounterLimitsMultFactor",
        "entryLogPerLedgerEnabled", "exposeDefaultJVMMetrics", "extraServerComponents",
        "fileInfoCacheInitialCapacity", "fileInfoMaxIdleTime", "flushEntrylogBytes", "gcEntryLogMetadataCacheEnabled",
        "gcEntryLogMetadataCachePath", "gcOverreplicatedLedgerMaxConcurrentRequests", "httpServerClass",
        "httpServerKeyStorePassword", "httpServerKeyStorePath", "httpServerTrustStorePassword",
        "httpServerTrustStorePath", "ignoreExtraServerComponentsStartupFailures", "ignoreLocalNodeInPlacementPolicy",
        "inFlightReadEntryNumInLedgerChecker", "journalChannelProvider", "journalQueueSize", "journalReuseFiles",
        "journalWriteBufferSizeKB", "ledgerIdFormatterClass", "ledgerManagerFactoryClass",
        "ledgerManagerFactoryDisableClassCheck", "ledgerManagerType", "ledgerMetadataRocksdbConf",
        "ledgerMetadataVersion", "ledgerStorageClass", "limitStatsLogging", "localConsistencyCheckOnStartup",
        "localScrubInterval", "localScrubRateLimit", "lockReleaseOfFailedLedgerGracePeriod",
        "lostBookieRecoveryDelay", "maximumNumberOfActiveEntryLogs", "maxOperationNumbersInSingleRocksdbWriteBatch",
        "metastoreImplClass", "metastoreMaxEntriesPerScan", "minNumRacksPerWriteQuorum", "minNumZonesPerWriteQuorum",
        "networkTopologyScriptFileName", "networkTopologyScriptNumberArgs", "numAddWorkerThreads",
        "numHighPriorityWorkerThreads", "numJournalCallbackThreads", "numLongPollWorkerThreads",
        "numOfMemtableFlushThreads", "numReadWorkerThreads", "openLedgerRereplicationGracePeriod", "passwd",
        "permittedStartupUsers", "preserveMdcForTaskExecution", "prometheusStatsHttpAddress",
        "prometheusStatsLatencyRolloverSeconds", "readBufferSizeBytes", "readWorkerThreadsThrottlingEnabled",
        "registrationManagerClass", "reorderReadSequenceEnabled", "repairedPlacementPolicyNotAdheringBookieEnabled",
        "replicationRateByBytes", "reppDnsResolverClass", "requestTimerNumTicks", "requestTimerTickDurationMs",
        "rereplicationEntryBatchSize", "rwRereplicateBackoffMs", "sanityCheckMetricsEnabled",
        "serverNumAcceptorThreads", "serverNumIOThreads", "serverSockKeepalive", "serverTcpKeepCnt",
        "serverTcpKeepIdle", "serverTcpKeepIntvl", "serverTcpLinger", "serverTcpNoDelay",
        "serverWriteBufferHighWaterMark", "serverWriteBufferLowWaterMark", "shadedLedgerManagerFactoryClassPrefix",
        "skipListArenaChunkSize", "skipListArenaMaxAllocSize", "skipReplayJournalInvalidRecord",
        "sortedLedgerStorageEnabled", "statsProviderClass", "stickyReadSEnabled",
        "storage.cluster.controller.schedule.interval.ms", "storage.range.store.dirs",
        "storage.serve.readonly.tables", "storageserver.grpc.port", "storeSystemTimeAsLedgerCreationTime",
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime", "tlsCertFilesRefreshDurationSeconds", "tlsCertificatePath",
        "tlsClientAuthentication", "tlsEnabledCipherSuites", "tlsEnabledProtocols", "tlsKeyStore",
        "tlsKeyStorePasswordPath", "tlsKeyStoreType", "tlsProvider", "tlsTrustStore", "tlsTrustStorePasswordPath",
        "tlsTrustStoreType", "underreplicatedLedgerRecoveryGracePeriod", "useShortHostName",
        "waitTimeoutOnResponseBackpressureMs", "writeBufferSizeBytes", "zkLedgersRootPath",
        "zkReplicationTaskRateLimit", "zkRequestRateLimit", "zkRetryBackoffMaxMs", "zkRetryBackoffMaxRetries",
        "zkRetryBackoffStartMs", "zkServers",
    }
)  # fmt: skip
