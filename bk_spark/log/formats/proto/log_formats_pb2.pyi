from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Head(_message.Message):
    __slots__ = ("format_version", "log_id", "first_offset", "next_offset", "first_page", "tail_page", "last_commit_time_ms", "index", "deleted_time_ms", "kept_offset", "last_change_time_ms")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    TAIL_PAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DELETED_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KEPT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_CHANGE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    first_offset: int
    next_offset: int
    first_page: int
    tail_page: int
    last_commit_time_ms: int
    index: IndexPosition
    deleted_time_ms: int
    kept_offset: int
    last_change_time_ms: int
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., first_page: _Optional[int] = ..., tail_page: _Optional[int] = ..., last_commit_time_ms: _Optional[int] = ..., index: _Optional[_Union[IndexPosition, _Mapping]] = ..., deleted_time_ms: _Optional[int] = ..., kept_offset: _Optional[int] = ..., last_change_time_ms: _Optional[int] = ...) -> None: ...

class IndexPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "end_page", "end_offset")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    END_PAGE_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    end_page: int
    end_offset: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., end_page: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class Settings(_message.Message):
    __slots__ = ("format_version", "log_id", "ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type", "entry_format", "schema_json", "password_check", "instance_id", "schema_changes")
    class EntryFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ENTRY_FORMAT_UNSPECIFIED: _ClassVar[Settings.EntryFormat]
        RAW: _ClassVar[Settings.EntryFormat]
        ARROW: _ClassVar[Settings.EntryFormat]
    ENTRY_FORMAT_UNSPECIFIED: Settings.EntryFormat
    RAW: Settings.EntryFormat
    ARROW: Settings.EntryFormat
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_CHECK_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_CHANGES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: int
    entry_format: Settings.EntryFormat
    schema_json: str
    password_check: PasswordCheck
    instance_id: str
    schema_changes: _containers.RepeatedCompositeFieldContainer[SchemaChange]
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., ensemble_size: _Optional[int] = ..., write_quorum_size: _Optional[int] = ..., ack_quorum_size: _Optional[int] = ..., digest_type: _Optional[int] = ..., entry_format: _Optional[_Union[Settings.EntryFormat, str]] = ..., schema_json: _Optional[str] = ..., password_check: _Optional[_Union[PasswordCheck, _Mapping]] = ..., instance_id: _Optional[str] = ..., schema_changes: _Optional[_Iterable[_Union[SchemaChange, _Mapping]]] = ...) -> None: ...

class SchemaChange(_message.Message):
    __slots__ = ("time_ms", "positions", "columns")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, time_ms: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class PasswordCheck(_message.Message):
    __slots__ = ("salt", "iterations", "hash")
    SALT_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    salt: bytes
    iterations: int
    hash: bytes
    def __init__(self, salt: _Optional[bytes] = ..., iterations: _Optional[int] = ..., hash: _Optional[bytes] = ...) -> None: ...

class SegmentPage(_message.Message):
    __slots__ = ("format_version", "log_id", "number", "base_offset", "base_time_ms", "open_tail", "ledger_id_deltas", "ledger_first_entries", "entries", "ledger_index_deltas", "gap_position_deltas", "gap_entries", "rows_per_entry", "row_residuals", "bytes_per_row", "byte_residuals", "time_run_repeats", "time_run_deltas_ms", "schema_run_repeats", "schema_run_deltas", "commits")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TAIL_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_DELTAS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIRST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_INDEX_DELTAS_FIELD_NUMBER: _ClassVar[int]
    GAP_POSITION_DELTAS_FIELD_NUMBER: _ClassVar[int]
    GAP_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ROW_RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_ROW_FIELD_NUMBER: _ClassVar[int]
    BYTE_RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    TIME_RUN_REPEATS_FIELD_NUMBER: _ClassVar[int]
    TIME_RUN_DELTAS_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_RUN_REPEATS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_RUN_DELTAS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    number: int
    base_offset: int
    base_time_ms: int
    open_tail: bool
    ledger_id_deltas: _containers.RepeatedScalarFieldContainer[int]
    ledger_first_entries: _containers.RepeatedScalarFieldContainer[int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    ledger_index_deltas: _containers.RepeatedScalarFieldContainer[int]
    gap_position_deltas: _containers.RepeatedScalarFieldContainer[int]
    gap_entries: _containers.RepeatedScalarFieldContainer[int]
    rows_per_entry: int
    row_residuals: _containers.RepeatedScalarFieldContainer[int]
    bytes_per_row: int
    byte_residuals: _containers.RepeatedScalarFieldContainer[int]
    time_run_repeats: _containers.RepeatedScalarFieldContainer[int]
    time_run_deltas_ms: _containers.RepeatedScalarFieldContainer[int]
    schema_run_repeats: _containers.RepeatedScalarFieldContainer[int]
    schema_run_deltas: _containers.RepeatedScalarFieldContainer[int]
    commits: PageCommits
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., number: _Optional[int] = ..., base_offset: _Optional[int] = ..., base_time_ms: _Optional[int] = ..., open_tail: bool = ..., ledger_id_deltas: _Optional[_Iterable[int]] = ..., ledger_first_entries: _Optional[_Iterable[int]] = ..., entries: _Optional[_Iterable[int]] = ..., ledger_index_deltas: _Optional[_Iterable[int]] = ..., gap_position_deltas: _Optional[_Iterable[int]] = ..., gap_entries: _Optional[_Iterable[int]] = ..., rows_per_entry: _Optional[int] = ..., row_residuals: _Optional[_Iterable[int]] = ..., bytes_per_row: _Optional[int] = ..., byte_residuals: _Optional[_Iterable[int]] = ..., time_run_repeats: _Optional[_Iterable[int]] = ..., time_run_deltas_ms: _Optional[_Iterable[int]] = ..., schema_run_repeats: _Optional[_Iterable[int]] = ..., schema_run_deltas: _Optional[_Iterable[int]] = ..., commits: _Optional[_Union[PageCommits, _Mapping]] = ...) -> None: ...

class PageCommits(_message.Message):
    __slots__ = ("first_offset", "unrecorded_segments", "count", "usual_segments", "segment_residuals", "kinds", "apps", "app_indexes", "batch_residuals", "time_residuals_ms", "moves")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNRECORDED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    USUAL_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    APPS_FIELD_NUMBER: _ClassVar[int]
    APP_INDEXES_FIELD_NUMBER: _ClassVar[int]
    BATCH_RESIDUALS_FIELD_NUMBER: _ClassVar[int]
    TIME_RESIDUALS_MS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    unrecorded_segments: int
    count: int
    usual_segments: int
    segment_residuals: _containers.RepeatedScalarFieldContainer[int]
    kinds: _containers.RepeatedScalarFieldContainer[int]
    apps: _containers.RepeatedScalarFieldContainer[str]
    app_indexes: _containers.RepeatedScalarFieldContainer[int]
    batch_residuals: _containers.RepeatedScalarFieldContainer[int]
    time_residuals_ms: _containers.RepeatedScalarFieldContainer[int]
    moves: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first_offset: _Optional[int] = ..., unrecorded_segments: _Optional[int] = ..., count: _Optional[int] = ..., usual_segments: _Optional[int] = ..., segment_residuals: _Optional[_Iterable[int]] = ..., kinds: _Optional[_Iterable[int]] = ..., apps: _Optional[_Iterable[str]] = ..., app_indexes: _Optional[_Iterable[int]] = ..., batch_residuals: _Optional[_Iterable[int]] = ..., time_residuals_ms: _Optional[_Iterable[int]] = ..., moves: _Optional[_Iterable[int]] = ...) -> None: ...

class Application(_message.Message):
    __slots__ = ("format_version", "app", "query_id", "batch_id", "run", "retired_runs", "in_use_ledger_deltas", "in_use_last_entries", "commit_time_ms", "start_offset", "end_offset", "anonymous", "rows", "query_batch_id")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RETIRED_RUNS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_LEDGER_DELTAS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_LAST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERY_BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    app: str
    query_id: str
    batch_id: int
    run: str
    retired_runs: _containers.RepeatedScalarFieldContainer[str]
    in_use_ledger_deltas: _containers.RepeatedScalarFieldContainer[int]
    in_use_last_entries: _containers.RepeatedScalarFieldContainer[int]
    commit_time_ms: int
    start_offset: int
    end_offset: int
    anonymous: bool
    rows: int
    query_batch_id: int
    def __init__(self, format_version: _Optional[int] = ..., app: _Optional[str] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., run: _Optional[str] = ..., retired_runs: _Optional[_Iterable[str]] = ..., in_use_ledger_deltas: _Optional[_Iterable[int]] = ..., in_use_last_entries: _Optional[_Iterable[int]] = ..., commit_time_ms: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., anonymous: bool = ..., rows: _Optional[int] = ..., query_batch_id: _Optional[int] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("format_version", "last_committed_entry", "condemned")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMITTED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    last_committed_entry: int
    condemned: bool
    def __init__(self, format_version: _Optional[int] = ..., last_committed_entry: _Optional[int] = ..., condemned: bool = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("format_version", "writer_id", "host", "process_id", "opened_time_ms")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    OPENED_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    writer_id: str
    host: str
    process_id: int
    opened_time_ms: int
    def __init__(self, format_version: _Optional[int] = ..., writer_id: _Optional[str] = ..., host: _Optional[str] = ..., process_id: _Optional[int] = ..., opened_time_ms: _Optional[int] = ...) -> None: ...

class Appended(_message.Message):
    __slots__ = ("format_version", "token", "offset")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    token: bytes
    offset: int
    def __init__(self, format_version: _Optional[int] = ..., token: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("format_version", "retention_time_ms", "retention_size_bytes", "orphan_retention_ms", "delete_grace_ms", "history_ms")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETENTION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DELETE_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    retention_time_ms: int
    retention_size_bytes: int
    orphan_retention_ms: int
    delete_grace_ms: int
    history_ms: int
    def __init__(self, format_version: _Optional[int] = ..., retention_time_ms: _Optional[int] = ..., retention_size_bytes: _Optional[int] = ..., orphan_retention_ms: _Optional[int] = ..., delete_grace_ms: _Optional[int] = ..., history_ms: _Optional[int] = ...) -> None: ...

class Maintenance(_message.Message):
    __slots__ = ("format_version", "token")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    token: bytes
    def __init__(self, format_version: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("format_version", "host", "process_id", "began_time_ms", "positions", "others")
    class Position(_message.Message):
        __slots__ = ("log", "log_id", "read_to", "end")
        LOG_FIELD_NUMBER: _ClassVar[int]
        LOG_ID_FIELD_NUMBER: _ClassVar[int]
        READ_TO_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        log: str
        log_id: bytes
        read_to: int
        end: int
        def __init__(self, log: _Optional[str] = ..., log_id: _Optional[bytes] = ..., read_to: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    BEGAN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    host: str
    process_id: int
    began_time_ms: int
    positions: _containers.RepeatedCompositeFieldContainer[Progress.Position]
    others: int
    def __init__(self, format_version: _Optional[int] = ..., host: _Optional[str] = ..., process_id: _Optional[int] = ..., began_time_ms: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[Progress.Position, _Mapping]]] = ..., others: _Optional[int] = ...) -> None: ...
