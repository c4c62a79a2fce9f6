"""Measures gRPC beside the native protocol: the same writes and reads over both, in turn.

Starts three clusters of one bookie. Two of the bookies serve gRPC, too. A client writes a ledger in batches and reads
it: at the bookie without gRPC (``native``), at the native port of the second (``beside``), and over gRPC at the third
(``grpc``). Each has its own bookie, so that none reads while it flushes what another wrote. Reports megabytes of
payload per second of the median round, CPU seconds of bookie and client per gigabyte, and for both the ratio to
``native``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.write_and_read import Way, compare
from bk_spark import ClientConfig
from bookie_server.local import LocalCluster

NAME = "transports"


def main(arguments_given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks transports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="payload of one round and size")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 1024, 64 * 1024, 1024 * 1024], help="payload bytes"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(arguments_given)
    served = {"grpcServerEnabled": "true", "grpcServerPort": "0"}
    with (
        tempfile.TemporaryDirectory() as name,
        LocalCluster(Path(name, "without"), bookies=1) as without,
        LocalCluster(Path(name, "beside"), bookies=1, bookie_settings=served) as beside,
        LocalCluster(Path(name, "grpc"), bookies=1, bookie_settings=served) as over_grpc,
    ):
        ways = {
            "native": _way(without, "native"),
            "beside": _way(beside, "native"),
            "grpc": _way(over_grpc, "grpc"),
        }
        for size in arguments.sizes:
            # Small entries cost the client much more, so a round needs fewer bytes.
            megabytes = arguments.megabytes if size >= 1024 else max(1, arguments.megabytes // 5)
            compare(NAME, ways, size, megabytes, arguments.rounds)


def _way(cluster: LocalCluster, transport: str) -> Way:
    pid = cluster.bookies[0].pid
    assert pid is not None
    return Way(cluster.metadata_service_uri, pid, ClientConfig(transport=transport))
