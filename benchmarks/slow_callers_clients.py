"""The steady callers of ``slow_callers``: a process for each kind of request, with requests that are built before the
window.

Liveness, readiness and metrics are asked over a connection each, as probes and Prometheus do.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from benchmarks.client_processes import ClientProcesses, serve
from tests.support.bookie import Connection, add_frame

#: Requests in a second, by kind: in ten seconds enough for a p99.
KINDS: Final = {"heartbeat": 50.0, "ready": 50.0, "metrics": 20.0, "add": 50.0}
_PATHS: Final = {"heartbeat": "/heartbeat", "ready": "/api/v1/bookie/is_ready", "metrics": "/metrics"}
#: A request that takes longer has failed.
_PATIENCE_S: Final = 10.0
_LEDGER: Final = 7
_READ_BYTES: Final = 1 << 20


class Callers(ClientProcesses):
    """A process for each kind of request. A context manager."""

    def __init__(self) -> None:
        super().__init__(__name__, KINDS)

    def window(self, ports: list[int], seconds: float) -> dict[str, tuple[list[float], int]]:
        """Ask the bookie with these ports, of HTTP and its own protocol, for some time. Return the latencies in seconds
        and the number of requests that failed, by kind."""
        return self.ask([*ports, seconds])


def _getting(path: str, port: int) -> Iterator[bool]:
    """Ask once in each step. Gives whether that succeeded."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as connection:
                connection.sendall(request)
                answer = connection.recv(_READ_BYTES)
                while more := connection.recv(_READ_BYTES):
                    answer += more
            yield answer.startswith(b"HTTP/1.1 200 ")
        except OSError:
            yield False


def _adding(port: int, count: int) -> Iterator[bool]:
    """Add an entry in each step."""
    first = time.time_ns() // 1_000_000 & 0xFFFFFF
    frames = [add_frame(_LEDGER, first + number, size=1024) for number in range(count)]
    connection = Connection(port)
    connection.socket.settimeout(_PATIENCE_S)
    with connection:
        for frame in frames:
            connection.send(frame)
            yield bytes(connection.body()[4:8]) == bytes(4)


def _prepare(kind: str, http_port: int, port: int, seconds: float) -> Callable[[float], object]:
    count = max(1, int(seconds * KINDS[kind]))
    steps = _adding(port, count + 1) if kind == "add" else _getting(_PATHS[kind], http_port)
    assert next(steps), f"the bookie does not answer {kind}"

    def run(began: float) -> object:
        latencies_s: list[float] = []
        failed = 0
        with closing(steps):  # type: ignore[type-var]
            for number in range(count):
                due = began + number / KINDS[kind]
                time.sleep(max(0.0, due - time.monotonic()))
                failed += not next(steps)
                latencies_s.append(time.monotonic() - due)
        return latencies_s, failed

    return run


def main() -> None:
    kind = sys.argv[1]

    def prepare(window: Any) -> Callable[[float], object]:
        return _prepare(kind, *window)

    serve([*KINDS].index(kind), prepare)


if __name__ == "__main__":
    main()
