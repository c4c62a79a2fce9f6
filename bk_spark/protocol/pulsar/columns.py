"""The columns of a topic's messages: pulsar-spark's first, in its order and with its types, then ours.

``__producerName`` and ``__sequenceId`` are what pulsar-sql calls ``__producer_name__`` and ``__sequence_id__``.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: Spark's type of times.
TIME: Final = pa.timestamp("us", tz="UTC")

#: What Java calls the encryption context: all that somebody with the private key needs to decrypt ``value``.
ENCRYPTION: Final = pa.struct(
    [
        pa.field("keys", pa.map_(pa.string(), pa.binary())),
        pa.field("param", pa.binary()),
        pa.field("algorithm", pa.string()),
        pa.field("compression", pa.string()),
        pa.field("uncompressedSize", pa.int64()),
        pa.field("batchSize", pa.int32()),
    ]
)

ENCRYPTION_COLUMN: Final = "__encryption"

COLUMNS: Final = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("__key", pa.binary()),
        pa.field("__topic", pa.string()),
        pa.field("__messageId", pa.binary()),
        pa.field("__publishTime", TIME),
        pa.field("__eventTime", TIME),
        pa.field("__messageProperties", pa.map_(pa.string(), pa.string())),
        pa.field("__ledgerId", pa.int64()),
        pa.field("__entryId", pa.int64()),
        pa.field("__batchIndex", pa.int32()),
        pa.field("__partition", pa.int32()),
        pa.field("__sequenceId", pa.int64()),
        pa.field("__producerName", pa.string()),
        pa.field("__schemaVersion", pa.int64()),
        pa.field("__brokerTime", TIME),
        pa.field("__index", pa.int64()),
        pa.field("__orderingKey", pa.binary()),
        pa.field("__deliverAt", TIME),
        pa.field(ENCRYPTION_COLUMN, ENCRYPTION),
    ]
)
"""Name and type of each column, in order."""


def schema_of(columns: frozenset[str]) -> pa.Schema:
    """Return the schema of some of the columns, in their order."""
    return pa.schema([one for one in COLUMNS if one.name in columns])
