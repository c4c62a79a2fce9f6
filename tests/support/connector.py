"""Short forms of reads and writes with the connector, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tests.support.spark_inside import status_store


@dataclass(frozen=True, slots=True)
class Connector:
    """Spark with one cluster."""

    spark: SparkSession
    metadata_service_uri: str

    def write(self, frame: DataFrame, log: str, mode: str = "append", **options: Any) -> None:
        """Write a frame with only the column ``value`` as raw entries, if ``options`` do not say otherwise."""
        if frame.columns == ["value"]:
            options = {"entryFormat": "raw"} | options
        (
            frame.write.format("bookkeeper")
            .mode(mode)
            .options(metadataServiceUri=self.metadata_service_uri, log=log, **options)
            .save()
        )

    def read(self, log: str, schema: str | None = None, **options: Any) -> DataFrame:
        return self.reader(schema, log=log, **options).load()

    def read_ledger(self, ledger_id: int, schema: str | None = None, **options: Any) -> DataFrame:
        return self.reader(schema, ledgerId=ledger_id, **options).load()

    def reader(self, schema: str | None = None, **options: Any) -> DataFrameReader:
        reader = self.spark.read.format("bookkeeper").options(metadataServiceUri=self.metadata_service_uri, **options)
        return reader if schema is None else reader.schema(schema)

    def plans(self) -> list[str]:
        """What Spark keeps (and shows in its UI) of every query of this session."""
        store = status_store(self.spark)
        queries = store.executionsList()
        return [
            "\n".join(
                [query.physicalPlanDescription(), query.details(), query.description(), str(query.modifiedConfigs())]
            )
            for query in (queries.apply(index) for index in range(queries.size()))
        ]

    @contextmanager
    def conf(self, **settings: str) -> Iterator[None]:
        """Set session settings temporarily; ``__`` stands for a dot."""
        conf = self.spark.conf
        before = {}
        for name, value in settings.items():
            key = name.replace("__", ".")
            before[key] = conf.get(key, None)
            conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    conf.unset(key)
                else:
                    conf.set(key, old)


def texts(count: int, partitions: int = 2, prefix: str = "row ") -> str:
    """SQL for ``count`` rows ``value``, in order over the partitions."""
    return f"select concat('{prefix}', id) as value from range(0, {count}, 1, {partitions})"
