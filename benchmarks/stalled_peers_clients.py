"""The steady clients of ``stalled_peers``: a process for each kind of request, with frames that are built before the
window."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.client_processes import ClientProcesses, serve
from benchmarks.stalled_peers_grpc_client import GrpcCalls
from bk_spark.protocol.auth.digest_md5 import DigestMd5Client
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import SASL, AuthMessage, auth_answer_of, auth_request
from bk_spark.protocol.wire.v3 import wire_v3
from tests.support.bookie import Connection, add_frame
from tests.support.jaas import USERS

#: Requests per second of each kind.
KINDS: Final = {"add": 50.0, "add_1mb": 8.0, "read": 50.0, "info": 100.0, "newcomer": 25.0}
#: Longer waits count as this.
_PATIENCE_S: Final = 10.0
#: Until a request that failed is sent again.
_AGAIN_S: Final = 0.01
MEGABYTE: Final = 1_000_000
SMALL_BYTES: Final = 1024
_FIRST_ENTRY: Final = {"add": 10, "add_1mb": 1 << 20}


class Clients(ClientProcesses):
    """A process for each kind of request. A context manager."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(__name__, KINDS, str(ledger_id))

    def window(
        self,
        port: int,
        seconds: float,
        *,
        logs_in: bool = False,
        over_grpc: bool = False,
        begin: Callable[[], None] = lambda: None,
    ) -> dict[str, list[float]]:
        """Ask the bookie at ``port`` for some time, and return the latencies in seconds by kind. ``begin`` is called at
        the beginning."""
        return self.ask([port, seconds, logs_in, over_grpc], begin)


class _Client:
    """Requests of one kind to one bookie, for one window."""

    def __init__(self, kind: str, ledger_id: int, port: int, *, logs_in: bool) -> None:
        self._kind, self._ledger_id, self._port = kind, ledger_id, port
        self._logs_in = logs_in
        self._connection: Connection | None = None
        self._frames: list[bytes] = []

    def prepare(self, count: int, first: int) -> None:
        """Be ready to send ``count`` requests, after one that is not counted: the first over a connection takes longer,
        and is to be measured of newcomers alone. ``first`` is the first one's number among those of all windows."""
        self._frames = [self._frame(first + number) for number in range(count + 1)]
        while not self.once(count):
            time.sleep(_AGAIN_S)

    def run(self, began: float, seconds: float) -> list[float]:
        """Send the requests, at equal distances from ``began`` on. Return their latencies."""
        latencies_s: list[float] = []
        count = len(self._frames) - 1
        end = began + seconds
        for number in range(count):
            due = began + number * seconds / count
            time.sleep(max(0.0, due - time.monotonic()))
            while not self.once(number) and time.monotonic() < end:
                time.sleep(_AGAIN_S)
            latencies_s.append(time.monotonic() - due)
            if time.monotonic() >= end + _PATIENCE_S:
                break
        self.close()
        return latencies_s

    def once(self, number: int) -> bool:
        """Send one request. False if it must be sent again, over another connection."""
        try:
            connection = self._connection or self._connect()
            connection.send(self._frames[number])
            body = connection.body()
        except OSError:
            self.close()
            return False
        if self._kind == "newcomer":
            self.close()
        return self._kind == "info" or bytes(body[4:8]) == bytes(4)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None

    def _connect(self) -> Connection:
        connection = self._connection = Connection(self._port)
        connection.socket.settimeout(_PATIENCE_S)
        if self._logs_in:
            log_in(connection, v2=self._kind != "info")
        return connection

    def _frame(self, number: int) -> bytes:
        if self._kind == "info":
            return wire_v3.bookie_info_request(number)
        if self._kind in _FIRST_ENTRY:
            return add_frame(self._ledger_id, _FIRST_ENTRY[self._kind] + number, size=_entry_bytes(self._kind))
        return wire_v2.read_requests(self._ledger_id, [1])


class _GrpcClient(_Client):
    """The same over gRPC, without login. Messages are built when they are sent."""

    _calls: GrpcCalls | None = None
    _first = 0

    def prepare(self, count: int, first: int) -> None:
        self._first = first
        super().prepare(count, first)

    def _frame(self, number: int) -> bytes:
        return b""

    def once(self, number: int) -> bool:
        try:
            if self._calls is None:
                self._calls = GrpcCalls(self._port, self._kind, _PATIENCE_S)
            done = self._ask(self._calls, self._first + number)
        except OSError:
            self.close()
            return False
        if self._kind == "newcomer":
            self.close()
        return done

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _ask(self, calls: GrpcCalls, number: int) -> bool:
        if self._kind == "info":
            return calls.info()
        if self._kind in _FIRST_ENTRY:
            return calls.add(self._ledger_id, _FIRST_ENTRY[self._kind] + number, _entry_bytes(self._kind))
        return calls.read(self._ledger_id, 1)


def log_in(connection: Connection, *, v2: bool) -> None:
    """Log in with the right password."""

    def say(payload: bytes) -> bytes:
        connection.send(auth_request(AuthMessage(SASL, payload), v2=v2))
        answer = auth_answer_of(connection.body(), v2=v2)
        assert answer is not None
        return answer.payload

    client = DigestMd5Client("bookkeeper", USERS["bookkeeper"], "cnonce")
    client.check(say(client.respond(say(b""))))


def _entry_bytes(kind: str) -> int:
    return MEGABYTE if kind == "add_1mb" else SMALL_BYTES


def main() -> None:
    kind, ledger_id = sys.argv[1], int(sys.argv[2])
    asked = 0

    def prepare(window: Any) -> Callable[[float], list[float]]:
        nonlocal asked
        port, seconds, logs_in, over_grpc = window
        client = (_GrpcClient if over_grpc else _Client)(kind, ledger_id, port, logs_in=logs_in)
        count = max(1, int(seconds * KINDS[kind]))
        client.prepare(count, asked)
        asked += count + 1
        return lambda began: client.run(began, seconds)

    serve([*KINDS].index(kind), prepare)


if __name__ == "__main__":
    main()
