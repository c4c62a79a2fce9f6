"""A TCP proxy in front of a ZooKeeper server that breaks the connection around a request."""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

#: ZooKeeper's request types.
CREATE: Final = 1
DELETE: Final = 2
SET_DATA: Final = 5
MULTI: Final = 14
#: Everything a caller may request; not the upkeep of session, ping and watches.
CALLS: Final = frozenset({CREATE, DELETE, 3, 4, SET_DATA, 8, 9, 12, MULTI, 15})
#: More than any call under :func:`at_each_request` makes.
MOST_REQUESTS: Final = 30


class Break(enum.Enum):
    BEFORE = "the request never reaches the server"
    AFTER = "the server answers, the answer never reaches the client"


class ZooKeeperProxy:
    """``address`` takes a client's connections. ``breaks`` are used up, one per request of the types in ``kinds``.
    ``on_break``, if set, is called before the client sees the break. After ``refuse``, broken connections stay
    broken."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.kinds: frozenset[int] = frozenset({MULTI})
        self.breaks: list[Break | None] = []
        self.broken = 0
        #: Number of requests of those types.
        self.requests = 0
        self.on_break: Callable[[], object] | None = None
        self._refusing = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> ZooKeeperProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            _close(connection)
        for thread in self._threads:
            thread.join(60)

    def refuse(self) -> None:
        """Accept no connection from now on."""
        self._refusing = True

    def _break(self) -> None:
        # What is called may end the session, and so what the test waits for.
        self.broken += 1
        if self.on_break is not None:
            self.on_break()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client)
                continue
            try:
                server = socket.create_connection(self._server, timeout=60)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._sockets += [client, server]
            doomed: set[int] = set()
            for pump in (self._requests, self._answers):
                thread = threading.Thread(target=pump, args=(client, server, doomed), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        first = True
        while (frame := _read_frame(client)) is not None:
            if not first and len(frame) >= 8:
                xid, operation = struct.unpack_from(">ii", frame)
                planned = None
                if operation in self.kinds:
                    self.requests += 1
                    planned = self.breaks.pop(0) if self.breaks else None
                if planned is Break.BEFORE:
                    self._break()
                    break
                if planned is Break.AFTER:
                    doomed.add(xid)
            first = False
            if not _send(server, frame):
                break
        _close(client)
        _close(server)

    def _answers(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        while (frame := _read_frame(server)) is not None:
            if len(frame) >= 4 and struct.unpack_from(">i", frame)[0] in doomed:
                self._break()
                break
            if not _send(client, frame):
                break
        _close(client)
        _close(server)


def at_each_request(proxy: ZooKeeperProxy, how: Break, call: Callable[[], None]) -> int:
    """``call`` again and again, with the first request broken, then the second, and so on; how many it has."""
    proxy.kinds = CALLS
    for number in range(MOST_REQUESTS):
        before = proxy.requests
        proxy.breaks = [*[None] * number, how]
        broken = proxy.broken
        call()
        if proxy.broken == broken:
            proxy.breaks = []
            return proxy.requests - before
    raise AssertionError(f"more than {MOST_REQUESTS} requests")


def _read_frame(connection: socket.socket) -> bytes | None:
    header = _read(connection, 4)
    return None if header is None else _read(connection, struct.unpack(">i", header)[0])


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def _send(connection: socket.socket, frame: bytes) -> bool:
    try:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
    except OSError:
        return False
    return True


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
