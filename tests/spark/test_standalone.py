"""A standalone cluster whose worker's own Python has no package: ``spark-submit --archives`` brings it, as
docs/deployment.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environments import REPOSITORY, make_environment
from tests.support.spark_servers import SPARK_HOME, standalone_cluster, variables

#: Packs 300 MB, and starts three JVMs.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.turns(5)]

_JOB = REPOSITORY / "tests" / "spark" / "standalone_job.py"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment with the package and without PySpark, packed."""
    directory = tmp_path_factory.mktemp("packed")
    environment = directory / "environment"
    make_environment(environment, wheel)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    for package in packages.iterdir():
        if package.is_symlink():
            # Files in place of the links of the tests.
            there = package.resolve()
            package.unlink()
            subprocess.run(["cp", "-rlL", str(there), str(package)], check=True, timeout=120)
    packed = directory / "bk-spark.tar.gz"
    command = [str(Path(sys.executable).parent / "venv-pack"), "-p", str(environment), "-o", str(packed)]
    subprocess.run([*command, "--compress-level", "1"], check=True, capture_output=True, timeout=600)
    return packed


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


def test_an_archive_brings_the_package_to_executors(
    metadata_service_uri: str, master: str, archive: Path, tmp_path: Path
) -> None:
    log = f"standalone-{uuid.uuid4().hex[:8]}"
    environment = variables(tmp_path, PYSPARK_DRIVER_PYTHON=sys.executable, PYSPARK_PYTHON="./environment/bin/python")
    done = subprocess.run(
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master",
            master,
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.driver.host=127.0.0.1",
            "--archives",
            f"{archive}#environment",
            str(_JOB),
            metadata_service_uri,
            log,
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["rows"], answer["differ"]) == (100_000, 0)
    assert f"{os.sep}environment{os.sep}" in answer["package"]
    assert str(REPOSITORY) not in answer["package"]
