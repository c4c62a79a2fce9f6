"""Apache's ``bookkeeper shell`` on a bookie's directories: one JVM, command after command.

The other side is ``java/src/main/java/org/bkspark/interop/Shell.java``. The shell's own output is through a
structured logger; the pattern of the harness prints a record's values after its text as ``{key=value, ...}``
(compatibility.md §11.7).
"""

from __future__ import annotations

import json
import re
import selectors
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie_server.local.zookeeper import find_java
from tests.interop import jvm
from tests.interop.maven_build import harness_classpath

COMMAND_TIMEOUT_MS: Final = 120_000
_END: Final = re.compile(rb"(?:^|\n)=== exit status (-?\d+)\n")
_EXIT_TIMEOUT_S: Final = 30.0
_LOG_LEVEL: Final = "-Dinterop.log.level=INFO"
#: ``2026-01-01 00:00:00,000 INFO  [main] ReadLogCommand text {key=value}``
_RECORD: Final = re.compile(r"^\S+ (?P<level>[A-Z]+) +\[[^]]*\] (?P<logger>\S+) (?P<text>.*?) ?\{(?P<values>.*)\}$")
_VALUE: Final = re.compile(r"(\w+)=(.*?)(?=, \w+=|$)")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the shell's logger."""

    level: str
    logger: str
    text: str
    values: dict[str, str]


@dataclass(frozen=True, slots=True)
class Output:
    """What one command left: its exit status and every line it printed or logged."""

    status: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def records(self, text: str, logger: str = "") -> list[Record]:
        """The logger's records with exactly this text."""
        return [record for record in self._all_records() if record.text == text and logger in ("", record.logger)]

    def records_like(self, beginning: str) -> list[Record]:
        """The logger's records whose text begins so."""
        return [record for record in self._all_records() if record.text.startswith(beginning)]

    def errors(self) -> list[Record]:
        return [record for record in self._all_records() if record.level == "ERROR"]

    def printed(self) -> list[str]:
        """Lines that are no record of the logger: message bodies among them."""
        return [line for line in self.lines if _RECORD.match(line) is None]

    def _all_records(self) -> Iterator[Record]:
        for line in self.lines:
            if match := _RECORD.match(line):
                yield Record(match["level"], match["logger"], match["text"], dict(_VALUE.findall(match["values"])))


class JavaShell:
    """The process; a context manager. Not thread-safe."""

    def __init__(self) -> None:
        options = (*jvm.SMALL_CLIENT, *jvm.COMMON, _LOG_LEVEL)
        self._process = subprocess.Popen(
            [find_java(), *options, "-cp", harness_classpath(), "org.bkspark.interop.Shell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            process_group=0,
        )

    def __enter__(self) -> JavaShell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_EXIT_TIMEOUT_S)
        self._process.stdout.close()

    def run(self, conf_path: Path, *args: str, timeout_ms: int = COMMAND_TIMEOUT_MS) -> Output:
        """Run one command with the configuration at ``conf_path``. Raises TimeoutError, or RuntimeError where the
        JVM ended, with what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = json.dumps({"conf": str(conf_path), "args": args})
        self._process.stdin.write(request.encode() + b"\n")
        deadline = time.monotonic() + timeout_ms / 1000
        output = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (end := _END.search(output, max(0, len(output) - (1 << 17)))) is None:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"{args[0]} did not end within {timeout_ms} ms:\n{output.decode()}")
                piece = self._process.stdout.read(1 << 16)
                if not piece:
                    raise RuntimeError(f"the shell's process ended in {args[0]}:\n{output.decode()}")
                output += piece
        return Output(int(end[1]), tuple(output[: end.start()].decode().splitlines()))
