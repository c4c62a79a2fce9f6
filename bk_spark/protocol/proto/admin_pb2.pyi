from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Server(_message.Message):
    __slots__ = ("bookie_id", "version", "metadata_service_uri", "host", "port", "ledger_directories", "index_directories", "journal_directories")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_SERVICE_URI_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    INDEX_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    version: str
    metadata_service_uri: str
    host: str
    port: int
    ledger_directories: _containers.RepeatedScalarFieldContainer[str]
    index_directories: _containers.RepeatedScalarFieldContainer[str]
    journal_directories: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bookie_id: _Optional[str] = ..., version: _Optional[str] = ..., metadata_service_uri: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., ledger_directories: _Optional[_Iterable[str]] = ..., index_directories: _Optional[_Iterable[str]] = ..., journal_directories: _Optional[_Iterable[str]] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("settings",)
    class Setting(_message.Message):
        __slots__ = ("key", "value", "given")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        GIVEN_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        given: bool
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., given: bool = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Configuration.Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Configuration.Setting, _Mapping]]] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class State(_message.Message):
    __slots__ = ("running", "read_only", "shutting_down", "available_for_high_priority_writes", "ready", "read_only_reasons", "failed_directories", "unclean_shutdown")
    class ReadOnlyReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FailedDirectoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    SHUTTING_DOWN_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FOR_HIGH_PRIORITY_WRITES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_REASONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool
    ready: bool
    read_only_reasons: _containers.ScalarMap[str, str]
    failed_directories: _containers.ScalarMap[str, str]
    unclean_shutdown: bool
    def __init__(self, running: bool = ..., read_only: bool = ..., shutting_down: bool = ..., available_for_high_priority_writes: bool = ..., ready: bool = ..., read_only_reasons: _Optional[_Mapping[str, str]] = ..., failed_directories: _Optional[_Mapping[str, str]] = ..., unclean_shutdown: bool = ...) -> None: ...

class SetReadOnlyRequest(_message.Message):
    __slots__ = ("read_only",)
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    read_only: bool
    def __init__(self, read_only: bool = ...) -> None: ...

class GetDataCheckRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DataCheck(_message.Message):
    __slots__ = ("known", "ledgers", "in_limbo", "recovered", "copied_entries", "copied_bytes", "failed", "problems")
    class Problem(_message.Message):
        __slots__ = ("ledger_id", "reason")
        LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        ledger_id: int
        reason: str
        def __init__(self, ledger_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    IN_LIMBO_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    COPIED_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    known: bool
    ledgers: int
    in_limbo: int
    recovered: int
    copied_entries: int
    copied_bytes: int
    failed: int
    problems: _containers.RepeatedCompositeFieldContainer[DataCheck.Problem]
    def __init__(self, known: bool = ..., ledgers: _Optional[int] = ..., in_limbo: _Optional[int] = ..., recovered: _Optional[int] = ..., copied_entries: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., failed: _Optional[int] = ..., problems: _Optional[_Iterable[_Union[DataCheck.Problem, _Mapping]]] = ...) -> None: ...

class GetDiskUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiskUsage(_message.Message):
    __slots__ = ("free_bytes", "total_bytes")
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    free_bytes: int
    total_bytes: int
    def __init__(self, free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ListLedgersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LedgerIds(_message.Message):
    __slots__ = ("ledger_ids",)
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListFilesRequest(_message.Message):
    __slots__ = ("file_type",)
    FILE_TYPE_FIELD_NUMBER: _ClassVar[int]
    file_type: str
    def __init__(self, file_type: _Optional[str] = ...) -> None: ...

class Files(_message.Message):
    __slots__ = ("by_type",)
    class Names(_message.Message):
        __slots__ = ("names",)
        NAMES_FIELD_NUMBER: _ClassVar[int]
        names: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...
    class ByTypeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Files.Names
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Files.Names, _Mapping]] = ...) -> None: ...
    BY_TYPE_FIELD_NUMBER: _ClassVar[int]
    by_type: _containers.MessageMap[str, Files.Names]
    def __init__(self, by_type: _Optional[_Mapping[str, Files.Names]] = ...) -> None: ...

class ListEntryLogsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EntryLog(_message.Message):
    __slots__ = ("entry_log_id", "directory", "size_bytes", "live_bytes", "usage", "reason")
    ENTRY_LOG_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    entry_log_id: int
    directory: str
    size_bytes: int
    live_bytes: int
    usage: float
    reason: str
    def __init__(self, entry_log_id: _Optional[int] = ..., directory: _Optional[str] = ..., size_bytes: _Optional[int] = ..., live_bytes: _Optional[int] = ..., usage: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class GetLastLogMarksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LastLogMarks(_message.Message):
    __slots__ = ("marks",)
    class Mark(_message.Message):
        __slots__ = ("journal_id", "offset")
        JOURNAL_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        journal_id: int
        offset: int
        def __init__(self, journal_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    MARKS_FIELD_NUMBER: _ClassVar[int]
    marks: _containers.RepeatedCompositeFieldContainer[LastLogMarks.Mark]
    def __init__(self, marks: _Optional[_Iterable[_Union[LastLogMarks.Mark, _Mapping]]] = ...) -> None: ...

class GetGarbageCollectionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GarbageCollection(_message.Message):
    __slots__ = ("running", "forced", "in_major_compaction", "in_minor_compaction", "major_compactions", "minor_compactions", "last_run_ms", "last_major_ms", "last_minor_ms", "major_suspended", "minor_suspended", "problem", "stopped")
    class Stopped(_message.Message):
        __slots__ = ("kind", "ledgers", "held", "not_given", "counted_ms", "first", "word", "released")
        KIND_FIELD_NUMBER: _ClassVar[int]
        LEDGERS_FIELD_NUMBER: _ClassVar[int]
        HELD_FIELD_NUMBER: _ClassVar[int]
        NOT_GIVEN_FIELD_NUMBER: _ClassVar[int]
        COUNTED_MS_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        WORD_FIELD_NUMBER: _ClassVar[int]
        RELEASED_FIELD_NUMBER: _ClassVar[int]
        kind: str
        ledgers: int
        held: int
        not_given: int
        counted_ms: int
        first: _containers.RepeatedScalarFieldContainer[int]
        word: str
        released: bool
        def __init__(self, kind: _Optional[str] = ..., ledgers: _Optional[int] = ..., held: _Optional[int] = ..., not_given: _Optional[int] = ..., counted_ms: _Optional[int] = ..., first: _Optional[_Iterable[int]] = ..., word: _Optional[str] = ..., released: bool = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    IN_MAJOR_COMPACTION_FIELD_NUMBER: _ClassVar[int]
    IN_MINOR_COMPACTION_FIELD_NUMBER: _ClassVar[int]
    MAJOR_COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    MINOR_COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MAJOR_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_MINOR_MS_FIELD_NUMBER: _ClassVar[int]
    MAJOR_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    MINOR_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    running: bool
    forced: bool
    in_major_compaction: bool
    in_minor_compaction: bool
    major_compactions: int
    minor_compactions: int
    last_run_ms: int
    last_major_ms: int
    last_minor_ms: int
    major_suspended: bool
    minor_suspended: bool
    problem: str
    stopped: _containers.RepeatedCompositeFieldContainer[GarbageCollection.Stopped]
    def __init__(self, running: bool = ..., forced: bool = ..., in_major_compaction: bool = ..., in_minor_compaction: bool = ..., major_compactions: _Optional[int] = ..., minor_compactions: _Optional[int] = ..., last_run_ms: _Optional[int] = ..., last_major_ms: _Optional[int] = ..., last_minor_ms: _Optional[int] = ..., major_suspended: bool = ..., minor_suspended: bool = ..., problem: _Optional[str] = ..., stopped: _Optional[_Iterable[_Union[GarbageCollection.Stopped, _Mapping]]] = ...) -> None: ...

class CollectGarbageRequest(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: bool
    minor: bool
    def __init__(self, major: bool = ..., minor: bool = ...) -> None: ...

class SuspendCompactionRequest(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: bool
    minor: bool
    def __init__(self, major: bool = ..., minor: bool = ...) -> None: ...

class ResumeCompactionRequest(_message.Message):
    __slots__ = ("major", "minor")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    major: bool
    minor: bool
    def __init__(self, major: bool = ..., minor: bool = ...) -> None: ...

class ReleaseCollectionRequest(_message.Message):
    __slots__ = ("word",)
    WORD_FIELD_NUMBER: _ClassVar[int]
    word: str
    def __init__(self, word: _Optional[str] = ...) -> None: ...

class GetAutoRecoveryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AutoRecovery(_message.Message):
    __slots__ = ("enabled", "auditor", "lost_bookie_recovery_delay_s")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    AUDITOR_FIELD_NUMBER: _ClassVar[int]
    LOST_BOOKIE_RECOVERY_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    auditor: str
    lost_bookie_recovery_delay_s: int
    def __init__(self, enabled: bool = ..., auditor: _Optional[str] = ..., lost_bookie_recovery_delay_s: _Optional[int] = ...) -> None: ...

class SetAutoRecoveryRequest(_message.Message):
    __slots__ = ("enabled",)
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    def __init__(self, enabled: bool = ...) -> None: ...

class SetLostBookieRecoveryDelayRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class TriggerAuditRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUnderReplicatedLedgersRequest(_message.Message):
    __slots__ = ("missing", "not_missing")
    MISSING_FIELD_NUMBER: _ClassVar[int]
    NOT_MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: str
    not_missing: str
    def __init__(self, missing: _Optional[str] = ..., not_missing: _Optional[str] = ...) -> None: ...

class UnderReplicatedLedger(_message.Message):
    __slots__ = ("ledger_id", "missing")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ledger_id: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("collected_ms", "cluster", "bookies", "ledgers", "repair", "logs", "readers", "other_logs", "problems", "bookie_states", "other_readers")
    class Disk(_message.Message):
        __slots__ = ("directory", "used_percent")
        DIRECTORY_FIELD_NUMBER: _ClassVar[int]
        USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
        directory: str
        used_percent: float
        def __init__(self, directory: _Optional[str] = ..., used_percent: _Optional[float] = ...) -> None: ...
    class Bookie(_message.Message):
        __slots__ = ("bookie", "state", "rack", "address", "http", "problem", "disks", "free_bytes", "total_bytes", "add_p99_ms", "connections", "adds_per_s", "reads_per_s", "written_bytes_per_s", "read_bytes_per_s", "copied_entries_per_s")
        BOOKIE_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        RACK_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        HTTP_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        DISKS_FIELD_NUMBER: _ClassVar[int]
        FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
        TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
        ADD_P99_MS_FIELD_NUMBER: _ClassVar[int]
        CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
        ADDS_PER_S_FIELD_NUMBER: _ClassVar[int]
        READS_PER_S_FIELD_NUMBER: _ClassVar[int]
        WRITTEN_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
        READ_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
        COPIED_ENTRIES_PER_S_FIELD_NUMBER: _ClassVar[int]
        bookie: str
        state: str
        rack: str
        address: str
        http: str
        problem: str
        disks: _containers.RepeatedCompositeFieldContainer[Cluster.Disk]
        free_bytes: int
        total_bytes: int
        add_p99_ms: float
        connections: float
        adds_per_s: float
        reads_per_s: float
        written_bytes_per_s: float
        read_bytes_per_s: float
        copied_entries_per_s: float
        def __init__(self, bookie: _Optional[str] = ..., state: _Optional[str] = ..., rack: _Optional[str] = ..., address: _Optional[str] = ..., http: _Optional[str] = ..., problem: _Optional[str] = ..., disks: _Optional[_Iterable[_Union[Cluster.Disk, _Mapping]]] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., add_p99_ms: _Optional[float] = ..., connections: _Optional[float] = ..., adds_per_s: _Optional[float] = ..., reads_per_s: _Optional[float] = ..., written_bytes_per_s: _Optional[float] = ..., read_bytes_per_s: _Optional[float] = ..., copied_entries_per_s: _Optional[float] = ...) -> None: ...
    class Ledgers(_message.Message):
        __slots__ = ("total", "more", "states", "unread")
        class StatesEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: int
            def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
        TOTAL_FIELD_NUMBER: _ClassVar[int]
        MORE_FIELD_NUMBER: _ClassVar[int]
        STATES_FIELD_NUMBER: _ClassVar[int]
        UNREAD_FIELD_NUMBER: _ClassVar[int]
        total: int
        more: bool
        states: _containers.ScalarMap[str, int]
        unread: int
        def __init__(self, total: _Optional[int] = ..., more: bool = ..., states: _Optional[_Mapping[str, int]] = ..., unread: _Optional[int] = ...) -> None: ...
    class UnderReplicated(_message.Message):
        __slots__ = ("ledger", "missing", "marked_ms", "fragments", "all_fragments", "repaired_by", "since_ms")
        LEDGER_FIELD_NUMBER: _ClassVar[int]
        MISSING_FIELD_NUMBER: _ClassVar[int]
        MARKED_MS_FIELD_NUMBER: _ClassVar[int]
        FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
        ALL_FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
        REPAIRED_BY_FIELD_NUMBER: _ClassVar[int]
        SINCE_MS_FIELD_NUMBER: _ClassVar[int]
        ledger: int
        missing: _containers.RepeatedScalarFieldContainer[str]
        marked_ms: int
        fragments: int
        all_fragments: int
        repaired_by: str
        since_ms: int
        def __init__(self, ledger: _Optional[int] = ..., missing: _Optional[_Iterable[str]] = ..., marked_ms: _Optional[int] = ..., fragments: _Optional[int] = ..., all_fragments: _Optional[int] = ..., repaired_by: _Optional[str] = ..., since_ms: _Optional[int] = ...) -> None: ...
    class Repair(_message.Message):
        __slots__ = ("enabled", "auditor", "under_replicated", "more", "most", "repairing", "ledgers")
        ENABLED_FIELD_NUMBER: _ClassVar[int]
        AUDITOR_FIELD_NUMBER: _ClassVar[int]
        UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
        MORE_FIELD_NUMBER: _ClassVar[int]
        MOST_FIELD_NUMBER: _ClassVar[int]
        REPAIRING_FIELD_NUMBER: _ClassVar[int]
        LEDGERS_FIELD_NUMBER: _ClassVar[int]
        enabled: bool
        auditor: str
        under_replicated: int
        more: bool
        most: int
        repairing: int
        ledgers: _containers.RepeatedCompositeFieldContainer[Cluster.UnderReplicated]
        def __init__(self, enabled: bool = ..., auditor: _Optional[str] = ..., under_replicated: _Optional[int] = ..., more: bool = ..., most: _Optional[int] = ..., repairing: _Optional[int] = ..., ledgers: _Optional[_Iterable[_Union[Cluster.UnderReplicated, _Mapping]]] = ...) -> None: ...
    class Writer(_message.Message):
        __slots__ = ("application", "query", "batch", "rows", "committed_ms")
        APPLICATION_FIELD_NUMBER: _ClassVar[int]
        QUERY_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        ROWS_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
        application: str
        query: str
        batch: int
        rows: int
        committed_ms: int
        def __init__(self, application: _Optional[str] = ..., query: _Optional[str] = ..., batch: _Optional[int] = ..., rows: _Optional[int] = ..., committed_ms: _Optional[int] = ...) -> None: ...
    class Log(_message.Message):
        __slots__ = ("log", "state", "problem", "first_offset", "next_offset", "entries_per_s", "segments", "bytes", "complete", "open_tail", "owner", "last_commit_ms", "retention_time_ms", "retention_bytes", "writers")
        LOG_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ENTRIES_PER_S_FIELD_NUMBER: _ClassVar[int]
        SEGMENTS_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        COMPLETE_FIELD_NUMBER: _ClassVar[int]
        OPEN_TAIL_FIELD_NUMBER: _ClassVar[int]
        OWNER_FIELD_NUMBER: _ClassVar[int]
        LAST_COMMIT_MS_FIELD_NUMBER: _ClassVar[int]
        RETENTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
        RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
        WRITERS_FIELD_NUMBER: _ClassVar[int]
        log: str
        state: str
        problem: str
        first_offset: int
        next_offset: int
        entries_per_s: float
        segments: int
        bytes: int
        complete: bool
        open_tail: bool
        owner: str
        last_commit_ms: int
        retention_time_ms: int
        retention_bytes: int
        writers: _containers.RepeatedCompositeFieldContainer[Cluster.Writer]
        def __init__(self, log: _Optional[str] = ..., state: _Optional[str] = ..., problem: _Optional[str] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., entries_per_s: _Optional[float] = ..., segments: _Optional[int] = ..., bytes: _Optional[int] = ..., complete: bool = ..., open_tail: bool = ..., owner: _Optional[str] = ..., last_commit_ms: _Optional[int] = ..., retention_time_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., writers: _Optional[_Iterable[_Union[Cluster.Writer, _Mapping]]] = ...) -> None: ...
    class Position(_message.Message):
        __slots__ = ("log", "read_to", "end", "lag_entries")
        LOG_FIELD_NUMBER: _ClassVar[int]
        READ_TO_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
        log: str
        read_to: int
        end: int
        lag_entries: int
        def __init__(self, log: _Optional[str] = ..., read_to: _Optional[int] = ..., end: _Optional[int] = ..., lag_entries: _Optional[int] = ...) -> None: ...
    class Reader(_message.Message):
        __slots__ = ("reader", "problem", "began_ms", "told_ms", "lag_entries", "logs", "other_logs")
        READER_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        BEGAN_MS_FIELD_NUMBER: _ClassVar[int]
        TOLD_MS_FIELD_NUMBER: _ClassVar[int]
        LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
        LOGS_FIELD_NUMBER: _ClassVar[int]
        OTHER_LOGS_FIELD_NUMBER: _ClassVar[int]
        reader: str
        problem: str
        began_ms: int
        told_ms: int
        lag_entries: int
        logs: _containers.RepeatedCompositeFieldContainer[Cluster.Position]
        other_logs: int
        def __init__(self, reader: _Optional[str] = ..., problem: _Optional[str] = ..., began_ms: _Optional[int] = ..., told_ms: _Optional[int] = ..., lag_entries: _Optional[int] = ..., logs: _Optional[_Iterable[_Union[Cluster.Position, _Mapping]]] = ..., other_logs: _Optional[int] = ...) -> None: ...
    class BookieStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COLLECTED_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    OTHER_LOGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_STATES_FIELD_NUMBER: _ClassVar[int]
    OTHER_READERS_FIELD_NUMBER: _ClassVar[int]
    collected_ms: int
    cluster: str
    bookies: _containers.RepeatedCompositeFieldContainer[Cluster.Bookie]
    ledgers: Cluster.Ledgers
    repair: Cluster.Repair
    logs: _containers.RepeatedCompositeFieldContainer[Cluster.Log]
    readers: _containers.RepeatedCompositeFieldContainer[Cluster.Reader]
    other_logs: int
    problems: _containers.RepeatedScalarFieldContainer[str]
    bookie_states: _containers.ScalarMap[str, int]
    other_readers: int
    def __init__(self, collected_ms: _Optional[int] = ..., cluster: _Optional[str] = ..., bookies: _Optional[_Iterable[_Union[Cluster.Bookie, _Mapping]]] = ..., ledgers: _Optional[_Union[Cluster.Ledgers, _Mapping]] = ..., repair: _Optional[_Union[Cluster.Repair, _Mapping]] = ..., logs: _Optional[_Iterable[_Union[Cluster.Log, _Mapping]]] = ..., readers: _Optional[_Iterable[_Union[Cluster.Reader, _Mapping]]] = ..., other_logs: _Optional[int] = ..., problems: _Optional[_Iterable[str]] = ..., bookie_states: _Optional[_Mapping[str, int]] = ..., other_readers: _Optional[int] = ...) -> None: ...
