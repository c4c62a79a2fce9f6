"""The processes of one driver: started, stopped, killed; and its executors and their Python workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.faults.streams.query import QuerySettings
from tests.support.process_tree import command_of, session_members, signal_all
from tests.support.processes import wait_until_ended

REPOSITORY: Final = Path(__file__).resolve().parents[3]
#: Two tasks at a time, in so many executors.
_MASTERS: Final = {1: "local-cluster[1,2,768]", 2: "local-cluster[2,1,768]"}
_ENDED_TIMEOUT_MS: Final = 60_000
_LOG_TAIL_BYTES: Final = 12_000


class Driver:
    """One start of the query: a session of processes of its own, so that all of them can be found."""

    def __init__(self, settings: QuerySettings, directory: Path, number: int, executors: int = 2) -> None:
        self.number = number
        self.output = directory / f"driver-{number}.log"
        argument = {
            **asdict(settings),
            "directory": str(directory / f"driver-{number}"),
            "master": _MASTERS[executors],
        }
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

    @property
    def run(self) -> str | None:
        """The query's run, once it has one."""
        told = re.search(r"^run (\S+)$", self.output.read_text(errors="replace"), re.MULTILINE)
        return None if told is None else told[1]

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_driver(self) -> None:
        """SIGKILL to the driver's JVM and its Python; executors find out by themselves."""
        jvm = self._pids("org.apache.spark.deploy.SparkSubmit")
        signal_all((*jvm, self._process.pid), signal.SIGKILL)
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
        signal_all(self._session(), signal.SIGSTOP)

    def resume(self) -> None:
        signal_all(self._session(), signal.SIGCONT)

    def destroy(self) -> None:
        """Nothing of it is left afterwards."""
        deadline = time.monotonic() + _ENDED_TIMEOUT_MS / 1000
        while pids := self._session():
            signal_all(pids, signal.SIGKILL)
            for pid in pids:
                wait_until_ended(pid, 1_000)
            assert time.monotonic() < deadline, f"processes {pids} cannot be killed"
        self._process.wait()

    def output_tail(self) -> str:
        return self.output.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def _kill_one(self, pids: list[int], which: int) -> bool:
        if not pids:
            return False
        signal_all([pids[which % len(pids)]], signal.SIGKILL)
        return True

    def _pids(self, word: str) -> list[int]:
        """Processes of the session, other than the script's own, with ``word`` in their command line."""
        return [pid for pid in self._session() if pid != self._process.pid and word in command_of(pid)]

    def _session(self) -> list[int]:
        return session_members(self._process.pid)
