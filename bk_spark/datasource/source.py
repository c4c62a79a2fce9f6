"""``format("bookkeeper")``: the class that Spark asks for readers and writers.

Every Spark process imports this module, even those that only list data sources, and each process has one job.
Readers and writers are therefore imported where they are created: importing everything takes longer than starting
Python.
"""

from __future__ import annotations

# Must be first: later imports need names that older PySparks lack.
import bk_spark.datasource.fit_pyspark  # noqa: F401

# isort: split
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from bk_spark.datasource.plain_errors import plain_errors

if TYPE_CHECKING:
    from bk_spark.datasource.options.options import SourceOptions


class BookKeeperDataSource(DataSource):
    """Logs and ledgers of Apache BookKeeper, and topics of Apache Pulsar, as DataFrames.

    Options are listed in :data:`bk_spark.datasource.options.options.OPTIONS`. The constructor does not use the
    network: Spark makes these objects often and in several processes.

    Examples
    --------
    >>> uri = "zk://localhost:2181/ledgers"                                     # doctest: +SKIP
    >>> (df.write.format("bookkeeper").mode("append")                           # doctest: +SKIP
    ...    .option("metadataServiceUri", uri).option("log", "events").save())
    >>> (spark.read.format("bookkeeper")                                        # doctest: +SKIP
    ...    .option("metadataServiceUri", uri).option("log", "events").load())
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        #: True in the pickled copy that the planning process sends to the one that commits and aborts batches.
        self._for_commits = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_for_commits": True}

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "bookkeeper"

    @plain_errors
    def schema(self) -> StructType:
        """Return the schema of a read for which the user gives none. Logs and ledgers are looked up in ZooKeeper."""
        # Spark asks for the schema before it tells whether this is a batch or a stream.
        options = self._parsed(writing=False, streaming=None)
        if options.reads_topics:
            from bk_spark.datasource.pulsar.topic_schemas import topic_schema

            return topic_schema(options)
        from bk_spark.datasource.planning import read_schema

        return read_schema(options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch: of topics if the options name any, otherwise of logs or a ledger."""
        options = self._parsed(writing=False)
        if options.reads_topics:
            from bk_spark.datasource.pulsar.batch import TopicBatchReader

            return TopicBatchReader(options, schema)
        from bk_spark.datasource.batch.reader import batch_reader

        return batch_reader(options, schema)

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        """Return the reader of a streaming query, chosen as for :meth:`reader`."""
        options = self._parsed(writing=False, streaming=True)
        if options.reads_topics:
            from bk_spark.datasource.pulsar.stream import TopicStreamReader

            return TopicStreamReader(options, schema)
        from bk_spark.datasource.stream.reader import StreamReader

        return StreamReader(options, schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch: to the log that ``logColumn`` names in each row, if it is set, otherwise to
        one."""
        options = self._parsed(writing=True)
        if options.log_column is not None:
            from bk_spark.datasource.writing.routed import RoutedBatchWriter

            return RoutedBatchWriter(options, schema, overwrite)
        from bk_spark.datasource.batch.writer import BatchWriter

        return BatchWriter(options, schema, overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's)
        """Return the writer of a streaming query, chosen as for :meth:`writer`. Finds or makes the log, if it is
        one."""
        options = self._parsed(writing=True, streaming=True)
        if options.log_column is not None:
            from bk_spark.datasource.writing.routed import RoutedStreamWriter

            return RoutedStreamWriter(options, schema, overwrite)
        from bk_spark.datasource.stream.writer import StreamWriter

        writer = StreamWriter(options, schema, overwrite)
        if not self._for_commits:
            writer.prepare()
        return writer

    def _parsed(self, *, writing: bool, streaming: bool | None = False) -> SourceOptions:
        from bk_spark.datasource.options.parse import parse_options

        return parse_options(self.options, writing=writing, streaming=streaming)
