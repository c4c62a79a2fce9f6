"""Builds the Java harness with Maven, once for each content of its sources.

Maven fetches Apache BookKeeper from Maven Central into its own repository (``~/.m2``); the result is a class path
of ``java/target/harness.jar`` and jars in that repository. ``java/target/harness.key`` names the sources it was built
from and is written last, so that an interrupted build is done again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent / "java"
_TARGET: Final = PROJECT / "target"
_KEY: Final = _TARGET / "harness.key"
_CLASSPATH: Final = _TARGET / "classpath.txt"
_CLASSES: Final = _TARGET / "classes"
#: Java's archives of classes (class_archive.py) are for jars, not for directories.
_JAR: Final = _TARGET / "harness.jar"

#: The first build fetches about 70 MB.
_BUILD_TIMEOUT_S: Final = 600
#: A fetch that broke off is taken up again by the second try.
_ATTEMPTS: Final = 2
_OUTPUT_TAIL_LINES: Final = 30


class HarnessBuildError(Exception):
    """The Java harness could not be built; the text says why and what to do."""


def harness_classpath() -> str:
    """The class path of harness and Apache BookKeeper; builds first where needed.

    Safe with several processes at once: one builds, the others wait. Raises :class:`HarnessBuildError`.
    """
    _TARGET.mkdir(exist_ok=True)
    with _exclusive(_TARGET / "build.lock"):
        key = _source_key()
        if not _is_built(key):
            _build()
            _pack()
            if missing := _missing_jars():
                raise HarnessBuildError(
                    f"Maven ended well, but {missing[0]} is missing; delete {_TARGET} and try again"
                )
            _KEY.write_text(key, "ascii")
        return os.pathsep.join([str(_JAR), _CLASSPATH.read_text("utf-8").strip()])


def _source_key() -> str:
    digest = hashlib.sha256()
    for path in [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*"))]:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PROJECT)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _is_built(key: str) -> bool:
    try:
        return _KEY.read_text("ascii") == key and _JAR.is_file() and not _missing_jars()
    except FileNotFoundError:
        return False


def _missing_jars() -> list[str]:
    """Jars of the class path that are gone, as after somebody emptied Maven's repository."""
    return [jar for jar in _CLASSPATH.read_text("utf-8").strip().split(os.pathsep) if not Path(jar).is_file()]


def _build() -> None:
    maven = shutil.which("mvn")
    jdk_path = os.pathsep.join([os.path.join(os.environ.get("JAVA_HOME", ""), "bin"), os.environ.get("PATH", "")])
    if maven is None or shutil.which("javac", path=jdk_path) is None:
        raise HarnessBuildError(
            "the interop tests need Maven and a Java 17 JDK (programs mvn and javac); "
            "install them (on Debian or Ubuntu: apt-get install maven openjdk-17-jdk-headless)"
        )
    shutil.rmtree(_CLASSES, ignore_errors=True)
    for stale in (_KEY, _JAR, _CLASSPATH):
        stale.unlink(missing_ok=True)
    command = [maven, "--quiet", "--batch-mode", "--no-transfer-progress", "compile"]
    output = ""
    for _ in range(_ATTEMPTS):
        try:
            done = subprocess.run(
                command,
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_BUILD_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise HarnessBuildError(
                f"Maven did not end within {_BUILD_TIMEOUT_S} s; run 'mvn compile' in {PROJECT} to see why"
            ) from error
        if done.returncode == 0:
            return
        output = done.stdout
    tail = "\n".join(output.splitlines()[-_OUTPUT_TAIL_LINES:])
    raise HarnessBuildError(f"Maven failed in {PROJECT} ({_ATTEMPTS} tries); the end of its output:\n{tail}")


def _pack() -> None:
    with zipfile.ZipFile(_JAR, "w") as jar:
        for path in sorted(_CLASSES.rglob("*")):
            if path.is_file():
                jar.write(path, path.relative_to(_CLASSES))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
