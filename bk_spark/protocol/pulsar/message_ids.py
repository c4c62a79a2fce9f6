"""Ids of messages, as bytes and as text. Source: docs/design/pulsar.md §3.1.

Bytes are ``MessageIdData`` in protobuf: 1 ledger, 2 entry, 3 partition, 4 batch index, 6 batch size, 7 the id of the
first chunk. Text is ``ledger:entry:partition``, and ``:batch index`` for a message of a batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.fields import FieldError, Fields, varint

_TEXT: Final = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19})(?::(-?[0-9]{1,10}))?(?::(-?[0-9]{1,10}))?")
_MAX_LONG: Final = (1 << 63) - 1
_MAX_INT: Final = (1 << 31) - 1
_64: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class MessageIdData:
    """Where a message is.

    Parameters
    ----------
    ledger_id, entry_id
        The entry. For a chunked message, the entry of its last chunk.
    partition
        The number of the partition, or -1.
    batch_index
        The number of the message within the batch, or -1.
    batch_size
        How many messages the batch has, or 0.
    first_chunk
        Ledger and entry of the first chunk, or None.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first_chunk: tuple[int, int] | None = None

    @classmethod
    def parse(cls, data: bytes) -> MessageIdData:
        """Parse bytes, as ``MessageId.toByteArray`` gives them. Raises InvalidArgumentError."""
        try:
            message = Fields(data)
            if 1 not in message or 2 not in message:
                raise FieldError("it has no ledger or no entry")
            first = message.message(7)
            found = cls(
                message.signed(1),
                message.signed(2),
                message.signed(3, _64),
                message.signed(4, _64),
                message.signed(6),
                None if first is None else (first.signed(1), first.signed(2)),
            )
        except FieldError as error:
            raise InvalidArgumentError(f"{data[:40].hex()} is not a message id: {error}") from error
        return found._checked(data[:40].hex())

    @classmethod
    def parse_text(cls, text: str) -> MessageIdData:
        """Parse ``ledger:entry``, ``ledger:entry:partition`` or with the batch index. Raises InvalidArgumentError."""
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise InvalidArgumentError(
                f"{text[:200]!r} is not a message id: it is ledger:entry, ledger:entry:partition, or "
                "ledger:entry:partition:batchIndex"
            )
        ledger, entry, partition, index = found.groups()
        parts = int(ledger), int(entry), int(partition or -1), int(index or -1)
        return cls(*parts)._checked(repr(text[:200]))

    def _checked(self, shown: str) -> MessageIdData:
        if max(self.ledger_id, self.entry_id) > _MAX_LONG or max(self.partition, self.batch_index) > _MAX_INT:
            raise InvalidArgumentError(f"{shown} is not a message id: a number is too large")
        if min(self.ledger_id, self.entry_id, self.partition, self.batch_index) < -1 or self.batch_size < 0:
            raise InvalidArgumentError(f"{shown} is not a message id: a number is negative")
        return self

    def to_bytes(self) -> bytes:
        """Return the bytes that Pulsar's Java client gives."""
        out = b"\x08" + varint(self.ledger_id & _64) + b"\x10" + varint(self.entry_id & _64)
        if self.partition >= 0:
            out += b"\x18" + varint(self.partition)
        if self.batch_index >= 0:
            out += b"\x20" + varint(self.batch_index)
        out += b"\x30" + varint(self.batch_size)
        if self.first_chunk is not None:
            first = MessageIdData(*self.first_chunk, partition=self.partition).to_bytes()
            out += b"\x3a" + varint(len(first)) + first
        return out

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"
