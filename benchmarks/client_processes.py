"""Steady clients of a benchmark: a process for each kind of request.

What a client does itself must not count as the server's time. So clients share no interpreter, have been served before
the window, search for no cycles in it, and the kinds are not due at the same moments: each would wait for the others'
turns of two processors.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_ROOT: Final = Path(__file__).parents[1]
#: The kinds are due one after the other, so far apart.
_APART_S: Final = 0.002


class ClientProcesses:
    """Runs ``python -m MODULE KIND ARGUMENTS`` for each kind, which calls :func:`serve`. A context manager."""

    def __init__(self, module: str, kinds: Iterable[str], *arguments: str) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for kind in kinds:
            command = [sys.executable, "-m", module, kind, *arguments]
            self._processes[kind] = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def ask(self, about: object, begin: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Let all prepare for ``about``, then run for a window. Return their answers by kind. ``begin`` is called at
        the beginning of the window."""
        self._tell(json.dumps(about))
        for kind in self._processes:
            if self._answer(kind) != "ready":
                raise RuntimeError(f"the client of {kind} did not start")
        self._tell(str(time.monotonic() + _APART_S))
        begin()
        return {kind: json.loads(self._answer(kind)) for kind in self._processes}

    def _tell(self, line: str) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _answer(self, kind: str) -> str:
        output = self._processes[kind].stdout
        assert output is not None
        return output.readline().rstrip("\n")


def serve(place: int, prepare: Callable[[Any], Callable[[float], object]]) -> None:
    """Serve as the client of one kind, the ``place``-th of them, until standard input ends.

    ``prepare`` is given what the window is about. What it returns is called with the time at which the first request is
    due, and returns the answer.
    """
    while line := sys.stdin.readline():
        run = prepare(json.loads(line))
        print("ready", flush=True)
        began = float(sys.stdin.readline()) + _APART_S * place
        gc.disable()
        answer = run(began)
        gc.enable()
        print(json.dumps(answer), flush=True)
