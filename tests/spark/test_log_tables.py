"""What Spark writes, programs without Spark scan; what they write, Spark reads."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import bk_spark
from bookie_server.local import LocalCluster
from tests.support.connector import Connector

pytestmark = pytest.mark.spark

METADATA = ("log", "offset", "ledgerId", "entryId", "timestamp")
ROWS = """
    id, id % 2 = 0 AS even, CAST(id % 100 AS TINYINT) AS b, CAST(id AS SMALLINT) AS s, CAST(id AS INT) AS i,
    CAST(id / 3 AS FLOAT) AS f, id / 7 AS d, CAST(id AS DECIMAL(20, 3)) AS p,
    concat('row ', id) AS text, CAST(concat('b', id) AS BINARY) AS bytes,
    date_add(DATE '2026-01-31', CAST(id AS INT)) AS day, TIMESTAMP '2026-01-31 12:00:00.123456 UTC' AS t,
    TIMESTAMP_NTZ '2026-01-31 12:00:00.123456' AS n, INTERVAL '1 02:03:04' DAY TO SECOND AS span,
    IF(id % 3 = 0, NULL, array(id, NULL)) AS l, map('k', id) AS m, named_struct('a', id, 'b', array('x')) AS st,
    CAST(NULL AS STRING) AS nothing
"""


def test_rows_are_those_of_spark(spark: SparkSession, connector: Connector, cluster: LocalCluster, log: str) -> None:
    df = spark.sql(f"SELECT {ROWS} FROM range(0, 1000, 1, 3)")
    connector.write(df, log=log, entryFormat="arrow", entryBytes="16k")
    with bk_spark.connect(cluster.metadata_service_uri) as bk:
        scan = bk.log(log).scan()
        assert scan.to_arrow().to_pylist() == df.toArrow().to_pylist()
        read = connector.read(log=log)
        assert scan.schema.names == read.columns
        # Written again without Spark, to a log made without Spark.
        copy = bk.create_log(f"{log}-copy", schema=scan)
        copy.write(scan, compression="zstd", txn_app_id="copy", txn_version=1)
        again = connector.read(log=copy.name)
        assert again.schema == read.schema
        assert again.orderBy("id").collect() == df.orderBy("id").collect()
        # With the columns that say where rows come from.
        scanned = bk.log(log).scan(["id"], include_metadata=True).to_arrow().to_pylist()
    told = connector.read(log=log, includeMetadata="true").select("id", *METADATA).toArrow().to_pylist()
    assert scanned == told


def test_raw_rows_are_those_of_spark(
    connector: Connector, cluster: LocalCluster, spark: SparkSession, log: str
) -> None:
    connector.write(spark.range(0, 500, 1, 2).selectExpr("concat('row ', id) AS value"), log=log)
    with bk_spark.connect(cluster.metadata_service_uri) as bk:
        bk.log(log).write(pa.table({"value": ["more"]}))
        scan = bk.log(log).scan()
        read = connector.read(log=log).orderBy("offset").toArrow()
        assert scan.to_arrow().to_pylist() == read.to_pylist()
        assert scan.schema.names == read.schema.names
