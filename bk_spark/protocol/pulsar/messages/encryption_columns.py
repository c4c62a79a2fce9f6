"""What producers say about the encryption of messages, as an Arrow column. Source: docs/design/pulsar.md §2.7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.columns import ENCRYPTION
from bk_spark.protocol.pulsar.compression import Compression
from bk_spark.protocol.pulsar.messages.entry_frames import MetadataField
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.gathering import gathered, last_of_equal, matched, text_of
from bk_spark.protocol.pulsar.messages.words import Words

#: Fields of ``EncryptionKeys``: the name of the key, and the data's key, encrypted with it.
_NAME: Final = 1
_KEY: Final = 2
_CODECS: Final = pa.array([Compression(number).name for number in range(len(Compression))], pa.string())
_MASK_32: Final = np.uint64(0xFFFFFFFF)


def encrypted_entries(metadata: FieldColumns) -> Bools:
    """Return which entries are encrypted: those that name a key."""
    found = np.zeros(len(metadata.malformed), np.bool_)
    found[metadata.repeated(MetadataField.ENCRYPTION_KEYS).owners] = True
    return found


def encryption_column(
    words: Words, metadata: FieldColumns, entries: Int64s, moved: Int64s | int, error: Callable[[int, str], Exception]
) -> pa.StructArray:
    """Return what the metadata of encrypted entries says about the encryption.

    Parameters
    ----------
    words
        The buffer in which the entries are.
    metadata
        The metadata of these entries and of others.
    entries
        The indexes of the entries in ``metadata``, ascending.
    moved
        How far each entry is from where ``metadata`` says.
    error
        Makes the error of an entry from its index in ``metadata`` and what is wrong.

    Raises
    ------
    MessageFormatError
        If a key is not a protobuf message.
    """

    def span(field: MetadataField) -> pa.BinaryArray:
        found = metadata.span(field)
        begins = found.begins[entries] + moved
        return gathered(words.data, begins, found.sizes[entries], metadata.present(field)[entries])

    codecs = metadata.number(MetadataField.COMPRESSION)[entries]
    known = codecs < len(_CODECS)
    is_batch = metadata.present(MetadataField.NUM_MESSAGES_IN_BATCH)[entries]
    counts = metadata.signed(MetadataField.NUM_MESSAGES_IN_BATCH)[entries].astype(np.int32)
    sizes = (metadata.number(MetadataField.UNCOMPRESSED_SIZE)[entries] & _MASK_32).view(np.int64)
    columns = {
        "keys": _keys(words, metadata, entries, moved, error),
        "param": span(MetadataField.ENCRYPTION_PARAM),
        "algorithm": text_of(span(MetadataField.ENCRYPTION_ALGO)),
        "compression": _CODECS.take(pa.array(np.where(known, codecs, np.uint64(0)), mask=~known)),
        "uncompressedSize": pa.array(sizes, pa.int64()),
        "batchSize": pa.array(counts, pa.int32(), mask=~is_batch),
    }
    return pa.StructArray.from_arrays([columns[one.name] for one in ENCRYPTION], fields=list(ENCRYPTION))


def _keys(
    words: Words, metadata: FieldColumns, entries: Int64s, moved: Int64s | int, error: Callable[[int, str], Exception]
) -> pa.MapArray:
    whole = metadata.repeated(MetadataField.ENCRYPTION_KEYS)
    which, rows = matched(whole.owners, entries, np.arange(len(entries)))
    begins = whole.values.begins[which] + (moved if isinstance(moved, int) else moved[rows])
    read = FieldColumns(words, begins, begins + whole.values.sizes[which], spans=(_NAME, _KEY))
    if read.malformed.any():
        raise error(int(entries[rows[int(np.argmax(read.malformed))]]), "a key that is not a protobuf message")
    names, keys = (
        gathered(words.data, span.begins, span.sizes, read.present(field))
        for field, span in ((_NAME, read.span(_NAME)), (_KEY, read.span(_KEY)))
    )
    names = text_of(names).fill_null("")
    kept = last_of_equal(rows, names)
    if kept is not None:
        rows, names, keys = rows[kept], names.take(pa.array(kept)), keys.take(pa.array(kept))
    offsets = np.searchsorted(rows, np.arange(len(entries) + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names, keys)
