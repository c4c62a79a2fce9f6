"""Keys of Apache's bookie configuration that are not fields of :class:`~bookie_server.config.config.BookieConfig`."""

from __future__ import annotations

from typing import Final

PAGE_BYTES: Final = 8192

#: Keys that are read outside the table of settings.
OTHER_KEYS: Final = {
    "metadataServiceUri": "Where the cluster is: `zk+hierarchical://host:2181;host2:2181/ledgers`. Required.",
    "bookieId": "Name of the bookie in the cluster. Default: the advertised address and port.",
    "advertisedAddress": "Host for clients. Default: the address of `listeningInterface`, or of this host's name.",
    "listeningInterface": "Listen only on the address of this network interface.",
    "useHostNameAsBookieID": "`true`: the default of `advertisedAddress` is this host's name, not its address.",
    "allowLoopback": "`true`: allow an advertised address that other hosts cannot reach.",
}
#: Keys with one allowed value, and why.
FIXED_VALUES: Final = {
    "journalWriteData": ("true", "this bookie acknowledges only what the journal holds"),
    "journalFormatVersionToWrite": ("6", "other formats can only be read"),
    "fileInfoFormatVersionToWrite": ("1", "other formats can only be read"),
    "journalAlignmentSize": ("512", "groups are sealed at this size"),
    "pageSize": (str(PAGE_BYTES), "index files have pages of this size"),
}
#: Keys whose safe value always applies. The other value gives a warning.
ALWAYS_SO: Final = {
    "verifyMetadataOnGC": "is always on: a ledger's metadata is read again before the ledger is deleted",
    "useTransactionalCompaction": "is always on: a compacted entry log is complete before it replaces the old one",
    "entryLogFilePreallocationEnabled": "is decided by the file system",
}

#: Apache's other keys. They have no effect in this release.
KNOWN_KEYS: Final = frozenset(
    {
        "allocatorExitOnOutOfMemory", "allocatorLeakDetectionPolicy", "allocatorOutOfMemoryPolicy",
        "allocatorPoolingConcurrency", "allocatorPoolingPolicy", "allowEphemeralPorts",
        "allowMultipleDirsUnderSameDiskPartition", "allowShadedLedgerManagerFactoryClass",
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec",
        "bookieAddressResolverEnabled", "bookieDeathWatchInterval",
        "byteBufAllocatorSizeInitial", "byteBufAllocatorSizeMax", "byteBufAllocatorSizeMin",
        "closeChannelOnResponseTimeout", "codahaleStatsCSVEndpoint",
        "codahaleStatsGraphiteEndpoint", "codahaleStatsJmxEndpoint", "codahaleStatsOutputFrequencySeconds",
        "codahaleStatsPrefix", "codahaleStatsSlf4jEndpoint", "compactionMaxOutstandingRequests",
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
        "httpServerKeyStorePassword", "httpServerTrustStorePassword",
        "ignoreExtraServerComponentsStartupFailures", "ignoreLocalNodeInPlacementPolicy",
        "inFlightReadEntryNumInLedgerChecker", "journalChannelProvider", "journalQueueSize", "journalReuseFiles",
        "journalWriteBufferSizeKB", "ledgerIdFormatterClass", "ledgerManagerFactoryClass",
        "ledgerManagerFactoryDisableClassCheck", "ledgerManagerType", "ledgerMetadataRocksdbConf",
        "ledgerMetadataVersion", "ledgerStorageClass", "limitStatsLogging", "localConsistencyCheckOnStartup",
        "localScrubInterval", "localScrubRateLimit",
        "maximumNumberOfActiveEntryLogs", "maxOperationNumbersInSingleRocksdbWriteBatch",
        "metastoreImplClass", "metastoreMaxEntriesPerScan", "minNumZonesPerWriteQuorum",
        "networkTopologyScriptNumberArgs", "numAddWorkerThreads",
        "numHighPriorityWorkerThreads", "numJournalCallbackThreads", "numLongPollWorkerThreads",
        "numOfMemtableFlushThreads", "numReadWorkerThreads", "passwd",
        "preserveMdcForTaskExecution", "prometheusStatsHttpAddress",
        "prometheusStatsLatencyRolloverSeconds", "readBufferSizeBytes", "readWorkerThreadsThrottlingEnabled",
        "registrationManagerClass", "reorderReadSequenceEnabled",
        "reppDnsResolverClass", "requestTimerNumTicks", "requestTimerTickDurationMs",
        "sanityCheckMetricsEnabled",
        "serverNumAcceptorThreads", "serverNumIOThreads", "serverSockKeepalive", "serverTcpKeepCnt",
        "serverTcpKeepIdle", "serverTcpKeepIntvl", "serverTcpLinger", "serverTcpNoDelay",
        "serverWriteBufferHighWaterMark", "serverWriteBufferLowWaterMark", "shadedLedgerManagerFactoryClassPrefix",
        "skipListArenaChunkSize", "skipListArenaMaxAllocSize", "skipReplayJournalInvalidRecord",
        "sortedLedgerStorageEnabled", "statsProviderClass", "stickyReadSEnabled",
        "storage.cluster.controller.schedule.interval.ms", "storage.range.store.dirs",
        "storage.serve.readonly.tables", "storageserver.grpc.port", "storeSystemTimeAsLedgerCreationTime",
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
        "underreplicatedLedgerRecoveryGracePeriod", "useShortHostName",
        "waitTimeoutOnResponseBackpressureMs", "writeBufferSizeBytes", "zkLedgersRootPath",
        "zkRequestRateLimit", "zkRetryBackoffMaxMs", "zkRetryBackoffMaxRetries",
        "zkRetryBackoffStartMs", "zkServers",
    }
)  # fmt: skip
