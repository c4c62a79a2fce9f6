"""Checks the sizes in an Arrow stream before memory is allocated for them, and batches before their values are read.

pyarrow trusts both. A compressed buffer begins with its size after decompression, so a few kilobytes can claim
gigabytes. The offsets and indexes of a damaged batch can point anywhere in memory, and reading them ends the process.

A stream's messages (Arrow's "IPC streaming format", Message.fbs) are flatbuffers, whose structure pyarrow verifies.
Only these of their fields are read here::

    Message          1: type of the header, 2: header
    DictionaryBatch  1: record batch
    RecordBatch      2: buffers (offset i64, size i64), 3: compression
    compressed buffer of the body: i64 size without compression, -1 if it is not compressed after all
"""

from __future__ import annotations

import functools
import struct
from typing import Final

import pyarrow as pa

from bk_spark.protocol.errors import CorruptFileError

#: The most memory that an entry may take. Only a compressed entry can need more: others are no larger than a frame.
MAX_ENTRY_MEMORY_BYTES: Final = 256 * 1024 * 1024
#: The most rows of an entry. More of them do not fit into the largest ``entryBytes``, even at one byte a row.
MAX_ENTRY_ROWS: Final = 2**26
_DICTIONARY, _BATCH = 2, 3
_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_BUFFER: Final = struct.Struct("<qq")


def memory_bytes(stream: pa.Buffer) -> int:
    """Return how many bytes the compressed buffers of an Arrow stream claim to take without compression. Raises
    pa.ArrowException, OSError and struct.error for bytes that are no stream."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.body is not None:
            total += sum(_sizes(memoryview(message.metadata), memoryview(message.body)))
    return total


def check_memory(stream: pa.Buffer, where: str) -> None:
    """Raise CorruptFileError if a stream claims more than MAX_ENTRY_MEMORY_BYTES. Also raises as
    :func:`memory_bytes`."""
    claimed = memory_bytes(stream)
    if claimed > MAX_ENTRY_MEMORY_BYTES:
        raise CorruptFileError(
            f"{where} has {stream.size} bytes and claims {claimed} without compression; at most "
            f"{MAX_ENTRY_MEMORY_BYTES} are read"
        )


def check_batch(batch: pa.RecordBatch, where: str) -> None:
    """Raise CorruptFileError for too many rows, or if offsets or indexes lead outside of the batch's buffers.

    Text need not be UTF-8: Spark writes what its strings hold.
    """
    if batch.num_rows > MAX_ENTRY_ROWS:
        raise CorruptFileError(f"{where} claims {batch.num_rows} rows; at most {MAX_ENTRY_ROWS} are read")
    try:
        batch.validate()
        # Reading the names raises UnicodeDecodeError if one is not UTF-8: nobody could ask for that column.
        for _, column in zip(batch.schema.names, batch.columns, strict=True):
            column.view(_without_text(column.type)).validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{where} is damaged: {error}") from error


@functools.lru_cache(256)
def _without_text(data_type: pa.DataType) -> pa.DataType:
    """Return the type with the same buffers in which strings are binary."""
    inner = _without_text
    if pa.types.is_string(data_type):
        return pa.binary()
    if pa.types.is_large_string(data_type):
        return pa.large_binary()
    if pa.types.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(inner(data_type.value_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([one.with_type(inner(one.type)) for one in data_type])
    if pa.types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(inner(key.type)), item.with_type(inner(item.type)))
    return data_type


def _sizes(metadata: memoryview, body: memoryview) -> list[int]:
    """The sizes that the compressed buffers of a message claim."""
    message = _table(metadata, 0)
    kind_at, header_at = _field(metadata, message, 1), _field(metadata, message, 2)
    kind = metadata[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY, _BATCH) or not header_at:
        return []
    batch = _table(metadata, header_at)
    if kind == _DICTIONARY:
        data_at = _field(metadata, batch, 1)
        if not data_at:
            return []
        batch = _table(metadata, data_at)
    buffers_at = _field(metadata, batch, 2)
    if not buffers_at or not _field(metadata, batch, 3):
        return []
    vector = _table(metadata, buffers_at)
    (count,) = _I32.unpack_from(metadata, vector)
    sizes = []
    for at in range(vector + 4, vector + 4 + count * _BUFFER.size, _BUFFER.size):
        offset, size = _BUFFER.unpack_from(metadata, at)
        # pyarrow refuses a buffer outside of the body, and one that is too short for its size.
        if size >= _I64.size and 0 <= offset <= len(body) - _I64.size:
            sizes.append(max(0, _I64.unpack_from(body, offset)[0]))
    return sizes


def _table(data: memoryview, at: int) -> int:
    """The place to which the offset at ``at`` leads."""
    return int(at + _I32.unpack_from(data, at)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """The place of a table's field; 0 if it is not there."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    entry = 4 + 2 * number
    if entry + 2 > int(_U16.unpack_from(data, vtable)[0]):
        return 0
    offset = int(_U16.unpack_from(data, vtable + entry)[0])
    return table + offset if offset else 0
