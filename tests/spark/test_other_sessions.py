"""Two Spark sessions: what one wrote the other reads; tasks that fail once; data over unix domain sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality

from bk_spark.log.store import LogStore
from tests.spark.session_script import ROWS, fingerprint, rows_of
from tests.support.connector import Connector
from tests.support.logs import listed_ledgers, registered_ledgers

#: The first test starts a Spark session, and waits for another one.
pytestmark = pytest.mark.timeout(900)

SECRET = "correct-horse-battery"
_REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def parents_log(connector: Connector) -> str:
    """A raw log that this session writes, in two appends."""
    log = f"sessions-parent-{uuid.uuid4().hex[:8]}"
    for start in (0, 3000):
        frame = connector.spark.sql(f"select concat('é ', id) value from range({start}, {start + 3000}, 1, 3)")
        connector.write(frame, log, password=SECRET, digestType="HMAC")
    return log


@pytest.fixture(scope="module")
def answer(connector: Connector, parents_log: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the other session found, and the names of its logs, which are new if tests are run again."""
    names = {name: f"sessions-{name.replace('_', '-')}-{uuid.uuid4().hex[:8]}" for name in ("raw_log", "arrow_log")}
    arrow_log = f"{parents_log}-arrow"
    connector.write(connector.spark.range(1000), arrow_log, entryFormat="arrow")
    given = {
        "directory": str(tmp_path_factory.mktemp("other-session")),
        "uri": connector.metadata_service_uri,
        "parents_log": parents_log,
        "parents_arrow_log": arrow_log,
        "password": SECRET,
        **names,
    }
    path = os.pathsep.join([str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.session_script", json.dumps(given)],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return names | json.loads(done.stdout.splitlines()[-1])


def test_a_new_session_reads_what_this_one_wrote(
    connector: Connector, parents_log: str, answer: dict[str, Any]
) -> None:
    frame = connector.read(parents_log, password=SECRET)
    assert frame.count() == 6000
    assert answer["fingerprint"] == fingerprint(frame)
    assert answer["arrow_sum"] == sum(range(1000))


@pytest.mark.parametrize("which", ["raw_log", "arrow_log"])
def test_tasks_that_failed_once_wrote_each_row_once(
    connector: Connector, answer: dict[str, Any], logs: LogStore, which: str
) -> None:
    log = answer[which]
    assert sum(segment.rows for segment in logs.open_log(log).snapshot().segments()) == ROWS
    assert_df_equality(connector.read(log, "value string"), rows_of(connector.spark), ignore_nullable=True)
    # Each task had written to a ledger when it failed, and wrote again to another.
    listed = listed_ledgers(logs.open_log(log))
    assert len(listed) == 2
    assert listed < registered_ledgers(logs.open_log(log)).keys()


def test_unix_domain_sockets(answer: dict[str, Any]) -> None:
    assert answer["unix_sockets"]
