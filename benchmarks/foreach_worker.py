"""The query of the benchmark ``foreach_batches``: ``python foreach_worker.py URI LOG DIRECTORY TASKS BATCHES``.

Run as a script with the ``bk_spark`` on PYTHONPATH: of this commit, or of another one to compare with. It prints one
JSON object: the duration of each batch's write, and the number of ZooKeeper requests for all of them.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Final

from pyspark.sql import DataFrame, SparkSession

#: Uncounted batches: the first ones start processes and compile code.
WARM_UP: Final = 5


def main() -> None:
    uri, log, directory, tasks, batches = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    took_s: list[float] = []
    received: list[int] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        before = time.monotonic()
        (
            frame.selectExpr("cast(value as string) as value")
            .write.format("bookkeeper")
            .mode("append")
            .option("metadataServiceUri", uri)
            .option("log", log)
            .option("entryFormat", "raw")
            .option("ensembleSize", "1")
            .option("writeQuorumSize", "1")
            .option("ackQuorumSize", "1")
            .option("txnAppId", "copy")
            .option("txnVersion", str(batch_id))
            .save()
        )
        took_s.append(time.monotonic() - before)
        received.append(requests(uri))

    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 100)
        .option("numPartitions", int(tasks))
        .load()
    )
    query = source.writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint").start()
    while len(took_s) < WARM_UP + int(batches):
        if query.awaitTermination(1):
            break
    query.stop()
    spark.stop()
    print(json.dumps({"took_s": took_s[WARM_UP:], "requests": received[-1] - received[WARM_UP - 1]}), flush=True)


def requests(uri: str) -> int:
    """Return the number of packets ZooKeeper has received."""
    host, port = uri.partition("://")[2].partition("/")[0].split(";")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"srvr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    return int(next(line for line in text.splitlines() if line.startswith("Received:")).split()[1])


if __name__ == "__main__":
    main()
