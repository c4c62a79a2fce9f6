"""Topics that a real broker of Apache Pulsar writes, read by Spark from the bookies: ours, and Apache's.

What a Java reader gets from the broker is compared row by row with what Spark gets without it.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.pulsar.broker import PulsarBroker, PulsarProcess, message
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

#: Their common start is long.
pytestmark = pytest.mark.turns(2, together=True)

NAMESPACE: Final = "interop/topics"
_TIMEOUT_S: Final = 120.0
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_EXPECTED_COLUMNS: Final = (
    "__topic",
    "__ledgerId",
    "__entryId",
    "__batchIndex",
    "__messageId",
    "__key",
    "value",
    "__messageProperties",
    "__publishTime",
    "__eventTime",
    "__sequenceId",
    "__producerName",
    "__orderingKey",
    "__deliverAt",
)


@dataclass(frozen=True, slots=True)
class Pulsar:
    """A broker, and Spark beside it."""

    broker: PulsarBroker
    spark: SparkSession
    metadata_service_uri: str
    #: Options of all reads.
    stores: Mapping[str, str] = field(default_factory=dict)

    def topic(self, name: str) -> str:
        return f"persistent://{NAMESPACE}/{name}"

    def read(self, *topics: str, **options: str) -> DataFrame:
        return self._of(self.spark.read, *topics, **options)

    def stream(self, *topics: str, **options: str) -> DataFrame:
        return self._of(self.spark.readStream, *topics, **{"startingOffsets": "earliest", **options})

    def _of(self, reader: Any, *topics: str, **options: str) -> DataFrame:
        named = {"pulsarTopics": ",".join(topics)} if topics else {}
        frame: DataFrame = (
            reader.format("bookkeeper")
            .options(metadataServiceUri=self.metadata_service_uri, **{**self.stores, **named, **options})
            .load()
        )
        return frame

    def rows(self, *topics: str, **options: str) -> list[tuple[Any, ...]]:
        return sorted(map(_of_spark, self.read(*topics, **options).select(*_EXPECTED_COLUMNS).collect()))

    def java_rows(self, *topics: str) -> list[tuple[Any, ...]]:
        return sorted(_of_java(row) for topic in topics for row in self.broker.read(topic))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarProcess]:
    with PulsarProcess(tmp_path_factory.mktemp("pulsar") / "harness.log") as process:
        yield process


@pytest.fixture(scope="module")
def pulsar(tmp_path_factory: pytest.TempPathFactory, process: PulsarProcess, spark: SparkSession) -> Iterator[Pulsar]:
    """A broker on a ZooKeeper and three bookies of ours."""
    directory = tmp_path_factory.mktemp("pulsar-cluster")
    with QuickCluster(
        directory, bookies=3, bookie_settings=BOOKIE_SETTINGS, start_timeout_ms=start_timeout_ms()
    ) as cluster:
        uri = cluster.metadata_service_uri
        broker = PulsarBroker(process, "ours", MetadataServiceUri.parse(uri).servers, {})
        broker.init()
        broker.start()
        broker.call("make_namespace", namespace=NAMESPACE)
        yield Pulsar(broker, spark, uri)
        broker.stop()


@pytest.fixture(scope="module")
def elsewhere(
    tmp_path_factory: pytest.TempPathFactory, process: PulsarProcess, pulsar: Pulsar, zk_only: LocalCluster
) -> Iterator[Pulsar]:
    """Another broker on the same bookies. Its two stores are on another ZooKeeper, below two paths. It may move ledgers
    to tiered storage."""
    directory = tmp_path_factory.mktemp("tiered")
    server = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    settings = {
        "bookkeeperMetadataServiceUri": pulsar.metadata_service_uri,
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemURI": str(directory),
        "managedLedgerOffloadDeletionLagMs": "0",
    }
    broker = PulsarBroker(process, "elsewhere", f"{server}/pulsar/a", settings, f"{server}/pulsar/global")
    broker.init()
    broker.start()
    broker.call("make_namespace", namespace=NAMESPACE)
    stores = {
        "pulsarMetadataStore": f"zk:{server}/pulsar/a",
        "pulsarConfigurationStore": f"metadata-store:zk:{server}/pulsar/global",
    }
    yield Pulsar(broker, pulsar.spark, pulsar.metadata_service_uri, stores)
    broker.stop()


def _name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def _of_java(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        row["topic"],
        row["ledger"],
        row["entry"],
        row["batch_index"],
        row["message_id"],
        row["key"] or "",
        row["key"] is None,
        row["value"] or "",
        row["value"] is None,
        tuple(sorted(row["properties"].items())),
        row["publish_time"],
        row["event_time"],
        row["sequence_id"],
        row["producer"],
        row["ordering_key"] or "",
        row["ordering_key"] is None,
        row["deliver_at"],
    )


def _of_spark(row: Row) -> tuple[Any, ...]:
    topic, ledger, entry, index, message_id, key, value, properties, *rest = row
    published, event, sequence, producer, ordering_key, deliver_at = rest
    return (
        topic,
        ledger,
        entry,
        -1 if index is None else index,
        _text(message_id),
        _text(key),
        key is None,
        _text(value),
        value is None,
        tuple(sorted(properties.items())),
        _ms(published),
        0 if event is None else _ms(event),
        sequence,
        producer,
        _text(ordering_key),
        ordering_key is None,
        -1 if deliver_at is None else _ms(deliver_at),
    )


def _text(data: bytes | None) -> str:
    return "" if data is None else base64.b64encode(data).decode()


def _ms(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(milliseconds=1)


def _varied(count: int) -> list[dict[str, Any]]:
    """Messages with all that a message can have, in turn."""
    found = []
    for i in range(count):
        more: dict[str, Any] = {}
        if i % 3 == 0:
            more["key"] = f"key {i % 5}" if i else ""
        if i % 8 == 7:
            more["key_bytes"] = bytes([200, i])
        if i % 4 == 1:
            more["properties"] = {"i": str(i), "größe": "ü"}
        if i % 5 == 2:
            more["event_time"] = 1_700_000_000_000 + i
        if i % 9 in (2, 4):
            more["ordering_key"] = bytes([i, 255]) if i % 9 == 4 else b""
        if i % 10 == 3:
            more["deliver_at"] = 1_700_000_000_000 + i
        value = None if i % 7 == 6 else b"" if i % 11 == 10 else f"value {i} ".encode() + b"abcdefgh" * (i % 40)
        found.append(message(value, **more))
    return found


def _write_all_forms(pulsar: Pulsar) -> list[str]:
    """Topics with every compression, in batches and alone, with chunks of two producers, and with partitions."""
    broker, topics = pulsar.broker, []
    for compression in _COMPRESSIONS:
        topic = pulsar.topic(_name(f"form {compression} +%ü~*"))
        broker.produce(topic, _varied(33), batch=10, compression=compression, producer="in batches")
        broker.produce(topic, _varied(12), compression=compression, producer="one by one")
        topics.append(topic)
    chunked = pulsar.topic(_name("chunked"))
    big = [message(bytes([i]) * 1500, key=f"big {i}") for i in range(8)]
    broker.produce(chunked, big, chunk_bytes=400, producer="chunks")
    broker.produce(chunked, big, chunk_bytes=300, producer="compressed chunks", compression="LZ4")
    parts = pulsar.topic(_name("parts"))
    broker.call("make_partitions", topic=parts, count=3)
    broker.produce(parts, first=0, count=60, batch=5)
    return [*topics, chunked, parts]


def test_spark_reads_what_java_reads(pulsar: Pulsar, tmp_path: Path) -> None:
    """In one batch, and in a stream of small micro-batches whose ends lie between the chunks of messages."""
    topics = _write_all_forms(pulsar)
    expected = pulsar.java_rows(*topics)
    assert len(expected) == 5 * 45 + 16 + 60
    _wait_for(lambda: pulsar.rows(*topics, splitBytes="2k"), expected)
    assert pulsar.rows(*topics, minPartitions="40") == expected

    found: list[Row] = []
    query = (
        pulsar.stream(*topics, maxEntriesPerTrigger="60")
        .select(*_EXPECTED_COLUMNS)
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(_TIMEOUT_S))
    assert len(query.recentProgress) > 2
    assert sorted(map(_of_spark, found)) == expected


def test_messages_of_transactions_come_when_they_are_committed(pulsar: Pulsar, tmp_path: Path) -> None:
    topic = pulsar.topic(_name("transactions"))
    broker = pulsar.broker
    for number in (1, 2, 3):
        broker.call("begin", transaction=number)
    broker.produce(topic, [message(b"before"), message(b"one", transaction=1), message(b"two", transaction=2)])
    broker.produce(topic, [message(b"batch 1", transaction=1), message(b"batch 2", transaction=1)], batch=10)
    broker.produce(topic, [message(b"of none"), message(b"aborted", transaction=2)])
    broker.call("end", transaction=1, commit=True)
    broker.call("end", transaction=2, commit=False)
    broker.produce(topic, [message(b"open", transaction=3), message(b"behind the open one")])

    values = [b"before", b"one", b"batch 1", b"batch 2", b"of none"]
    assert [base64.b64decode(row["value"]) for row in broker.read(topic)] == values
    _wait_for(lambda: _values(pulsar.read(topic)), values)
    streamed: list[bytes] = []
    _run_stream(pulsar, [topic], tmp_path, streamed, maxEntriesPerTrigger="4")
    assert streamed == values

    broker.call("end", transaction=3, commit=True)
    values += [b"open", b"behind the open one"]
    _wait_for(lambda: _values(pulsar.read(topic)), values)
    # A start behind the first messages of a transaction takes those that follow.
    row = broker.read(topic)[2]
    start = f'{{"{topic}": "{row["ledger"]}:{row["entry"]}"}}'
    assert _values(pulsar.read(topic, startingOffsets=start)) == values[2:]
    _run_stream(pulsar, [topic], tmp_path, streamed, maxEntriesPerTrigger="4")
    assert streamed == values


def test_the_compacted_view_is_what_java_reads(pulsar: Pulsar) -> None:
    """Before the first compaction, behind one, and after another one that replaced its ledger."""
    topic, broker = pulsar.topic(_name("compacted")), pulsar.broker

    def produce(text: str) -> None:
        rows = [message(f"{text} {number}".encode(), key=f"k{number % 5}") for number in range(60)]
        broker.produce(topic, rows[:40], batch=7, compression="LZ4")
        # A tombstone, and a message without a key.
        broker.produce(topic, [*rows[40:], message(None, key="k3"), message(b"no key")])

    def compare(count: int | None = None) -> None:
        expected = sorted(map(_of_java, broker.read(topic, compacted=True)))
        assert count in (None, len(expected))
        _wait_for(lambda: pulsar.rows(topic, pulsarReadCompacted="true"), expected)

    produce("first")
    compare(62)
    broker.call("compact", topic=topic)
    compare()
    assert len(pulsar.rows(topic, pulsarReadCompacted="true")) < 10 < len(pulsar.rows(topic))
    produce("second")
    compare()
    broker.call("compact", topic=topic)
    compare()
    assert len(pulsar.rows(topic, pulsarReadCompacted="true", splitBytes="1k")) < 10
    with pytest.raises(PySparkException, match="option startingOffsets is not for a compacted view"):
        pulsar.read(topic, pulsarReadCompacted="true", startingOffsets="earliest").count()


def test_values_by_both_versions_of_a_schema(pulsar: Pulsar) -> None:
    topic = pulsar.topic(_name("points"))
    pulsar.broker.call("produce_points", topic=topic, count=12)
    java = [row["decoded"] for row in pulsar.broker.read(topic, typed=True)]
    assert len(java) == 24
    _wait_for(lambda: pulsar.read(topic).count(), 24)
    rows = pulsar.read(topic, pulsarValues="schema").orderBy("__ledgerId", "__entryId", "__batchIndex").collect()
    assert [row["__schemaVersion"] for row in rows] == [0] * 12 + [1] * 12
    found = [row["value"].asDict() for row in rows]
    assert all(one["weight"] is None for one in found[:12])
    for one, text in zip(found, java, strict=True):
        # Java's text of the record: JSON with the fields of the version that it was written with.
        known = json.loads(text)
        assert {name: one[name] for name in known} == known


def test_a_stream_follows_while_java_writes_ledgers_roll_and_the_broker_restarts(
    pulsar: Pulsar, tmp_path: Path
) -> None:
    """Each message once and in order. The query is killed and started again on the way."""
    topic, broker = pulsar.topic(_name("followed")), pulsar.broker
    broker.produce(topic, first=0, count=10)
    follower = _Follower(pulsar, topic, tmp_path)
    follower.start()
    written = 10
    for step in range(6):
        broker.produce(topic, first=written, count=70, batch=3 if step % 2 else 0)
        written += 70
        if step == 1:
            broker.call("unload", topic=topic)
        if step == 2:
            follower.wait_for(written - 30)
            follower.stop()
        if step == 3:
            broker.stop()
            broker.start()
            follower.start()
    follower.wait_for(written)
    follower.stop()
    assert follower.values == [b"%08d" % number for number in range(written)]


def test_removed_ledgers_are_an_error_or_skipped(pulsar: Pulsar, tmp_path: Path) -> None:
    namespace = f"interop/{_name('trimmed')}"
    broker, topic = pulsar.broker, f"persistent://{namespace}/topic"
    broker.call("make_namespace", namespace=namespace)
    broker.produce(topic, first=0, count=50)
    streamed: list[bytes] = []
    _run_stream(pulsar, [topic], tmp_path, streamed, maxEntriesPerTrigger="5", once=True)
    first = broker.read(topic)[0]
    plan = pulsar.read(topic)
    broker.call("keep_nothing", namespace=namespace)
    broker.produce(topic, first=50, count=45)
    _trim_until_gone(pulsar, topic, first["ledger"])

    start = f'{{"{topic}": "{first["ledger"]}:0"}}'
    _refused(lambda: _values(pulsar.read(topic, startingOffsets=start)), "it is gone, the topic starts at")
    left = _values(plan)
    assert left == _values(pulsar.read(topic, startingOffsets=start, failOnDataLoss="false"))
    assert left == [b"%08d" % number for number in range(95 - len(left), 95)]
    _refused(
        lambda: _run_stream(pulsar, [topic], tmp_path, streamed),
        f"topic {topic}: messages before .* were removed, or may have been",
    )
    _run_stream(pulsar, [topic], tmp_path, streamed, failOnDataLoss="false")
    assert streamed[-len(left) :] == left


def test_encrypted_messages_are_refused_skipped_or_handed_over(pulsar: Pulsar) -> None:
    topic = pulsar.topic(_name("encrypted"))
    pulsar.broker.produce(topic, [message(b"in clear")])
    private, public = _key_pair()
    pulsar.broker.produce(topic, [message(b"secret", key="k")], encryption_key=public, compression="ZLIB")
    _wait_for(lambda: pulsar.read(topic, pulsarEncrypted="raw").count(), 2)
    _refused(lambda: _values(pulsar.read(topic)), "encrypted")
    assert _values(pulsar.read(topic, pulsarEncrypted="skip")) == [b"in clear"]
    assert pulsar.rows(topic, pulsarEncrypted="raw") == pulsar.java_rows(topic)
    found = pulsar.read(topic, pulsarEncrypted="raw").select("value", "__encryption").collect()
    assert [row["value"] for row in found if row["__encryption"] is None] == [b"in clear"]
    (encrypted,) = (row for row in found if row["__encryption"] is not None)
    assert _decrypted(private, encrypted["value"], encrypted["__encryption"]) == b"secret"


def test_what_cannot_be_read_is_refused_with_the_remedy(pulsar: Pulsar, zk_only: LocalCluster) -> None:
    parts = pulsar.topic(_name("parts"))
    pulsar.broker.call("make_partitions", topic=parts, count=2)
    assert pulsar.read(parts).count() == 0
    assert pulsar.read(f"{parts}-partition-1").count() == 0
    for topic, expected in (
        (f"{parts}-partition-2", "there is no partition 2 of .* it has 2, 0 to 1"),
        (f"{parts}s", r"there is no topic .*\(parts-.* is similar\)"),
        ("persistent://nobody/nowhere/x", "nor a namespace nobody/nowhere"),
        ("non-persistent://interop/topics/x", "is not persistent"),
    ):
        _refused(lambda topic=topic: pulsar.read(topic).count(), expected)  # type: ignore[misc]
    _refused(lambda: pulsar.read(pulsarTopicsPattern=f"{NAMESPACE}/none.*").count(), "matches no topic of namespace")
    elsewhere = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    _refused(
        lambda: pulsar.read(parts, pulsarMetadataStore=f"zk:{elsewhere}").count(),
        "no Pulsar cluster keeps its topics there.*pulsarMetadataStore.*etcd, Oxia or RocksDB",
    )
    _refused(lambda: pulsar.read(parts, pulsarMetadataStore="oxia://a:6648").count(), "through its brokers")


def test_a_cluster_with_stores_of_its_own(elsewhere: Pulsar, pulsar: Pulsar, tmp_path: Path) -> None:
    """Partitions are in the configuration store, lists of ledgers in the local one, and ledgers elsewhere."""
    broker, name = elsewhere.broker, _name("elsewhere")
    parts = elsewhere.topic(f"{name}-parts")
    broker.call("make_partitions", topic=parts, count=3)
    broker.produce(parts, first=0, count=60, batch=5)
    points = elsewhere.topic(f"{name}-points")
    broker.call("produce_points", topic=points, count=25)
    # A topic of the same name in the cluster beside the ledgers.
    pulsar.broker.produce(pulsar.topic(f"{name}-points"), first=0, count=1)

    _wait_for(lambda: elsewhere.rows(parts, points), elsewhere.java_rows(parts, points))
    decoded = elsewhere.read(points, pulsarValues="schema").selectExpr("value.x as x").collect()
    assert sorted(row.x for row in decoded) == sorted([*range(25), *(-x for x in range(25))])
    pattern = f"persistent://{NAMESPACE}/{name}-.*"
    assert elsewhere.read(pulsarTopicsPattern=pattern).count() == 60 + 50
    streamed: list[bytes] = []
    _run_stream(elsewhere, [parts], tmp_path, streamed, maxEntriesPerTrigger="7")
    assert sorted(streamed) == [b"%08d" % number for number in range(60)]

    # Without the options it is another cluster; with the local store alone nobody knows of partitions.
    assert pulsar.read(f"persistent://{NAMESPACE}/{name}-points").count() == 1
    _refused(lambda: pulsar.read(parts).count(), "there is no topic")
    only = {"pulsarMetadataStore": elsewhere.stores["pulsarMetadataStore"]}
    _refused(
        lambda: pulsar.read(parts, **only).count(), f"has partitions of {parts}, .* as option pulsarConfigurationStore"
    )


def test_offloaded_ledgers_are_named(elsewhere: Pulsar, tmp_path: Path) -> None:
    """While their entries are also on the bookies they are read. Then the error says what to do, and that works."""
    broker, topic = elsewhere.broker, elsewhere.topic(_name("offloaded"))
    broker.produce(topic, first=0, count=50)
    _wait_for(lambda: elsewhere.read(topic).count(), 50)
    ledgers = sorted({row["ledger"] for row in broker.read(topic)})
    assert len(ledgers) == 3
    plan = elsewhere.read(topic)
    broker.call("offload", topic=topic)
    assert plan.count() == 50

    # Ledgers are deleted from the bookies one after the other.
    named = (
        f"topic {topic}: ledgers {ledgers[0]}, {ledgers[1]} were moved to tiered storage (driver filesystem, bucket "
    )
    deadline = time.monotonic() + _TIMEOUT_S
    while named not in (error := _error_of(lambda: elsewhere.read(topic).count()) or ""):
        assert time.monotonic() < deadline, f"ledgers {ledgers} are still on the bookies: {error[-500:]}"
        broker.call("trim", topic=topic)
    assert "not to be shown" not in error
    assert len(broker.read(topic)) == 50, "the broker still has all of them"
    streamed: list[bytes] = []
    _refused(lambda: _run_stream(elsewhere, [topic], tmp_path, streamed), re.escape(named))

    advice = re.search(r"startingOffsets ({[^}]*})", error)
    assert advice is not None, error
    assert _values(elsewhere.read(topic, startingOffsets=advice[1])) == [b"%08d" % number for number in range(40, 50)]


def test_topics_on_bookies_of_apache(
    process: PulsarProcess, apache_cluster: ApacheBookies, spark: SparkSession, tmp_path: Path
) -> None:
    apache_cluster.start()
    uri = apache_cluster.metadata_service_uri
    servers = MetadataServiceUri.parse(uri).servers
    broker = PulsarBroker(process, "apache", servers, {"bookkeeperMetadataServiceUri": uri})
    broker.init()
    broker.start()
    try:
        broker.call("make_namespace", namespace=NAMESPACE)
        pulsar = Pulsar(broker, spark, uri)
        topics = _write_all_forms(pulsar)
        expected = pulsar.java_rows(*topics)
        _wait_for(lambda: pulsar.rows(*topics, splitBytes="4k"), expected)
        streamed: list[bytes] = []
        _run_stream(pulsar, topics[-1:], tmp_path, streamed)
        assert sorted(streamed) == [b"%08d" % number for number in range(60)]
    finally:
        broker.stop()


# --- tools ---


@dataclass
class _Follower:
    """A streaming query over one topic, and what it got."""

    pulsar: Pulsar
    topic: str
    checkpoint: Path
    values: list[bytes] = field(default_factory=list)
    _batches: dict[int, list[bytes]] = field(default_factory=dict)
    _grown: threading.Condition = field(default_factory=threading.Condition)
    _query: Any = None

    def start(self) -> None:
        self._query = (
            self.pulsar.stream(self.topic)
            .select("value", "__ledgerId", "__entryId", "__batchIndex")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .start()
        )

    def stop(self) -> None:
        self._query.stop()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        with self._grown:
            while len(self.values) < count:
                assert self._query.exception() is None, self._query.exception()
                assert self._grown.wait(deadline - time.monotonic()), f"{len(self.values)} of {count} messages came"

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = sorted(frame.collect(), key=lambda row: (row[1], row[2], row[3] or 0))
        with self._grown:
            # A batch that is repeated after a stop has the same rows.
            self._batches[batch] = [bytes(row[0]) for row in rows]
            self.values = [value for number in sorted(self._batches) for value in self._batches[number]]
            self._grown.notify_all()


def _run_stream(
    pulsar: Pulsar, topics: Sequence[str], checkpoint: Path, values: list[bytes], *, once: bool = False, **options: str
) -> None:
    """Read what is there, or one micro-batch."""

    def take(frame: DataFrame, _: int) -> None:
        values.extend(_values(frame))
        if once:
            raise _EnoughError

    query = (
        pulsar.stream(*topics, **options)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(int(_TIMEOUT_S))
    except StreamingQueryException as error:
        if "_EnoughError" not in str(error):
            raise


class _EnoughError(Exception):
    pass


def _values(frame: DataFrame) -> list[bytes]:
    columns = ("__topic", "__ledgerId", "__entryId", "__batchIndex", "value")
    rows = sorted(frame.select(*columns).collect(), key=lambda row: (row[:3], row[3] or 0))
    return [bytes(row[4]) for row in rows]


def _wait_for(read: Callable[[], Any], expected: Any) -> None:
    """Brokers tell the end of a ledger by explicit LAC, some time after the last message."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (found := read()) != expected:
        assert time.monotonic() < deadline, _difference(found, expected)


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, list):
        more, less = [one for one in found if one not in expected], [one for one in expected if one not in found]
        return f"{len(found)} of {len(expected)} rows; more: {more[:2]}; less: {less[:2]}"
    return f"{found} instead of {expected}"


def _trim_until_gone(pulsar: Pulsar, topic: str, ledger_id: int) -> None:
    def first_ledger() -> int | None:
        # The broker may remove the ledger between the planning of a read and its end.
        row = pulsar.read(topic, failOnDataLoss="false").agg({"__ledgerId": "min"}).first()
        return None if row is None else row[0]

    deadline = time.monotonic() + _TIMEOUT_S
    while first_ledger() in (None, ledger_id):
        assert time.monotonic() < deadline, f"ledger {ledger_id} is still there"
        pulsar.broker.call("trim", topic=topic)


def _error_of(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except PySparkException as error:
        return str(error)
    return None


def _refused(call: Callable[[], Any], expected: str) -> None:
    with pytest.raises(PySparkException, match=f"(?s){expected}"):
        call()


def _key_pair() -> tuple[Any, str]:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return private, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _decrypted(private: Any, cipher: bytes, context: Row) -> bytes:
    """The message of an entry, from what the columns say of its encryption alone."""
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA1

    ((_, encrypted_key),) = context["keys"].items()
    data_key = private.decrypt(encrypted_key, OAEP(MGF1(SHA1()), SHA1(), None))
    stored = AESGCM(data_key).decrypt(context["param"], cipher, None)
    assert (context["compression"], context["batchSize"]) == ("ZLIB", None)
    plain = zlib.decompressobj().decompress(stored)
    assert len(plain) == context["uncompressedSize"]
    return plain
