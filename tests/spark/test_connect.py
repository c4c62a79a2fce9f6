"""A Spark Connect server, and a client of it in a process without a JVM: batches, streams, foreachBatch."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.environments import REPOSITORY, environment_variables
from tests.support.spark_servers import connect_server

#: Starts a JVM and the first processes of each kind.
pytestmark = [pytest.mark.timeout(900), pytest.mark.turns(3, together=True)]

_NUMBERS = list(range(700))


@pytest.fixture(scope="module")
def answer(metadata_service_uri: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client found."""
    directory = tmp_path_factory.mktemp("connect")
    with connect_server(directory) as remote:
        given = {"remote": remote, "uri": metadata_service_uri, "directory": str(directory), "log": directory.name}
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_script", json.dumps(given)],
            cwd=REPOSITORY,
            env=environment_variables(),
            capture_output=True,
            text=True,
            timeout=700,
        )
    assert done.returncode == 0, done.stderr[-5000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_batches_take_effect_once(answer: dict[str, Any]) -> None:
    assert answer["rows"]["numbers"] == _NUMBERS
    assert answer["view"] == 500


@pytest.mark.parametrize("name", ["sink", "batches"])
def test_s1_a_stream_writes_each_row_once_though_a_batch_is_repeated(answer: dict[str, Any], name: str) -> None:
    assert answer["rows"][name] == _NUMBERS
    assert answer["repeated"] == [1, 1]


def test_errors_reach_the_client(answer: dict[str, Any]) -> None:
    assert "there is no log" in answer["error"]
    assert "Spark Connect has no accumulators" in answer["error of counts"]
