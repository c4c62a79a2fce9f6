"""Memory of an answer to Read, into which entries are read where they are sent from.

gRPC sends nothing but ``bytes``. What was read elsewhere has to be joined into one first, which took a tenth of the
time of an answer with entries of 64 KiB.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bytes
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.batches import records_head
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from bookie_server.storage.records import LENGTH_BYTES

#: To join less costs less than this memory.
_LEAST_BYTES: Final = 256 * 1024
_COUNT_TAG: Final = pb.ReadAnswer.COUNT_FIELD_NUMBER << 3
#: Bytes of the number of entries, which is not known before they are read, with its tag.
_COUNT_BYTES: Final = 3

_new_bytes: Final = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object
_address_of: Final = ctypes.pythonapi.PyBytes_AsString
_address_of.argtypes, _address_of.restype = (ctypes.py_object,), ctypes.c_void_p


class AnswerRoom:
    """Belongs to one request for consecutive entries."""

    def __init__(self, request_id: int) -> None:
        self._head = pb.ReadAnswer(request_id=request_id, last=True).SerializeToString()
        self._message = b""
        self._memory: Bytes | None = None
        self._records: Bytes | None = None

    def take(self, size_bytes: int) -> Bytes:
        """Return the memory of records. What was returned before belongs to no answer any more."""
        if size_bytes < _LEAST_BYTES:
            return np.empty(size_bytes, np.uint8)
        start = len(self._head) + _COUNT_BYTES + len(records_head(size_bytes))
        self._message, self._memory = _writable_bytes(start + size_bytes)
        self._records = self._memory[start:]
        return self._records

    def message(self, found: Sequence[StoredEntries]) -> bytes | None:
        """Return the answer, if exactly what was found is in the memory that was taken last. The memory belongs to the
        answer then. None: there are other entries, or there is something else in the memory."""
        if len(found) != 1 or found[0].data is not self._records or self._memory is None:
            return None
        entries = found[0]
        size_bytes, count = len(entries.data), len(entries.sizes)
        if not entries.contiguous or entries.starts[0] != LENGTH_BYTES:
            return None
        if entries.starts[-1] + entries.sizes[-1] != size_bytes:
            return None
        # Padded to two bytes, as any number of protobuf may be.
        told = bytes((_COUNT_TAG, count & 0x7F | 0x80, count >> 7))
        head = self._head + told + records_head(size_bytes)
        self._memory[: len(head)] = np.frombuffer(head, np.uint8)
        message, self._message = self._message, b""
        self._memory = self._records = None
        return message


def _writable_bytes(size: int) -> tuple[bytes, Bytes]:
    """Return ``bytes`` that nobody else knows yet, and an array over them that may be written to. Python does not clear
    them (https://docs.python.org/3/c-api/bytes.html#c.PyBytes_FromStringAndSize)."""
    made: bytes = _new_bytes(None, size)
    memory = (ctypes.c_ubyte * size).from_address(_address_of(made))
    # A thread may still read a file into it when nobody waits for the answer any more.
    memory.owner = made  # type: ignore[attr-defined]
    return made, np.frombuffer(memoryview(memory), np.uint8)
