"""What a user sees who gives the connector something it cannot take, and that nothing is left behind."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.datasource.source import BookKeeperDataSource
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.quorum import Quorum
from tests.support.connector import Connector, texts

MIB = 1 << 20
#: Connecting takes 10 s. Beyond this it never ends: the rest is Spark starting processes on a busy machine.
BOUND_S = 120
_OURS = re.compile(r"^bk_spark\.protocol\.errors\.(\w+): (.*)$", re.MULTILINE)


def _refused(action: Callable[[], object]) -> tuple[str, str]:
    """Kind and text of our error, as it reaches the user: a few lines, the text its own one near the end."""
    with pytest.raises(PySparkException) as raised:
        action()
    text = str(raised.value).strip()
    (found,) = _OURS.findall(text)
    assert len(text.splitlines()) <= 6, text
    assert isinstance(found, tuple)
    kind, message = found
    return kind, message


@contextmanager
def _no_log_made(logs: LogStore) -> Iterator[None]:
    before = logs.list_logs()
    yield
    assert logs.list_logs() == before


def _assert_empty(connector: Connector, logs: LogStore, client: BlockingClient, log: str, *, ledgers: bool) -> None:
    """The log was made before its rows were seen, and has none; nor were ``ledgers`` made for it."""
    assert logs.open_log(log).snapshot().next_offset == 0
    assert connector.read(log).count() == 0
    applications = client.zookeeper.children(f"{logs.root}/{log}/ledgers")
    assert bool(applications) == ledgers


# --- the cluster ---


def test_no_metadata_service(connector: Connector) -> None:
    """Nobody listens; and, at the same time and without Spark, somebody listens who never answers."""
    writer = connector.spark.sql(texts(1)).write.format("bookkeeper").mode("append").option("log", "x")
    threads = set(threading.enumerate())
    start = time.monotonic()
    with ThreadPoolExecutor(1) as executor:
        silent = executor.submit(_ask_a_silent_server)
        kind, message = _refused(writer.option("metadataServiceUri", "zk://127.0.0.1:1/ledgers").save)
    assert time.monotonic() - start < BOUND_S
    assert kind == "MetadataUnavailableError"
    remedy = "within 10000 ms; check metadataServiceUri and that the server runs"
    assert message == f"no ZooKeeper server answered at 127.0.0.1:1 {remedy}"
    assert remedy in str(silent.result())
    assert silent.result().__cause__ is None
    assert set(threading.enumerate()) == threads


def _ask_a_silent_server() -> MetadataUnavailableError:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        uri = f"zk://127.0.0.1:{server.getsockname()[1]}/ledgers"
        with pytest.raises(MetadataUnavailableError) as raised:
            BookKeeperDataSource({"metadataServiceUri": uri, "log": "x"}).schema()
    return raised.value


def test_a_path_without_a_cluster(connector: Connector) -> None:
    elsewhere = Connector(connector.spark, connector.metadata_service_uri.removesuffix("/ledgers") + "/nowhere")
    expected = (
        r"no BookKeeper cluster at \S+/nowhere: /nowhere/LAYOUT does not exist; check the path in metadataServiceUri"
    )
    for action in (lambda: elsewhere.read("x"), lambda: elsewhere.write(connector.spark.sql(texts(1)), "x")):
        kind, message = _refused(action)
        assert kind == "MetadataUnavailableError"
        assert re.match(expected, message)


def test_no_thread_is_left_where_no_cluster_is(connector: Connector) -> None:
    threads = set(threading.enumerate())
    uri = connector.metadata_service_uri.removesuffix("/ledgers") + "/nowhere"
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(MetadataUnavailableError):
        BookKeeperDataSource({"metadataServiceUri": uri, "log": "x"}).writer(schema, overwrite=False)
    assert set(threading.enumerate()) == threads


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("localhost:2181", "metadataServiceUri 'localhost:2181' is not of the form zk+hierarchical://host:port"),
        ("zk+etcd://localhost/ledgers", "ledger manager 'etcd' is unknown; use one of zk+flat, zk+hierarchical"),
    ],
)
def test_what_is_no_metadata_service_uri(connector: Connector, uri: str, text: str) -> None:
    kind, message = _refused(lambda: Connector(connector.spark, uri).read("x"))
    assert kind == "InvalidArgumentError"
    assert text in message


def test_too_few_bookies(connector: Connector, log: str, logs: LogStore) -> None:
    with _no_log_made(logs):
        kind, message = _refused(lambda: connector.write(connector.spark.sql(texts(1)), log, ensembleSize=5))
    assert kind == "NotEnoughBookiesError"
    assert message == (
        "5 writable bookies are needed, 3 are registered; start more bookies or use a smaller ensembleSize"
    )


def test_too_few_bookies_for_a_log_that_exists(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient
) -> None:
    logs.create_log(log, LogSettings.create(Quorum(5, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b""))
    kind, message = _refused(lambda: connector.write(connector.spark.sql(texts(1)), log))
    assert kind == "NotEnoughBookiesError"
    assert "5 writable bookies are needed, 3 are registered" in message
    _assert_empty(connector, logs, client, log, ledgers=True)


# --- options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"ensembleSize": 3, "writeQuorumSize": 4},
            "quorum sizes must satisfy ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1, got ensembleSize=3, "
            "writeQuorumSize=4, ackQuorumSize=2: lower writeQuorumSize or raise ensembleSize",
        ),
        (
            {"ensembleSize": 1},
            "quorum sizes must satisfy ensembleSize >= writeQuorumSize >= ackQuorumSize >= 1, got ensembleSize=1, "
            "writeQuorumSize=3, ackQuorumSize=2: set writeQuorumSize and ackQuorumSize too, not given here",
        ),
        ({"ensembelSize": 3}, "unknown option 'ensembelsize'; did you mean ensembleSize?"),
        ({"minPartitions": 3}, "option minPartitions is for reading only: leave it out of this write"),
        ({"compression": "zstd"}, "option compression is for entryFormat arrow; log {log} is raw"),
        ({"log": "a/b"}, "log name 'a/b' is not allowed: use 1 to 255 of the characters A-Z a-z 0-9 . _ -"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_of_a_write(
    connector: Connector, log: str, logs: LogStore, options: dict[str, object], text: str
) -> None:
    with _no_log_made(logs):
        kind, message = _refused(
            lambda: connector.write(connector.spark.sql(texts(1)), **{"log": log, **options})  # type: ignore[arg-type]
        )
    assert kind == "InvalidArgumentError"
    assert text.format(log=log) in message


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"log": "x", "splitByte": "1m"}, "unknown option 'splitbyte'; did you mean splitBytes?"),
        ({"log": "x", "ensembleSize": 3}, "option ensembleSize is for writing only: leave it out of this read"),
        (
            {"log": "x", "ledgerId": 1},
            "one of the options log, logs, logPattern, ledgerId, ledgerIds, pulsarTopic, pulsarTopics, "
            'pulsarTopicsPattern, such as .option("log", "…"): log and ledgerId are given',
        ),
        ({}, 'pulsarTopics, pulsarTopicsPattern, such as .option("log", "…"): none of them is given'),
        (
            {"log": "x", "startingOffsets": "earliest", "startingTimestamp": 1},
            "give one of the options startingOffsets and startingTimestamp, not both",
        ),
    ],
    ids=["unknown", "direction", "both", "neither", "start"],
)
def test_options_of_a_read(connector: Connector, options: dict[str, object], text: str) -> None:
    kind, message = _refused(lambda: connector.reader(**options).load())  # type: ignore[arg-type]
    assert kind == "InvalidArgumentError"
    assert text in message


def test_no_cluster_given(connector: Connector) -> None:
    _, message = _refused(lambda: connector.spark.read.format("bookkeeper").option("log", "x").load())
    assert message.startswith("option metadataServiceUri is missing: say where the cluster is, for example .option(")


@pytest.mark.parametrize("paths", ["/data", ["/data", "/more"]], ids=["path", "paths"])
def test_a_path_to_load(connector: Connector, paths: str | list[str]) -> None:
    _, message = _refused(lambda: connector.reader(log="x").load(paths))
    assert message == 'load() and save() take no path here: name the log with .option("log", "…")'


def test_a_path_to_save(connector: Connector, log: str, logs: LogStore) -> None:
    writer = connector.spark.sql(texts(1)).write.format("bookkeeper").mode("append")
    with _no_log_made(logs):
        _, message = _refused(
            lambda: writer.options(metadataServiceUri=connector.metadata_service_uri, log=log).save("/data")
        )
    assert message == 'load() and save() take no path here: name the log with .option("log", "…")'


@pytest.mark.parametrize(
    ("mode", "shown"),
    [(None, "ErrorIfExists"), ("error", "ErrorIfExists"), ("errorifexists", "ErrorIfExists"), ("ignore", "Ignore")],
)
def test_save_modes_that_spark_cannot_pass_on(
    connector: Connector, log: str, logs: LogStore, mode: str | None, shown: str
) -> None:
    """Spark refuses these itself, before it asks us anything. The README cites this text."""
    writer = connector.spark.sql(texts(1)).write.format("bookkeeper")
    writer = writer.options(metadataServiceUri=connector.metadata_service_uri, log=log)
    if mode is not None:
        writer = writer.mode(mode)
    with _no_log_made(logs), pytest.raises(AnalysisException) as raised:
        writer.save()
    assert str(raised.value).startswith(
        f'[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "bookkeeper" cannot be written in the "{shown}" mode. '
        'Please use either the "Append" or "Overwrite" mode instead.'
    )


# --- rows ---


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (
            "select 1 id, 'x' name",
            "entryFormat raw needs a column named value (binary or string), the data has id, name; select one AS "
            "value, or write with entryFormat arrow",
        ),
        ("select 1 value", "column value has type int; entryFormat raw takes binary or string"),
        (
            "select 'k' key, 'v' value",
            "entryFormat raw writes only the column value, the data also has key; drop them, or write with entryFormat",
        ),
    ],
    ids=["no value", "type", "more"],
)
def test_raw_takes_a_column_named_value(connector: Connector, log: str, logs: LogStore, query: str, text: str) -> None:
    with _no_log_made(logs):
        kind, message = _refused(lambda: connector.write(connector.spark.sql(query), log, entryFormat="raw"))
    assert kind == "InvalidArgumentError"
    assert text in message


@pytest.mark.parametrize("entry_format", ["raw", "arrow"])
def test_a_frame_without_columns(connector: Connector, log: str, logs: LogStore, entry_format: str) -> None:
    frame = connector.spark.range(3).select()
    with _no_log_made(logs):
        kind, message = _refused(lambda: connector.write(frame, log, entryFormat=entry_format))
    assert kind == "InvalidArgumentError"
    assert message == "the schema has no columns, so the rows could not be counted: select at least one"


def test_a_null_value(connector: Connector, log: str, logs: LogStore, client: BlockingClient) -> None:
    frame = connector.spark.sql("select if(id = 1007, null, 'x') value from range(0, 2000, 1, 2)")
    kind, message = _refused(lambda: connector.write(frame, log))
    assert kind == "InvalidArgumentError"
    assert message == (
        "column value is null in row 7 of partition 1: entryFormat raw needs a value in every row; leave such rows "
        "out, for example with .where(value IS NOT NULL)"
    )
    assert connector.read(log).count() == 0
    assert logs.open_log(log).snapshot().next_offset == 0


def test_a_null_after_rows_that_were_sent(connector: Connector, log: str, logs: LogStore) -> None:
    connector.write(connector.spark.sql(texts(10)), log)
    frame = connector.spark.sql("select if(id = 19999, null, 'x') value from range(0, 20000, 1, 1)")
    with connector.conf(spark__sql__execution__arrow__maxRecordsPerBatch="1000"):
        _, message = _refused(lambda: connector.write(frame, log))
    assert "column value is null in row 19999 of partition 0" in message
    assert logs.open_log(log).snapshot().next_offset == 10
    assert connector.read(log).count() == 10


def test_a_raw_row_above_the_frame_limit(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient
) -> None:
    limit = client.config.max_payload_bytes(DigestType.CRC32C)
    frame = connector.spark.sql(f"select repeat('x', if(id = 3, {limit + 1}, 5)) value from range(0, 10, 1, 1)")
    kind, message = _refused(lambda: connector.write(frame, log))
    assert kind == "InvalidArgumentError"
    assert message == (
        f"column value has {limit + 1} bytes in row 3 of partition 0; a bookie's frame limit allows {limit}: split the "
        "value, or store it elsewhere and write a reference to it"
    )
    _assert_empty(connector, logs, client, log, ledgers=False)


def test_an_arrow_row_above_the_frame_limit(
    connector: Connector, log: str, logs: LogStore, client: BlockingClient
) -> None:
    frame = connector.spark.sql(f"select id, repeat('x', if(id = 3, {6 * MIB}, 5)) text from range(0, 10, 1, 1)")
    kind, message = _refused(lambda: connector.write(frame, log, compression="none"))
    assert kind == "InvalidArgumentError"
    assert re.fullmatch(
        r"row 3 of partition 0 makes an entry of 629\d{4} bytes \(column text has most of them\); a bookie's frame "
        r"limit allows 52\d{5}: split the row, or store column text elsewhere and write a reference to it",
        message,
    )
    assert logs.open_log(log).snapshot().next_offset == 0
    # Compressed, it fits.
    connector.write(frame, log)
    assert connector.read(log).count() == 10


@pytest.mark.parametrize(
    ("expression", "shown"),
    [("interval '1-2' year to month", "interval year to month"), ("array(interval '1' year)", "array<interval year>")],
    ids=["column", "nested"],
)
def test_a_column_type_that_arrow_cannot_carry(
    connector: Connector, log: str, logs: LogStore, expression: str, shown: str
) -> None:
    frame = connector.spark.sql(f"select 1 as fine, {expression} as odd")
    with _no_log_made(logs):
        kind, message = _refused(lambda: connector.write(frame, log, entryFormat="arrow"))
    assert kind == "InvalidArgumentError"
    assert message == f"column odd has type {shown}, which Arrow cannot carry here; cast or drop it"


def test_a_column_type_that_spark_does_not_store(connector: Connector, log: str, logs: LogStore) -> None:
    frame = connector.spark.sql("select make_interval(1, 2) as odd")
    with _no_log_made(logs), pytest.raises(AnalysisException, match='Cannot use "INTERVAL" type in the table schema'):
        connector.write(frame, log, entryFormat="arrow")


def test_two_columns_of_one_name(connector: Connector, log: str, logs: LogStore) -> None:
    with _no_log_made(logs):
        _, message = _refused(lambda: connector.write(connector.spark.sql("select 1 a, 2 a"), log, entryFormat="arrow"))
    assert message == "there are 2 columns named a: rename or drop one"


# --- what is read ---


def test_a_log_that_does_not_exist(connector: Connector, log: str, logs: LogStore) -> None:
    expected = f"there is no log {log} (no znode /bk_spark/logs/{log}): check the name, or write to it first"
    with _no_log_made(logs):
        assert _refused(lambda: connector.read(log)) == ("NoSuchLogError", expected)
        assert _refused(connector.read(log, "value string").collect) == ("NoSuchLogError", expected)


def test_a_ledger_that_does_not_exist(connector: Connector) -> None:
    kind, message = _refused(connector.read_ledger(123_456_789).collect)
    assert kind == "NoSuchLedgerError"
    assert re.fullmatch(
        r"there is no such ledger in zk\S+/ledgers: check option ledgerId \(ledger 123456789\)", message
    )


@pytest.mark.parametrize(
    ("password", "what"),
    [({}, "the ledger has a password, and none was given"), ({"password": "wrong"}, "wrong ledger password")],
    ids=["none", "wrong"],
)
def test_a_wrong_ledger_password(
    connector: Connector, client: BlockingClient, password: dict[str, str], what: str
) -> None:
    writer = client.create(password=b"secret")
    writer.append(b"payload")
    writer.close()
    kind, message = _refused(connector.read_ledger(writer.ledger_id, **password).collect)
    assert kind == "UnauthorizedError"
    assert message == (
        f"{what}: give the one the ledger was made with (option password or passwordFile) (ledger {writer.ledger_id})"
    )


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("val string", "entryFormat raw has no column val; it has value, log, offset, ledgerId, entryId, timestamp"),
        ("value int", "column value can be read as binary or string, not as int"),
    ],
)
def test_a_schema_that_is_not_raws(connector: Connector, log: str, logs: LogStore, schema: str, text: str) -> None:
    logs.create_log(log, LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b""))
    kind, message = _refused(connector.read(log, schema).collect)
    assert kind == "InvalidArgumentError"
    assert text in message


def test_metadata_asked_for_where_it_always_is(connector: Connector, log: str, logs: LogStore) -> None:
    logs.create_log(log, LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b""))
    _, message = _refused(lambda: connector.read(log, includeMetadata="true"))
    assert message == "option includeMetadata is for entryFormat arrow; raw reads have these columns anyway"
