"""What a stored entry of a topic is made of, for many entries at once. Source: docs/design/pulsar.md §2.1 and §2.2.

=====================  ============================================  ==================================
part                   bytes                                         when
=====================  ============================================  ==================================
broker entry metadata  ``0e 02``, u32 n, n bytes                     an interceptor of the broker was on
checksum               ``0e 01``, u32 CRC32C                         normally
metadata               u32 n, n bytes ``MessageMetadata``            always
payload                the rest                                      may be empty
=====================  ============================================  ==================================

Numbers are big-endian. An entry without checksum begins with the size of the metadata, whose upper bytes are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import crc32c
import numpy as np

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, MessageFormatError
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.gathering import MAX_BUFFER_BYTES
from bk_spark.protocol.pulsar.messages.words import PADDING_BYTES, Words

_BROKER_MAGIC: Final = 0x020E
_CHECKSUM_MAGIC: Final = 0x010E
_MAGIC: Final = np.uint64(0xFFFF)
_CHECKSUM_BYTES: Final = 6
_HEADER_BYTES: Final = 6
_SIZE_BYTES: Final = 4


class MetadataField(IntEnum):
    """Fields of ``MessageMetadata`` that are read."""

    PRODUCER_NAME = 1
    SEQUENCE_ID = 2
    PUBLISH_TIME = 3
    PROPERTIES = 4
    PARTITION_KEY = 6
    COMPRESSION = 8
    UNCOMPRESSED_SIZE = 9
    NUM_MESSAGES_IN_BATCH = 11
    EVENT_TIME = 12
    ENCRYPTION_KEYS = 13
    ENCRYPTION_ALGO = 14
    ENCRYPTION_PARAM = 15
    SCHEMA_VERSION = 16
    PARTITION_KEY_B64_ENCODED = 17
    ORDERING_KEY = 18
    DELIVER_AT_TIME = 19
    MARKER_TYPE = 20
    TXNID_LEAST_BITS = 22
    TXNID_MOST_BITS = 23
    NULL_VALUE = 25
    UUID = 26
    NUM_CHUNKS = 27
    TOTAL_CHUNK_MSG_SIZE = 28
    CHUNK_ID = 29
    NULL_PARTITION_KEY = 30


class BrokerField(IntEnum):
    """Fields of ``BrokerEntryMetadata``."""

    TIMESTAMP = 1
    INDEX = 2


#: The kinds of the fields of MessageMetadata: bytes, and repeated messages. The others are numbers.
_BYTES: Final = frozenset(
    {
        MetadataField.PRODUCER_NAME,
        MetadataField.PARTITION_KEY,
        MetadataField.ENCRYPTION_ALGO,
        MetadataField.ENCRYPTION_PARAM,
        MetadataField.SCHEMA_VERSION,
        MetadataField.ORDERING_KEY,
        MetadataField.UUID,
    }
)
_MESSAGES: Final = frozenset({MetadataField.PROPERTIES, MetadataField.ENCRYPTION_KEYS})


class EntryFrames:
    """Where the parts of entries are, and what their metadata says.

    Parameters
    ----------
    payloads
        The entries.
    ledger_ids, entry_ids
        Where each of them is, for errors.

    Raises
    ------
    MessageFormatError
        If a part reaches beyond its entry.
    """

    def __init__(self, payloads: Payloads | Sequence[Buffer], ledger_ids: Int64s, entry_ids: Int64s) -> None:
        if isinstance(payloads, Payloads):
            first, last = int(payloads.offsets[0]), int(payloads.offsets[-1])
            data = b"".join((payloads.data[first:last], bytes(PADDING_BYTES)))
            offsets = payloads.offsets - first
        else:
            offsets = Payloads.offsets_of(payloads)
            data = b"".join((*payloads, bytes(PADDING_BYTES)))
            Payloads.check_joined(memoryview(data), int(offsets[-1]) + PADDING_BYTES)
        if len(data) > MAX_BUFFER_BYTES:
            raise InvalidArgumentError(
                f"entries of {len(data)} bytes in one call, at most {MAX_BUFFER_BYTES} are decoded"
            )
        self.ledger_ids, self.entry_ids = ledger_ids, entry_ids
        self.data = data
        self.words: Final = Words(data)
        self.begins: Final[Int64s] = offsets[:-1]
        self.ends: Final[Int64s] = offsets[1:]
        self._locate()

    def __len__(self) -> int:
        return len(self.begins)

    def _locate(self) -> None:
        words, ends = self.words, self.ends
        at, magic = self.begins, words.at(self.begins) & _MAGIC
        self.has_broker_metadata: Bools = magic == _BROKER_MAGIC
        self.broker_begins = self.broker_ends = at
        if self.has_broker_metadata.any():
            size = np.where(self.has_broker_metadata, words.big_endian_32(at + 2), -_HEADER_BYTES)
            self.broker_ends = at + _HEADER_BYTES + size
            self.broker_begins = np.where(self.has_broker_metadata, at + _HEADER_BYTES, at)
            self.check(self.broker_ends <= ends, "broker metadata that is longer than the entry")
            at = self.broker_ends
            magic = words.at(at) & _MAGIC
        self._has_checksum: Bools = magic == _CHECKSUM_MAGIC
        at = at + np.where(self._has_checksum, _CHECKSUM_BYTES, 0)
        self.metadata_begins: Int64s = at + _SIZE_BYTES
        self.check(self.metadata_begins <= ends, "no metadata of a message")
        self.payload_begins: Int64s = self.metadata_begins + words.big_endian_32(at)
        self.check(self.payload_begins <= ends, "metadata that is longer than the entry")

    def check_checksums(self) -> None:
        """Raise MessageFormatError for the first entry whose checksum is wrong. Entries may have none."""
        data, sizes_at = memoryview(self.data), self.metadata_begins - _SIZE_BYTES
        expected = self.words.big_endian_32(sizes_at - _SIZE_BYTES * self._has_checksum)
        for index in np.flatnonzero(self._has_checksum).tolist():
            if crc32c.crc32c(data[int(sizes_at[index]) : int(self.ends[index])]) != expected[index]:
                raise self.error(index, "a wrong checksum")

    def check(self, sound: Bools, problem: str) -> None:
        """Raise MessageFormatError for the first entry that is not ``sound``."""
        if not sound.all():
            raise self.error(int(np.argmin(sound)), problem)

    def error(self, index: int, problem: str) -> MessageFormatError:
        """Return an error that names an entry, by its index here."""
        return MessageFormatError(
            f"an entry that is not a Pulsar message: {problem}; skip it by a later start, or read the topic's ledger "
            "as it is with option ledgerId",
            ledger_id=int(self.ledger_ids[index]),
            entry_id=int(self.entry_ids[index]),
        )

    def metadata(self, fields: Sequence[MetadataField]) -> FieldColumns:
        """Return chosen fields of the entries' metadata. Raises MessageFormatError."""
        found = FieldColumns(
            self.words,
            self.metadata_begins,
            self.payload_begins,
            numbers=[one for one in fields if one not in _BYTES and one not in _MESSAGES],
            spans=[one for one in fields if one in _BYTES],
            repeated=[one for one in fields if one in _MESSAGES],
        )
        self.check(~found.malformed, "metadata that is not a protobuf message")
        return found

    def broker_metadata(self) -> FieldColumns:
        """Return the fields of the broker's metadata. Raises MessageFormatError."""
        fields = (BrokerField.TIMESTAMP, BrokerField.INDEX)
        found = FieldColumns(self.words, self.broker_begins, self.broker_ends, numbers=fields)
        self.check(~found.malformed, "broker metadata that is not a protobuf message")
        return found
