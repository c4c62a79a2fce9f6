"""The query that notebook 2 kills: copies log ``numbers`` to log ``copy``, up to its end.

Arguments: URI of the cluster, checkpoint directory, a directory for Spark's files. Prints ``batch <n>`` when batch n
is done.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from support import spark_session


def main(uri: str, checkpoint: str, directory: str) -> None:
    spark = spark_session(Path(directory))
    rows = (
        spark.readStream.format("bookkeeper")
        .options(metadataServiceUri=uri, log="numbers", startingOffsets="earliest")
        .options(maxEntriesPerTrigger=500, minPartitions=2)
        .load()
    )
    query = (
        rows.select("value")
        .writeStream.format("bookkeeper")
        .options(metadataServiceUri=uri, log="copy", entryFormat="raw", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    told = -1
    active = True
    while active:
        time.sleep(0.02)
        # Asked before the progress is: what ends in between is told in the last round.
        active = query.isActive
        for progress in query.recentProgress:
            if progress["batchId"] > told:
                told = progress["batchId"]
                print(f"batch {told}", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
