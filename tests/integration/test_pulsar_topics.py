"""Topics of Pulsar without Spark: open ledgers that are followed and never fenced, chunks, transactions, stores."""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Iterator

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import LogRangeGoneError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.entry_numbers import EntryNumbers
from bk_spark.pulsar.messages import MessageReader
from bk_spark.pulsar.stores import Store, StoreAddress
from bk_spark.pulsar.topic_ledgers import FollowedTopic, look_at_topics, warn_of_hidden
from bk_spark.pulsar.transactions import TransactionWatch, read_entries
from tests.support.explicit_lac import write_explicit_lac
from tests.support.golden_topics import GoldenTopics, bytes_field, number

_COLUMNS = frozenset({"value", "__ledgerId", "__entryId"})


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as client:
        yield client


@pytest.fixture
def topics(client: BlockingClient) -> GoldenTopics:
    return GoldenTopics(client, f"golden-{uuid.uuid4().hex[:8]}/ns1")


def _store(client: BlockingClient) -> Store:
    return Store(client.zookeeper, StoreAddress.of_cluster(MetadataServiceUri.parse(client.metadata_service_uri)))


def _followed(client: BlockingClient, full: str) -> FollowedTopic:
    topic = FollowedTopic(TopicName.parse(full), _store(client), client, b"")
    look_at_topics([topic], _store(client), latest=True)
    return topic


def _values(client: BlockingClient, topic: FollowedTopic, start: int, end: int) -> list[bytes]:
    """The values of the messages that entries ``[start, end)`` give."""
    decoder = MessageDecoder(topic.topic, columns=_COLUMNS, max_message_bytes=1 << 20)

    def numbers() -> EntryNumbers:
        return topic.numbers

    reader = MessageReader(topic.topic, decoder, client, b"", numbers, fail_on_data_loss=True)
    return [
        value
        for ledger_id, first, payloads in read_entries(topic.topic, client, b"", topic.numbers.ranges(start, end))
        for batch in reader.batches(ledger_id, first, payloads)
        for value in batch.column("value").to_pylist()
    ]


def test_a_chunked_message_is_found_by_its_last_chunk_wherever_a_read_begins(
    client: BlockingClient, topics: GoldenTopics
) -> None:
    topic = _followed(client, topics.write("chunked"))
    numbers, rows = topic.numbers, topics.java_rows("chunked")
    ends = [numbers.number(Position(row["ledger"], row["entry"])) for row in rows]
    expected = dict(zip(ends, (base64.b64decode(row["value"]) for row in rows), strict=True))
    assert len(expected) == 11
    for start in range(numbers.first, numbers.end, 3):
        for end in (start + 3, numbers.end):
            found = [expected[at] for at in sorted(expected) if start <= at < end]
            assert _values(client, topic, start, end) == found, (start, end)


def test_an_open_ledger_is_followed_and_not_fenced(
    client: BlockingClient, topics: GoldenTopics, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end is its last add confirmed. That it has more is said once, and not when the writer tells its end."""
    full = topics.full("open")
    writer = client.create()
    topics.put(TopicName.parse(full).managed_ledger_path, bytes_field(1, number(1, writer.ledger_id) + number(4, 0)))
    topic = _followed(client, full)
    assert (topic.numbers.first, topic.numbers.end, topic.is_open) == (0, 0, True)
    for value in (b"one", b"two", b"three"):
        writer.append(value)
        writer.flush()
    topic.look(_store(client).latest([topic.path])[0], latest=True)
    assert topic.numbers.end == 2
    with caplog.at_level(logging.WARNING):
        warn_of_hidden([topic], now=True)
        warn_of_hidden([topic], now=True)
    assert caplog.text.count("bookkeeperExplicitLacIntervalInMills") == 1
    assert full in caplog.text
    caplog.clear()
    bookies = client.metadata(writer.ledger_id).segments[-1].ensemble
    write_explicit_lac(bookies, writer.ledger_id, 2)
    again = _followed(client, full)
    assert again.numbers.end == 3
    with caplog.at_level(logging.WARNING):
        warn_of_hidden([again], now=True)
    assert not caplog.text
    # The writer never noticed its readers.
    writer.append(b"four")
    writer.close()
    again.look(_store(client).latest([again.path])[0], latest=True)
    assert (again.numbers.end, again.is_open, again.is_behind) == (4, False, True)


def test_an_undecided_transaction_ends_a_topic_until_it_is_decided(
    client: BlockingClient, topics: GoldenTopics
) -> None:
    topic = _followed(client, topics.write("txn-open"))
    watch = TransactionWatch(topic.topic, client, b"", Position(0, 0), fail_on_data_loss=True)
    watch.read_on(topic.numbers)
    assert (watch.end(topic.numbers), topic.numbers.end) == (1, 3)
    with pytest.raises(LogRangeGoneError, match="is not decided yet"):
        _values(client, topic, 0, 3)
    assert _values(client, topic, 0, 1) == [b"readable"]

    decided = _followed(client, topics.write("txn"))
    watch = TransactionWatch(decided.topic, client, b"", Position(0, 0), fail_on_data_loss=True)
    watch.read_on(decided.numbers)
    assert watch.end(decided.numbers) == decided.numbers.end
    last = decided.numbers.position(decided.numbers.end)
    assert len(watch.aborted_in(Position(0, 0), last)) == 1
    assert not watch.aborted_in(last, last)


def test_a_ledger_that_goes_while_transactions_are_looked_for(client: BlockingClient, topics: GoldenTopics) -> None:
    topic = _followed(client, topics.write("txn"))
    client.delete(topic.numbers.ledgers[0].ledger_id)
    watch = TransactionWatch(topic.topic, client, b"", Position(0, 0), fail_on_data_loss=True)
    with pytest.raises(LogRangeGoneError, match="was removed after its list was read"):
        watch.read_on(topic.numbers)
    watch = TransactionWatch(topic.topic, client, b"", Position(0, 0), fail_on_data_loss=False)
    watch.read_on(topic.numbers)
    assert watch.end(topic.numbers) == topic.numbers.end
