"""Measures a bookie with stalling peers: the latencies of other clients during each attack, relative to those without.

Steady clients send adds of 1 KiB and of 1 MB, reads of 1 KiB, requests that only need the bookie's event loop, and
reads over a new connection each. A latency counts from when the request was due, so it includes queueing. A request not
answered within the window counts with the time it has waited.

Each attack gets its own bookie, which is measured three times: alone; while another bookie on this machine is attacked,
"elsewhere"; and while this one is attacked, "beside". The attack costs the machine processor time in either case, the
attacker's and the attacked bookie's. "elsewhere" has only that cost. So beside/elsewhere is the effect through the
bookie, and beside/alone is the effect on clients of a bookie that shares two cores with its attacker.

What is not the bookie's is excluded as far as it can be. The attacker's process is nice (19), since an attacker on
another machine takes nothing from the bookie's processors; with ``--nice 0`` it competes for them. It connects and
builds its frames before the window, unless to connect or to encrypt is the attack. Each kind of request has a client
process of its own (``stalled_peers_clients.py``). What remains in all three windows: the disk, the kernel's work for
the attacker's connections, and a scheduler that lets a client wait for some milliseconds when both cores are taken.

A window's p99 is the longest latency of the rarer kinds, so single windows differ by several times. The p99 of all
rounds' requests together are compared.

With attacks on the gRPC port the steady clients use gRPC, too. The attacker has another address than they
(127.0.0.2), as one on another machine; with ``--source 127.0.0.1`` it has theirs. One in sixteen bookies gives both
addresses the same line all the same.

``--tree`` names another checkout, whose bookie is measured in turn with this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import attack_figure
from benchmarks.stalled_peers_attacks import ATTACKS
from benchmarks.stalled_peers_clients import KINDS, MEGABYTE, SMALL_BYTES, Clients, log_in
from benchmarks.stalled_peers_grpc_attacks import GRPC_ATTACKS
from bookie_server.local import LocalCluster
from tests.support.bookie import BookieProcess, Connection, add_frame, free_port
from tests.support.certificates import identity, write_pem
from tests.support.jaas import bookie_keys, write_jaas

NAME = "stalled_peers"
_HERE: Final = Path(__file__).parents[1]
_LEDGER: Final = 77
_WARM_UP_S: Final = 2.0
_PAUSE_S: Final = 8.0
_WINDOWS: Final = ("alone", "elsewhere", "beside")
#: The attack of which the bookies' clients log in.
_LOGINS: Final = "wrong_logins"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"benchmarks {NAME}", description=__doc__)
    parser.add_argument("--tree", type=Path, help="another checkout, whose bookie is measured beside this one's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each window")
    parser.add_argument("--nice", type=int, default=19, help="of the attacker's process")
    parser.add_argument("--source", default="127.0.0.2", help="the attacker's address")
    parser.add_argument("--attacks", nargs="*", choices=[*ATTACKS], default=[*ATTACKS])
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, options.seconds)
    trees = {"this": _HERE} | ({} if options.tree is None else {"other": options.tree.resolve()})
    latencies_ms: dict[tuple[str, str, str, str], list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as temporary:
        directory = Path(temporary)
        with LocalCluster(directory / "cluster", bookies=0) as cluster, Clients(_LEDGER) as clients:
            uri = f"zk://{cluster.zookeepers[0].id}/ledgers"
            for attack in options.attacks:
                for number in range(rounds):
                    for tree, path in trees.items():
                        name = f"{number}-{attack}-{tree}"
                        with (
                            _bookie(directory / name, uri, path, attack) as bookie,
                            _bookie(directory / f"{name}-other", uri, path, attack) as other,
                        ):
                            measured = _measure(clients, bookie, other, attack, seconds, options)
                            for window, found in measured.items():
                                for kind, latencies_s in found.items():
                                    latencies_ms[attack, tree, window, kind].append([1000 * s for s in latencies_s])
                for tree in trees:
                    for kind in KINDS:
                        alone, elsewhere, beside = (latencies_ms[attack, tree, window, kind] for window in _WINDOWS)
                        attack_figure(NAME, f"{attack}.{kind}.p99", alone, elsewhere, beside, tree)


def _measure(
    clients: Clients,
    bookie: BookieProcess,
    other: BookieProcess,
    attack: str,
    seconds: float,
    options: argparse.Namespace,
) -> dict[str, dict[str, list[float]]]:
    """Return the latencies in seconds by window and kind. ``other`` is attacked in the window "elsewhere"."""
    logs_in, over_grpc = attack == _LOGINS, attack in GRPC_ATTACKS
    for one in (bookie, other):
        with Connection(one.port) as connection:
            if logs_in:
                log_in(connection, v2=True)
            connection.send(add_frame(_LEDGER, 0, size=MEGABYTE) + add_frame(_LEDGER, 1, size=SMALL_BYTES))
            for _ in range(2):
                assert bytes(connection.body()[4:8]) == bytes(4)

    def window(port: int, seconds: float, begin: Callable[[], None] = lambda: None) -> dict[str, list[float]]:
        return clients.window(port, seconds, logs_in=logs_in, over_grpc=over_grpc, begin=begin)

    for one in (bookie, other):
        window(_port(one, attack), _WARM_UP_S)
    port = _port(bookie, attack)
    alone = window(port, seconds)
    with _attacker(attack, other, seconds, options) as begin:
        elsewhere = window(port, seconds, begin)
    time.sleep(_PAUSE_S)  # the other bookie closes the attacker's connections, and makes index files of fenced ledgers
    with _attacker(attack, bookie, seconds, options) as begin:
        beside = window(port, seconds, begin)
    return {"alone": alone, "elsewhere": elsewhere, "beside": beside}


def _port(bookie: BookieProcess, attack: str) -> int:
    return int(bookie.settings["grpcServerPort"]) if attack in GRPC_ATTACKS else bookie.port


@contextlib.contextmanager
def _bookie(directory: Path, uri: str, tree: Path, attack: str) -> Iterator[BookieProcess]:
    settings: dict[str, str] = {}
    if attack in GRPC_ATTACKS:
        settings = {"grpcServerEnabled": "true", "grpcServerPort": str(free_port())}
        if attack == "grpc_wrong_role":
            settings["authorizationFile"] = _rights(directory, "read,write,admin")
    elif "handshakes" in attack:
        settings = write_pem(directory / "tls", identity("bookie"))
        settings["tlsClientAuthentication"] = str(attack == "failed_handshakes").lower()
    elif attack == "wrong_role":
        settings = write_pem(directory / "tls", identity("bookie"))
        settings |= {"tlsClientAuthentication": "true", "authorizationFile": _rights(directory, "all")}
        write_pem(_attackers_files(directory), identity("attacker", units=("0:guests",)))
    elif attack == _LOGINS:
        settings = bookie_keys(write_jaas(directory / "jaas.conf"))
    bookie = BookieProcess(directory, uri, **settings)
    bookie.tree, bookie.forked = tree, False
    try:
        yield bookie.start()
    finally:
        bookie.end()


def _rights(directory: Path, words: str) -> str:
    """Write a file that gives rights to the steady clients, which have no names."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rights").write_text(f"{words} anonymous\n")
    return str(directory / "rights")


def _attackers_files(bookies_directory: Path) -> Path:
    return bookies_directory / "attacker"


@contextlib.contextmanager
def _attacker(
    attack: str, bookie: BookieProcess, seconds: float, options: argparse.Namespace
) -> Iterator[Callable[[], None]]:
    """Set up the attack in its own process. Call the yielded function to begin."""
    port, files = str(_port(bookie, attack)), str(_attackers_files(bookie.directory))
    command = [sys.executable, "-m", "benchmarks.stalled_peers_attacks", attack, port, str(_LEDGER)]
    process = subprocess.Popen(
        ["nice", "-n", str(options.nice), *command, options.source, str(seconds + 60), files],
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
