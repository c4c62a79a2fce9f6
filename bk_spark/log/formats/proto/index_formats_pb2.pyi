from bk_spark.log.formats.proto import log_formats_pb2 as _log_formats_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IndexDirectory(_message.Message):
    __slots__ = ("format_version", "log_id", "first_page", "end_offset", "base_offset_deltas", "rows", "size_bytes", "first_time_deltas_ms", "run_ledger_deltas", "run_first_entries", "run_pages", "previous")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_DELTAS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_DELTAS_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_LEDGER_DELTAS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIRST_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RUN_PAGES_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    first_page: int
    end_offset: int
    base_offset_deltas: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: _containers.RepeatedScalarFieldContainer[int]
    first_time_deltas_ms: _containers.RepeatedScalarFieldContainer[int]
    run_ledger_deltas: _containers.RepeatedScalarFieldContainer[int]
    run_first_entries: _containers.RepeatedScalarFieldContainer[int]
    run_pages: _containers.RepeatedScalarFieldContainer[int]
    previous: _log_formats_pb2.IndexPosition
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., first_page: _Optional[int] = ..., end_offset: _Optional[int] = ..., base_offset_deltas: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[_Iterable[int]] = ..., first_time_deltas_ms: _Optional[_Iterable[int]] = ..., run_ledger_deltas: _Optional[_Iterable[int]] = ..., run_first_entries: _Optional[_Iterable[int]] = ..., run_pages: _Optional[_Iterable[int]] = ..., previous: _Optional[_Union[_log_formats_pb2.IndexPosition, _Mapping]] = ...) -> None: ...
