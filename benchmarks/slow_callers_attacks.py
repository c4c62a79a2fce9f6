"""``python -m benchmarks.slow_callers_attacks NAME PORT SECONDS``: one bad caller of an admin API on this machine.

It prints ``ready``, and begins when it reads a line.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

#: Headers that never end: a byte on each connection in each of these.
_DRIP_S: Final = 1.0
_LORIS: Final = 600
_IDLE: Final = 10_000
_UNREAD: Final = 200
#: Wrong tokens in a second.
_GUESSES: Final = 100
_HEAD: Final = b"GET /metrics HTTP/1.1\r\nHost: b\r\n"


def loris(port: int) -> Iterator[None]:
    """600 connections send a byte of a header each second. Those that were closed are opened again."""
    connections: list[socket.socket] = []
    while True:
        while len(connections) < _LORIS:
            connections.append(_connect(port, _HEAD + b"X: "))
        alive = []
        for one in connections:
            try:
                one.send(b"x")
                alive.append(one)
            except OSError:
                one.close()
        connections = alive
        time.sleep(_DRIP_S)
        yield


def idle(port: int) -> Iterator[None]:
    """10,000 connections send nothing. Those that were closed are opened again, 1,000 in a second."""
    connections: list[socket.socket] = []
    with selectors.DefaultSelector() as ended:
        while True:
            for _ in range(min(100, _IDLE - len(connections))):
                one = _connect(port, b"")
                connections.append(one)
                ended.register(one, selectors.EVENT_READ)
            for key, _ in ended.select(0):
                one = key.fileobj  # type: ignore[assignment]
                ended.unregister(one)
                connections.remove(one)
                one.close()
            time.sleep(0.1)
            yield


def unread(port: int) -> Iterator[None]:
    """200 connections ask for the metrics, and read nothing. Those that were closed are opened again."""
    connections: list[socket.socket] = []
    while True:
        for one in [*connections]:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                if one.recv(1, socket.MSG_PEEK):
                    continue
                connections.remove(one)
                one.close()
        while len(connections) < _UNREAD:
            connections.append(_connect(port, _HEAD + b"\r\n", receive=1024))
        time.sleep(1.0)
        yield


def wrong_token(port: int) -> Iterator[None]:
    """100 changes in a second show a wrong token."""
    asked = b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer wrong\r\nContent-Length: 0\r\n\r\n"
    while True:
        begun = time.monotonic()
        with _connect(port, asked) as one:
            one.setblocking(True)
            one.settimeout(10)
            with contextlib.suppress(OSError):
                assert b" 401 " in one.recv(4096)
        time.sleep(max(0.0, 1 / _GUESSES - (time.monotonic() - begun)))
        yield


ATTACKS: Final[dict[str, Callable[[int], Iterator[None]]]] = {
    "loris": loris,
    "idle": idle,
    "unread": unread,
    "wrong_token": wrong_token,
}


def _connect(port: int, sent: bytes, receive: int | None = None) -> socket.socket:
    one = socket.socket()
    if receive is not None:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    one.settimeout(10)
    with contextlib.suppress(OSError):
        one.connect(("127.0.0.1", port))
        one.send(sent)
    one.setblocking(False)
    return one


def main() -> None:
    name, port, seconds = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    for _ in ATTACKS[name](int(port)):
        if time.monotonic() > end:
            return


if __name__ == "__main__":
    main()
