"""Jobs that save once and end at once: their logs are maintained all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from bk_spark.log import EntryFormat, LogSettings, LogStore
from bk_spark.log.formats.znodes import Policy
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum
from tests.support.connector import Connector
from tests.support.logs import commit_made_up

_REPOSITORY = Path(__file__).resolve().parents[2]
RAW = LogSettings.create(Quorum(3, 2, 2), DigestType.CRC32C, EntryFormat.RAW, b"")


@pytest.mark.timeout(900)
def test_a_job_that_saves_and_stops_maintains_its_log(connector: Connector, logs: LogStore, tmp_path: Path) -> None:
    """Its process ends right after ``save()`` and ``stop()``, and no other process writes the log."""
    log = logs.create_log(f"short-{uuid.uuid4().hex[:8]}", RAW, b"")
    commit_made_up(log, (5, 500), (5, 500))
    log.set_policy(Policy(retention_size_bytes=1))
    assert log.zookeeper.exists(log.paths.maintenance) is None
    path = os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    job = subprocess.run(
        [sys.executable, "-m", "tests.spark.short_job", str(tmp_path), connector.metadata_service_uri, log.name],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert job.returncode == 0, job.stderr[-5000:]
    snapshot = log.snapshot()
    assert snapshot.next_offset == 20
    assert snapshot.first_offset >= 10, "retention ran before the process ended"
    assert log.zookeeper.exists(log.paths.maintenance) is not None
