"""``format("bookkeeper")``: what Spark finds and asks for readers and writers."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from bk_spark.datasource.batch_reader import BatchReader, read_schema
from bk_spark.datasource.batch_writer import BatchWriter
from bk_spark.datasource.options import parse_options
from bk_spark.datasource.plain_errors import plain_errors


class BookKeeperDataSource(DataSource):
    """Logs and ledgers of Apache BookKeeper as DataFrames.

    Options are those of :data:`bk_spark.datasource.options.OPTIONS`. The constructor touches no network:
    Spark makes these objects often and in several processes.

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

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    @plain_errors
    def schema(self) -> StructType:
        return read_schema(parse_options(self.options, writing=False))

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_options(self.options, writing=False), schema)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(parse_options(self.options, writing=True), schema, overwrite)
