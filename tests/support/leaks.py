"""Finds what a test must not leave behind: threads, sockets, signal handlers, tasks whose end nobody saw (Linux)."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import stat
import threading
import time
from collections import Counter
from typing import Final

#: A closed socket or an ended thread may take a moment to disappear.
PATIENCE_S = 30.0
_POLL_S: Final = 0.02


class _Reports(logging.Handler):
    """Collects asyncio's complaints: a task destroyed while pending, an exception that was never retrieved."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        self.messages.append(text if error is None else f"{text}\n  {error!r}")


class LeakWatch:
    """Records the state when it is created; :meth:`leaked` reports what appeared since and did not disappear.

    Sockets are compared by what they are connected to: a socket that its owner replaced (a session that reconnected) is
    no leak. Call :meth:`end` when done.
    """

    def __init__(self) -> None:
        # What is there now is not searched for cycles, here and later: of ten thousand tests it takes longer than most
        # tests.
        gc.freeze()
        self._threads = set(threading.enumerate())
        self._sockets = Counter(_sockets())
        self._handlers = _handlers()
        self._reports = _Reports()
        logging.getLogger("asyncio").addHandler(self._reports)

    def end(self) -> None:
        logging.getLogger("asyncio").removeHandler(self._reports)

    def leaked(self, patience_s: float | None = None) -> list[str]:
        """One line per leak, after waiting ``PATIENCE_S`` or less for it to disappear; empty if there is none."""
        # Forgotten tasks and sockets are in reference cycles, and report only when these are collected.
        gc.collect()
        deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return left + [f"asyncio: {message}" for message in self._reports.messages]

    def _left(self) -> list[str]:
        threads = [thread for thread in threading.enumerate() if thread not in self._threads and thread.is_alive()]
        sockets = Counter(_sockets()) - self._sockets
        handlers = [
            f"signal {number.name}: {handler}" for number, handler in _handlers().items() - self._handlers.items()
        ]
        return (
            handlers
            + [f"thread {thread.name} ({'daemon' if thread.daemon else 'not daemon'})" for thread in threads]
            + [f"{count} socket{'s' if count > 1 else ''}: {what}" for what, count in sorted(sockets.items())]
        )


def _handlers() -> dict[signal.Signals, object]:
    """What happens at the signals that ask a process to stop. Tests of interrupts wait for ever if they are ignored."""
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


def _sockets() -> list[str]:
    """This process's sockets, each as what it is connected to. Asked one by one: the kernel's list of all connections
    of the machine takes it longer than many a test."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.append(_described(fd))
    return found


def _described(fd: int) -> str:
    one = socket.socket(fileno=fd)
    try:
        if one.family not in (socket.AF_INET, socket.AF_INET6):
            return "not connected"
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return f"listening at {_address(one.getsockname())}"
        return f"connected to {_address(one.getpeername())}"
    except OSError:
        return "not connected"
    finally:
        one.detach()  # it is another's


def _address(name: tuple[str | int, ...]) -> str:
    # gRPC listens on addresses of IPv4 by a socket of IPv6.
    return f"{str(name[0]).removeprefix('::ffff:')}:{name[1]}"
