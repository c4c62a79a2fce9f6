"""Measures a bookie whose admin API has bad callers: the latencies of others during each attack, relative to those
without.

Liveness, readiness and metrics are asked over a connection each, as probes and Prometheus do, and a client adds entries
over the bookie's own protocol. A latency counts from when the request was due. Two bookies are measured as in
``stalled_peers``: alone; while the other one is attacked, "elsewhere", which has only the cost of the attacker's
processor time; and while this one is attacked, "beside".

The attacker's process is nice (19), since an attacker on another machine takes nothing from the bookie's processors.
With ``--nice 0`` it competes for them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
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
from benchmarks.slow_callers_attacks import ATTACKS
from bookie_server.local import LocalCluster
from tests.support.admin import token_file
from tests.support.bookie import BookieProcess, Connection, add_frame, free_port

NAME = "slow_callers"
_HERE: Final = Path(__file__).parents[1]
_WINDOWS: Final = ("alone", "elsewhere", "beside")
_PATIENCE_S: Final = 10.0
_LEDGER: Final = 7
#: Requests in a second, by kind.
_KINDS: Final = {"heartbeat": 20.0, "ready": 20.0, "metrics": 5.0, "add": 50.0}
_PATHS: Final = {"heartbeat": "/heartbeat", "ready": "/api/v1/bookie/is_ready", "metrics": "/metrics"}
#: Until an attack has all its connections.
_SETTLE_S: Final = 3.0


class Caller(threading.Thread):
    """Asks at a steady rate for a given time."""

    def __init__(self, kind: str, bookie: BookieProcess, seconds: float) -> None:
        super().__init__(name=kind)
        self.kind = kind
        self.latencies_s: list[float] = []
        self.failed = 0
        self._bookie = bookie
        self._seconds = seconds

    def run(self) -> None:
        began, rate = time.monotonic(), _KINDS[self.kind]
        with contextlib.ExitStack() as ends:
            once = self._get if self.kind in _PATHS else self._adding(ends.enter_context(Connection(self._bookie.port)))
            for number in range(int(self._seconds * rate)):
                due = began + number / rate
                time.sleep(max(0.0, due - time.monotonic()))
                if not once():
                    self.failed += 1
                self.latencies_s.append(time.monotonic() - due)

    def _get(self) -> bool:
        port = int(self._bookie.settings["httpServerPort"])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", _PATHS[self.kind])
            answer = connection.getresponse()
            answer.read()
            return answer.status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _adding(self, connection: Connection) -> Callable[[], bool]:
        entries = iter(range(time.time_ns() // 1_000_000, 1 << 62))

        def add() -> bool:
            connection.send(add_frame(_LEDGER, next(entries) & 0xFFFFFF, size=1024))
            return bytes(connection.body()[4:8]) == bytes(4)

        return add


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--nice", type=int, default=19, help="of the attacker's process")
    parser.add_argument("--attacks", nargs="*", choices=[*ATTACKS], default=[*ATTACKS])
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 4.0) if options.quick else (options.rounds, options.seconds)
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as temporary:
        directory = Path(temporary)
        with LocalCluster(directory / "cluster", bookies=0) as cluster:
            uri = f"zk://{cluster.zookeepers[0].id}/ledgers"
            with _bookie(directory / "one", uri) as bookie, _bookie(directory / "other", uri) as other:
                for attack in options.attacks:
                    p99s_ms: dict[tuple[str, str], list[float]] = defaultdict(list)
                    failed = 0
                    for _ in range(rounds):
                        failed += _measure(bookie, other, attack, seconds, options.nice, p99s_ms)
                    _tell(attack, failed, p99s_ms)


def _tell(attack: str, failed: int, p99s_ms: dict[tuple[str, str], list[float]]) -> None:
    for kind in _KINDS:
        alone, elsewhere, beside = (statistics.median(p99s_ms[window, kind]) for window in _WINDOWS)
        figure(
            NAME,
            f"{attack}.{kind}.p99",
            beside / alone,
            "ratio",
            to_elsewhere=round(beside / elsewhere, 2),
            alone_ms=round(alone, 2),
            elsewhere_ms=round(elsewhere, 2),
            beside_ms=round(beside, 2),
        )
    figure(NAME, f"{attack}.failed", failed, "requests")


def _measure(
    bookie: BookieProcess,
    other: BookieProcess,
    attack: str,
    seconds: float,
    nice: int,
    p99s_ms: dict[tuple[str, str], list[float]],
) -> int:
    """Add p99 in ms by window and kind. Return how many requests failed while the bookie was attacked."""
    failed = 0
    for window, attacked in zip(_WINDOWS, (None, other, bookie), strict=True):
        with contextlib.nullcontext() if attacked is None else _attacker(attack, attacked, seconds, nice):
            callers = [Caller(kind, bookie, seconds) for kind in _KINDS]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
        for caller in callers:
            p99s_ms[window, caller.kind].append(1000 * p99(caller.latencies_s))
            failed += caller.failed if attacked is bookie else 0
    return failed


@contextlib.contextmanager
def _bookie(directory: Path, uri: str) -> Iterator[BookieProcess]:
    http_keys = {"httpServerEnabled": "true", "httpServerPort": str(free_port())}
    bookie = BookieProcess(directory, uri, httpServerTokenFile=token_file(directory), **http_keys)
    try:
        yield bookie.start()
    finally:
        bookie.end()


@contextlib.contextmanager
def _attacker(attack: str, bookie: BookieProcess, seconds: float, nice: int) -> Iterator[None]:
    """Attack from a process of its own."""
    port = bookie.settings["httpServerPort"]
    attacker = [sys.executable, "-m", "benchmarks.slow_callers_attacks", attack, port, str(seconds + 60)]
    command = ["nice", "-n", str(nice), *attacker]
    with subprocess.Popen(command, cwd=_HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            time.sleep(_SETTLE_S)
            yield
        finally:
            process.kill()
