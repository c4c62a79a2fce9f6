"""``bkctl log show --checkpoint`` on checkpoints that Spark itself wrote, in both of its layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bk_spark.bkctl import main
from bk_spark.datasource.pyspark_api import HAS_LIMITS
from bk_spark.log import EntryFormat, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum

_VERSION = "spark.sql.streaming.offsetLog.formatVersion"


_SINCE_4_2 = pytest.mark.skipif(not HAS_LIMITS, reason="Spark writes offsets of version 2 from 4.2 on")


@pytest.mark.parametrize("version", ["1", pytest.param("2", marks=_SINCE_4_2)])
def test_lag_of_a_query(
    spark: SparkSession,
    metadata_service_uri: str,
    logs: LogStore,
    log: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> None:
    settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, b"")
    logs.create_log(log, settings)
    bkctl = ["--metadata-service-uri", metadata_service_uri, "log"]

    def append(lines: str) -> None:
        path = tmp_path / "lines"
        path.write_text(lines)
        with path.open() as source:
            monkeypatch.setattr("sys.stdin", source)
            assert main([*bkctl, "append", log]) == 0

    def lag() -> dict[str, object]:
        capsys.readouterr()
        assert main([*bkctl, "show", log, "--json", "--checkpoint", str(tmp_path / "checkpoint")]) == 0
        shown = json.loads(capsys.readouterr().out)
        (source,) = shown["checkpoint"]["sources"]
        return {name: source[name] for name in ("read_to", "lag_entries", "state")}

    append("a\nb\nc\n")
    spark.conf.set(_VERSION, version)
    try:
        query = (
            spark.readStream.format("bookkeeper")
            .options(metadataServiceUri=metadata_service_uri, log=log, startingOffsets="earliest")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    finally:
        spark.conf.unset(_VERSION)
    assert (tmp_path / "checkpoint" / "offsets" / "0").read_text().startswith(f"v{version}\n")
    assert lag() == {"read_to": 3, "lag_entries": 0, "state": "at the end"}
    append("d\ne\n")
    assert lag() == {"read_to": 3, "lag_entries": 2, "state": "reading"}
