"""The fault tests' TCP proxy does what they believe it does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.tcp_proxy import STALLED, SWALLOWING, Connects, Link, TcpProxy

TIMEOUT_S = 60.0


class Echo:
    """Sends back what it gets, one connection at a time."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except ConnectionError:
                    pass


@pytest.fixture
def proxy() -> Iterator[TcpProxy]:
    server = Echo()
    try:
        with TcpProxy(server.address) as proxy:
            yield proxy
    finally:
        server.close()


def connect(proxy: TcpProxy, timeout_s: float = TIMEOUT_S) -> socket.socket:
    return socket.create_connection(proxy.address, timeout_s)


def echoed(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return received(connection, len(data))


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "closed"
        data += part
    return data


def silent(connection: socket.socket) -> bool:
    """Nothing comes for a while."""
    connection.settimeout(0.2)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT_S)
    return False


def test_passes_everything_and_the_end(proxy: TcpProxy) -> None:
    data = bytes(range(256)) * 2_000
    with connect(proxy) as connection:
        assert echoed(connection, data) == data
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    with connect(proxy) as connection:
        assert echoed(connection, b"again") == b"again"
    assert proxy.accepted == 2


def test_a_cut_resets_what_is_open_and_lets_in_what_comes(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        assert echoed(connection, b"one") == b"one"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connect(proxy) as connection:
        assert echoed(connection, b"two") == b"two"


def test_refused(proxy: TcpProxy) -> None:
    with connect(proxy) as connection:
        assert echoed(connection, b"one") == b"one"
        proxy.set(connects=Connects.REFUSE)
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert echoed(connection, b"still there") == b"still there"
    proxy.heal()
    with connect(proxy) as connection:
        assert echoed(connection, b"let in") == b"let in"


def test_swallowed_connects_hang(proxy: TcpProxy) -> None:
    proxy.set(connects=Connects.SWALLOW)
    with pytest.raises(TimeoutError):
        connect(proxy, 0.3)
    proxy.heal()
    with connect(proxy) as connection:
        assert echoed(connection, b"let in") == b"let in"


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_what_stalls_arrives_later(proxy: TcpProxy, direction: str) -> None:
    with connect(proxy) as connection:
        assert echoed(connection, b"one") == b"one"
        proxy.set(**{direction: STALLED})
        connection.sendall(b"two")
        assert silent(connection)
        proxy.heal()
        assert received(connection, 3) == b"two"
        assert echoed(connection, b"three") == b"three"


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_connection_that_lost_bytes_is_reset(proxy: TcpProxy, direction: str) -> None:
    with connect(proxy) as connection, connect(proxy):
        assert echoed(connection, b"one") == b"one"
        proxy.set(**{direction: SWALLOWING})
        connection.sendall(b"two")
        assert silent(connection)
        assert proxy.open_connections == 2
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert proxy.open_connections == 1


def test_a_slow_link(proxy: TcpProxy) -> None:
    proxy.set(to_server=Link(bytes_per_s=100_000), to_client=Link(delay_ms=50))
    data = bytes(20_000)
    with connect(proxy) as connection:
        started = time.monotonic()
        assert echoed(connection, data) == data
        assert time.monotonic() - started > 0.2
        # A link that becomes good lets go at once what it held back.
        proxy.set(to_server=Link(delay_ms=60_000))
        connection.sendall(b"two")
        proxy.heal()
        assert received(connection, 3) == b"two"


def test_a_server_that_is_gone() -> None:
    nobody = socket.create_server(("127.0.0.1", 0))
    address = nobody.getsockname()
    nobody.close()
    with TcpProxy(address) as to_nobody, pytest.raises(ConnectionResetError), connect(to_nobody) as connection:
        connection.recv(1)
