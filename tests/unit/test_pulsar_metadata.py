"""Names of Pulsar's topics, and their znodes as a broker wrote them."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import pytest

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.cursors import Cursor
from bk_spark.protocol.pulsar.topics.managed_ledgers import ManagedLedger, TopicLedger, partition_count
from bk_spark.protocol.pulsar.topics.schemas import SchemaLocator, StoredSchema
from bk_spark.protocol.pulsar.topics.topic_names import NamespaceName, TopicName
from tests.support.fixtures import golden
from tests.support.pulsar_entries import message

_ZNODES: Final[dict[str, dict[str, Any]]] = golden("pulsar/znodes")
_TOPICS: Final = golden("pulsar/topics")["topics"]
_SYNTHETIC: Final = {name: base64.b64decode(text) for name, text in golden("pulsar/synthetic").items()}
_NAMESPACE: Final = "/managed-ledgers/golden/ns1/persistent/"


def znode(stage: str, path: str) -> bytes:
    return base64.b64decode(_ZNODES[stage][path]["data"])


@pytest.mark.parametrize("text", ["persistent://public/default/orders", "public/default/orders", "orders", " orders "])
def test_a_topic_has_a_long_and_a_short_name(text: str) -> None:
    topic = TopicName.parse(text)
    assert topic.full == str(topic) == "persistent://public/default/orders"
    assert topic.managed_ledger_path == "/managed-ledgers/public/default/persistent/orders"
    assert topic.schema_path == "/schemas/public/default/orders"
    assert topic.partitioned_path == "/admin/partitioned-topics/public/default/persistent/orders"
    assert topic.partition_index is None


def test_a_partition_is_a_topic_whose_schema_is_that_of_all() -> None:
    partition = TopicName.parse("a/b/c").partition(12)
    assert partition == TopicName.parse("persistent://a/b/c-partition-12")
    assert partition.partition_index == 12
    assert partition.schema_path == TopicName.parse("a/b/c").schema_path == "/schemas/a/b/c"
    assert TopicName.parse("a/b/c-partition-012").partition_index is None
    assert TopicName.parse("a/b/c-partition-x").partition_index is None


def test_odd_names_are_encoded_as_java_does() -> None:
    """A topic that the broker made is found under the same name."""
    odd = next(name for name in _TOPICS if name.startswith("odd name"))
    topic = TopicName.parse(f"persistent://golden/ns1/{odd}")
    assert topic.managed_ledger_path in _ZNODES["1 open"]
    assert topic.managed_ledger_path.endswith("/odd+name+%2B%25%C3%BC%7E*")
    assert NamespaceName.parse("golden/ns1").topic(topic.node) == topic


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("non-persistent://a/b/c", "no ledgers"),
        ("http://a/b/c", "is not a Pulsar topic"),
        ("a/b", "is not a Pulsar topic"),
        ("", "is not a Pulsar topic"),
        ("persistent://a", "is not a Pulsar topic"),
        ("persistent://a/cluster/b/c", "old releases"),
        ("persistent://a/x/y/b/c", "is not a Pulsar topic"),
        ("a/../c", "is not a Pulsar topic"),
        ("a//c", "is not a Pulsar topic"),
        ("x" * 5000, "is not a Pulsar topic"),
    ],
)
def test_other_names_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        TopicName.parse(text)


def test_topics_of_pulsar_itself_are_known() -> None:
    system = ["a/b/__change_events", "a/b/__transaction_buffer_snapshot-partition-0", "pulsar/system/x",
              "a/b/sub__transaction_pending_ack", "public/kafka/__consumer_offsets-partition-3"]  # fmt: skip
    assert all(TopicName.parse(text).is_system for text in system)
    assert not TopicName.parse("a/b/events").is_system


@pytest.mark.parametrize("stage", sorted(_ZNODES))
def test_every_list_of_ledgers_is_read_compressed_or_not(stage: str) -> None:
    paths = [path for path in _ZNODES[stage] if path.startswith(_NAMESPACE) and path.count("/") == 5]
    assert paths
    for path in paths:
        found = ManagedLedger.parse(znode(stage, path), path)
        name = path.removeprefix(_NAMESPACE)
        if stage == "3 reopened, compressed" and name in _TOPICS:
            assert [one.ledger_id for one in found.ledgers] == [one["ledger"] for one in _TOPICS[name]["ledgers"]]
            for one, golden_one in zip(found.ledgers[:-1], _TOPICS[name]["ledgers"], strict=False):
                assert one.entries == len(golden_one["entries"])
        for one in found.ledgers[:-1]:
            assert one.entries
            assert one.size_bytes
            assert one.closed_at_ms
        assert found.ledgers[-1].closed_at_ms is None
        assert found.ledgers[-1].entries is None


def test_an_open_ledger_has_an_id_alone_and_a_closed_one_counts() -> None:
    found = ManagedLedger.parse(znode("3 reopened, compressed", f"{_NAMESPACE}chunked"))
    assert found.ledgers == (TopicLedger(20, 37, 13362, 1795350739915), TopicLedger(82))
    assert found.properties == {"index": "-1"}


def test_a_topic_that_ended_says_where() -> None:
    found = ManagedLedger.parse(znode("2 closed", f"{_NAMESPACE}ended"))
    assert found.terminated == (42, 2)
    assert ManagedLedger.parse(znode("2 closed", f"{_NAMESPACE}plain")).terminated is None


def test_an_empty_znode_is_a_topic_without_ledgers() -> None:
    assert ManagedLedger.parse(b"") == ManagedLedger()


def test_a_broker_that_offloads_writes_the_list_in_any_order() -> None:
    """Seen: [24, 25, 23], of a hash table with 8 places."""
    closed = [message({1: ledger_id, 2: 20, 3: 900, 4: 1}) for ledger_id in (24, 23)]
    found = ManagedLedger.parse(message({1: [closed[0], message({1: 25}), closed[1]]}))
    assert [(one.ledger_id, one.entries) for one in found.ledgers] == [(23, 20), (24, 20), (25, None)]


@pytest.mark.parametrize("name", [name for name in _SYNTHETIC if "the same znode" in name])
def test_a_list_under_each_codec_is_the_plain_one(name: str) -> None:
    plain = ManagedLedger.parse(_SYNTHETIC["znode: one ledger offloaded and deleted, one open"])
    assert ManagedLedger.parse(_SYNTHETIC[name]) == plain
    first, last = plain.ledgers
    assert (first.ledger_id, first.entries, first.size_bytes) == (11, 3, 99)
    assert first.offload is not None
    assert first.offload.complete
    assert first.offload.deleted_from_bookies
    assert first.offload.driver == "aws-s3"
    assert first.offload.properties == {"bucket": "b"}
    assert last == TopicLedger(12)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x0a", "has no end"),
        (b"\x0a\x05\x08", "5 bytes"),
        (message({1: [message({4: 1})]}), "no id"),
        (message({1: [message({1: 5}), message({1: 4}), message({1: 5})]}), "has a ledger twice"),
        (message({1: [message({1: 2**64 - 1})]}), "a negative id"),
        (b"\x47\x78\0\0\0\x09\x08", "9 bytes"),
        (b"\x47\x78\0\0\0\x04" + message({1: 9, 2: 1}) + b"x", "compression 9"),
        (b"\x47\x78\0\0\0\x08" + message({1: 1, 2: 2**31}) + b"x", "at most 67108864"),
    ],
)
def test_what_is_no_list_of_ledgers_is_refused_by_its_name(content: bytes, why: str) -> None:
    with pytest.raises(MetadataFormatError, match=why) as raised:
        ManagedLedger.parse(content, "/managed-ledgers/a/b/persistent/c")
    assert "/managed-ledgers/a/b/persistent/c" in str(raised.value)


def test_fields_of_newer_releases_are_skipped() -> None:
    one = message({1: [message({1: 5, 90: 1, 91: b"x"})], 92: b"y", 93: 7})
    assert ManagedLedger.parse(one).ledgers == (TopicLedger(5),)


def test_the_number_of_partitions() -> None:
    assert partition_count(znode("1 open", "/admin/partitioned-topics/golden/ns1/persistent/parts")) == 3
    wrong = [b'{"partitions":%b}' % number for number in (b"-1", b'"3"', b"1e99", b"null", b"true")]
    for content in (b"", b"{}", b"[]", b"[" * 9999, *wrong):
        with pytest.raises(MetadataFormatError, match="/admin/x"):
            partition_count(content, "/admin/x")


def test_cursors_in_znodes_and_in_ledgers() -> None:
    used = Cursor.parse(znode("1 open", f"{_NAMESPACE}plain/sub1"))
    assert (used.ledger_id, used.mark_delete) == (43, (5, -1))
    closed = Cursor.parse(znode("2 closed", f"{_NAMESPACE}plain/sub1"))
    assert (closed.ledger_id, closed.mark_delete) == (None, (5, 2))
    compressed = Cursor.parse(znode("3 reopened, compressed", f"{_NAMESPACE}plain/sub1"))
    assert compressed.compacted_ledger_id is None


def test_the_cursor_of_compaction_is_in_its_ledger() -> None:
    topic = _TOPICS["compacted-2"]
    cursor = Cursor.parse(znode("4 compacted", f"{_NAMESPACE}compacted-2/__compaction"))
    assert cursor.ledger_id == topic["compactionCursorLedger"]["ledger"]
    state = Cursor.parse_entry(base64.b64decode(topic["compactionCursorLedger"]["entries"][-1]))
    assert list(state.mark_delete) == topic["compactionHorizon"]
    assert state.compacted_ledger_id == 107
    with pytest.raises(MetadataFormatError, match="is not a cursor"):
        Cursor.parse(b"\xff")
    with pytest.raises(MetadataFormatError, match="not a position of a cursor"):
        Cursor.parse_entry(b"\xff")


def test_ids_are_javas_bytes_and_text() -> None:
    rows = [row for topic in _TOPICS.values() for row in topic.get("java", ())]
    for row in rows:
        data = base64.b64decode(row["messageIdBytes"])
        found = MessageIdData.parse(data)
        assert found.to_bytes() == data
        assert (found.ledger_id, found.entry_id) == (row["ledger"], row["entry"])
        assert (found.partition, found.batch_index) == (row["partition"], row["batchIndex"])
        if "firstChunk" in row:
            assert found.first_chunk == tuple(map(int, row["firstChunk"].split(":")[:2]))
        again = MessageIdData.parse_text(str(found))
        assert str(again) == str(found)
        assert (again.ledger_id, again.entry_id, again.batch_index) == (row["ledger"], row["entry"], row["batchIndex"])


def test_earliest_and_latest_have_ids_of_their_own() -> None:
    earliest = MessageIdData(-1, -1)
    assert MessageIdData.parse(earliest.to_bytes()) == earliest
    assert MessageIdData.parse_text("-1:-1:-1") == earliest
    latest = MessageIdData(2**63 - 1, 2**63 - 1)
    assert MessageIdData.parse(latest.to_bytes()) == latest


@pytest.mark.parametrize("text", ["", "1", "1:", "a:b", "1:2:3:4:5", "-2:0", "1:-5", "9223372036854775808:1", "1:2:x"])
def test_texts_that_are_no_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a message id"):
        MessageIdData.parse_text(text)


@pytest.mark.parametrize("data", [b"", b"\x08\x05", b"\xff" * 20, b"\x08\x05\x10\x01\x18\xff\xff\xff\xff\xff\x01"])
def test_bytes_that_are_no_ids_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a message id"):
        MessageIdData.parse(data)


def test_schemas_that_are_none_are_refused_by_name() -> None:
    for content in (b"\xff", message({2: [message({1: 1})]})):
        with pytest.raises(MetadataFormatError, match="/schemas/a/b/c"):
            SchemaLocator.parse(content, "/schemas/a/b/c")
    for entry in (b"", b"\xff", message({2: 5})):
        with pytest.raises(MetadataFormatError, match="entry 0 of ledger 9"):
            StoredSchema.parse(entry, 0, "entry 0 of ledger 9")


def test_a_locator_finds_versions() -> None:
    stored = golden("pulsar/topics")["schemas"]["/schemas/golden/ns1/avro"]
    locator = SchemaLocator.parse(base64.b64decode(stored["locator"]))
    assert [one.version for one in locator.versions] == [0, 1]
    assert locator.newest == locator.find(1)
    assert locator.newest is not None
    assert (locator.newest.ledger_id, locator.newest.entry_id) == tuple(stored["versions"][1]["position"])
    assert locator.find(2) is None
    assert json.loads(StoredSchema.parse(base64.b64decode(stored["versions"][0]["entries"][0]), 0).definition)
