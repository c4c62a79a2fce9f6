"""Measures how long a recovery of unconfirmed entries takes, on our bookies and on Apache's, in turn.

A writer with deferred sync leaves entries of 1 KiB of which none was ever confirmed, so that whoever recovers the
ledger reads and writes each of them again. Apache's client (over v3, as shipped) and ours recover such ledgers,
forwards and backwards in alternate rounds, after a round that warms up. Three of our bookies and three of Apache's (as
shipped) use one ZooKeeper and one disk. Figures are medians of the rounds; the ratio is the median of the rounds'
ratios of our bookies to Apache's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.report import figure
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop import jvm
from tests.interop.apache import ApacheBookie, Bookies, ShippedApacheBookie
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides, recovery_s
from tests.interop.sides import JAVA_V3, OURS_V2, OURS_V3, Party

NAME: Final = "recovery"
_START_TIMEOUT_MS: Final = 120_000
#: A default of 4.18.0 can make its bookies wait for ever, see ``benchmarks.ledger_cluster``.
_APACHE_SETTINGS: Final = {"maxReadsInProgressLimit": "0"}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 200 entries in small JVMs")
    options = parser.parse_args(arguments)
    entries, rounds = (200, 1) if options.quick else (options.entries, options.rounds)
    took: dict[tuple[Party, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        ours = stack.enter_context(LocalCluster(directory / "ours", bookies=3, start_timeout_ms=_START_TIMEOUT_MS))
        options_of_jvm = jvm.SMALL_CLIENT if options.quick else jvm.AS_SHIPPED
        java = stack.enter_context(JavaClient(directory / "java-client.log", options_of_jvm))
        servers = MetadataServiceUri.parse(ours.metadata_service_uri).servers
        uri = str(MetadataServiceUri(servers, "/apache-ledgers", "hierarchical"))
        java.init_cluster(uri)
        kind = ApacheBookie if options.quick else ShippedApacheBookie
        stack.enter_context(Bookies(directory / "apache", uri, [kind] * 3, _APACHE_SETTINGS))
        sides = {
            name: stack.enter_context(Sides(java, each))
            for name, each in (("ours", ours.metadata_service_uri), ("apache", uri))
        }
        ways = [(party, bookies) for party in (JAVA_V3, OURS_V3, OURS_V2) for bookies in sides]
        for number in range(rounds + 1):
            for party, bookies in ways if number % 2 else reversed(ways):
                seconds = recovery_s(sides[bookies], party, entries)
                if number:
                    took[party, bookies].append(seconds)
    for party, bookies in ways:
        seconds_of = took[party, bookies]
        more = {}
        if bookies == "ours":
            ratios = [mine / theirs for mine, theirs in zip(seconds_of, took[party, "apache"], strict=True)]
            more = {"ratio": round(statistics.median(ratios), 2), "ratios": [round(one, 2) for one in ratios]}
        figure(
            NAME,
            f"{party}.{bookies}",
            statistics.median(seconds_of),
            "s",
            entries=entries,
            rounds=[round(one, 2) for one in seconds_of],
            **more,
        )
