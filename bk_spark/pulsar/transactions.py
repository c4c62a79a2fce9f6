"""Finds out which transactions of a topic were committed, and which were aborted.

The outcome of a transaction is a marker after its messages, so only a pass over the entries tells. Like the broker,
this source shows no message from the first one of an undecided transaction on. A topic whose namespace has no system
topic of transactions never had a transaction, and is not searched: brokers create that system topic before they accept
the first message of a transaction. See docs/design/pulsar.md §3.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.ledger.reading.range_windows import EntryRange
from bk_spark.protocol.pulsar.topics.topic_names import NamespaceName, TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionId, TransactionScan
from bk_spark.pulsar.entry_numbers import EntryNumbers, ReadableLedger, check_on_bookies
from bk_spark.pulsar.stores import Store

_SNAPSHOTS: Final = "__transaction_buffer_snapshot"


def may_have_transactions(store: Store, namespace: NamespaceName) -> bool:
    """Whether topics of a namespace may have transactions."""
    nodes = store.children(namespace.managed_ledgers_path) or ()
    return any(node.startswith(_SNAPSHOTS) for node in nodes)


class TransactionWatch:
    """The transactions of one topic, from a position on. Each entry is read once. For one thread.

    Parameters
    ----------
    topic
        The topic's name.
    client
        The client of the bookies.
    password
        The password of the topic's ledgers.
    start
        The position from which on outcomes are wanted.
    fail_on_data_loss
        Whether a ledger that is gone is an error, or passed over.
    """

    def __init__(
        self, topic: TopicName, client: BlockingClient, password: bytes, start: Position, *, fail_on_data_loss: bool
    ) -> None:
        self._topic = topic
        self._client = client
        self._password = password
        self._fail_on_data_loss = fail_on_data_loss
        self._scan = TransactionScan()
        #: The position from which on outcomes are known.
        self.start = start
        self._next = start

    def read_on(self, numbers: EntryNumbers) -> None:
        """Read everything that is readable now.

        Raises MessageFormatError, EntryUnknownError, InvalidArgumentError for an offloaded ledger, LogRangeGoneError
        for a ledger that is gone."""
        while True:
            start = max(numbers.number(self._next), numbers.first)
            if start >= numbers.end:
                return
            try:
                for one in read_entries(self._topic, self._client, self._password, numbers.ranges(start, numbers.end)):
                    self._scan.add(*one)
                    self._next = Position(one[0], one[1] + len(one[2]))
                return
            except NoSuchLedgerError as error:
                if self._fail_on_data_loss or error.ledger_id is None:
                    raise LogRangeGoneError(
                        f"topic {self._topic.full}: ledger {error.ledger_id} was removed after its list was read; "
                        "start the read again, or set failOnDataLoss to false to read what is left",
                        ledger_id=error.ledger_id,
                    ) from error
                self._next = Position(error.ledger_id + 1, 0)

    def forget(self, before: Position) -> None:
        """Forget transactions whose messages are all before a position."""
        self._scan.forget(before)

    def end(self, numbers: EntryNumbers) -> int:
        """Return the number after the last entry that may be shown."""
        undecided = self._scan.first_undecided
        return numbers.end if undecided is None else min(numbers.number(undecided), numbers.end)

    def aborted_in(self, first: Position, last: Position) -> frozenset[TransactionId]:
        """Return the aborted transactions that have messages from ``first`` to ``last``, or around."""
        return frozenset(one for one, (begun, ended) in self._scan.aborted.items() if begun <= last and ended >= first)


def read_entries(
    topic: TopicName, client: BlockingClient, password: bytes, ranges: Sequence[tuple[ReadableLedger, int, int]]
) -> Iterator[tuple[int, int, Payloads]]:
    """Yield consecutive entries of one ledger at a time, with the ledger and the first entry's id. Raises
    NoSuchLedgerError, EntryUnknownError, InvalidArgumentError for an offloaded ledger."""
    check_on_bookies(topic.full, (one for one, _, _ in ranges))
    wanted = [
        EntryRange(one.ledger_id, first, last, max(1, one.size_bytes * (last - first + 1) // max(one.entries, 1)))
        for one, first, last in ranges
    ]
    at, entry_id = 0, wanted[0].first if wanted else 0
    with closing(client.read_series(wanted, password)) as parts:
        for payloads in parts:
            taken = 0
            while taken < len(payloads):
                here = wanted[at]
                count = min(len(payloads) - taken, here.last - entry_id + 1)
                yield here.ledger_id, entry_id, payloads.part(taken, taken + count)
                taken += count
                entry_id += count
                if entry_id > here.last and at + 1 < len(wanted):
                    at += 1
                    entry_id = wanted[at].first
