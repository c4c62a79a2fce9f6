from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODE_OK: _ClassVar[Code]
    CODE_NO_LEDGER: _ClassVar[Code]
    CODE_NO_ENTRY: _ClassVar[Code]
    CODE_BAD_REQUEST: _ClassVar[Code]
    CODE_IO_ERROR: _ClassVar[Code]
    CODE_UNAUTHORIZED: _ClassVar[Code]
    CODE_BAD_VERSION: _ClassVar[Code]
    CODE_FENCED: _ClassVar[Code]
    CODE_READ_ONLY: _ClassVar[Code]
    CODE_TOO_MANY_REQUESTS: _ClassVar[Code]
    CODE_UNKNOWN_LEDGER_STATE: _ClassVar[Code]
CODE_OK: Code
CODE_NO_LEDGER: Code
CODE_NO_ENTRY: Code
CODE_BAD_REQUEST: Code
CODE_IO_ERROR: Code
CODE_UNAUTHORIZED: Code
CODE_BAD_VERSION: Code
CODE_FENCED: Code
CODE_READ_ONLY: Code
CODE_TOO_MANY_REQUESTS: Code
CODE_UNKNOWN_LEDGER_STATE: Code

class AddBatch(_message.Message):
    __slots__ = ("batch_id", "ledger_id", "master_key", "recovery", "high_priority", "count", "records")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    HIGH_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    ledger_id: int
    master_key: bytes
    recovery: bool
    high_priority: bool
    count: int
    records: bytes
    def __init__(self, batch_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., recovery: bool = ..., high_priority: bool = ..., count: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class AddAnswer(_message.Message):
    __slots__ = ("batch_id", "code", "codes", "problem")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    code: Code
    codes: _containers.RepeatedScalarFieldContainer[Code]
    problem: str
    def __init__(self, batch_id: _Optional[int] = ..., code: _Optional[_Union[Code, str]] = ..., codes: _Optional[_Iterable[_Union[Code, str]]] = ..., problem: _Optional[str] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("request_id", "ledger_id", "first_entry_id", "count", "step", "max_bytes", "fence_key")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FENCE_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ledger_id: int
    first_entry_id: int
    count: int
    step: int
    max_bytes: int
    fence_key: bytes
    def __init__(self, request_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., count: _Optional[int] = ..., step: _Optional[int] = ..., max_bytes: _Optional[int] = ..., fence_key: _Optional[bytes] = ...) -> None: ...

class ReadAnswer(_message.Message):
    __slots__ = ("request_id", "code", "codes", "count", "last", "problem", "records")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    CODES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    code: Code
    codes: _containers.RepeatedScalarFieldContainer[Code]
    count: int
    last: bool
    problem: str
    records: bytes
    def __init__(self, request_id: _Optional[int] = ..., code: _Optional[_Union[Code, str]] = ..., codes: _Optional[_Iterable[_Union[Code, str]]] = ..., count: _Optional[int] = ..., last: bool = ..., problem: _Optional[str] = ..., records: _Optional[bytes] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("ledger_id", "previous_last_add_confirmed", "timeout_ms")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    previous_last_add_confirmed: int
    timeout_ms: int
    def __init__(self, ledger_id: _Optional[int] = ..., previous_last_add_confirmed: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TailAnswer(_message.Message):
    __slots__ = ("code", "last_add_confirmed", "entry")
    CODE_FIELD_NUMBER: _ClassVar[int]
    LAST_ADD_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    code: Code
    last_add_confirmed: int
    entry: bytes
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., last_add_confirmed: _Optional[int] = ..., entry: _Optional[bytes] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("ledger_id", "master_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    master_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ...) -> None: ...

class FenceAnswer(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: Code
    def __init__(self, code: _Optional[_Union[Code, str]] = ...) -> None: ...

class GetLastAddConfirmedRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class GetLastAddConfirmedAnswer(_message.Message):
    __slots__ = ("code", "explicit_packet", "last_entry")
    CODE_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_PACKET_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    code: Code
    explicit_packet: bytes
    last_entry: bytes
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., explicit_packet: _Optional[bytes] = ..., last_entry: _Optional[bytes] = ...) -> None: ...

class SetLastAddConfirmedRequest(_message.Message):
    __slots__ = ("ledger_id", "master_key", "packet")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    PACKET_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    master_key: bytes
    packet: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., packet: _Optional[bytes] = ...) -> None: ...

class SetLastAddConfirmedAnswer(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: Code
    def __init__(self, code: _Optional[_Union[Code, str]] = ...) -> None: ...

class ForceRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ForceAnswer(_message.Message):
    __slots__ = ("code",)
    CODE_FIELD_NUMBER: _ClassVar[int]
    code: Code
    def __init__(self, code: _Optional[_Union[Code, str]] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ListEntriesAnswer(_message.Message):
    __slots__ = ("code", "groups")
    class Group(_message.Message):
        __slots__ = ("first_start", "last_start", "size", "period")
        FIRST_START_FIELD_NUMBER: _ClassVar[int]
        LAST_START_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        PERIOD_FIELD_NUMBER: _ClassVar[int]
        first_start: int
        last_start: int
        size: int
        period: int
        def __init__(self, first_start: _Optional[int] = ..., last_start: _Optional[int] = ..., size: _Optional[int] = ..., period: _Optional[int] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    code: Code
    groups: _containers.RepeatedCompositeFieldContainer[ListEntriesAnswer.Group]
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., groups: _Optional[_Iterable[_Union[ListEntriesAnswer.Group, _Mapping]]] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoAnswer(_message.Message):
    __slots__ = ("code", "total_disk_bytes", "free_disk_bytes")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    code: Code
    total_disk_bytes: int
    free_disk_bytes: int
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., total_disk_bytes: _Optional[int] = ..., free_disk_bytes: _Optional[int] = ...) -> None: ...
