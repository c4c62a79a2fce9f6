"""Measures a bookie whose admin API has bad callers: the latencies of others during each attack, relative to those
without.

Liveness, readiness and metrics are asked over a connection each, as probes and Prometheus do, and a client adds entries
over the bookie's own protocol: each from a process of its own (``slow_callers_clients.py``). A latency counts from when
the request was due. Two bookies are measured as in ``stalled_peers``: alone; while the other one is attacked,
"elsewhere", which has only the cost of the attacker's processor time; and while this one is attacked, "beside". An
attack has all its connections before the window. The p99 of all rounds' requests together are compared.

The attacker's process is nice (19), since an attacker on another machine takes nothing from the bookie's processors.
With ``--nice 0`` it competes for them.

``--tree`` names another checkout, whose bookies are measured in turn with this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import attack_figure, figure
from benchmarks.slow_callers_attacks import ATTACKS
from benchmarks.slow_callers_clients import KINDS, Callers
from bookie_server.local import LocalCluster
from tests.support.admin import token_file
from tests.support.bookie import BookieProcess, free_port

NAME = "slow_callers"
_HERE: Final = Path(__file__).parents[1]
_WINDOWS: Final = ("alone", "elsewhere", "beside")
_WARM_UP_S: Final = 2.0
#: Until an attack has all its connections.
_SETTLE_S: Final = 3.0
#: Until the bookie that was attacked has closed them.
_PAUSE_S: Final = 2.0
#: Latencies in ms of each round, by attack, tree, window and kind of request.
_Measured = dict[tuple[str, str, str, str], list[list[float]]]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--tree", type=Path, help="another checkout, whose bookies are measured beside this one's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--nice", type=int, default=19, help="of the attacker's process")
    parser.add_argument("--attacks", nargs="*", choices=[*ATTACKS], default=[*ATTACKS])
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 4.0) if options.quick else (options.rounds, options.seconds)
    trees = {"this": _HERE} | ({} if options.tree is None else {"other": options.tree.resolve()})
    measured: _Measured = defaultdict(list)
    failed: dict[tuple[str, str], int] = defaultdict(int)
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as temporary, contextlib.ExitStack() as ends:
        directory = Path(temporary)
        cluster = ends.enter_context(LocalCluster(directory / "cluster", bookies=0))
        uri = f"zk://{cluster.zookeepers[0].id}/ledgers"
        pairs = {
            tree: [ends.enter_context(_bookie(directory / f"{tree}-{name}", uri, path)) for name in ("one", "other")]
            for tree, path in trees.items()
        }
        callers = ends.enter_context(Callers())
        for pair in pairs.values():
            for bookie in pair:
                callers.window(_ports(bookie), _WARM_UP_S)
        for attack in options.attacks:
            for _ in range(rounds):
                for tree, pair in pairs.items():
                    for window, attacked in zip(_WINDOWS, (None, pair[1], pair[0]), strict=True):
                        with _attacker(attack, attacked, seconds, options.nice):
                            found = callers.window(_ports(pair[0]), seconds)
                        for kind, (latencies_s, lost) in found.items():
                            measured[attack, tree, window, kind].append([1000 * s for s in latencies_s])
                            failed[attack, tree] += lost if window == "beside" else 0
            for tree in trees:
                for kind in KINDS:
                    alone, elsewhere, beside = (measured[attack, tree, window, kind] for window in _WINDOWS)
                    attack_figure(NAME, f"{attack}.{kind}.p99", alone, elsewhere, beside, tree)
                figure(NAME, f"{attack}.failed", failed[attack, tree], "requests", tree=tree)


def _ports(bookie: BookieProcess) -> list[int]:
    return [int(bookie.settings["httpServerPort"]), bookie.port]


@contextlib.contextmanager
def _bookie(directory: Path, uri: str, tree: Path) -> Iterator[BookieProcess]:
    http_keys = {"httpServerEnabled": "true", "httpServerPort": str(free_port())}
    bookie = BookieProcess(directory, uri, httpServerTokenFile=token_file(directory), **http_keys)
    # Not forked from another process, whose pages it would copy in the windows.
    bookie.tree, bookie.forked = tree, False
    try:
        yield bookie.start()
    finally:
        bookie.end()


@contextlib.contextmanager
def _attacker(attack: str, bookie: BookieProcess | None, seconds: float, nice: int) -> Iterator[None]:
    """Attack from a process of its own. None: nobody is attacked."""
    if bookie is None:
        yield
        return
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
    time.sleep(_PAUSE_S)
