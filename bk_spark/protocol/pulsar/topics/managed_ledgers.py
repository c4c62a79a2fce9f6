"""A topic's znode: its list of ledgers, and the number of partitions. Source: docs/design/pulsar.md §1.3 and §1.4.

``ManagedLedgerInfo`` in protobuf, plain or compressed. All ledgers but the last are closed, and only closed ones have
counts and a time. The time is the broker's clock when it closed the ledger, so no entry was stored later. A znode may
be empty: the topic was made and never opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.pulsar.compression import CompressionError, decompress
from bk_spark.protocol.pulsar.fields import FieldError, Fields

#: First bytes of a compressed znode. A message cannot begin with them: no wire type is 7.
COMPRESSED_MAGIC: Final = b"\x47\x78"
#: ZooKeeper refuses znodes of more than 1 MiB by default; compressed, this is far above what a broker writes.
MAX_ZNODE_BYTES: Final = 64 * 1024 * 1024
#: Pulsar's own limit of partitions is lower, where there is one.
MAX_PARTITIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Offload:
    """Where a copy of a ledger is in tiered storage.

    Parameters
    ----------
    complete
        Whether the copy is whole.
    deleted_from_bookies
        Whether the ledger's own entries were deleted from the bookies.
    driver
        The name of the storage, such as ``aws-s3``.
    properties
        Its settings, such as ``bucket``.
    id
        The UUID of the copy, in hex.
    """

    complete: bool
    deleted_from_bookies: bool
    driver: str
    properties: Mapping[str, str]
    id: str


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """One ledger of a topic.

    Parameters
    ----------
    ledger_id
        The ledger.
    entries, size_bytes
        How much it has. None while it is open.
    closed_at_ms
        When the broker closed it, by its clock. None while it is open.
    offload
        Its copy in tiered storage, or None.
    """

    ledger_id: int
    entries: int | None = None
    size_bytes: int | None = None
    closed_at_ms: int | None = None
    offload: Offload | None = None


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """The ledgers of a topic, in order.

    Parameters
    ----------
    ledgers
        The ledgers, in order of their messages.
    terminated
        The last ledger and entry of a topic that was ended, or None.
    properties
        Notes of the broker, such as ``index``.
    """

    ledgers: tuple[TopicLedger, ...] = ()
    terminated: tuple[int, int] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes, source: str = "the topic's znode") -> ManagedLedger:
        """Parse the content of a znode.

        Parameters
        ----------
        content
            What the znode has. Nothing is a topic without ledgers.
        source
            Where it is, for errors.

        Raises
        ------
        MetadataFormatError
            If it is not a list of ledgers.
        """
        try:
            message = Fields(uncompressed(content))
            ledgers = tuple(sorted((_ledger(one) for one in message.messages(1)), key=lambda one: one.ledger_id))
            end = message.message(2)
            terminated = None if end is None else (end.signed(1), end.signed(2))
            properties = message.texts(3)
        except (FieldError, CompressionError) as error:
            raise MetadataFormatError(f"{source} is not a list of a topic's ledgers: {error}") from error
        # A broker that offloads writes the list in any order. The order of ids is the topic's.
        ids = [ledger.ledger_id for ledger in ledgers]
        if any(one < 0 for one in ids) or len(ids) > len(set(ids)):
            raise MetadataFormatError(f"{source} has a ledger twice, or one with a negative id: {ids[:20]}")
        return cls(ledgers, terminated, properties)


def _ledger(message: Fields) -> TopicLedger:
    if 1 not in message:
        raise FieldError("a ledger has no id")
    copy = message.message(5)
    return TopicLedger(
        ledger_id=message.signed(1),
        entries=_count(message, 2),
        size_bytes=_count(message, 3),
        closed_at_ms=message.signed(4) or None,
        offload=None if copy is None else _offload(copy),
    )


def _count(message: Fields, number: int) -> int | None:
    """A number of a closed ledger. Open ones lack it, or have 0 and no time."""
    if number not in message or not message.signed(4):
        return None
    value = message.signed(number)
    if value < 0:
        raise FieldError(f"a ledger has {value} entries or bytes")
    return value


def _offload(message: Fields) -> Offload:
    driver = message.message(6)
    return Offload(
        complete=bool(message.number(3)),
        deleted_from_bookies=bool(message.number(4)),
        driver="" if driver is None else driver.text(1),
        properties={} if driver is None else driver.texts(2),
        id=f"{message.number(1):016x}{message.number(2):016x}",
    )


def uncompressed(content: bytes) -> bytes:
    """Return what a managed ledger's or cursor's znode has, decompressed. Raises FieldError, CompressionError."""
    if content[:2] != COMPRESSED_MAGIC:
        return content
    size = int.from_bytes(content[2:6], "big")
    if len(content) < 6 or size > len(content) - 6:
        raise FieldError(f"a header of {size} bytes, where {max(0, len(content) - 6)} are left")
    header = Fields(content[6 : 6 + size])
    return bytes(decompress(header.number(1), content[6 + size :], header.number(2), MAX_ZNODE_BYTES))


def partition_count(content: bytes, source: str = "the znode of the partitioned topic") -> int:
    """Return how many partitions a partitioned topic has.

    Parameters
    ----------
    content
        What its znode in the configuration store has.
    source
        Where it is, for errors.

    Raises
    ------
    MetadataFormatError
        If it does not say a number of partitions.
    """
    try:
        found = json.loads(content)
        count = found["partitions"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MetadataFormatError(f"{source} does not say a number of partitions: {content[:200]!r}") from error
    if type(count) is not int or not 0 <= count <= MAX_PARTITIONS:
        raise MetadataFormatError(f"{source} does not say a number of partitions: {content[:200]!r}")
    return count
