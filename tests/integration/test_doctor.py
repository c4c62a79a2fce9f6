"""``bkctl doctor``: each check is made to fail by what it is there for, and says what to do."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import uuid
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess
from tests.support.clocks import DAY_MS, time_of_day
from tests.support.programs import passing_python, program
from tests.support.small_disk import small_disk

MACHINE = ["java", "pyspark", "workers' python", "disk space", "open files"]
CLUSTER = ["zookeeper", "clock", "bookies", "bookies reached", "bookies' disks"]


@dataclass
class Found:
    status: int
    by_check: dict[str, dict[str, Any]]

    def problem(self, check: str) -> str:
        """What is wrong and what to do; the doctor's exit status says it, too."""
        assert self.status == 3
        return self.told(check, "problem")

    def told(self, check: str, status: str) -> str:
        found = self.by_check[check]
        assert found["status"] == status, found
        assert found["remedy"]
        return f"{found['seen']}: {found['remedy']}"


Doctor = Callable[..., Found]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs the doctor somewhere else than in the repository. The Python of the workers is one that passes at once."""
    quick = passing_python(tmp_path)

    def run(*arguments: str, uri: str | None = None, **environment: str) -> Found:
        common = [] if uri is None else ["--metadata-service-uri", uri]
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.delenv("BK_METADATA_SERVICE_URI", raising=False)
            for name, value in {"PYSPARK_PYTHON": str(quick), **environment}.items():
                patch.setenv(name, value)
            status = main([*common, "doctor", "--json", *arguments])
        printed, error = capsys.readouterr()
        assert error == ""
        return Found(status, {one["check"]: one for one in json.loads(printed)})

    return run


@pytest.fixture
def doctor_process(tmp_path: Path) -> Doctor:
    """Runs the doctor as a process of its own."""

    def run(prepare: Callable[[], None] | None = None, python: str | Path = sys.executable) -> Found:
        environment = {**os.environ, "PYSPARK_PYTHON": str(python)}
        environment.pop("BK_METADATA_SERVICE_URI", None)
        command = [sys.executable, "-m", "bk_spark.bkctl", "doctor", "--json"]
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, preexec_fn=prepare
        )
        assert result.stderr == ""
        return Found(result.returncode, {one["check"]: one for one in json.loads(result.stdout)})

    return run


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A virtual environment without any package."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python3")


def test_a_healthy_machine_and_cluster(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "not-there-yet"))
    root = f"/doctor-{uuid.uuid4().hex}"
    assert main(["--metadata-service-uri", cluster.metadata_service_uri, "--log-root", root, "doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[10:25].strip() for line in lines] == MACHINE + CLUSTER
    # A machine of tests may be slow and its disk nearly full: that is told, and is none of these.
    passed = ("workers' python", "disk space", "bookies' disks")
    assert all(line.startswith("ok  ") or line[10:25].strip() in passed for line in lines), lines


def test_without_a_cluster_the_machine_is_looked_at(doctor_process: Doctor) -> None:
    found = doctor_process()
    assert list(found.by_check) == [*MACHINE, "zookeeper"]
    assert "--metadata-service-uri" in found.told("zookeeper", "warning")
    assert found.status == 0


# --- the machine ---


def test_no_java(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = doctor(PATH=str(tmp_path / "empty"), JAVA_HOME="").problem("java")
    assert told.startswith("JAVA_HOME is not set, and no java is on PATH: install Java 17 or newer")
    told = doctor(JAVA_HOME=str(tmp_path / "empty")).problem("java")
    assert "empty, where no bin/java is: correct JAVA_HOME, or unset it" in told


@pytest.mark.parametrize(
    ("version", "major"), [('openjdk version "11.0.22" 2024-01-16', 11), ('java version "1.8.0_401"', 8)]
)
def test_a_java_that_is_too_old(doctor: Doctor, tmp_path: Path, version: str, major: int) -> None:
    java = program(tmp_path / "old" / "bin" / "java", f"echo '{version}' >&2")
    for told in (
        doctor(JAVA_HOME=str(java.parents[1])).problem("java"),
        doctor(JAVA_HOME="", PATH=f"{java.parent}:{os.environ['PATH']}").problem("java"),
    ):
        assert f"is Java {major}: install Java 17 or newer" in told


def test_an_unfit_pyspark(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "pyspark-3.5.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.9\n")
    monkeypatch.syspath_prepend(info.parent)
    told = doctor().problem("pyspark")
    assert told.startswith("PySpark 3.5.9 is too old: the data source needs PySpark 4.0 to ")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 9.0.0\n")
    importlib.invalidate_caches()
    assert "newer than all tested versions" in doctor().told("pyspark", "warning")


def test_another_spark_in_spark_home(doctor: Doctor, tmp_path: Path) -> None:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    assert "where no Spark is: unset SPARK_HOME" in doctor(SPARK_HOME=str(jars.parent)).problem("pyspark")
    (jars / "spark-core_2.13-4.0.1.jar").touch()
    told = doctor(SPARK_HOME=str(jars.parent)).problem("pyspark")
    assert "has Spark 4.0.1, this Python PySpark" in told
    assert "unset SPARK_HOME, or pip install pyspark==4.0.1" in told


def test_workers_whose_python_lacks_the_package(doctor: Doctor, bare_python: str) -> None:
    for found in (doctor(PYSPARK_PYTHON=bare_python), doctor("--python", bare_python)):
        told = found.problem("workers' python")
        assert "cannot import bk_spark (ModuleNotFoundError" in told
        assert f"set PYSPARK_PYTHON={sys.executable}, or activate the virtual environment" in told


def test_a_virtual_environment_that_is_not_activated(doctor: Doctor, bare_python: str) -> None:
    """Spark's workers are then run by whatever python3 is on PATH."""
    path = f"{Path(bare_python).parent}:/usr/bin:/bin"
    told = doctor(PYSPARK_PYTHON="", PATH=path).problem("workers' python")
    assert f"{bare_python} (PYSPARK_PYTHON not set) cannot import bk_spark" in told
    assert f"set PYSPARK_PYTHON={sys.executable}" in told


def test_workers_whose_python_is_none_or_another(doctor: Doctor, tmp_path: Path) -> None:
    told = doctor(PYSPARK_PYTHON="no-such-python").problem("workers' python")
    assert told.startswith("no-such-python (PYSPARK_PYTHON) is not a program: set PYSPARK_PYTHON=")
    other = program(tmp_path / "python", """echo '{"python": "3.9.1", "errors": {}, "listed": true}'""")
    told = doctor(PYSPARK_PYTHON=str(other)).problem("workers' python")
    assert "is Python 3.9.1, the driver's is" in told
    broken = program(tmp_path / "broken", "echo no such library >&2; exit 127")
    assert "did not run the test (no such library)" in doctor(PYSPARK_PYTHON=str(broken)).problem("workers' python")
    silent = program(tmp_path / "silent", "exit 3")
    told = doctor(PYSPARK_PYTHON=str(silent)).problem("workers' python")
    assert "did not run the test (it ended with status 3 and no error text)" in told


def test_workers_that_start_too_slowly_for_spark(doctor: Doctor, tmp_path: Path) -> None:
    slow = program(tmp_path / "python", f'sleep 4; exec {sys.executable} "$@"')
    told = doctor(PYSPARK_PYTHON=str(slow)).told("workers' python", "warning")
    assert "s to start, and Spark waits 10 s for a worker" in told


def test_a_disk_without_room(doctor: Doctor, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 8) as disk:
        told = doctor(SPARK_LOCAL_DIRS=f"{disk.path}/spark").problem("disk space")
    assert f"free in {disk.path}/spark, for Spark's own files: make room, or let SPARK_LOCAL_DIRS name" in told


def test_few_open_files(doctor_process: Doctor, tmp_path: Path) -> None:
    quick = passing_python(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = doctor_process(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard)), quick)
    assert "at most 200 in one process: ulimit -n " in found.problem("open files")
    found = doctor_process(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)), quick)
    assert "raise nofile in /etc/security/limits.conf before starting Spark" in found.problem("open files")


# --- the cluster ---


def test_zookeeper_is_down(doctor: Doctor) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{closed.getsockname()[1]}"
        found = doctor(uri=f"zk://{server}/ledgers")
    assert found.problem("zookeeper").startswith(f"nobody listens at {server}: start ZooKeeper, or correct the address")
    assert list(found.by_check) == [*MACHINE, "zookeeper"]


def test_one_zookeeper_of_several_is_down(doctor: Doctor, cluster: LocalCluster) -> None:
    server = cluster.zookeepers[0].id
    told = doctor(uri=f"zk://127.0.0.1:1,{server}/ledgers").told("zookeeper", "warning")
    assert told == "nobody listens at 127.0.0.1:1: start these servers"


def test_a_path_without_cluster_and_no_uri_at_all(doctor: Doctor, cluster: LocalCluster) -> None:
    told = doctor(uri=f"zk://{cluster.zookeepers[0].id}/nowhere").problem("zookeeper")
    assert "/nowhere/LAYOUT does not exist: check the path in metadataServiceUri" in told
    assert "is not of the form zk+hierarchical://" in doctor(uri="nonsense").problem("zookeeper")


def test_no_bookies(doctor: Doctor, zookeeper: ZooKeeper, ledgers_root: str) -> None:
    found = doctor(uri=f"zk://{zookeeper.servers}{ledgers_root}")
    assert found.problem("bookies").startswith("no bookie is registered: start bookies, or correct the path")


def test_a_clock_that_is_days_off(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(passing_python(tmp_path)))
    with time_of_day(lambda: 8 * DAY_MS):
        assert main(["--metadata-service-uri", cluster.metadata_service_uri, "doctor"]) == 3
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line[10:15] == "clock"]
    assert line.startswith("problem")
    assert "8 days ahead of ZooKeeper's, so it may not delete what is old: set the clock that is wrong (NTP)" in line


def test_few_bookies_read_only_ones_and_one_that_hangs(
    doctor: Doctor, zookeeper: ZooKeeper, ledgers_root: str, tmp_path: Path
) -> None:
    uri = f"zk+hierarchical://{zookeeper.servers}{ledgers_root}"
    # One that is suspended must not lose its session before the doctor has looked, however busy the machine is.
    first, second = (BookieProcess(tmp_path / name, uri, zkTimeout="30000") for name in ("first", "second"))
    try:
        first.start()
        second.start()
        told = doctor(uri=uri).told("bookies", "warning")
        assert told.startswith("2 take writes: start more, or write with ensembleSize 2 and quorums no larger")
        first.stop()
        first.settings["forceReadOnlyBookie"] = "true"
        first.start()
        second.signal(signal.SIGSTOP)
        found = doctor(uri=uri)
    finally:
        second.signal(signal.SIGCONT)
        first.end()
        second.end()
    told = found.problem("bookies")
    assert told.startswith(f"1 take writes, 1 are read-only ({first.id}): free disk space on them; their logs say why")
    told = found.problem("bookies reached")
    assert told.startswith(f"1 of 2 do not answer from here: {second.id} (")
    assert "check that they run, and that this machine can reach the address they advertise" in told
