"""Measures what TLS costs: the same writes and reads over TLS and in clear, in turn, on one bookie.

Starts ZooKeeper and one bookie that offers both. A client writes a ledger and reads it, over v2. Reports megabytes of
payload per second of the median round, CPU seconds of bookie and client per gigabyte, and for both the ratio of TLS to
clear.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.processes import cpu_seconds
from benchmarks.report import figure
from bk_spark import BlockingClient, ClientConfig, Quorum
from bookie_server.local import LOOPBACK, LocalCluster

NAME = "tls"
_ALONE = Quorum(1, 1, 1)
_CERTIFICATES = f"""
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=ca" -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=bookie" -keyout bookie.key -out bookie.csr
printf 'subjectAltName=IP:{LOOPBACK}\\n' > bookie.ext
openssl x509 -req -in bookie.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile bookie.ext -out bookie.pem
"""


def main(arguments_given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks tls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="payload of one round and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 64 * 1024, 1024 * 1024], help="payload bytes")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(arguments_given)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        subprocess.run(["sh", "-ec", _CERTIFICATES], cwd=directory, check=True, capture_output=True)
        common = {
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": str(directory / "ca.pem"),
        }
        settings = common | {
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": str(directory / "bookie.key"),
            "tlsCertificatePath": str(directory / "bookie.pem"),
        }
        with LocalCluster(directory / "cluster", bookies=1, bookie_settings=settings) as cluster:
            pid = cluster.bookies[0].pid
            assert pid is not None
            for size in arguments.sizes:
                _measure(cluster.metadata_service_uri, common, pid, size, arguments)


def _measure(uri: str, keys: dict[str, str], pid: int, size: int, arguments: argparse.Namespace) -> None:
    kinds = {"clear": ClientConfig(), "tls": ClientConfig.from_properties(keys)}
    count = max(1, arguments.megabytes * 1_000_000 // size)
    rounds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(arguments.rounds + 1):
        for kind, config in kinds.items():
            for what, taken in _round(uri, config, pid, count, size).items():
                if number:  # the first round warms up
                    rounds.setdefault((what, kind), []).append(taken)
    total = count * size
    for what in ("write", "read"):
        rates, costs = {}, {}
        for kind in kinds:
            seconds, cpu = zip(*rounds[what, kind], strict=True)
            rates[kind] = total / 1e6 / statistics.median(seconds)
            spread = {"fastest_s": round(min(seconds), 3), "slowest_s": round(max(seconds), 3)}
            figure(NAME, f"{what}.{kind}.bytes", rates[kind], "MB/s", size=size, **spread)
            costs[kind] = statistics.median(cpu) / total * 1e9
            figure(NAME, f"{what}.{kind}.cpu", costs[kind], "s/GB", size=size)
        figure(NAME, f"{what}.tls_over_clear", rates["tls"] / rates["clear"], "ratio", size=size)
        figure(NAME, f"{what}.cpu_tls_over_clear", costs["tls"] / costs["clear"], "ratio", size=size)


def _round(uri: str, config: ClientConfig, pid: int, count: int, size: int) -> dict[str, tuple[float, float]]:
    """Seconds, and CPU seconds of bookie and client, of writing a ledger and of reading it."""
    payload, most = os.urandom(size), max(1, 16_000_000 // size)
    taken = {}
    with BlockingClient(uri, config) as client:
        with closing(client.create(quorum=_ALONE)) as writer:
            started, cpu = time.perf_counter(), _cpu(pid)
            for first in range(0, count, most):
                writer.append_many([payload] * min(most, count - first))
            writer.flush()
            taken["write"] = time.perf_counter() - started, _cpu(pid) - cpu
        reader = client.open_for_reading(writer.ledger_id)
        started, cpu = time.perf_counter(), _cpu(pid)
        read = sum(len(block.payloads) for block in reader.read_blocks(0, count - 1))
        taken["read"] = time.perf_counter() - started, _cpu(pid) - cpu
        assert read == count
        client.delete(writer.ledger_id)
    return taken


def _cpu(pid: int) -> float:
    return cpu_seconds(pid) + time.process_time()
