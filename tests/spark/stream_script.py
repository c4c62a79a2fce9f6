"""A streaming query as a process of its own, which tests suspend and kill: run as a script.

Takes a JSON object as its argument. Prints ``{"batch": n}`` for the newest batch that is committed, and
``{"error": text}`` where the query fails, a line each; ends when batch ``last_batch`` is committed, or the query has
failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.servers import spark_session
from tests.support.streams import newest_batch, numbers, sink

_REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_S = 0.05


def start(
    directory: Path, uri: str, log: str, checkpoint: Path, rows: int, partitions: int, last_batch: int
) -> subprocess.Popen[str]:
    """Start the script. Its processes are below it; its errors go to ``driver.log`` in ``directory``."""
    directory.mkdir(parents=True)
    given = {
        "directory": str(directory),
        "uri": uri,
        "log": log,
        "checkpoint": str(checkpoint),
        "rows": rows,
        "partitions": partitions,
        "last_batch": last_batch,
    }
    with (directory / "driver.log").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_script", json.dumps(given)],
            cwd=_REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    spark = spark_session(Path(given["directory"]))
    frame = numbers(spark, given["rows"], given["partitions"]).selectExpr("cast(number as string) as value")
    query = sink(frame, given["uri"], given["log"], Path(given["checkpoint"]))
    told = -1
    while told < given["last_batch"]:
        failure = query.exception()
        if failure is not None:
            print(json.dumps({"error": str(failure)}), flush=True)
            break
        newest = newest_batch(query)
        if newest > told:
            told = newest
            print(json.dumps({"batch": told, "run": str(query.runId)}), flush=True)
        time.sleep(_POLL_S)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
