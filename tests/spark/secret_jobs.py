"""Jobs with passwords, and everything that Spark keeps and shows of them: event log, pages of its UI, its own files.
For ``session_script``, whose session has both switched on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_TIMEOUT_S: Final = 60
_QUERY_TIMEOUT_S: Final = 300
_ALONE: Final = {"ensembleSize": "1", "writeQuorumSize": "1", "ackQuorumSize": "1"}
_REST: Final = (
    "environment",
    "jobs",
    "stages?details=true",
    "executors",
    "sql?details=true&planDescription=true&length=1000",
)
_HTML: Final = ("environment", "jobs", "stages", "SQL", "StreamingQuery")


def settings(directory: Path) -> dict[str, str]:
    """Settings of a session that keeps an event log that can be read as it is, and serves the UI."""
    events = directory / "events"
    events.mkdir(parents=True)
    return {
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": events.as_uri(),
        "spark__eventLog__compress": "false",
        "spark__ui__enabled": "true",
        "spark__ui__port": "0",
    }


def run_jobs(spark: SparkSession, given: Mapping[str, Any], directory: Path) -> list[str]:
    """Write, read and stream with all kinds of secrets, right and wrong. Return the errors."""
    right = {"metadataServiceUri": given["uri"], "logRoot": given["log_root"], "clientConf": given["conf"]}
    right |= {"password": given["password"]}
    rows = spark.sql("select cast(id as string) value from range(100)").repartition(2)

    def write(**options: str) -> None:
        rows.write.format("bookkeeper").mode("append").options(**right | _ALONE | {"log": "events"} | options).save()

    def read(**options: str) -> int:
        return spark.read.format("bookkeeper").options(**right | {"log": "events"} | options).load().count()

    def stream(checkpoint: str, source: Mapping[str, str], sink: Mapping[str, str]) -> None:
        frame = spark.readStream.format("bookkeeper").options(**right | {"log": "events"} | source)
        query = (
            frame.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("bookkeeper")
            .options(**right | _ALONE | {"log": "copy"} | sink)
            .option("checkpointLocation", str(directory / "checkpoints" / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.explain(extended=True)
        # It raises the query's error.
        assert query.awaitTermination(_QUERY_TIMEOUT_S)

    write()
    stream("right", {}, {})
    assert read(log="copy") == 100
    failing: list[Callable[[], object]] = [
        lambda: write(clientConf=given["wrong_conf"]),
        lambda: read(password=given["wrong"]),
        lambda: stream("wrong", {}, {"password": given["wrong"]}),
    ]
    errors = []
    for fail in failing:
        try:
            fail()
        except PySparkException as error:
            errors.append(f"{error} {error!r}")
    assert len(errors) == len(failing), errors
    return errors


def keep_what_is_shown(spark: SparkSession, directory: Path) -> None:
    """Write the pages of the UI into ``directory``, and the files that Spark deletes at its end."""
    context = spark.sparkContext
    api, pages = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}", directory / "pages"
    pages.mkdir()
    addresses = [f"{api}/{path}" for path in _REST] + [f"{context.uiWebUrl}/{path}/" for path in _HTML]
    found = json.loads(_get(f"{api}/sql?details=false&length=1000"))
    addresses += [f"{context.uiWebUrl}/SQL/execution/?id={one['id']}" for one in found]
    for number, address in enumerate(addresses):
        (pages / f"{number}.txt").write_text(f"{address}\n{_get(address)}", encoding="utf-8")
    shutil.copytree(directory / "local", directory / "kept-local")


def _get(address: str) -> str:
    with urlopen(address, timeout=_TIMEOUT_S) as answer:
        return str(answer.read().decode("utf-8"))
