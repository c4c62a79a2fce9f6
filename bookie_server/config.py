"""The bookie's configuration: a ``.conf`` file with Apache's keys (compatibility facts §7.2).

``key=value`` lines, ``#`` comments, lists separated by commas. A key of Apache's that this bookie has no use for is
accepted and named in a warning; a key that nobody knows is a warning with the nearest known one; a
value of the wrong kind is an error.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata_uri import MetadataServiceUri

_T = TypeVar("_T")
_MIB: Final = 1024 * 1024
_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+")
_MAX_LOG_SIZE: Final = 1024 * _MIB


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """What a bookie runs with. Directories are as configured, without ``current``; sizes in bytes."""

    metadata_service_uri: MetadataServiceUri
    bookie_id: str
    advertised_host: str
    listen_host: str
    port: int
    journal_directory: str
    ledger_directory: str
    zk_timeout_ms: int
    max_frame_bytes: int
    max_batch_read_bytes: int
    journal_max_bytes: int
    journal_preallocate_bytes: int
    journal_max_backups: int
    journal_sync_data: bool
    log_size_limit_bytes: int
    flush_interval_ms: int
    index_cache_bytes: int
    handle_limit: int


#: Keys that are read here.
SUPPORTED_KEYS: Final = frozenset(
    {
        "advertisedAddress",
        "allowLoopback",
        "bookieId",
        "bookiePort",
        "flushInterval",
        "indexDirectories",
        "journalAlignmentSize",
        "journalDirectories",
        "journalDirectory",
        "journalFormatVersionToWrite",
        "journalMaxBackups",
        "journalMaxSizeMB",
        "journalPreAllocSizeMB",
        "journalSyncData",
        "journalWriteData",
        "ledgerDirectories",
        "listeningInterface",
        "logSizeLimit",
        "maxBatchReadSize",
        "metadataServiceUri",
        "nettyMaxFrameSizeBytes",
        "openFileLimit",
        "pageLimit",
        "pageSize",
        "useHostNameAsBookieID",
        "zkTimeout",
    }
)

#: Apache's other keys: accepted, without effect in this release.
KNOWN_KEYS: Final = frozenset(
    {
        "allowStorageExpansion", "auditorLedgerVerificationPercentage", "auditorPeriodicBookieCheckInterval",
        "auditorPeriodicCheckInterval", "autoRecoveryDaemonEnabled", "bookieAuthProviderFactoryClass",
        "clientAuthProviderFactoryClass", "compactionMaxOutstandingRequests", "compactionRate",
        "compactionRateByBytes", "compactionRateByEntries", "dataIntegrityChecking",
        "dataIntegrityStampMissingCookies", "diskCheckInterval", "diskUsageLwmThreshold", "diskUsageThreshold",
        "diskUsageWarnThreshold", "enableStatistics", "enforceMinNumRacksPerWriteQuorum",
        "entryLogFilePreallocationEnabled", "entryLogPerLedgerEnabled", "extraServerComponents",
        "fileInfoFormatVersionToWrite", "forceAllowCompaction", "gcOverreplicatedLedgerWaitTime", "gcWaitTime",
        "httpServerClass", "httpServerEnabled", "httpServerPort", "isForceGCAllowWhenNoSpace",
        "isThrottleByBytes", "journalAdaptiveGroupWrites", "journalBufferedEntriesThreshold",
        "journalBufferedWritesThreshold", "journalFlushWhenQueueEmpty", "journalMaxGroupWaitMSec",
        "journalMaxMemorySizeMb", "journalPageCacheFlushIntervalMSec", "journalQueueSize",
        "journalRemoveFromPageCache", "journalReuseFiles", "journalWriteBufferSizeKB",
        "ledgerManagerFactoryClass", "ledgerMetadataVersion", "ledgerStorageClass",
        "localConsistencyCheckOnStartup", "lockReleaseOfFailedLedgerGracePeriod", "lostBookieRecoveryDelay",
        "majorCompactionInterval", "majorCompactionThreshold", "maxAddsInProgressLimit",
        "maxPendingAddRequestsPerThread", "maxPendingReadRequestsPerThread", "maxReadsInProgressLimit",
        "minNumRacksPerWriteQuorum", "minUsableSizeForEntryLogCreation", "minUsableSizeForHighPriorityWrites",
        "minUsableSizeForIndexFileCreation", "minorCompactionInterval", "minorCompactionThreshold",
        "numAddWorkerThreads", "numHighPriorityWorkerThreads", "numLongPollWorkerThreads",
        "numReadWorkerThreads", "openLedgerRereplicationGracePeriod", "persistBookieStatusEnabled",
        "prometheusStatsHttpPort", "readBufferSizeBytes", "readOnlyModeEnabled",
        "readOnlyModeOnAnyDiskFullEnabled", "replicationRateByBytes", "rereplicationEntryBatchSize",
        "rwRereplicateBackoffMs", "serverTcpNoDelay", "skipListSizeLimit", "skipReplayJournalInvalidRecord",
        "statsProviderClass", "storeSystemTimeAsLedgerUnderreplicatedMarkTime", "tlsProviderFactoryClass",
        "useTargetEntryLogSizeForGc", "useTransactionalCompaction", "verifyMetadataOnGC",
        "waitTimeoutOnResponseBackpressureMs", "writeBufferSizeBytes", "zkEnableSecurity",
        "zkLedgersRootPath", "zkReplicationTaskRateLimit", "zkServers",
    }
)  # fmt: skip


def load_config(path: str) -> tuple[BookieConfig, list[str]]:
    """The configuration in the file at ``path``, and warnings. Raises InvalidArgumentError naming key and file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"configuration file {path} is not UTF-8 text") from error
    values, warnings = _parse(text, path)
    return _build(_Values(values, path)), warnings


def _parse(text: str, path: str) -> tuple[dict[str, str], list[str]]:
    values: dict[str, str] = {}
    warnings: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        key = key.strip()
        if not separator or not key:
            raise InvalidArgumentError(f"{path} line {number}: {line!r} is not of the form key=value")
        values[key] = value.strip()
        if key in SUPPORTED_KEYS:
            continue
        if key in KNOWN_KEYS:
            warnings.append(f"{path}: {key} has no effect in this bookie")
        else:
            near = difflib.get_close_matches(key, SUPPORTED_KEYS | KNOWN_KEYS, 1, 0.0)
            warnings.append(f"{path}: unknown key {key} is ignored; did you mean {near[0]}?")
    return values, warnings


class _Values:
    """Typed access to the values; errors name key and file."""

    def __init__(self, values: dict[str, str], path: str) -> None:
        self._values = values
        self._path = path

    def error(self, key: str, what: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._path}: {key} {what}")

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key) or default

    def number(self, key: str, default: int, least: int, most: int) -> int:
        return self._convert(key, default, int, "a whole number", least, most)

    def flag(self, key: str, default: bool) -> bool:
        text = self.text(key).lower()
        if text not in ("", "true", "false"):
            raise self.error(key, f"must be true or false, not {text!r}")
        return text == "true" if text else default

    def directory(self, *keys: str, default: str) -> str:
        """One directory; several are an error for now."""
        for key in keys:
            names = [name.strip() for name in self.text(key).split(",") if name.strip()]
            if len(names) > 1:
                raise self.error(key, f"names {len(names)} directories; this release takes exactly one")
            if names:
                return os.path.normpath(names[0])
        return default

    def _convert(self, key: str, default: int, convert: Callable[[str], int], kind: str, least: int, most: int) -> int:
        text = self.text(key)
        if not text:
            return default
        try:
            value = convert(text)
        except ValueError:
            raise self.error(key, f"must be {kind}, not {text!r}") from None
        if not least <= value <= most:
            raise self.error(key, f"is {value}; it must lie between {least} and {most}")
        return value


def _build(values: _Values) -> BookieConfig:
    uri_text = values.text("metadataServiceUri")
    if not uri_text:
        raise values.error("metadataServiceUri", "is missing; give e.g. zk+hierarchical://localhost:2181/ledgers")
    if not values.flag("journalWriteData", True):
        raise values.error("journalWriteData", "must be true: this bookie acknowledges only what the journal holds")
    for key, wanted in (("journalFormatVersionToWrite", 6), ("journalAlignmentSize", 512), ("pageSize", 8192)):
        if values.number(key, wanted, 0, 1 << 30) != wanted:
            raise values.error(key, f"must be {wanted} in this release")
    port = values.number("bookiePort", 3181, 1, 65535)
    host = _advertised_host(values)
    bookie_id = values.text("bookieId", f"{host}:{port}")
    if _BOOKIE_ID.fullmatch(bookie_id) is None or bookie_id.lower() == "readonly":
        raise values.error("bookieId", f"{bookie_id!r} is not a bookie id: letters, digits, any of : ; < = > ? @ . _ -")
    ledger_directory = values.directory("ledgerDirectories", default="/tmp/bk-data")
    index_directory = values.directory("indexDirectories", default=ledger_directory)
    if index_directory != ledger_directory:
        raise values.error("indexDirectories", "must be the same as ledgerDirectories in this release")
    pages = values.number("pageLimit", -1, -1, 1 << 20)
    return BookieConfig(
        metadata_service_uri=MetadataServiceUri.parse(uri_text),
        bookie_id=bookie_id,
        advertised_host=host,
        listen_host=_listen_host(values),
        port=port,
        journal_directory=values.directory("journalDirectories", "journalDirectory", default="/tmp/bk-txn"),
        ledger_directory=ledger_directory,
        zk_timeout_ms=values.number("zkTimeout", 10_000, 100, 3_600_000),
        max_frame_bytes=values.number("nettyMaxFrameSizeBytes", DEFAULT_MAX_FRAME_BYTES, 1024, 100 * _MIB),
        max_batch_read_bytes=values.number("maxBatchReadSize", DEFAULT_MAX_FRAME_BYTES, 1024, 100 * _MIB),
        journal_max_bytes=values.number("journalMaxSizeMB", 2048, 1, 1 << 20) * _MIB,
        journal_preallocate_bytes=values.number("journalPreAllocSizeMB", 16, 1, 1024) * _MIB,
        journal_max_backups=values.number("journalMaxBackups", 5, 0, 1 << 20),
        journal_sync_data=values.flag("journalSyncData", True),
        log_size_limit_bytes=values.number("logSizeLimit", _MAX_LOG_SIZE, 64 * 1024, _MAX_LOG_SIZE),
        flush_interval_ms=values.number("flushInterval", 10_000, 10, 3_600_000),
        index_cache_bytes=64 * _MIB if pages <= 0 else pages * 8192,
        handle_limit=values.number("openFileLimit", 20_000, 16, 1 << 24),
    )


def _advertised_host(values: _Values) -> str:
    host = values.text("advertisedAddress")
    if not host:
        interface = values.text("listeningInterface")
        if interface:
            host = _interface_address(values, interface)
        elif values.flag("useHostNameAsBookieID", False):
            host = socket.getfqdn()
        else:
            try:
                host = socket.gethostbyname(socket.gethostname())
            except OSError as error:
                raise values.error("advertisedAddress", "is missing and this host's name does not resolve") from error
    try:
        loopback = ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError as error:
        raise values.error("advertisedAddress", f"{host!r} does not resolve") from error
    if loopback and not values.flag("allowLoopback", False):
        raise values.error(
            "advertisedAddress",
            f"{host!r} is a loopback address that other hosts cannot reach; set another, or allowLoopback=true",
        )
    return host


def _listen_host(values: _Values) -> str:
    """All addresses, or the one of ``listeningInterface``."""
    interface = values.text("listeningInterface")
    return _interface_address(values, interface) if interface else "0.0.0.0"


def _interface_address(values: _Values, interface: str) -> str:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
        except OSError as error:
            raise values.error("listeningInterface", f"{interface!r} has no IPv4 address") from error
    return socket.inet_ntoa(answer[20:24])
