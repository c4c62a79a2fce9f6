"""Measures a bookie with stalling peers: the latencies of other clients during each attack, relative to those without.

Steady clients send adds of 1 KiB and of 1 MB, reads of 1 KiB, requests that only need the bookie's event loop, and
reads over a new connection each. A latency counts from when the request was due, so it includes queueing. A request not
answered within the window counts with the time it has waited.

Each attack gets its own bookie, which is measured three times: alone; while another bookie on this machine is attacked,
"elsewhere"; and while this one is attacked, "beside". The attack costs the machine processor time in either case.
"elsewhere" has only that cost. So beside/elsewhere is the effect through the bookie, and beside/alone is the effect on
clients of a bookie that shares two cores with its attacker.

The attacker's process is nice (19), since an attacker on another machine takes nothing from the bookie's processors.
With ``--nice 0`` it competes for them.

With attacks on the gRPC port the steady clients use gRPC, too.

``--tree`` names another checkout, whose bookie is measured in turn with this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import figure, p99
from benchmarks.stalled_peers_attacks import ATTACKS
from benchmarks.stalled_peers_grpc_attacks import GRPC_ATTACKS
from benchmarks.stalled_peers_grpc_client import GrpcCalls
from bk_spark.protocol.auth.digest_md5 import DigestMd5Client
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import SASL, AuthMessage, auth_answer_of, auth_request
from bk_spark.protocol.wire.v3 import wire_v3
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess, Connection, add_frame, free_port
from tests.support.certificates import identity, write_pem
from tests.support.jaas import USERS, bookie_keys, write_jaas

NAME = "stalled_peers"
_HERE: Final = Path(__file__).parents[1]
_LEDGER: Final = 77
_WARM_UP_S: Final = 2.0
_PAUSE_S: Final = 2.0
_WINDOWS: Final = ("alone", "elsewhere", "beside")
#: Longer waits count as this.
_PATIENCE_S: Final = 10.0
_MEGABYTE: Final = 1_000_000
#: The attack of which the bookies' clients log in.
_LOGINS: Final = "wrong_logins"
#: Requests per second of each kind.
_KINDS: Final = {"add": 50.0, "add_1mb": 4.0, "read": 50.0, "info": 100.0, "newcomer": 10.0}


class Client(threading.Thread):
    """Sends requests of one kind at a steady rate for a given time."""

    def __init__(self, kind: str, port: int, seconds: float, *, logs_in: bool) -> None:
        super().__init__(name=kind)
        self.kind = kind
        self.latencies_s: list[float] = []
        self.failed = 0
        self._port = port
        self._seconds = seconds
        self._connection: Connection | None = None
        self._logs_in = logs_in
        self._requests = 0

    def run(self) -> None:
        began, rate = time.monotonic(), _KINDS[self.kind]
        end = began + self._seconds
        for number in range(int(self._seconds * rate)):
            due = began + number / rate
            time.sleep(max(0.0, due - time.monotonic()))
            while not self._once():
                self.failed += 1
                if time.monotonic() >= end:
                    break
                time.sleep(0.01)
            self.latencies_s.append(time.monotonic() - due)
            if time.monotonic() >= end + _PATIENCE_S:
                return
        self._close()

    def _once(self) -> bool:
        """Send one request. False if it must be sent again, over another connection."""
        try:
            if self._connection is None:
                self._connection = Connection(self._port)
                self._connection.socket.settimeout(_PATIENCE_S)
                if self._logs_in:
                    _log_in(self._connection, v2=self.kind != "info")
            self._requests += 1
            self._connection.send(self._request())
            body = self._connection.body()
        except OSError:
            self._close()
            return False
        if self.kind == "newcomer":
            self._close()
        return self.kind == "info" or bytes(body[4:8]) == bytes(4)

    def _request(self) -> bytes:
        if self.kind == "info":
            return wire_v3.bookie_info_request(self._requests)
        if self.kind in ("read", "newcomer"):
            return wire_v2.read_requests(_LEDGER, [1])
        entry_id, size = self._entry()
        return add_frame(_LEDGER, entry_id, size=size)

    def _entry(self) -> tuple[int, int]:
        """Return id and size of the next entry."""
        large = self.kind == "add_1mb"
        return (1 << 20 if large else 10) + self._requests, _MEGABYTE if large else 1024

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None


class GrpcClient(Client):
    """The same over gRPC."""

    _calls: GrpcCalls | None = None

    def _once(self) -> bool:
        try:
            if self._calls is None:
                self._calls = GrpcCalls(self._port, self.kind, _PATIENCE_S)
            self._requests += 1
            done = self._ask(self._calls)
        except OSError:
            self._close()
            return False
        if self.kind == "newcomer":
            self._close()
        return done

    def _ask(self, calls: GrpcCalls) -> bool:
        if self.kind == "info":
            return calls.info()
        if self.kind in ("read", "newcomer"):
            return calls.read(_LEDGER, 1)
        return calls.add(_LEDGER, *self._entry())

    def _close(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--tree", type=Path, help="another checkout, whose bookie is measured beside this one's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--nice", type=int, default=19, help="of the attacker's process")
    parser.add_argument("--attacks", nargs="*", choices=[*ATTACKS], default=[*ATTACKS])
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, options.seconds)
    trees = {"this": _HERE} | ({} if options.tree is None else {"other": options.tree.resolve()})
    p99s_ms: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as temporary:
        directory = Path(temporary)
        with LocalCluster(directory / "cluster", bookies=0) as cluster:
            uri = f"zk://{cluster.zookeepers[0].id}/ledgers"
            for attack in options.attacks:
                for number in range(rounds):
                    for tree, path in trees.items():
                        name = f"{number}-{attack}-{tree}"
                        with (
                            _bookie(directory / name, uri, path, attack) as bookie,
                            _bookie(directory / f"{name}-other", uri, path, attack) as other,
                        ):
                            for window, found in _measure(bookie, other, attack, seconds, options.nice).items():
                                for kind, p99_ms in found.items():
                                    p99s_ms[attack, tree, window, kind].append(p99_ms)
                for tree in trees:
                    _tell(attack, tree, p99s_ms)


def _tell(attack: str, tree: str, p99s_ms: dict[tuple[str, str, str, str], list[float]]) -> None:
    for kind in _KINDS:
        alone, elsewhere, beside = (p99s_ms[attack, tree, window, kind] for window in _WINDOWS)
        figure(
            NAME,
            f"{attack}.{kind}.p99",
            statistics.median(beside) / statistics.median(alone),
            "ratio",
            tree=tree,
            to_elsewhere=round(statistics.median(beside) / statistics.median(elsewhere), 2),
            alone_ms=round(statistics.median(alone), 2),
            elsewhere_ms=round(statistics.median(elsewhere), 2),
            beside_ms=round(statistics.median(beside), 2),
            ratios=[round(b / a, 2) for a, b in zip(alone, beside, strict=True)],
            ratios_to_elsewhere=[round(b / e, 2) for e, b in zip(elsewhere, beside, strict=True)],
        )


def _measure(
    bookie: BookieProcess, other: BookieProcess, attack: str, seconds: float, nice: int
) -> dict[str, dict[str, float]]:
    """Return p99 in ms by window and kind of request. ``other`` is attacked in the window "elsewhere"."""
    logs_in, over_grpc = attack == _LOGINS, attack in GRPC_ATTACKS
    ports = [int(one.settings["grpcServerPort"]) if over_grpc else one.port for one in (bookie, other)]
    for one in (bookie, other):
        with Connection(one.port) as connection:
            if logs_in:
                _log_in(connection, v2=True)
            connection.send(add_frame(_LEDGER, 0, size=_MEGABYTE) + add_frame(_LEDGER, 1, size=1024))
            for _ in range(2):
                assert bytes(connection.body()[4:8]) == bytes(4)

    def window(port: int, seconds: float, begin: Callable[[], None] = lambda: None) -> dict[str, float]:
        return _window(port, seconds, logs_in, begin, GrpcClient if over_grpc else Client)

    for port in ports:
        window(port, _WARM_UP_S)
    alone = window(ports[0], seconds)
    with _attacker(attack, ports[1], seconds, nice) as begin:
        elsewhere = window(ports[0], seconds, begin)
    time.sleep(_PAUSE_S)  # the other bookie closes the attacker's connections
    with _attacker(attack, ports[0], seconds, nice) as begin:
        beside = window(ports[0], seconds, begin)
    return {"alone": alone, "elsewhere": elsewhere, "beside": beside}


def _window(
    port: int, seconds: float, logs_in: bool, begin: Callable[[], None], kind_of_client: type[Client]
) -> dict[str, float]:
    clients = [kind_of_client(kind, port, seconds, logs_in=logs_in) for kind in _KINDS]
    for client in clients:
        client.start()
    begin()
    for client in clients:
        client.join()
    return {client.kind: 1000 * p99(client.latencies_s) for client in clients}


def _log_in(connection: Connection, *, v2: bool) -> None:
    def say(payload: bytes) -> bytes:
        connection.send(auth_request(AuthMessage(SASL, payload), v2=v2))
        answer = auth_answer_of(connection.body(), v2=v2)
        assert answer is not None
        return answer.payload

    client = DigestMd5Client("bookkeeper", USERS["bookkeeper"], "cnonce")
    client.check(say(client.respond(say(b""))))


@contextlib.contextmanager
def _bookie(directory: Path, uri: str, tree: Path, attack: str) -> Iterator[BookieProcess]:
    settings: dict[str, str] = {}
    if attack in GRPC_ATTACKS:
        settings = {"grpcServerEnabled": "true", "grpcServerPort": str(free_port())}
    elif "handshakes" in attack:
        settings = write_pem(directory / "tls", identity("bookie"))
        settings["tlsClientAuthentication"] = str(attack == "failed_handshakes").lower()
    elif attack == _LOGINS:
        settings = bookie_keys(write_jaas(directory / "jaas.conf"))
    bookie = BookieProcess(directory, uri, **settings)
    bookie.tree = tree
    try:
        yield bookie.start()
    finally:
        bookie.end()


@contextlib.contextmanager
def _attacker(attack: str, port: int, seconds: float, nice: int) -> Iterator[Callable[[], None]]:
    """Set up the attack in its own process. Call the yielded function to begin."""
    command = [sys.executable, "-m", "benchmarks.stalled_peers_attacks", attack, str(port), str(_LEDGER)]
    process = subprocess.Popen(
        ["nice", "-n", str(nice), *command, str(seconds + 60)],
        cwd=_HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin = process.stdin

    def begin() -> None:
        stdin.write("\n")
        stdin.flush()

    try:
        assert process.stdout.readline() == "ready\n"
        yield begin
    finally:
        process.kill()
        process.wait()
        stdin.close()
        process.stdout.close()
