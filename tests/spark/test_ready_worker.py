"""The program that Spark's sessions of tests start as Python is what Python is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environments import REPOSITORY
from tests.support.process_tree import command_of, descendants
from tests.support.processes import wait_until_ended
from tests.support.ready_worker import make_python

_DAEMON = "pyspark.daemon"


@pytest.fixture
def python(tmp_path: Path) -> str:
    return make_python(tmp_path)


def _daemons() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if _DAEMON in command_of(pid)}


@pytest.fixture
def daemon(python: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One of Spark's daemons that has told its port: what was started, and the process that is forked for it."""
    before = _daemons()
    with subprocess.Popen(
        [python, "-m", _DAEMON, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "none"},
    ) as started:
        assert started.stdout is not None
        assert 0 < int.from_bytes(started.stdout.read(4)) < 1 << 16
        (forked,) = _daemons() - before
        yield started, forked
        started.kill()
    assert wait_until_ended(forked, 60_000)


def test_other_programs_run_in_this_python(python: str) -> None:
    done = subprocess.run([python, "-c", "import sys; print(sys.prefix); sys.exit(3)"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (3, sys.prefix)


def test_output_and_status_are_those_of_the_module(python: str) -> None:
    done = subprocess.run([python, "-m", "pyspark.none"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "No module named pyspark.none" in done.stderr


def test_it_ends_when_its_input_ends(daemon: tuple[subprocess.Popen[bytes], int]) -> None:
    started, forked = daemon
    assert started.stdin is not None
    started.stdin.close()
    started.wait(60)
    assert wait_until_ended(forked, 60_000)


def test_spark_sees_that_it_was_killed(daemon: tuple[subprocess.Popen[bytes], int]) -> None:
    started, forked = daemon
    os.kill(forked, signal.SIGKILL)
    assert started.wait(60) == 128 + signal.SIGKILL


def test_it_ends_when_spark_ends_it(daemon: tuple[subprocess.Popen[bytes], int]) -> None:
    started, forked = daemon
    started.terminate()
    assert wait_until_ended(forked, 60_000)


def test_a_test_process_that_is_killed_leaves_no_directory(tmp_path: Path) -> None:
    """The whole group is killed at once, as by ``timeout``: nobody is left to remove anything."""
    (tmp_path / "tmp").mkdir()
    script = f"""
import subprocess, sys, pathlib
from tests.support.ready_worker import make_python
python = make_python(pathlib.Path({str(tmp_path / "bin")!r}))
subprocess.run([python, "-m", "pyspark.none"], stderr=subprocess.DEVNULL)
print("used", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"used\n"
        group = descendants(killed.pid)
        assert len(group) >= 1
        os.killpg(killed.pid, signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
    assert all(wait_until_ended(pid, 60_000) for pid in group)
    assert list((tmp_path / "tmp").iterdir()) == []
