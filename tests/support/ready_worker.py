"""Spark's Python processes, forked from one that has imported everything they need.

Spark starts a Python for each kind of step of a query (to make the data source, to plan a read or a write, to commit),
and one for each source of each streaming query. Each would import for a second of CPU, more than the step itself takes.
Here they are forked from a *nursery*, one for each process that creates sessions. The tutorial and the first notebook
run Spark's own.

The program that Spark starts hands its arguments, variables and standard streams to the nursery, and lives as long as
the process that is forked for it: if Spark ends one, the other ends as well (Linux).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.forked import STANDARD_FDS, take_over

#: What the steps before a task and the tasks need: to make the data source, to plan, to write and read, to commit.
_IMPORTS: Final = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "bk_spark.datasource.batch.reader",
    "bk_spark.datasource.batch.writer",
    "bk_spark.datasource.options.parse",
    "bk_spark.datasource.planning",
    "bk_spark.datasource.source",
    "bk_spark.datasource.stream.reader",
    "bk_spark.datasource.stream.writer",
    "bk_spark.log.store",
)
_REPOSITORY: Final = Path(__file__).resolve().parents[2]
#: Room for the names that forked processes give themselves.
_ROOM: Final = "-" * 200
_MAX_MESSAGE_BYTES: Final = 1 << 17
#: Run without the standard places of packages, which take most of a Python's start.
_PROXY: Final = """\
import json, os, socket
nursery = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
nursery.connect("\\0" + os.environ.pop("BK_NURSERY"))
arguments = os.environ.pop("BK_NURSERY_ARGUMENTS").split()
asked = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ)}
socket.send_fds(nursery, [json.dumps(asked).encode()], [0, 1, 2])
nothing = os.open(os.devnull, os.O_RDWR)
for fd in (0, 1, 2):
    os.dup2(nothing, fd)
os._exit(int(nursery.recv(16) or 1))
"""


def make_python(directory: Path) -> str:
    """A program for PYSPARK_PYTHON: this Python, but its Spark's modules are run in processes of the nursery."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "python"
    python = shlex.quote(sys.executable)
    program.write_text(
        f"""#!/bin/sh
case "$*" in "-m pyspark."*) ;; *) exec {python} "$@";; esac
shift
export BK_NURSERY={_nursery()} BK_NURSERY_ARGUMENTS="$*"
exec {python} -I -S -c {shlex.quote(_PROXY)}
"""
    )
    program.chmod(0o755)
    return str(program)


@functools.cache
def _nursery() -> str:
    """Start this process's nursery. Returns the address of its socket. It is no file, so that nothing is left of it
    however the processes end."""
    # A thread of NumPy's would not survive the forks. Spark's own processes get the same seed of hashes from Spark.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONPATH", None)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")
    listener.listen(128)
    address: bytes = listener.getsockname()
    with listener:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.support.ready_worker", str(listener.fileno()), _ROOM],
            cwd=_REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        # It may live longer than this process, and nobody waits for it.
        process.returncode = 0

    atexit.register(end)
    return address[1:].decode()


class _Nursery:
    """Forks until the process that started it has ended, and lives until what it has forked has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        #: By the descriptors of the proxies' sockets: they, and those of their processes. And the reverse.
        self._proxies: dict[int, tuple[socket.socket, int]] = {}
        self._processes: dict[int, tuple[int, int]] = {}

    def serve(self) -> list[str] | None:
        """Return the arguments, in a process that was forked. Returns None in the end."""
        ours, theirs = sys.stdin.fileno(), self._listener.fileno()
        for fd in (ours, theirs):
            self._poll.register(fd, select.POLLIN)
        open_for_more = True
        while open_for_more or self._processes:
            # A new socket may get the number of one that is closed below: forks come last.
            for fd, _ in sorted(self._poll.poll(), key=lambda event: event[0] == theirs):
                if fd == ours:
                    open_for_more = False
                    for own in (ours, theirs):
                        self._poll.unregister(own)
                    self._listener.close()
                elif fd == theirs:
                    arguments = self._fork() if open_for_more else None
                    if arguments is not None:
                        return arguments
                elif fd in self._processes:
                    self._tell_end(fd)
                elif fd in self._proxies:
                    self._end_process_of(fd)
        return None

    def _fork(self) -> list[str] | None:
        proxy, _ = self._listener.accept()
        _, user, _ = struct.unpack("3i", proxy.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():
            proxy.close()  # anybody on the machine can connect
            return None
        message, fds, _, _ = socket.recv_fds(proxy, _MAX_MESSAGE_BYTES, STANDARD_FDS)
        if len(fds) < STANDARD_FDS:
            proxy.close()  # it was ended before it could ask
            return None
        pid = os.fork()
        if not pid:
            for one in (self._listener, proxy, *(other for other, _ in self._proxies.values())):
                one.detach()  # closed below
            return _become(json.loads(message), fds)
        process = os.pidfd_open(pid)
        self._proxies[proxy.fileno()] = proxy, process
        self._processes[process] = pid, proxy.fileno()
        for fd in (process, proxy.fileno()):
            self._poll.register(fd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        return None

    def _tell_end(self, process: int) -> None:
        self._poll.unregister(process)
        os.close(process)
        pid, fd = self._processes.pop(process)
        _, status = os.waitpid(pid, 0)
        proxy, its = self._proxies.get(fd, (None, 0))
        if proxy is None or its != process:
            return  # it ended before, and another may have its number
        self._poll.unregister(fd)
        del self._proxies[fd]
        code = os.waitstatus_to_exitcode(status)
        with proxy, contextlib.suppress(BrokenPipeError):
            proxy.send(b"%d" % (code if code >= 0 else 128 - code))

    def _end_process_of(self, proxy: int) -> None:
        """Its proxy has ended."""
        self._poll.unregister(proxy)
        gone, process = self._proxies.pop(proxy)
        gone.close()
        signal.pidfd_send_signal(process, signal.SIGTERM)


def _become(asked: dict[str, Any], fds: list[int]) -> list[str]:
    """Take over what Spark gave to the proxy."""
    take_over(asked, fds)
    arguments: list[str] = asked["arguments"]
    # As ``python -m`` has it. pyspark and py4j are installed here. Of Spark's own archives of them, each worker would
    # read the tables of contents twenty times (importlib.invalidate_caches).
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path[-4:] != ".zip"]
    sys.path[:] = [os.getcwd(), *given, *sys.path[1:]]
    _name_process(f"python -m {' '.join(arguments)}")
    return arguments


def _name_process(name: str) -> None:
    """Show another command line, by which tests find processes."""
    stat = Path("/proc/self/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    text = name.encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text.replace(b" ", b"\0"), len(text))


def main() -> None:
    # It ends when the process that started it has ended, as Spark's own do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _IMPORTS:
        importlib.import_module(module)
    gc.collect()
    # After each task a worker looks for garbage: not in what it has from here, which it would have to copy.
    gc.freeze()
    arguments = _Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()
    if arguments is not None:
        name, *sys.argv[1:] = arguments
        runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
