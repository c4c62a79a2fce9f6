"""A streaming query to be killed. Run as a script by ``crash_duplicates``.

Writes numbers from Spark's ``rate-micro-batch`` source to our log or a Kafka topic. Prints ``running`` after its first
batch, and ends after batch ``batches``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.spark_session import session
from benchmarks.stream_peers import BookKeeper, Kafka, Peer, last_batch, rate, wait_until

ROWS_PER_BATCH = 2_000


def peer_of(kind: str, address: str) -> Peer:
    return Kafka(address) if kind == Kafka.name else BookKeeper(address)


def main() -> None:
    given = json.loads(sys.argv[1])
    with session(Path(given["directory"]), kafka=given["kind"] == Kafka.name) as spark:
        rows = rate(spark, ROWS_PER_BATCH, tasks=2)
        writer = peer_of(given["kind"], given["address"]).write(rows, given["log"])
        query = writer.option("checkpointLocation", given["checkpoint"]).start()
        wait_until(lambda: last_batch(query) >= 0, query)
        print("running", flush=True)
        wait_until(lambda: last_batch(query) >= given["batches"], query)
        query.stop()


if __name__ == "__main__":
    main()
