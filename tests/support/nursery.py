"""Servers that start soon. A bookie imports for half a second of CPU before it does anything, and tests start hundreds.

Each is forked from one process that has imported everything, the *nursery*. From there it does what
``python -m bookie_server`` does, as a child of the test process (Linux). ZooKeeper loads its classes from an archive.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, AnyStr, Final

from bookie_server.local import LocalCluster
from bookie_server.local.process import GuardedProcessGroup
from tests.support.forked import take_over
from tests.support.servers import ZOOKEEPER_ARCHIVE, ZOOKEEPER_MAIN

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PROGRAM: Final = [sys.executable, "-m", "bookie_server"]
_MAX_FDS: Final = 16
_MAX_MESSAGE_BYTES: Final = 1 << 20
_ANSWER_TIMEOUT_S: Final = 120.0
_PR_SET_CHILD_SUBREAPER: Final = 36
_ARGUMENTS: Final = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


class ForkedBookie(subprocess.Popen[AnyStr]):
    """``python -m bookie_server …``, forked in the nursery: a bookie, or autorecovery alone."""

    def _execute_child(self, *values: Any) -> None:
        given = dict(zip(_ARGUMENTS, values, strict=True))
        command = list(given["args"])
        assert command[: len(_PROGRAM)] == _PROGRAM, command
        pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        try:
            self.pid = nursery().fork(
                command[len(_PROGRAM) :],
                standard_fds=[fd if fd != -1 else own for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))],
                more_fds=sorted(given["pass_fds"]),
                working_directory=str(given["cwd"] or Path.cwd()),
                group=given["process_group"],
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class QuickGroup(GuardedProcessGroup):
    """Starts servers quickly."""

    def _popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        if [*command[: len(_PROGRAM)]] == _PROGRAM:
            return ForkedBookie(command, **how)
        if ZOOKEEPER_MAIN in command and ZOOKEEPER_ARCHIVE.exists():
            java, *arguments = command
            command = [java, f"-XX:SharedArchiveFile={ZOOKEEPER_ARCHIVE}", *arguments]
        return super()._popen(command, **how)


class OrderlyCluster(LocalCluster):
    """A local cluster whose servers start quickly, and stop in order."""

    _group_class = QuickGroup


class QuickCluster(OrderlyCluster):
    """One whose servers are killed in the end: nobody needs what they have."""

    def stop(self) -> None:
        for server in (*self.bookies, *self.zookeepers):
            server.kill()
        super().stop()


class _Nursery:
    """The test process's side of the nursery."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        with other:
            command = [sys.executable, "-m", "tests.support.nursery", str(other.fileno())]
            self._process = subprocess.Popen(command, cwd=_REPOSITORY, pass_fds=[other.fileno()])
        atexit.register(self._end)

    def fork(
        self,
        arguments: Sequence[str],
        *,
        standard_fds: Sequence[int],
        more_fds: Sequence[int],
        working_directory: str,
        group: int,
    ) -> int:
        """Start a process and return its id."""
        about = {
            "arguments": arguments,
            "directory": working_directory,
            "group": group,
            "environment": dict(os.environ),
        }
        with self._lock:
            # What loses its parent becomes a child of this process, as the new one does.
            _adopt(True)
            try:
                socket.send_fds(self._control, [json.dumps(about).encode()], [*standard_fds, *more_fds])
                answer = self._control.recv(_MAX_MESSAGE_BYTES)
            finally:
                _adopt(False)
        assert answer, "the nursery has ended"
        return int(answer)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


@functools.cache
def nursery() -> _Nursery:
    """The nursery of this process, started at first use."""
    return _Nursery()


def _adopt(on: bool) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


def _serve(control: socket.socket) -> list[str]:
    """Fork for each request. Return its arguments, in the new process. The nursery ends with the test process."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, _MAX_FDS)
        if not message:
            sys.exit()
        about = json.loads(message)
        told, tells = os.pipe()
        # The process in between ends at once, and the new one is the test process's child.
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                control.close()
                take_over(about, fds)
                return list(about["arguments"])
            if about["group"] != -1:
                os.setpgid(pid, about["group"])
            os.write(tells, b"%d" % pid)
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(told, 64))
        for fd in (told, tells, *fds):
            os.close(fd)


def _main() -> int:
    # Everything that a bookie, with autorecovery and admin API or without, and autorecovery alone import.
    import bookie_server.admin.server
    import bookie_server.net.grpc.server
    import bookie_server.process
    import bookie_server.replication.process
    import bookie_server.replication.replication_metrics  # noqa: F401
    from bookie_server.cli import main

    gc.collect()
    gc.freeze()
    return main(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    sys.exit(_main())
