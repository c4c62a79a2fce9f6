"""Positions of Pulsar's topics: entries numbered over ledgers, starts and ends, offsets of streams, stores."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pulsar.offsets import TopicPosition, parse_topics, topics_to_json
from bk_spark.datasource.pulsar.positions import Edges, ranges_of, starts_of, stream_edges
from bk_spark.datasource.pulsar.splitting import topic_pieces, topic_splits
from bk_spark.log.positions.texts import Edge
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, MetadataFormatError, NoSuchLedgerError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.managed_ledgers import ManagedLedger, TopicLedger
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.compacted import CompactedTopic, seen_together
from bk_spark.pulsar.entry_numbers import NOTHING_YET, EntryNumbers, ReadableLedger
from bk_spark.pulsar.stores import StoreAddress
from bk_spark.pulsar.topic_ledgers import readable
from bk_spark.pulsar.topics import TopicPattern
from tests.support.fixtures import golden

URI = "zk://127.0.0.1:2181/ledgers"
TOPIC = "persistent://public/default/orders"
HOUR_MS = 3_600_000


def _closed(ledger_id: int, entries: int, closed_at_ms: int = HOUR_MS) -> ReadableLedger:
    return ReadableLedger(ledger_id, entries, entries * 100, closed_at_ms)


def _open(ledger_id: int, entries: int) -> ReadableLedger:
    return ReadableLedger(ledger_id, entries, entries * 100, None)


def _options(*, streaming: bool = False, **given: str) -> Any:
    return parse_options({"metadataServiceUri": URI, "pulsarTopic": TOPIC, **given}, writing=False, streaming=streaming)


# --- numbers of entries ---


def test_entries_are_numbered_over_ledgers() -> None:
    numbers = EntryNumbers([_closed(3, 10), _closed(7, 5), _open(8, 2)])
    assert (numbers.first, numbers.end) == (0, 17)
    assert [numbers.number(Position(*one)) for one in ((3, 0), (3, 9), (7, 0), (7, 4), (8, 0), (8, 2))] == [
        0,
        9,
        10,
        14,
        15,
        17,
    ]
    assert [numbers.position(one) for one in (0, 9, 10, 15, 17)] == [(3, 0), (3, 9), (7, 0), (8, 0), (8, 2)]
    assert [(one.ledger_id, first, last) for one, first, last in numbers.ranges(8, 16)] == [
        (3, 8, 9),
        (7, 0, 4),
        (8, 0, 0),
    ]


def test_numbers_stay_while_the_topic_grows_rolls_and_is_trimmed() -> None:
    numbers = EntryNumbers([_closed(3, 10), _open(7, 2)])
    at = numbers.number(Position(7, 1))
    numbers.update([_closed(3, 10), _closed(7, 6), _open(9, 0)])
    assert numbers.number(Position(7, 1)) == at
    assert numbers.position(16) == (9, 0)
    numbers.update([_closed(7, 6), _open(9, 4)])
    assert (numbers.first, numbers.end) == (10, 20)
    assert numbers.number(Position(7, 1)) == at


def test_an_empty_ledger_that_is_dropped_is_no_loss() -> None:
    numbers = EntryNumbers([_closed(3, 10), _open(7, 0)])
    numbers.update([_closed(3, 10), _open(8, 3)])
    assert numbers.number(Position(7, 0)) == numbers.number(Position(8, 0)) == 10
    # And so for a process that never saw it.
    assert EntryNumbers([_closed(3, 10), _open(8, 3)]).number(Position(7, 0)) == 10


def test_an_open_ledger_that_is_gone_with_all_before_it_may_be_a_loss() -> None:
    numbers = EntryNumbers([_open(7, 4)])
    read_to = numbers.number(Position(7, 4))
    numbers.update([_open(8, 0)])
    assert read_to < numbers.first


def test_a_position_before_all_ledgers_is_a_loss() -> None:
    numbers = EntryNumbers([_closed(7, 6)])
    assert numbers.number(Position(5, 3)) < numbers.first


def test_a_topic_without_ledgers_begins_with_its_first_one() -> None:
    numbers = EntryNumbers()
    assert numbers.position(numbers.end) == NOTHING_YET
    numbers.update([_open(4, 1)])
    assert numbers.number(NOTHING_YET) == numbers.first


def test_entries_behind_the_known_end_are_read_of_the_open_ledger_only() -> None:
    assert [part[1:] for part in EntryNumbers([_open(4, 5)]).ranges(3, 8)] == [(3, 7)]
    assert [part[1:] for part in EntryNumbers([_closed(4, 5)]).ranges(3, 8)] == [(3, 4)]


def test_the_open_ledger_is_the_last_one_and_a_lost_one_has_nothing() -> None:
    path = "/managed-ledgers/golden/ns1/persistent/plain"
    stages = [nodes[path]["data"] for nodes in golden("pulsar/znodes").values() if path in nodes]
    assert len(stages) == 3
    for data in stages:
        managed = ManagedLedger.parse(base64.b64decode(data))
        found = readable(managed, 3)
        assert [one.ledger_id for one in found] == [one.ledger_id for one in managed.ledgers]
        assert all(
            (one.closed_at_ms is None) == (known.entries is None)
            for one, known in zip(found, managed.ledgers, strict=True)
        )
        if found[-1].closed_at_ms is None:
            assert found[-1].entries == 3


def test_the_size_of_the_open_ledger_is_that_of_its_own_entries() -> None:
    """A guess that is too low makes one task of a large read, one that is too high makes many of a small one."""
    one, other = TopicLedger(4, None, None, None, None), TopicLedger(9, None, None, None, None)
    before = TopicLedger(4, 10, 50, 1_000, None)
    assert readable(ManagedLedger((one,)), 7)[-1].size_bytes == 7 * 1024
    assert readable(ManagedLedger((before, other)), 7)[-1].size_bytes == 7 * 5
    assert readable(ManagedLedger((before, other)), 7, (3, 300_000))[-1].size_bytes == 700_000


# --- compacted views ---


def test_a_topic_and_its_compacted_ledger_are_seen_together() -> None:
    """Between the two looks the topic may be trimmed up to a newer compaction: then messages would be missing."""
    old, new = CompactedTopic(7, 3, 100, Position(4, 9)), CompactedTopic(8, 2, 70, Position(5, 9))
    answers: list[CompactedTopic | None] = [old, new, None, new, new]

    def compacted() -> dict[str, CompactedTopic]:
        one = answers.pop(0)
        if one is None:
            raise NoSuchLedgerError("replaced")
        return {TOPIC: one}

    looks = iter(["before", "meanwhile", "after"])
    assert seen_together(compacted, lambda: next(looks)) == ("meanwhile", {TOPIC: new})
    assert not answers
    numbers = iter(range(100))
    with pytest.raises(LogRangeGoneError, match="compacted again and again"):
        seen_together(lambda: {TOPIC: CompactedTopic(next(numbers), 0, 0, Position(0, 0))}, lambda: None)


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets", "startingTimestamp", "endingOffsetsByTimestamp"])
def test_a_compacted_view_has_no_range(name: str) -> None:
    value = "2026-01-01" if name == "startingTimestamp" else f'{{"{TOPIC}": 5}}' if "By" in name else "latest"
    with pytest.raises(InvalidArgumentError, match=f"option {name} is not for a compacted view"):
        _options(pulsarReadCompacted="true", **{name: value})


def test_a_stream_has_no_compacted_view() -> None:
    given = {"metadataServiceUri": "zk://host/ledgers", "pulsarTopic": TOPIC, "pulsarReadCompacted": "true"}
    with pytest.raises(InvalidArgumentError, match="option pulsarReadCompacted is for batch reads only"):
        parse_options(given, writing=False, streaming=True)


# --- where reads start and end ---


def _ranges(numbers: EntryNumbers, **given: str) -> tuple[int, int, Edges]:
    return ranges_of(_options(**given), {TOPIC: numbers}, {TOPIC: numbers.end})[TOPIC]


def test_a_batch_reads_from_the_first_message_to_the_last() -> None:
    assert _ranges(EntryNumbers([_closed(3, 10), _open(7, 2)])) == (0, 12, Edges())


def test_message_ids_are_taken_as_text_and_as_the_bytes_of_pulsar_spark() -> None:
    numbers = EntryNumbers([_closed(3, 10), _open(7, 2)])
    assert _ranges(numbers, startingOffsets=f'{{"{TOPIC}": "3:4"}}', endingOffsets='{"orders": "7:1:-1"}') == (
        4,
        11,
        Edges(),
    )
    data = [byte - 256 if byte > 127 else byte for byte in MessageIdData(3, 4, batch_index=2, batch_size=5).to_bytes()]
    first = (Position(3, 4), 2)
    assert _ranges(numbers, startingOffsets=json.dumps({"orders": data})) == (4, 12, Edges(first=first))
    assert _ranges(numbers, endingOffsets='{"orders": "3:4:-1:2"}') == (0, 5, Edges(last=first))
    assert _ranges(numbers, startingOffsets='{"orders": "-1:-1"}', endingOffsets='{"orders": -1}')[:2] == (0, 12)


def test_times_leave_out_ledgers_that_were_closed_before_and_filter_the_others() -> None:
    numbers = EntryNumbers([_closed(3, 10, HOUR_MS), _closed(5, 10, 2 * HOUR_MS), _closed(7, 10, 3 * HOUR_MS)])
    since = HOUR_MS + HOUR_MS // 2
    assert _ranges(numbers, startingTimestamp=str(since)) == (10, 30, Edges(since_ms=since))
    assert _ranges(numbers, endingTimestamp=str(since)) == (0, 20, Edges(until_ms=since))
    # Clocks of producers and brokers differ by some minutes.
    assert _ranges(numbers, startingTimestamp=str(HOUR_MS + 60_000))[0] == 0


def test_a_message_that_is_gone_is_an_error_or_the_nearest_one() -> None:
    numbers = EntryNumbers([_closed(7, 10)])
    given = {"startingOffsets": '{"orders": "3:4"}'}
    with pytest.raises(LogRangeGoneError, match="message 3:4:-1: it is gone, the topic starts at 7:0"):
        _ranges(numbers, **given)
    assert _ranges(numbers, **given, failOnDataLoss="false")[:2] == (0, 10)
    with pytest.raises(LogRangeGoneError, match="it is not there yet, the topic ends before 7:10"):
        _ranges(numbers, startingOffsets='{"orders": "7:11"}')


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": '{"orders": "7:12"}', "failOnDataLoss": "false"}, "the topic has 10 entries in ledger 7"),
        ({"startingOffsets": '{"orders": "7:1:4"}'}, "a message of partition 4"),
        ({"startingOffsets": '{"clicks": -2}'}, "names topic persistent://public/default/clicks, which this read"),
        (
            {"startingOffsets": '{"orders": "7:5"}', "endingOffsets": '{"orders": "7:2"}'},
            "starts at 7:5, after",
        ),
    ],
)
def test_wrong_positions_are_refused(given: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        _ranges(EntryNumbers([_closed(7, 10), _closed(9, 10)]), **given)


def test_an_end_of_a_partitioned_topic_is_that_of_its_partitions() -> None:
    names = [f"{TOPIC}-partition-{index}" for index in range(2)]
    topics = {name: EntryNumbers([_closed(index, 5)]) for index, name in enumerate(names)}
    ends = dict.fromkeys(names, 5)
    found = starts_of(_options(startingOffsets='{"orders": -2}'), topics, ends, Edge.LATEST)
    assert {name: one.number for name, one in found.items()} == dict.fromkeys(names, 0)
    with pytest.raises(InvalidArgumentError, match=r"the message 0:1:-1 is in one of them.*orders-partition-0"):
        starts_of(_options(startingOffsets='{"orders": "0:1"}'), topics, ends, Edge.LATEST)


def test_a_stream_skips_messages_of_a_batch_only_where_it_begins() -> None:
    options = _options(streaming=True, startingOffsets='{"orders": "3:4:-1:2"}')
    assert stream_edges(options, TOPIC, Position(3, 4)) == Edges(first=(Position(3, 4), 2))
    assert stream_edges(options, TOPIC, Position(3, 5)).is_empty
    assert stream_edges(options, TOPIC, None).is_empty
    assert stream_edges(_options(streaming=True, startingTimestamp="7"), TOPIC, None) == Edges(since_ms=7)


# --- tasks ---


def test_tasks_are_cut_by_bytes_and_name_their_topic() -> None:
    numbers = EntryNumbers([_closed(3, 1000), _open(7, 1000)])
    pieces = topic_pieces(TOPIC, numbers, 500, 2000)
    assert [(one.ledger_id, one.first, one.last, one.log) for one in pieces] == [
        (3, 500, 999, TOPIC),
        (7, 0, 999, TOPIC),
    ]
    edges = {TOPIC: Edges(since_ms=1)}
    splits = topic_splits(_options(splitBytes="20k"), [pieces], {}, edges)
    assert len(splits) > 5
    assert sum(one.entries for split in splits for one in split.pieces) == 1500
    assert all(split.edges == edges for split in splits)


def test_an_offloaded_ledger_is_named_with_its_place() -> None:
    numbers = EntryNumbers([ReadableLedger(3, 10, 100, 1, "driver aws-s3, bucket cold"), _open(7, 1)])
    with pytest.raises(InvalidArgumentError, match=r"ledger 3 .*driver aws-s3, bucket cold.*3:10"):
        topic_pieces(TOPIC, numbers, 5, 11)
    assert len(topic_pieces(TOPIC, numbers, 10, 11)) == 1


def test_of_many_offloaded_ledgers_the_error_says_where_a_read_can_start() -> None:
    """One error for all: otherwise each start behind one would name the next."""
    numbers = EntryNumbers([*(ReadableLedger(3 + i, 10, 100, 1, "driver s3") for i in range(15)), _open(99, 1)])
    start = json.dumps({TOPIC: "17:10"})
    with pytest.raises(InvalidArgumentError) as raised:
        topic_pieces(TOPIC, numbers, 5, 151)
    assert re.search(
        r"ledgers 3, 4, .*, 12 and 5 more up to 17 were moved to tiered storage \(driver s3\)", str(raised.value)
    )
    assert f"startingOffsets {start}" in str(raised.value)
    assert len(topic_pieces(TOPIC, numbers, numbers.number(Position(17, 10)), 151)) == 1


# --- offsets of streams ---


def test_offsets_are_kept_as_positions() -> None:
    positions = {
        f"{TOPIC}-partition-1": TopicPosition(Position(3, 4), Position(3, 0), 7),
        f"{TOPIC}-partition-0": TopicPosition(NOTHING_YET),
    }
    found = topics_to_json(positions)
    assert found == {
        "v": 1,
        "topics": {
            f"{TOPIC}-partition-0": {"ledger": -1, "entry": 0},
            f"{TOPIC}-partition-1": {"ledger": 3, "entry": 4, "from": [3, 0], "lost": 7},
        },
    }
    assert parse_topics(json.loads(json.dumps(found))) == positions


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "is not an offset of this data source"),
        ({"v": 2, "topics": {}}, "has format version 2"),
        ({"v": 1, "logs": {}}, "names no topics"),
        ({"v": 1, "topics": {TOPIC: {"ledger": 1}}}, "is damaged at persistent"),
        ({"v": 1, "topics": {TOPIC: {"ledger": -1, "entry": 3}}}, "is damaged at persistent"),
        ({"v": 1, "topics": {TOPIC: {"ledger": 1, "entry": 0, "from": [2, 0]}}}, "is damaged at persistent"),
        ({"v": 1, "topics": {TOPIC: {"ledger": 1, "entry": 0, "from": 2}}}, "is damaged at persistent"),
        ({"v": 1, "topics": {TOPIC: {"ledger": 1, "entry": 0, "batch": 2}}}, "has the unknown field batch"),
        ({"v": 1, "topics": {TOPIC: {"ledger": 1, "entry": True}}}, "is damaged at persistent"),
        ({"v": 1, "topics": {3: {}}}, "is damaged at 3"),
    ],
)
def test_damaged_offsets_are_refused(found: object, expected: str) -> None:
    with pytest.raises(MetadataFormatError, match=expected):
        parse_topics(found)


# --- stores and patterns ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zk:a:2181,b:2182/chroot", StoreAddress("a:2181,b:2182", "/chroot")),
        ("metadata-store:zk:a:1", StoreAddress("a:1", "")),
        ("a", StoreAddress("a:2181", "")),
        ("zk://a:1;b:2/", StoreAddress("a:1,b:2", "")),
    ],
)
def test_stores_are_named_as_in_the_settings_of_brokers(text: str, expected: StoreAddress) -> None:
    assert StoreAddress.parse(text, "option pulsarMetadataStore") == expected


@pytest.mark.parametrize("text", ["etcd:http://a:2379", "oxia://a:6648", "rocksdb:///data", "metadata-store:oxia:a"])
def test_other_stores_are_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option pulsarMetadataStore.*store of kind.*through its brokers"):
        StoreAddress.parse(text, "option pulsarMetadataStore")


@pytest.mark.parametrize("text", ["", "zk:", "zk:a:b", "zk:a:99999", "a//b"])
def test_malformed_stores_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="pulsarMetadataStore"):
        StoreAddress.parse(text, "option pulsarMetadataStore")


def test_the_store_of_a_cluster_is_beside_its_ledgers() -> None:
    assert StoreAddress.of_cluster(MetadataServiceUri.parse("zk://a:1/ledgers")) == StoreAddress("a:1", "")
    assert StoreAddress.of_cluster(MetadataServiceUri.parse("zk://a:1/p/ledgers")) == StoreAddress("a:1", "/p")


def test_a_pattern_is_for_the_local_names_of_one_namespace() -> None:
    pattern = TopicPattern("persistent://shop/eu/or.*s")
    assert pattern.matches(TopicName.parse("shop/eu/orders"))
    assert pattern.matches(TopicName.parse("shop/eu/orders-partition-3"))
    assert not pattern.matches(TopicName.parse("shop/us/orders"))
    assert not pattern.matches(TopicName.parse("shop/eu/orders2"))
    assert not TopicPattern("shop/eu/.*").matches(TopicName.parse("shop/eu/__change_events"))
    assert TopicPattern("or.*").matches(TopicName.parse("orders"))


@pytest.mark.parametrize("text", ["persistent://shop", "non-persistent://a/b/c.*", "a/b/(", "a/*/c"])
def test_a_wrong_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        TopicPattern(text)


# --- options ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": '{"orders": 7}'}, "topics have no numbers of entries.*12:0"),
        ({"startingOffsets": '{"orders": "x"}'}, "is not a message id"),
        ({"startingOffsets": '{"orders": [1000]}'}, "the bytes of a message id"),
        ({"entryFormat": "raw"}, "option entryFormat is not for topics of Pulsar"),
        ({"asOf": "5"}, "option asOf is not for topics of Pulsar: a topic has no commits"),
        ({"log": "events"}, "log and pulsarTopic are given"),
        ({"pulsarEncrypted": "maybe"}, "must be one of fail, skip, raw"),
    ],
)
def test_options_that_do_not_fit_topics_are_refused(given: dict[str, str], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        _options(**given)


def test_options_of_topics_are_refused_for_logs() -> None:
    for given, expected in (
        ({"pulsarEncrypted": "raw"}, "option pulsarEncrypted is for topics of Pulsar"),
        ({"startingOffsets": '{"events": "3:4"}'}, "the id of a message of Pulsar, 3:4:-1: give an offset"),
    ):
        with pytest.raises(InvalidArgumentError, match=expected):
            parse_options({"metadataServiceUri": URI, "log": "events", **given}, writing=False)
