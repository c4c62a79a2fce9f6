"""Reads messages: entries from the bookies, through the decoder, with what lies outside of the entries asked for.

A chunked message belongs to the place of its last chunk. Where the others lie before the entries asked for, they are
looked for backwards. See docs/design/pulsar.md §2.5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.pulsar.chunks import ChunksMissing
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionMet
from bk_spark.pulsar.entry_numbers import EntryNumbers
from bk_spark.pulsar.transactions import TransactionWatch, read_entries

_LOG: Final = logging.getLogger(__name__)
#: Entries that are looked at, in ever larger steps, for the beginning of a chunked message.
_FIRST_LOOK: Final = 256
_LOOK_GROWTH: Final = 4
_MAX_LOOK: Final = 65_536


class MessageReader:
    """Decodes entries of one topic, in order. For one thread.

    Parameters
    ----------
    topic
        The topic.
    decoder
        A new decoder.
    client, password
        Client and password of the topic's ledgers.
    numbers
        Returns what is readable of the topic now. Called only where messages reach beyond the entries asked for.
    fail_on_data_loss
        Whether a chunked message whose beginning is too far away is an error, or left out with a warning.
    """

    def __init__(
        self,
        topic: TopicName,
        decoder: MessageDecoder,
        client: BlockingClient,
        password: bytes,
        numbers: Callable[[], EntryNumbers],
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._topic = topic
        self._decoder = decoder
        self._client, self._password = client, password
        self._numbers = numbers
        self._fail_on_data_loss = fail_on_data_loss

    def batches(self, ledger_id: int, first_entry_id: int, payloads: Payloads) -> Iterator[pa.RecordBatch]:
        """Yield the messages whose last entry is among consecutive entries of a ledger.

        Raises MessageFormatError, MessageEncryptedError; LogRangeGoneError if entries cannot be decided on.
        """
        look = _FIRST_LOOK
        while True:
            try:
                rows = self._decoder.decode(ledger_id, first_entry_id, payloads)
            except ChunksMissing as missing:
                self._look_back(missing.uuids, Position(ledger_id, first_entry_id), look)
                look *= _LOOK_GROWTH
            except TransactionMet as met:
                self._decide(Position(met.ledger_id, met.entry_id))
            else:
                yield from rows
                return

    def _look_back(self, uuids: frozenset[bytes], before: Position, look: int) -> None:
        """Give the decoder the chunks in ``look`` entries before a position. What is given again does no harm."""
        numbers = self._numbers()
        end = min(max(numbers.number(before), numbers.first), numbers.end)
        if look > _MAX_LOOK:
            self._leave_out(uuids, before)
        elif look > _FIRST_LOOK and end - look // _LOOK_GROWTH <= numbers.first:
            # Everything there is was looked at. The beginning was removed, or never written.
            self._decoder.leave_out(uuids)
        else:
            self._recall(uuids, numbers, max(end - look, numbers.first), end)

    def _recall(self, uuids: frozenset[bytes], numbers: EntryNumbers, start: int, end: int) -> None:
        ranges = numbers.ranges(start, end)
        try:
            for ledger_id, first, payloads in read_entries(self._topic, self._client, self._password, ranges):
                self._decoder.recall(ledger_id, first, payloads)
        except NoSuchLedgerError:
            # Trimmed just now, and the messages' beginning with it.
            self._decoder.leave_out(uuids)

    def _leave_out(self, uuids: frozenset[bytes], before: Position) -> None:
        what = (
            f"topic {self._topic.full}: {len(uuids)} chunked messages with a chunk in entry {before.entry_id} of "
            f"ledger {before.ledger_id} do not begin in the {_MAX_LOOK} entries before"
        )
        if self._fail_on_data_loss:
            raise LogRangeGoneError(f"{what}: set failOnDataLoss to false to read without them")
        _LOG.warning("%s: they are left out", what)
        self._decoder.leave_out(uuids)

    def _decide(self, met: Position) -> None:
        """Tell the decoder which transactions from a position on were aborted."""
        numbers = self._numbers()
        watch = TransactionWatch(
            self._topic, self._client, self._password, met, fail_on_data_loss=self._fail_on_data_loss
        )
        watch.read_on(numbers)
        undecided = numbers.position(watch.end(numbers))
        if watch.end(numbers) < numbers.end:
            raise LogRangeGoneError(
                f"topic {self._topic.full}: the first transaction of this topic is not decided yet (message "
                f"{undecided.ledger_id}:{undecided.entry_id}), and that was not known when the read was planned: start "
                "the read, or the query, again"
            )
        self._decoder.aborted = watch.aborted_in(met, Position(1 << 63, 0))
