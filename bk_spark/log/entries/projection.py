"""Which columns of an entry are decoded: those that a reader asked for. Pure.

Each entry has its own schema, but the entries of a log have few different ones. So the choice is made once for each
schema. Its key is the bytes of the schema's message, which begins a stream (Arrow's "IPC streaming format")::

    i32 -1, i32 size, size bytes of metadata
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection
from typing import Final

import pyarrow as pa

from bk_spark.log.entries.fit import position_in
from bk_spark.log.formats.schema_merge import Names

_START: Final = struct.Struct("<ii")
#: A larger schema is parsed with each entry.
_MAX_KEY_BYTES: Final = 256 * 1024
_MAX_KNOWN: Final = 64


class Projection:
    """The columns that a reader asked for, ``wanted``, and where entries have them."""

    def __init__(self, wanted: Collection[str], names: Names) -> None:
        self._wanted = tuple(wanted)
        self._names = names
        self._known: OrderedDict[bytes, pa.ipc.IpcReadOptions] = OrderedDict()

    def options_for(self, entry: memoryview) -> pa.ipc.IpcReadOptions:
        """Return how to read an entry. Raises pa.ArrowException and OSError for bytes that are no stream."""
        key = _schema_bytes(entry)
        options = None if key is None else self._known.get(key)
        if options is None:
            options = self._options(pa.ipc.read_schema(pa.py_buffer(entry)))
            if key is not None:
                self._known[key] = options
                if len(self._known) > _MAX_KNOWN:
                    self._known.popitem(last=False)
        return options

    def _options(self, schema: pa.Schema) -> pa.ipc.IpcReadOptions:
        own = schema.names
        positions = (position_in(own, name, self._names) for name in self._wanted)
        found = {position for position in positions if position is not None}
        if not found and own:
            # Without any column, the number of rows would be lost. A narrow column of fixed width is the cheapest.
            found = {min(range(len(own)), key=lambda at: (_width(schema.field(at).type), at))}
        if len(found) == len(own):
            return pa.ipc.IpcReadOptions()
        return pa.ipc.IpcReadOptions(included_fields=sorted(found))


def _schema_bytes(entry: memoryview) -> bytes | None:
    if len(entry) < _START.size:
        return None
    marker, size = _START.unpack_from(entry)
    if marker != -1 or not 0 < size <= min(_MAX_KEY_BYTES, len(entry) - _START.size):
        return None
    return bytes(entry[: _START.size + size])


def _width(data_type: pa.DataType) -> int:
    """How much it takes to decode a column of this type, for comparison only."""
    try:
        return int(data_type.bit_width)
    except ValueError:
        return 1 << 20
