from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListLogsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLogsAnswer(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateLogRequest(_message.Message):
    __slots__ = ("log", "password", "ensemble_size", "write_quorum_size", "ack_quorum_size")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_SIZE_FIELD_NUMBER: _ClassVar[int]
    log: str
    password: bytes
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    def __init__(self, log: _Optional[str] = ..., password: _Optional[bytes] = ..., ensemble_size: _Optional[int] = ..., write_quorum_size: _Optional[int] = ..., ack_quorum_size: _Optional[int] = ...) -> None: ...

class CreateLogAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("log", "password", "take_over", "batch_id", "rows")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    log: str
    password: bytes
    take_over: bool
    batch_id: int
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, log: _Optional[str] = ..., password: _Optional[bytes] = ..., take_over: bool = ..., batch_id: _Optional[int] = ..., rows: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendAnswer(_message.Message):
    __slots__ = ("batch_id", "first_offset", "count")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    first_offset: int
    count: int
    def __init__(self, batch_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ReadRowsRequest(_message.Message):
    __slots__ = ("log", "password", "start_offset", "end_offset")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log: str
    password: bytes
    start_offset: int
    end_offset: int
    def __init__(self, log: _Optional[str] = ..., password: _Optional[bytes] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("log", "password", "start_offset")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log: str
    password: bytes
    start_offset: int
    def __init__(self, log: _Optional[str] = ..., password: _Optional[bytes] = ..., start_offset: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("first_offset", "rows")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, first_offset: _Optional[int] = ..., rows: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DescribeLogRequest(_message.Message):
    __slots__ = ("log", "password")
    LOG_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    log: str
    password: bytes
    def __init__(self, log: _Optional[str] = ..., password: _Optional[bytes] = ...) -> None: ...

class DescribeLogAnswer(_message.Message):
    __slots__ = ("first_offset", "end_offset")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    end_offset: int
    def __init__(self, first_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...
