"""Topics of Pulsar as a broker once left them, read by Spark; and topics that are damaged, gone or elsewhere.

tests/interop/test_pulsar_topics.py does the same with a broker that runs.
"""

from __future__ import annotations

import base64
import datetime
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.stream_metrics import metrics_of
from tests.support.connector import Connector
from tests.support.golden_topics import GoldenTopics, bytes_field, number

_EPOCH = datetime.datetime(1970, 1, 1)
#: Each kind of topic. Encrypted ones, and one with an undecided transaction, have tests of their own.
NAMES = (
    "plain",
    *(f"{kind}-{codec}" for kind in ("batch", "single") for codec in ("none", "lz4", "zlib", "zstd", "snappy")),
    "batch-by-key",
    "chunked",
    "json",
    "avro",
    "int64",
    "string",
    "keyvalue-inline",
    "keyvalue-separated",
    "odd name +%ü~*",
    "ended",
    "indexed",
    *(f"parts-partition-{index}" for index in range(3)),
)


@pytest.fixture(scope="module")
def topics(client: BlockingClient) -> GoldenTopics:
    return GoldenTopics(client, f"golden-{uuid.uuid4().hex[:8]}/ns1")


@pytest.fixture(scope="module")
def written(topics: GoldenTopics) -> GoldenTopics:
    for name in NAMES:
        topics.write(name)
    parts = f"/admin/partitioned-topics/{topics.namespace}/persistent/parts"
    topics.put(parts, b'{"partitions":3,"deleted":false}')
    return topics


def _read(connector: Connector, *names: str, schema: str | None = None, **options: Any) -> DataFrame:
    named = {"pulsarTopics": ",".join(names)} if names else {}
    return connector.reader(schema, **named, **options).load()


def _refused(connector: Connector, expected: str, *names: str, **options: Any) -> None:
    with pytest.raises(PySparkException, match=f"(?s){expected}"):
        _read(connector, *names, **options).collect()


def _of_spark(row: Row) -> dict[str, Any]:
    return {
        "ledger": row["__ledgerId"],
        "entry": row["__entryId"],
        "batchIndex": -1 if row["__batchIndex"] is None else row["__batchIndex"],
        "partition": -1 if row["__partition"] is None else row["__partition"],
        "keyBytes": _text(row["__key"]),
        "value": _text(row["value"]),
        "properties": dict(row["__messageProperties"]),
        "publishTime": _ms(row["__publishTime"]),
        "eventTime": 0 if row["__eventTime"] is None else _ms(row["__eventTime"]),
        "sequenceId": row["__sequenceId"],
        "producerName": row["__producerName"],
        "index": row["__index"],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["ledger"], row["entry"], row["batchIndex"]))


def test_every_kind_of_topic_has_the_rows_that_java_got(connector: Connector, written: GoldenTopics) -> None:
    read = [name for name in NAMES if not name.startswith("parts")] + ["parts"]
    rows = _read(connector, *(written.full(name) for name in read), splitBytes="8k").collect()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["__topic"].rpartition("/")[2], []).append(_of_spark(row))
    assert sorted(found) == sorted(NAMES)
    for name in NAMES:
        fields = _of_spark(rows[0]).keys()
        expected = [{key: row.get(key) for key in fields} for row in written.java_rows(name)]
        assert _sorted(found[name]) == _sorted(expected), name


def test_a_schema_says_which_columns_are_read(connector: Connector, written: GoldenTopics) -> None:
    topic = written.full("batch-zstd")
    frame = _read(connector, topic, schema="__key binary, value string")
    assert frame.schema.simpleString() == "struct<__key:binary,value:string>"
    assert frame.first() == Row(bytearray(b"key-0"), "value 0 ")
    assert _read(connector, topic).count() == 25
    for schema, expected in (
        ("value binary, colour string", "has no column colour"),
        ("__key string", "column __key is not UTF-8 in topic .* read it as binary"),
        ("value int", "column value of a topic is binary, not int: give it as binary or string"),
        ("__ledgerId string", "column __ledgerId of a topic is bigint, not string"),
    ):
        _refused(connector, expected, topic, schema=schema)


def test_a_read_begins_and_ends_within_a_batch(connector: Connector, written: GoldenTopics) -> None:
    topic, rows = written.full("batch-lz4"), written.java_rows("batch-lz4")
    # The batch index of a row in the middle of the first batch, and of one in the second.
    start, end = rows[3], rows[14]
    assert (start["batchIndex"], end["batchIndex"]) == (3, 4)

    def position(row: dict[str, Any]) -> str:
        return f'{{"{topic}": "{row["ledger"]}:{row["entry"]}:-1:{row["batchIndex"]}"}}'

    frame = _read(connector, topic, startingOffsets=position(start), endingOffsets=position(end))
    found = _sorted([_of_spark(row) for row in frame.collect()])
    assert [row["value"] for row in found] == [row["value"] for row in rows[3:14]]


def test_times_are_those_of_producers(connector: Connector, written: GoldenTopics) -> None:
    topic, rows = written.full("plain"), written.java_rows("plain")
    since, until = rows[2]["publishTime"], rows[6]["publishTime"]
    frame = _read(connector, topic, startingTimestamp=str(since), endingTimestamp=str(until))
    expected = [row["value"] for row in rows if since <= row["publishTime"] < until]
    assert sorted(str(_text(row["value"])) for row in frame.collect()) == sorted(map(str, expected))


def test_a_pattern_finds_topics_and_partitions(connector: Connector, written: GoldenTopics) -> None:
    pattern = f"persistent://{written.namespace}/(batch-l.*|part.*)"
    found = {row[0] for row in _read(connector, pulsarTopicsPattern=pattern).select("__topic").distinct().collect()}
    assert found == {written.full(name) for name in NAMES if name.startswith(("batch-l", "part"))}


def test_values_are_decoded_by_the_schema_of_the_topic(connector: Connector, written: GoldenTopics) -> None:
    """Each by the version that it was written with: what an older one lacks is null."""
    frame = _read(connector, written.full("avro"), pulsarValues="schema")
    assert frame.schema["value"].dataType.simpleString() == "struct<label:string,weight:double,x:int>"
    rows = frame.orderBy("__ledgerId", "__entryId", "__batchIndex").select("value.*").collect()
    assert [tuple(row) for row in rows] == [
        ("a0", None, 0),
        (None, None, 1),
        ("a2", None, 2),
        ("b3", 1.5, 3),
        ("b4", None, 4),
    ]
    narrow = _read(connector, written.full("avro"), schema="value struct<x:int>", pulsarValues="schema")
    assert sorted(row[0].x for row in narrow.collect()) == [0, 1, 2, 3, 4]
    for name, kind in (("int64", "bigint"), ("string", "string"), ("json", "string")):
        frame = _read(connector, written.full(name), pulsarValues="schema").select("value", "__entryId", "__batchIndex")
        assert frame.schema["value"].dataType.simpleString() == kind
        rows = sorted(frame.collect(), key=lambda row: (row[1], row[2] or 0))
        raw = [base64.b64decode(row["value"]) for row in written.java_rows(name)]
        expected = [int.from_bytes(one, "big", signed=True) if name == "int64" else one.decode() for one in raw]
        assert [row[0] for row in rows] == expected
    for name in ("keyvalue-inline", "keyvalue-separated"):
        rows = _read(connector, written.full(name), pulsarValues="schema").select("value").collect()
        assert ("key one", 1) in [(row[0].key, row[0].value and row[0].value.x) for row in rows if row[0] is not None]


def test_values_that_do_not_fit_the_schema_are_refused_or_null(connector: Connector, topics: GoldenTopics) -> None:
    topic = topics.write("int64")
    entries = [base64.b64decode(_entries("int64")[0]), base64.b64decode(_entries("plain")[0])]
    ledger_id = topics.write_ledger(entries)
    topics.write_list("int64", [(ledger_id, entries)])
    _refused(connector, "a message has no schema; set pulsarBadValues to null", topic, pulsarValues="schema")
    rows = _read(connector, topic, pulsarValues="schema", pulsarBadValues="null").collect()
    assert [row["value"] for row in sorted(rows, key=lambda row: row["__entryId"])] == [0, None]
    _refused(connector, "has no schema: read it as binary", topics.write("plain"), pulsarValues="schema")
    both = (topics.write("string"), topic)
    _refused(connector, "the schemas of topics .* differ", *both, pulsarValues="schema")


def test_a_stream_reads_a_topic_and_its_new_ledgers(connector: Connector, topics: GoldenTopics, tmp_path: Path) -> None:
    name = f"growing-{uuid.uuid4().hex[:8]}"
    entries = [base64.b64decode(row) for row in _entries("plain")]
    first = topics.write_ledger(entries[:5])
    topic = topics.write_list(name, [(first, entries[:5])])
    found: list[int] = []

    def run(**options: str) -> dict[str, Any]:
        reader = connector.spark.readStream.format("bookkeeper").options(
            metadataServiceUri=connector.metadata_service_uri, pulsarTopic=topic, startingOffsets="earliest", **options
        )
        query = (
            reader.load()
            .writeStream.foreachBatch(lambda frame, _: found.extend(row["__entryId"] for row in frame.collect()))
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        told: dict[str, Any] = json.loads(query.recentProgress[-1].json) if query.recentProgress else {}
        return told

    run(maxEntriesPerTrigger="3")
    assert found == [0, 1, 2, 3, 4]
    second = topics.write_ledger(entries[5:])
    topics.write_list(name, [(first, entries[:5]), (second, entries[5:])])
    run()
    assert found[5:] == [0, 1, 2]
    # Everything that was read is trimmed: no loss. Then all is gone that the checkpoint knows.
    topics.write_list(name, [(second, entries[5:])])
    run()
    third = topics.write_ledger(entries[:1])
    topics.write_list(name, [(third, entries[:1])])
    with pytest.raises(PySparkException, match=f"topic {topic}: messages before {third}:0 were removed, or may have"):
        run()
    progress = run(failOnDataLoss="false")
    assert found[8:] == [0]
    # How many messages were between the two is not known.
    assert metrics_of(progress).values["lost_offsets"] == 1


def _entries(name: str) -> list[str]:
    from tests.support.fixtures import golden

    entries: list[str] = golden("pulsar/topics")["topics"][name]["ledgers"][0]["entries"]
    return entries


def test_an_undecided_transaction_ends_what_is_read(connector: Connector, topics: GoldenTopics) -> None:
    topics.put(f"/managed-ledgers/{topics.namespace}/persistent/__transaction_buffer_snapshot", b"")
    for name in ("txn", "txn-open"):
        rows = _read(connector, topics.write(name)).collect()
        expected = [row["value"] for row in topics.java_rows(name)]
        assert [row["value"] for row in _sorted([_of_spark(row) for row in rows])] == expected, name


def test_a_transaction_that_nobody_looked_for_is_decided_by_the_task(
    connector: Connector, client: BlockingClient
) -> None:
    """The namespace has no system topic of transactions."""
    topics = GoldenTopics(client, f"golden-{uuid.uuid4().hex[:8]}/ns1")
    topic = topics.write("txn")
    rows = [_of_spark(row) for row in _read(connector, topic).collect()]
    assert [row["value"] for row in _sorted(rows)] == [row["value"] for row in topics.java_rows("txn")]
    _refused(connector, "is not decided yet", topics.write("txn-open"))


def test_encrypted_messages(connector: Connector, topics: GoldenTopics) -> None:
    topic = topics.write("encrypted")
    _refused(connector, "encrypted", topic)
    assert _read(connector, topic, pulsarEncrypted="skip").count() == 0
    rows = [_of_spark(row) for row in _read(connector, topic, pulsarEncrypted="raw").collect()]
    assert [row["value"] for row in _sorted(rows)] == [row["value"] for row in topics.java_rows("encrypted")]


def test_damaged_entries_are_named(connector: Connector, topics: GoldenTopics) -> None:
    good = base64.b64decode(_entries("batch-none")[0])
    unknown = base64.b64decode(_entries("batch-lz4")[0]).replace(b"\x40\x01", b"\x40\x09", 1)
    for name, entry, expected in (
        ("cut", good[:-7], "entry 1"),
        ("noise", b"\x00\x00\x00\x02\xff\xff" + bytes(20), "entry 1"),
        ("unknown-codec", unknown, "compression|codec"),
    ):
        ledger_id = topics.write_ledger([good, entry])
        topic = topics.write_list(name, [(ledger_id, [good, entry])])
        _refused(connector, f"({expected}).*ledger {ledger_id}|ledger {ledger_id}.*({expected})", topic)


@pytest.mark.parametrize("transactions", [False, True])
def test_lists_that_cannot_be_read(connector: Connector, client: BlockingClient, transactions: bool) -> None:
    """Also where entries are passed over for transactions first."""
    topics = GoldenTopics(client, f"golden-{uuid.uuid4().hex[:8]}/ns1")
    if transactions:
        topics.put(f"/managed-ledgers/{topics.namespace}/persistent/__transaction_buffer_snapshot", b"")
    copy = number(3, 1) + number(4, 1) + bytes_field(6, bytes_field(1, b"aws-s3") + _property("bucket", "cold"))
    copy = bytes_field(5, copy)
    entries = [base64.b64decode(entry) for entry in _entries("plain")]
    offloaded = topics.write_list("offloaded", [(1 << 40, entries)], copy)
    _refused(connector, f"ledger {1 << 40} was moved to tiered storage .driver aws-s3, bucket cold", offloaded)
    topics.put(f"/managed-ledgers/{topics.namespace}/persistent/noise", b"\xff\xff\xff")
    _refused(connector, "is not a list of a topic's ledgers", topics.full("noise"))
    gone = topics.write_list("gone", [((1 << 40) + 1, entries)])
    expected = "was removed after its list was read" if transactions else "are gone: the ledger was deleted"
    _refused(connector, expected, gone)
    assert _read(connector, gone, failOnDataLoss="false").count() == 0


def _property(name: str, value: str) -> bytes:
    return bytes_field(2, bytes_field(1, name.encode()) + bytes_field(2, value.encode()))
