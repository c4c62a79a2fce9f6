"""Finds what compaction has made of topics: a ledger with the newest message of each key, and how far that reaches.

The cursor of compaction says it. While a broker uses the cursor, the newest state is the last entry of the cursor's
ledger. That entry may not be confirmed yet; it is true nevertheless, since the compacted ledger is complete before.
See docs/design/pulsar.md §1.5 and §3.4.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeVar

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchEntryError, NoSuchLedgerError
from bk_spark.protocol.pulsar.topics.cursors import COMPACTION_CURSOR, Cursor
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.stores import Store

#: Brokers make compacted ledgers without a password, whatever ``managedLedgerPassword`` is.
COMPACTED_PASSWORD: Final = b""
#: Attempts to see a topic and its compacted ledger at one moment.
_MAX_LOOKS: Final = 5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CompactedTopic:
    """What stands for the messages of a topic up to ``horizon``, inclusive: all entries of a ledger."""

    ledger_id: int
    entries: int
    size_bytes: int
    horizon: Position


def compacted_topic(topic: TopicName, store: Store, client: BlockingClient, password: bytes) -> CompactedTopic | None:
    """Return the result of a topic's last compaction, or None if it was never compacted.

    Parameters
    ----------
    topic
        The topic, or one partition.
    store
        Pulsar's local metadata store.
    client, password
        The client of the bookies, and the password of the topic's ledgers.

    Raises
    ------
    NoSuchLedgerError
        If the compacted ledger, or that of the cursor, was replaced meanwhile.
    MetadataFormatError, MetadataUnavailableError, UnauthorizedError, EntryUnknownError
    """
    path = f"{topic.managed_ledger_path}/{COMPACTION_CURSOR}"
    (znode,) = store.latest([path])
    if znode is None:
        return None
    cursor = Cursor.parse(znode.data, path)
    if cursor.ledger_id is not None:
        state = _last_entry(client, cursor.ledger_id, password)
        if state is not None:
            cursor = Cursor.parse_entry(state, f"the last entry of ledger {cursor.ledger_id}, of cursor {path}")
    ledger_id = cursor.compacted_ledger_id
    if ledger_id is None:
        return None
    compacted = client.open_for_reading(ledger_id, COMPACTED_PASSWORD)
    entries = compacted.last_add_confirmed + 1
    return CompactedTopic(ledger_id, entries, compacted.read_length() or 0, Position(*cursor.mark_delete))


def seen_together(
    compacted: Callable[[], dict[str, CompactedTopic]], look: Callable[[], _T]
) -> tuple[_T, dict[str, CompactedTopic]]:
    """Return what ``look`` returns, and what ``compacted`` returns before and after it.

    A topic is trimmed only up to its compacted ledger, so nothing is missing between the two. Raises LogRangeGoneError
    if compactions come again and again.
    """
    for _ in range(_MAX_LOOKS):
        try:
            before = compacted()
            found = look()
            if compacted() == before:
                return found, before
        except NoSuchLedgerError:
            continue
    raise LogRangeGoneError(
        "topics were compacted again and again while a read of their compacted views was planned: start it again"
    )


def _last_entry(client: BlockingClient, ledger_id: int, password: bytes) -> bytes | None:
    """Return the newest entry of a cursor's ledger, or None if there is none. Does not fence it."""
    reader = client.open_for_reading(ledger_id, password)
    last = reader.last_add_confirmed
    (found,) = reader.read(last, last) if last >= 0 else (None,)
    at = last + 1
    while True:
        try:
            with closing(reader.read_unconfirmed(at, at)) as blocks:
                for block in blocks:
                    found, at = bytes(block.payloads[0]), block.first_entry_id + 1
        except NoSuchEntryError:
            return found
