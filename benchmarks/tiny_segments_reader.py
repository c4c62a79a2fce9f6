"""The measurements of ``tiny_segments``, in a separate process, so that PYTHONPATH may select another checkout.

Run by its path. Prints one JSON object. It may only use what both checkouts have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from bk_spark.datasource.batch.planner import batch_splits
from bk_spark.datasource.entries.schemas import RAW_SCHEMA
from bk_spark.datasource.entries.split_rows import read_split
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pushdown import Conditions
from bk_spark.datasource.stream import planner as planners

#: The name that checkouts of release 0.1.0 do not have.
_Planner: Callable[..., Any] = getattr(planners, "LogStreamPlanner", None) or planners.StreamPlanner

#: Longer than a planner's cached lists are valid.
_IDLE_S = 1.1


def read(uri: str, log: str) -> dict[str, Any]:
    """Read one task after the other, without Spark."""
    options = parse_options({"metadataServiceUri": uri, "log": log}, writing=False)
    began = time.perf_counter()
    splits = batch_splits(options, RAW_SCHEMA, Conditions())
    planned = time.perf_counter()
    rows, last = 0, -1
    for split in splits:
        for batch in read_split(options, RAW_SCHEMA, split):
            offsets = batch.column("offset").to_numpy()
            assert int(offsets[0]) == last + 1
            assert len(offsets) < 2 or bool((offsets[1:] - offsets[:-1] == 1).all())
            last = int(offsets[-1])
            rows += batch.num_rows
    ended = time.perf_counter()
    return {"rows": rows, "splits": len(splits), "plan_s": planned - began, "read_s": ended - planned}


def spark(uri: str, log: str, warm_up: str) -> dict[str, Any]:
    """Read a batch with Spark on two cores, warm."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": False,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    with SparkSession.builder.master("local[2]").config(map=settings).getOrCreate() as session:
        session.sparkContext.setLogLevel("ERROR")

        def seconds(name: str) -> float:
            began = time.perf_counter()
            reader = session.read.format("bookkeeper").option("metadataServiceUri", uri).option("log", name)
            # One task per core, so that the warm-up starts all of Spark's workers.
            frame = reader.option("minPartitions", "2").load()
            frame.write.format("noop").mode("overwrite").save()
            return time.perf_counter() - began

        seconds(warm_up)
        seconds(warm_up)
        return {"read_s": seconds(log)}


def idle(uri: str, pattern: str) -> dict[str, Any]:
    """Measure the start of a query over logs without writers, its ``latestOffset``, each after a pause, and the
    planning of a batch over the same logs."""
    options = parse_options({"metadataServiceUri": uri, "logPattern": pattern}, writing=False, streaming=True)
    began = time.perf_counter()
    planner = _Planner(options, RAW_SCHEMA)
    offset = planner.initial()
    first_s = time.perf_counter() - began
    times = []
    for _ in range(5):
        time.sleep(_IDLE_S)
        began = time.perf_counter()
        planner.next(offset, limited=True)
        times.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    batch = parse_options({"metadataServiceUri": uri, "logPattern": pattern}, writing=False)
    assert batch_splits(batch, RAW_SCHEMA, Conditions())
    batch_s = time.perf_counter() - began
    return {"logs": len(offset.positions), "first_s": first_s, "latest_ms": times, "batch_s": batch_s}


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    works: dict[str, Callable[..., dict[str, Any]]] = {"read": read, "spark": spark, "idle": idle}
    print(json.dumps(works[what](*arguments)), flush=True)
