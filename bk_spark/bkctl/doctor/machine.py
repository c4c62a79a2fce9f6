"""Checks of ``bkctl doctor`` that need no cluster: Java, PySpark, the workers' Python, disk space, open files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bk_spark.bkctl.doctor.findings import Finding, ok, problem, warning
from bk_spark.datasource.spark_versions import NEWEST, RANGE, minor_version, unfit

OLDEST_JAVA: Final = 17
_GET_JAVA: Final = f"install Java {OLDEST_JAVA} or newer (on Debian or Ubuntu: apt-get install openjdk-17-jre-headless)"
#: Give up on a child process after this long.
_CHILD_TIMEOUT_S: Final = 60.0
#: Spark's time limit for starting a worker, and the time from which on to warn.
_SPARKS_START_S: Final = 10.0
_SLOW_START_S: Final = 4.0
_GIB: Final = 1024**3
_LITTLE_SPACE_BYTES: Final = 2 * _GIB
_NO_SPACE_BYTES: Final = 100 * 1024**2
_FEW_FILES: Final = 1024
_MANY_FILES: Final = 65_536

#: Run by the workers' Python, with Spark's own packages on its path, as Spark does.
_PROBE: Final = """
import json, pkgutil, sys
found = {"python": sys.version.split()[0], "prefix": sys.prefix, "errors": {}}
for name in ("bk_spark", "pyarrow", "numpy", "crc32c", "kazoo", "google.protobuf", "pyspark"):
    try:
        module = __import__(name)
        if name == "pyspark":
            found["pyspark"] = module.__version__
    except Exception as error:
        found["errors"][name] = "%s: %s" % (type(error).__name__, error)
found["listed"] = any(module.name == "pyspark_bookkeeper" for module in pkgutil.iter_modules())
if not found["errors"] and found["listed"]:
    try:
        from bk_spark.datasource import source
    except Exception as error:
        found["errors"]["the data source"] = "%s: %s" % (type(error).__name__, error)
    try:
        from importlib.metadata import version
        found["version"] = version("bk-spark")
    except Exception:
        found["version"] = None
print(json.dumps(found))
"""


def java(environment: Mapping[str, str]) -> Finding:
    """Check the Java that Spark starts: from ``JAVA_HOME`` if set, else from ``PATH``."""
    home = environment.get("JAVA_HOME")
    if home:
        program = os.path.join(home, "bin", "java")
        if not os.access(program, os.X_OK):
            return problem(
                "java", f"JAVA_HOME is {home}, where no bin/java is", f"correct JAVA_HOME, or unset it; {_GET_JAVA}"
            )
    else:
        on_path = shutil.which("java", path=environment.get("PATH"))
        if on_path is None:
            return problem("java", "JAVA_HOME is not set, and no java is on PATH", _GET_JAVA)
        program = on_path
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return problem("java", f"{program} cannot be run ({error})", _GET_JAVA)
    told = re.search(r'version "(\d+)(?:\.(\d+))?[^"]*"', answer.stderr + answer.stdout)
    if told is None:
        return problem("java", f"{program} does not print its version", _GET_JAVA)
    # Up to Java 8, versions began with "1.".
    major = int(told[2]) if told[1] == "1" and told[2] else int(told[1])
    if major < OLDEST_JAVA:
        return problem("java", f"{program} is Java {major}", f"{_GET_JAVA}, and let JAVA_HOME name it")
    return ok("java", f"Java {major} ({program})")


def pyspark(environment: Mapping[str, str]) -> Finding:
    """Check PySpark's version, and that Spark has the same version."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        told = unfit(None)
        assert told is not None
        return problem("pyspark", *told.split(": ", 1))
    told = unfit(version)
    if told is not None:
        return problem("pyspark", *told.split(": ", 1))
    home = environment.get("SPARK_HOME")
    if home:
        found = _version_of(Path(home))
        if found is None:
            return problem("pyspark", f"SPARK_HOME is {home}, where no Spark is", "unset SPARK_HOME, or correct it")
        if found != version:
            return problem(
                "pyspark",
                f"SPARK_HOME ({home}) has Spark {found}, this Python PySpark {version}",
                f"unset SPARK_HOME, or pip install pyspark=={found}",
            )
    minor = minor_version(version)
    if minor is not None and minor > NEWEST:
        return warning(
            "pyspark",
            f"PySpark {version} is newer than all tested versions ({RANGE})",
            f'if something fails: pip install "pyspark<{NEWEST[0]}.{NEWEST[1] + 1}"',
        )
    return ok("pyspark", f"PySpark {version}")


def workers_python(given: str | None, environment: Mapping[str, str]) -> Finding:
    """Check the Python of Spark's workers on this machine: ``given``, else ``PYSPARK_PYTHON``, else python3."""
    name = given or environment.get("PYSPARK_PYTHON") or "python3"
    whence = "" if given else " (PYSPARK_PYTHON)" if environment.get("PYSPARK_PYTHON") else " (PYSPARK_PYTHON not set)"
    check = "workers' python"
    use_this = f"set PYSPARK_PYTHON={sys.executable}, or activate the virtual environment that has the package"
    program = shutil.which(name, path=environment.get("PATH"))
    if program is None:
        return problem(check, f"{name}{whence} is not a program", use_this)
    begun = time.monotonic()
    try:
        answer = subprocess.run(
            [program, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_CHILD_TIMEOUT_S,
            check=False,
            env={**environment, "PYTHONPATH": _sparks_path(environment)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return problem(check, f"{program}{whence} cannot be run ({error})", use_this)
    took_s = time.monotonic() - begun
    try:
        found: dict[str, Any] = json.loads(answer.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        said = " ".join(answer.stderr.split()[-20:]) or f"it ended with status {answer.returncode} and no error text"
        return problem(check, f"{program}{whence} did not run the test ({said})", use_this)
    return _judged(check, f"{program}{whence}", found, took_s, use_this)


def _judged(check: str, program: str, found: dict[str, Any], took_s: float, use_this: str) -> Finding:
    own = "{}.{}.{}".format(*sys.version_info[:3])
    if minor_version(found["python"]) != sys.version_info[:2]:
        return problem(check, f"{program} is Python {found['python']}, the driver's is {own}", use_this)
    if found["errors"]:
        name, error = next(iter(found["errors"].items()))
        return problem(check, f"{program} cannot import {name} ({error})", f"{use_this}; or pip install bk-spark there")
    if not found["listed"]:
        return problem(
            check,
            f"{program} finds the package through an import hook only, so Spark does not find pyspark_bookkeeper",
            "install it plainly (pip install), or call spark.dataSource.register(pyspark_bookkeeper.DefaultSource)",
        )
    if (release := _own_version()) != found["version"]:
        return problem(
            check, f"{program} has bk-spark {found['version']}, the driver {release}", "install the same release"
        )
    if took_s >= _SLOW_START_S:
        return warning(
            check,
            f"{program} took {took_s:.1f} s to start, and Spark waits {_SPARKS_START_S:.0f} s for a worker",
            "run less beside it, start fewer tasks at once (local[2]), keep the environment on a local disk",
        )
    return ok(check, f"{program}: Python {found['python']}, bk-spark {found['version']}, started in {took_s:.1f} s")


def disk_space(environment: Mapping[str, str]) -> Finding:
    """Check the disk space where Spark puts its own files."""
    places = [Path(one) for one in environment.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",") if one]
    least, where = min((_free_bytes(place), place) for place in places)
    told = f"{least / _GIB:.1f} GiB free in {where}, for Spark's own files"
    if least >= _LITTLE_SPACE_BYTES:
        return ok("disk space", told)
    make = problem if least < _NO_SPACE_BYTES else warning
    return make("disk space", told, "make room, or let SPARK_LOCAL_DIRS name another disk")


def open_files() -> Finding:
    """Check how many files, including connections, a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEW_FILES:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} in one process")
    allowed = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    remedy = f"ulimit -n {allowed}" if allowed > soft else "raise nofile in /etc/security/limits.conf"
    return problem(
        "open files", f"at most {soft} in one process", f"{remedy} before starting Spark (systemd: LimitNOFILE)"
    )


def _free_bytes(place: Path) -> int:
    # Spark creates a missing directory, on the disk of its parent.
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _own_version() -> str | None:
    try:
        return importlib.metadata.version("bk-spark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _spark_home(environment: Mapping[str, str]) -> Path | None:
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"])
    # Locate it without importing, which takes a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _sparks_path(environment: Mapping[str, str]) -> str:
    """Return a worker's Python path: Spark's own packages, then the environment's."""
    home = _spark_home(environment)
    own = sorted((home / "python" / "lib").glob("*.zip")) if home is not None else []
    given = environment.get("PYTHONPATH")
    return os.pathsep.join([*map(str, own), *([given] if given else [])])


def _version_of(home: Path) -> str | None:
    found = sorted((home / "jars").glob("spark-core_*.jar"))
    return found[0].stem.rpartition("-")[2] if found else None
