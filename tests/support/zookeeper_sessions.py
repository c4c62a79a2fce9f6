"""Breaks and ends sessions with ZooKeeper that are still in use, and counts what is asked in them.

Only this module reaches through a session to kazoo's client, and into that: a cut connection, a session that another
client takes over and the requests on the wire are nobody's business but a test's.
"""

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
from kazoo.protocol.states import Callback

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
        with contextlib.suppress(KazooTimeoutError):
            take_over(session, session.servers, patience_s=5)
        lost.wait(1)
    assert not comes_back or back.wait(60)
    session.remove_state_listener(listener)


def take_over(session: ZooKeeper, servers: str, patience_s: float = 60) -> None:
    """End the session through another connection to ``servers`` that takes it over. Raises KazooTimeoutError."""
    client_id = session._client.client_id
    if client_id is None:
        return
    thief = KazooClient(servers, client_id=client_id, timeout=10)
    try:
        thief.start(patience_s)
    finally:
        thief.stop()
        thief.close()


def note_requests(session: ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the requests that are sent in the session from now on."""
    asked: list[str] = []
    send = session._client._call

    def note(request: object, answer: object) -> object:
        asked.append(type(request).__name__)
        return send(request, answer)

    monkeypatch.setattr(session._client, "_call", note)
    return asked


def wait_for_callbacks(session: ZooKeeper) -> None:
    """Wait until the watches that ZooKeeper has called so far have been handled."""
    session.sync("/")
    settled = threading.Event()
    session._client.handler.dispatch_callback(Callback("watch", settled.set, ()))
    assert settled.wait(30)


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
