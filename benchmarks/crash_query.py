"""A streaming query that is made to be killed: run as a script by ``crash_duplicates``.

Numbers from Spark's ``rate-micro-batch`` source go into our log or a Kafka topic. Says ``running`` after its first
batch, and ends after batch ``batches``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.stream_peers import BookKeeper, Kafka, Peer, session

ROWS_PER_BATCH = 2_000


def peer_of(kind: str, address: str) -> Peer:
    return Kafka(address) if kind == Kafka.name else BookKeeper(address)


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = session(Path(given["directory"]), kafka=given["kind"] == Kafka.name)
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    rows = reader.option("numPartitions", 2).load().selectExpr("cast(cast(value as string) as binary) value")
    writer = peer_of(given["kind"], given["address"]).write(rows, given["log"])
    query = writer.option("checkpointLocation", given["checkpoint"]).start()
    told = False
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and not told:
            print("running", flush=True)
            told = True
        if progress is not None and progress["batchId"] >= given["batches"]:
            break
        time.sleep(0.02)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
