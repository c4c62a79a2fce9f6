"""Measures what rights cost: the same writes and reads on a bookie with ``authorizationFile`` and on one without, in
turn.

Starts two clusters of one bookie. The file has 100 lines, of which the last one matches the client. A client writes a
ledger and reads it, over v2. Reports megabytes of payload per second of the median round, CPU seconds of bookie and
client per gigabyte, and for both the ratio of rights to none.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.write_and_read import Way, compare
from bk_spark import ClientConfig
from bookie_server.local import LocalCluster

NAME = "rights"
_LINES = [*(f"read,write user:nobody{number}" for number in range(99)), "read,write *"]


def main(arguments_given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks rights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100, help="payload of one round and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="payload bytes")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(arguments_given)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name, "authorization")
        file.write_text("".join(f"{line}\n" for line in _LINES))
        settings = {"authorizationFile": str(file)}
        with (
            LocalCluster(Path(name, "none"), bookies=1) as without,
            LocalCluster(Path(name, "rights"), bookies=1, bookie_settings=settings) as limited,
        ):
            ways = {label: _way(cluster) for label, cluster in (("none", without), ("rights", limited))}
            for size in arguments.sizes:
                megabytes = arguments.megabytes if size >= 1024 else max(1, arguments.megabytes // 5)
                compare(NAME, ways, size, megabytes, arguments.rounds)


def _way(cluster: LocalCluster) -> Way:
    pid = cluster.bookies[0].pid
    assert pid is not None
    return Way(cluster.metadata_service_uri, pid, ClientConfig())
