"""Builds the Java harnesses with Maven, each once for each content of its sources.

Maven fetches Apache BookKeeper, or Apache Pulsar, from Maven Central into its own repository (``~/.m2``). The result is
a class path of ``java/target/harness.jar`` and jars in that repository. ``java/target/harness.key`` names the sources
that it was built from. It is written last, so that an interrupted build is done again.
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

#: Apache BookKeeper.
PROJECT: Final = Path(__file__).parent / "java"
#: Apache Pulsar, which brings another release of BookKeeper's client.
PULSAR_PROJECT: Final = Path(__file__).parent / "pulsar" / "java"

#: The first builds fetch about 70 MB, and 240 MB for Pulsar.
_BUILD_TIMEOUT_S: Final = 600
#: A fetch that broke off is taken up again by the second try.
_ATTEMPTS: Final = 2
_OUTPUT_TAIL_LINES: Final = 30


class HarnessBuildError(Exception):
    """The Java harness could not be built; the text says why and what to do."""


def harness_classpath(project: Path = PROJECT) -> str:
    """The class path of a harness and what it drives; builds first where needed.

    Safe with several processes at once: one builds, the others wait. Raises :class:`HarnessBuildError`.
    """
    return _Build(project).classpath()


class _Build:
    def __init__(self, project: Path) -> None:
        self._project = project
        self._target = project / "target"
        self._key = self._target / "harness.key"
        self._classpath = self._target / "classpath.txt"
        self._classes = self._target / "classes"
        #: Java's archives of classes (class_archive.py) are for jars, not for directories.
        self._jar = self._target / "harness.jar"

    def classpath(self) -> str:
        self._target.mkdir(exist_ok=True)
        with _exclusive(self._target / "build.lock"):
            key = self._source_key()
            if not self._is_built(key):
                self._build()
                self._pack()
                if missing := self._missing_jars():
                    raise HarnessBuildError(
                        f"Maven ended well, but {missing[0]} is missing; delete {self._target} and try again"
                    )
                self._key.write_text(key, "ascii")
            return os.pathsep.join([str(self._jar), self._classpath.read_text("utf-8").strip()])

    def _source_key(self) -> str:
        digest = hashlib.sha256()
        for path in [self._project / "pom.xml", *sorted((self._project / "src").rglob("*"))]:
            if path.is_file():
                content = path.read_bytes()
                digest.update(f"{path.relative_to(self._project)}\0{len(content)}\0".encode())
                digest.update(content)
        return digest.hexdigest()

    def _is_built(self, key: str) -> bool:
        try:
            return self._key.read_text("ascii") == key and self._jar.is_file() and not self._missing_jars()
        except FileNotFoundError:
            return False

    def _missing_jars(self) -> list[str]:
        """Jars of the class path that are gone, as after somebody emptied Maven's repository."""
        return [jar for jar in self._classpath.read_text("utf-8").strip().split(os.pathsep) if not Path(jar).is_file()]

    def _build(self) -> None:
        maven = shutil.which("mvn")
        jdk_path = os.pathsep.join([os.path.join(os.environ.get("JAVA_HOME", ""), "bin"), os.environ.get("PATH", "")])
        if maven is None or shutil.which("javac", path=jdk_path) is None:
            raise HarnessBuildError(
                "the interop tests need Maven and a Java 17 JDK (programs mvn and javac); "
                "install them (on Debian or Ubuntu: apt-get install maven openjdk-17-jdk-headless)"
            )
        shutil.rmtree(self._classes, ignore_errors=True)
        for stale in (self._key, self._jar, self._classpath):
            stale.unlink(missing_ok=True)
        command = [maven, "--quiet", "--batch-mode", "--no-transfer-progress", "compile"]
        output = ""
        for _ in range(_ATTEMPTS):
            try:
                done = subprocess.run(
                    command,
                    cwd=self._project,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    timeout=_BUILD_TIMEOUT_S,
                )
            except subprocess.TimeoutExpired as error:
                raise HarnessBuildError(
                    f"Maven did not end within {_BUILD_TIMEOUT_S} s; run 'mvn compile' in {self._project} to see why"
                ) from error
            if done.returncode == 0:
                return
            output = done.stdout
        tail = "\n".join(output.splitlines()[-_OUTPUT_TAIL_LINES:])
        raise HarnessBuildError(f"Maven failed in {self._project} ({_ATTEMPTS} tries); the end of its output:\n{tail}")

    def _pack(self) -> None:
        with zipfile.ZipFile(self._jar, "w") as jar:
            for path in sorted(self._classes.rglob("*")):
                if path.is_file():
                    jar.write(path, path.relative_to(self._classes))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
