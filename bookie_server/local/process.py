"""Child processes of a local cluster, and how they end with their parent.

**Why a process group with a guard.** Children must not outlive a killed parent. Linux offers
``PR_SET_PDEATHSIG``, but it fires when the *thread* that started the child ends, so a bookie started
from a short-lived thread would die with that thread. Setting it needs ``preexec_fn``, which is unsafe in
a program with threads, and it is Linux only. Instead every cluster has one process group. Its leader,
the *guard*, is a two-line shell script that waits for the end of its standard input. That input is a pipe
whose other end only the parent holds, so it closes when the parent ends for any reason. The guard then
kills the whole group with SIGKILL. A child joins the group before ``exec``, so no child is ever
outside. The group is also a background group: Ctrl-C at the terminal reaches only the parent, which then
stops its children cleanly.

A guard that was killed by hand is replaced at the next start. Until they are restarted, children of the old
group are unguarded.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bk_spark.protocol.errors import StorageError

_LOG = logging.getLogger(__name__)

#: Time limit of a clean stop before SIGKILL.
STOP_TIMEOUT_MS: Final = 20_000
#: SIGKILL cannot be refused. This only limits the wait for a process stuck in the kernel (a dead disk).
_KILL_TIMEOUT_MS: Final = 10_000
_LOG_TAIL_BYTES: Final = 4_096
_LOG_TAIL_LINES: Final = 20
_LOG_ROTATE_BYTES: Final = 10 * 1024 * 1024

_GUARD_SCRIPT: Final = "read line; kill -KILL 0"


class GuardedProcessGroup:
    """The process group of one cluster. ``held_fd`` is an open lock that the children inherit, so the lock
    is free only when the last of them has ended. Thread-safe."""

    def __init__(self, held_fd: int) -> None:
        self._held_fd = held_fd
        self._lock = threading.Lock()
        self._guard: subprocess.Popen[bytes] | None = None

    def spawn(self, command: Sequence[str], log_path: Path, working_directory: Path | None) -> subprocess.Popen[bytes]:
        """Start ``command`` in the group, appending output to ``log_path``. Raises :class:`StorageError`."""
        with self._lock:
            guard = self._guard
            if guard is None or guard.poll() is not None:
                guard = self._start_guard()
            try:
                with log_path.open("ab") as log:
                    return self._popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=working_directory,
                        pass_fds=(self._held_fd,),
                        process_group=guard.pid,
                    )
            except OSError as error:
                raise StorageError(f"cannot start {command[0]} with its output in {log_path}: {error}") from error

    def close(self) -> None:
        """End the guard, and with it all remaining processes of the group."""
        with self._lock:
            guard, self._guard = self._guard, None
            if guard is not None:
                _end_guard(guard)

    def _popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        """Start a process. Tests fork bookies instead."""
        return subprocess.Popen(command, **how)

    def _start_guard(self) -> subprocess.Popen[bytes]:
        if self._guard is not None:
            _end_guard(self._guard)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        return self._guard


def _end_guard(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        guard.wait(_KILL_TIMEOUT_MS / 1000)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


class LocalProcess(ABC):
    """One server of a local cluster. It can be started, stopped, killed and suspended any number of times.

    ``directory`` holds all its files; ``log_path`` is the file to read when it fails.
    """

    def __init__(self, name: str, directory: Path, group: GuardedProcessGroup, log_name: str) -> None:
        self.name = name
        self.directory = directory
        self.log_path = directory / log_name
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the last start; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """True from start to end of the process, even while it is suspended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit status of the last run (negative: the signal that ended it); None while running or before a start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; it may not be ready yet. Raises if it already runs or its port is in use."""
        if self.running:
            raise StorageError(f"{self.name} is already running (pid {self.pid})")
        self._prepare()
        self.directory.mkdir(parents=True, exist_ok=True)
        output_path = self._output_path()
        if output_path.exists() and output_path.stat().st_size > _LOG_ROTATE_BYTES:
            output_path.replace(output_path.with_name(output_path.name + ".1"))
        self._process = self._group.spawn(self._command(), output_path, self._working_directory())
        _LOG.info("%s started, pid %d", self.name, self._process.pid)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended. Does nothing if it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(_KILL_TIMEOUT_MS / 1000)

    def terminate(self, timeout_ms: int = STOP_TIMEOUT_MS) -> bool:
        """Stop cleanly. Return True if the process ended by itself in time; otherwise it was killed."""
        self.request_stop()
        return self.wait_ended(time.monotonic() + timeout_ms / 1000)

    def request_stop(self) -> None:
        """Send SIGTERM, even to a suspended process, without waiting."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def wait_ended(self, deadline: float) -> bool:
        """Wait until ``deadline`` (monotonic, s), then kill. Return True if the process ended by itself."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            _LOG.warning("%s (pid %d) did not stop in time: killed", self.name, self._process.pid)
            self.kill()
            return False
        return True

    def suspend(self) -> None:
        """Send SIGSTOP and wait until the process has stopped."""
        self._signal(signal.SIGSTOP)
        if self._process is not None and self._process.returncode is None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT to undo :meth:`suspend`."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of the process's log."""
        paths = dict.fromkeys((self._output_path(), self.log_path))
        return "\n".join(text for path in paths if (text := _tail(path)))

    def failure(self, what: str) -> str:
        """Error text for a process that is not in the expected state, with the end of its log."""
        state = "still runs" if self.running else f"ended with status {self.exit_code}"
        tail = self.log_tail() or "(empty)"
        return f"{what}: {self.name} {state}; the end of {self.log_path}:\n{tail}"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise StorageError(f"{self.name} was never started")
        self._process.send_signal(number)

    def _output_path(self) -> Path:
        """File for standard output and error; not the log if the process writes its own log."""
        return self.log_path

    def _working_directory(self) -> Path | None:
        return None

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Program and arguments."""

    @abstractmethod
    def _prepare(self) -> None:
        """Check and write what a start requires."""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - _LOG_TAIL_BYTES, 0))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])
