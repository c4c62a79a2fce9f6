"""The processes of one driver: started, stopped, killed; and its executors and their Python workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.faults.streams.query import QuerySettings
from tests.support.processes import wait_until_ended

REPOSITORY: Final = Path(__file__).resolve().parents[3]
MASTER: Final = "local-cluster[2,1,768]"
_ENDED_TIMEOUT_MS: Final = 20_000
_LOG_TAIL_BYTES: Final = 12_000


class Driver:
    """One start of the query: a session of processes of its own, so that all of them can be found."""

    def __init__(self, settings: QuerySettings, directory: Path, number: int) -> None:
        self.number = number
        self.output = directory / f"driver-{number}.log"
        argument = {**asdict(settings), "directory": str(directory / f"driver-{number}"), "master": MASTER}
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.streams.query", json.dumps(argument)],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_driver(self) -> None:
        """SIGKILL to the driver's JVM and its Python; executors find out by themselves."""
        jvm = self._pids("org.apache.spark.deploy.SparkSubmit")
        for pid in (*jvm, self._process.pid):
            _signal(pid, signal.SIGKILL)
        self._process.wait()
        for pid in jvm:
            wait_until_ended(pid, _ENDED_TIMEOUT_MS)

    def kill_executor(self, which: int) -> bool:
        """SIGKILL to one executor; whether there was one."""
        return self._kill_one(self._pids("CoarseGrainedExecutorBackend"), which)

    def kill_worker(self, which: int) -> bool:
        """SIGKILL to one of the processes that run Python tasks, or Python of the driver's side; whether there was
        one."""
        return self._kill_one(self._pids("pyspark"), which)

    def suspend(self) -> None:
        """SIGSTOP to every process there is now."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def destroy(self) -> None:
        """Nothing of it is left afterwards."""
        deadline = time.monotonic() + _ENDED_TIMEOUT_MS / 1000
        while pids := self._session():
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            for pid in pids:
                wait_until_ended(pid, 1_000)
            assert time.monotonic() < deadline, f"processes {pids} cannot be killed"
        self._process.wait()

    def output_tail(self) -> str:
        return self.output.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _kill_one(self, pids: list[int], which: int) -> bool:
        if not pids:
            return False
        _signal(pids[which % len(pids)], signal.SIGKILL)
        return True

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._session():
            _signal(pid, number)

    def _pids(self, word: str) -> list[int]:
        """Processes of the session, other than the script's own, with ``word`` in their command line."""
        return [pid for pid in self._session() if pid != self._process.pid and word in _command(pid)]

    def _session(self) -> list[int]:
        """Every living process of the driver's session."""
        return sorted(
            int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_of(int(entry), self._process.pid)
        )


def _is_of(pid: int, session: int) -> bool:
    try:
        # After the name, which may hold anything: state, parent, group, session.
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(fields[3]) == session and fields[0] != "Z"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
