"""Environments with other releases of Spark: all that is installed here, but another PySpark.

PySpark is published as an archive of 450 MB, mostly jars. pip would first make a wheel of it, which takes minutes, so
the archive is unpacked here, as its ``setup.py`` lays it out. Environments stay beside the packages of the one that
runs the tests: each release is downloaded once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from pyspark.sql import types

from bk_spark.datasource.pyspark_api import HAS_FILTERS, HAS_LIMITS
from bk_spark.datasource.spark_versions import OLDEST, minor_version
from tests.support.environments import REPOSITORY, environment_variables

#: All that the data source supports.
RELEASES: Final = ("4.0", "4.1", "4.2", "4.3")
#: What ``make nightly`` and ``make sparks`` run with each: all but what is about the package, and what calls this.
OF_EVERY_RELEASE: Final = (
    "tests/spark",
    "--ignore=tests/spark/test_notebooks.py",
    "--ignore=tests/spark/test_docs_tutorial.py",
    "--ignore=tests/spark/test_oldest_spark.py",
    "--ignore=tests/spark/test_standalone.py",
)

_RELEASE: Final = minor_version(version("pyspark")) or OLDEST
#: Whether all actions on a DataFrame share a plan of the read. Spark 4.0 plans each anew.
KEEPS_PLANS: Final = _RELEASE >= (4, 1)

_DOWNLOAD_TIMEOUT_S: Final = 900
_STOP_TIMEOUT_S: Final = 60
_KEPT: Final = Path(sys.prefix) / "sparks"
#: Written last.
_COMPLETE: Final = ".complete"
#: Folders of the archive that PySpark has elsewhere when it is installed.
_MOVED: Final = {
    "deps/jars": "jars",
    "deps/bin": "bin",
    "deps/sbin": "sbin",
    "deps/data": "data",
    "deps/licenses": "licenses",
    "deps/examples": "examples",
    "lib": "python/lib",
}
#: Spark 4.0 leaves sockets of its driver to the collector of garbage, which says so.
_OF_SPARK: Final = ("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning")


needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason="Spark tells no limits of micro-batches before 4.2")
needs_filters = pytest.mark.skipif(not HAS_FILTERS, reason="Spark passes no filters before 4.1")
needs_unix_sockets = pytest.mark.skipif(_RELEASE < (4, 1), reason="Spark talks to workers over TCP alone before 4.1")
needs_times = pytest.mark.skipif(not hasattr(types, "TimeType"), reason="Spark has no times of day before 4.1")


class NotAvailableError(Exception):
    """This PySpark cannot be downloaded."""


def python_with_spark(release: str) -> str:
    """Return a Python that has the newest PySpark of ``release``, as ``4.0``. Raises NotAvailableError."""
    if version("pyspark").startswith(f"{release}."):
        return sys.executable
    environment = _KEPT / release
    _KEPT.mkdir(exist_ok=True)
    with (_KEPT / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / _COMPLETE).exists():
            shutil.rmtree(environment, ignore_errors=True)
            _make(environment, release)
            (environment / _COMPLETE).touch()
    return str(environment / "bin" / "python")


def command_of_tests(release: str, *arguments: str) -> list[str]:
    """Return the command that runs tests with ``release``. Raises NotAvailableError."""
    return [python_with_spark(release), "-m", "pytest", "-q", "-p", "no:cacheprovider", *_OF_SPARK, *arguments]


def variables_of_tests() -> dict[str, str]:
    """Variables for that command, without those of the tests and the session of Spark that this process has."""
    kept = environment_variables()
    return {name: value for name, value in kept.items() if not name.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))}


def run_tests(release: str, *arguments: str, timeout_s: float) -> tuple[int, str]:
    """Run tests with ``release``, and return the exit code and the output. Ends all of it after ``timeout_s``.
    Raises NotAvailableError."""
    process = subprocess.Popen(
        command_of_tests(release, *arguments),
        cwd=REPOSITORY,
        env=variables_of_tests(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.communicate(timeout=_STOP_TIMEOUT_S)
        raise
    return process.returncode, output


def _make(environment: Path, release: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    (packages,) = environment.glob("lib/python3.*/site-packages")
    (ours,) = Path(sys.prefix).glob("lib/python3.*/site-packages")
    for package in ours.iterdir():
        if not package.name.startswith(("pyspark", "__pycache__")):
            (packages / package.name).symlink_to(package)
    with tempfile.TemporaryDirectory(dir=_KEPT) as directory:
        _unpack(_download(release, Path(directory)), Path(directory), packages)


def _download(release: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-cache-dir", "--no-binary", "pyspark", "--dest", str(directory), f"pyspark=={release}.*"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
    if done.returncode:
        raise NotAvailableError(f"pip cannot get PySpark {release}: {done.stderr.strip().splitlines()[-1:]}")
    (archive,) = directory.glob("*.tar.gz")
    return archive


def _unpack(archive: Path, directory: Path, packages: Path) -> None:
    with tarfile.open(archive) as content:
        content.extractall(directory, filter="data")
    source = directory / archive.name.removesuffix(".tar.gz")
    pyspark = packages / "pyspark"
    (source / "pyspark").rename(pyspark)
    for there, here in _MOVED.items():
        if (source / there).exists():
            (pyspark / here).parent.mkdir(exist_ok=True)
            (source / there).rename(pyspark / here)
    metadata = (source / "PKG-INFO").read_text()
    needed = re.search(r"^Requires-Dist: (py4j\S+)", metadata, re.MULTILINE)
    assert needed is not None
    assert Requirement(needed[1]).specifier.contains(version("py4j")), f"{source.name} needs {needed[1]}"
    information = packages / f"{source.name}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(metadata)
    for program in (*(pyspark / "bin").iterdir(), *(pyspark / "sbin").iterdir()):
        program.chmod(0o755)


if __name__ == "__main__":
    # A release, and what to run with it.
    _release, *_tests = sys.argv[1:]
    _command = command_of_tests(_release, *(_tests or OF_EVERY_RELEASE))
    os.execve(_command[0], _command, variables_of_tests())
