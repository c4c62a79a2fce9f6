"""Ends an idle ZooKeeper session, and begins a new one with the next request.

ZooKeeper accepts a limited number of connections from one host (``maxClientCnxns``, default 60). A host may run more
Spark tasks than that at once, each in a process of its own. A task uses ZooKeeper at its start and when it needs a
ledger, and then writes or reads for minutes without it. So the sessions of tasks rest in between.

A resting session has no watches and no ephemeral nodes. Watches end with a call, as after a lost connection.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _State(enum.Enum):
    AWAKE = enum.auto()
    ENDING = enum.auto()
    RESTING = enum.auto()
    CLOSED = enum.auto()


class SessionRest:
    """Calls ``end`` in a thread of its own when nobody was :meth:`awake` for ``after_s`` and ``may_rest()`` is true.
    Calls ``begin`` for the next :meth:`awake`. ``end`` may block, ``begin`` may not. Thread-safe. Starts awake."""

    def __init__(self, after_s: float, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.may_rest: Callable[[], bool] = lambda: True
        self._after_s = after_s
        self._begin = begin
        self._end = end
        #: Guards the fields below. Notified at each change.
        self._changed = threading.Condition()
        self._state = _State.AWAKE
        self._users = 0
        self._idle_since_s = time.monotonic()
        self._thread: threading.Thread | None = None

    @contextmanager
    def awake(self, deadline: float) -> Iterator[None]:
        """Keep the session from resting inside the block. The caller must check for a connection. There is none if the
        previous session does not end before ``deadline`` (monotonic, s)."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.ENDING, max(0.0, deadline - time.monotonic()))
            if self._state is _State.RESTING:
                self._begin()
                self._state = _State.AWAKE
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._idle_since_s = time.monotonic()
                if self._thread is None and self._state is _State.AWAKE:
                    self._thread = threading.Thread(target=self._watch, name="zookeeper-rest", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Let no session end or begin from now on. Wait for one that is ending."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.ENDING)
            self._state = _State.CLOSED
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        """Wait until the session may rest, and end it. Return if closed."""
        with self._changed:
            while self._state is _State.AWAKE:
                left_s = self._idle_since_s + self._after_s - time.monotonic()
                if self._users or left_s > 0 or not self.may_rest():
                    self._changed.wait(left_s if left_s > 0 else self._after_s)
                else:
                    self._state = _State.ENDING
            if self._state is _State.CLOSED:
                return
        self._end()
        with self._changed:
            self._thread = None
            self._state = _State.RESTING
            self._changed.notify_all()
