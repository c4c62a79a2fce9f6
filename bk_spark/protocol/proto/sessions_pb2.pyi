from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LogInMessage(_message.Message):
    __slots__ = ("plugin", "payload")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    plugin: str
    payload: bytes
    def __init__(self, plugin: _Optional[str] = ..., payload: _Optional[bytes] = ...) -> None: ...

class LogInAnswer(_message.Message):
    __slots__ = ("payload", "session")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    session: bytes
    def __init__(self, payload: _Optional[bytes] = ..., session: _Optional[bytes] = ...) -> None: ...
