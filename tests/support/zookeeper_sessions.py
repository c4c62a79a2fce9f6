"""Breaks and ends sessions with ZooKeeper that are still in use, and counts what is asked in them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from bk_spark.bookie.metadata.zookeeper import CONNECTED, LOST, ZooKeeper


def cut(session: ZooKeeper) -> None:
    """Break the session's TCP connection. The client makes another one."""
    session._client._connection._socket.shutdown(socket.SHUT_RDWR)


def reconnecting_soon(session: ZooKeeper) -> ZooKeeper:
    """A session that is not started yet, which will wait for 10 ms before it connects again, and not for 100."""
    session._client._connection.retry_sleeper.delay = 0.01
    return session


def expire(session: ZooKeeper, *, comes_back: bool = True) -> None:
    """End the session through another connection that takes it over and closes it; wait until the client has a new
    one, unless its owner then closes it."""
    lost, back = threading.Event(), threading.Event()

    def listener(state: str) -> None:
        if state == LOST:
            lost.set()
        elif state == CONNECTED and lost.is_set():
            back.set()

    session.add_state_listener(listener)
    while not lost.is_set():
        client_id = session._client.client_id
        if client_id is not None:
            thief = KazooClient(session.servers, client_id=client_id, timeout=10)
            with contextlib.suppress(KazooTimeoutError):
                thief.start(5)
            thief.stop()
            thief.close()
        lost.wait(1)
    assert not comes_back or back.wait(60)
    session.remove_state_listener(listener)


class Bell:
    """Counts the calls of a watch."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self, path: str) -> None:
        self._rung.release()

    def wait(self) -> None:
        assert self._rung.acquire(timeout=60)

    def silent(self) -> bool:
        return not self._rung.acquire(blocking=False)


def count_round_trips(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that read ZooKeeper, by method, from now on. Each waits for its answer; pipelined reads are one
    call."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        method = getattr(ZooKeeper, name)

        def call(*arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return method(*arguments, **named)

        return call

    for name in ("sync", "get", "get_many", "children", "exists"):
        monkeypatch.setattr(ZooKeeper, name, counting(name))
    return counted
