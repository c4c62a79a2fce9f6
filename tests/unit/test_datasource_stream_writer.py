"""What Spark may ask of a streaming write without a network: its constructors, aborts, commits that cannot be right."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from bk_spark.datasource.source import BookKeeperDataSource
from bk_spark.datasource.stream.writer import StreamWriter
from bk_spark.datasource.writing.routed import RoutedMessage
from bk_spark.datasource.writing.write_task import TaskMessage
from bk_spark.log.formats.message import CommitMessage
from bk_spark.protocol.errors import InvalidArgumentError

SCHEMA = StructType([StructField("value", BinaryType())])
#: Nobody listens there.
OPTIONS = {
    "metadataServiceUri": "zk://127.0.0.1:1/ledgers",
    "log": "events",
    "checkpointLocation": "/c",
    "queryName": "q",
}


def _commit_writer(**options: str) -> StreamWriter:
    """As the process gets it that commits and aborts: the source arrives pickled."""
    source = pickle.loads(pickle.dumps(BookKeeperDataSource({**OPTIONS, **options})))
    writer = source.streamWriter(SCHEMA, False)
    assert isinstance(writer, StreamWriter)
    return writer


def _message(partition: int, batch: int = 3) -> TaskMessage:
    log_id = "0f1e2d3c-4b5a-4978-8796-a5b4c3d2e1f0"
    return TaskMessage(CommitMessage(log_id, "app", "run", "query", batch, partition))


def test_abort_needs_nothing(tmp_path: Path) -> None:
    messages: list[WriterCommitMessage | None] = [_message(0), None]
    _commit_writer().abort(messages, 3)
    _commit_writer(passwordFile=str(tmp_path / "missing")).abort([], 3)


def test_a_batch_that_lacks_a_task_is_not_committed() -> None:
    with pytest.raises(InvalidArgumentError, match="1 of 2 tasks left no commit message"):
        _commit_writer().commit([_message(0), None], 3)
    with pytest.raises(InvalidArgumentError, match="no commit message"):
        _commit_writer().commit([], 3)


def test_messages_are_of_the_batch_that_is_committed() -> None:
    with pytest.raises(InvalidArgumentError, match="tasks wrote for batch 3, the commit is of batch 4"):
        _commit_writer().commit([_message(0)], 4)
    with pytest.raises(InvalidArgumentError, match="partition 1 wrote for application"):
        _commit_writer().commit([_message(0), _message(1, batch=2)], 3)


def test_messages_for_several_logs_are_of_the_batch_that_is_committed() -> None:
    """All are looked at before the first log is written to. Nobody listens, so a commit would fail in another way."""
    options = {name: value for name, value in OPTIONS.items() if name != "log"} | {"logColumn": "log"}
    schema = StructType([*SCHEMA.fields, StructField("log", StringType())])
    writer = BookKeeperDataSource(options).streamWriter(schema, False)

    def routed(**messages: TaskMessage) -> WriterCommitMessage:
        return RoutedMessage({name: one.message for name, one in messages.items()})

    with pytest.raises(InvalidArgumentError, match="tasks wrote for batch 3, the commit is of batch 4"):
        writer.commit([routed(a=_message(0))], 4)
    with pytest.raises(InvalidArgumentError, match="tasks wrote for batch 2, the commit is of batch 3"):
        writer.commit([routed(a=_message(0)), routed(b=_message(1, batch=2))], 3)
    with pytest.raises(InvalidArgumentError, match="partition 1 wrote for application"):
        writer.commit([routed(a=_message(0), b=_message(0)), routed(b=_message(1, batch=2))], 3)


def test_complete_mode_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r'use outputMode\("append"\), or foreachBatch'):
        BookKeeperDataSource(dict(OPTIONS)).streamWriter(SCHEMA, True)


def test_a_stream_needs_no_version() -> None:
    _commit_writer(txnAppId="daily")
    with pytest.raises(InvalidArgumentError, match="option txnVersion is for batch writes only"):
        _commit_writer(txnAppId="daily", txnVersion="1")
