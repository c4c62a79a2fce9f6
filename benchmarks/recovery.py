"""Measures how long a recovery of unconfirmed entries takes, on our bookies and on Apache's, in turn.

A writer with deferred sync leaves entries of 1 KiB of which none was ever confirmed, so that whoever recovers the
ledger reads and writes each of them again. Apache's client (over v3, as shipped) and ours recover such ledgers,
forwards and backwards in alternate rounds, after a round that warms up. Three of our bookies and three of Apache's (as
shipped) use one ZooKeeper and one disk. Figures are medians of the rounds: seconds of a recovery, and the CPU that an
entry of it costs each bookie (``cpu``). The ratio is the median of the rounds' ratios of our bookies to Apache's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import cpu_seconds
from benchmarks.report import figure
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop import jvm
from tests.interop.apache import ApacheBookie, Bookies, ShippedApacheBookie
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides, recovery_s, unconfirmed_ledger
from tests.interop.sides import JAVA_V3, OURS_V2, OURS_V3, Party

NAME: Final = "recovery"
_START_TIMEOUT_MS: Final = 120_000
#: A default of 4.18.0 can make its bookies wait for ever, see ``benchmarks.ledger_cluster``.
_APACHE_SETTINGS: Final = {"maxReadsInProgressLimit": "0"}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a recovery took: seconds, and the CPU that an entry cost each bookie."""

    seconds: float
    cpu_us: float


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(
        prog=f"benchmarks {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 200 entries in small JVMs")
    options = parser.parse_args(arguments)
    entries, rounds = (200, 1) if options.quick else (options.entries, options.rounds)
    took: dict[tuple[Party, str], list[Cost]] = defaultdict(list)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        ours = stack.enter_context(LocalCluster(directory / "ours", bookies=3, start_timeout_ms=_START_TIMEOUT_MS))
        options_of_jvm = jvm.SMALL_CLIENT if options.quick else jvm.AS_SHIPPED
        java = stack.enter_context(JavaClient(directory / "java-client.log", options_of_jvm))
        servers = MetadataServiceUri.parse(ours.metadata_service_uri).servers
        uri = str(MetadataServiceUri(servers, "/apache-ledgers", "hierarchical"))
        java.init_cluster(uri)
        kind = ApacheBookie if options.quick else ShippedApacheBookie
        apaches = stack.enter_context(Bookies(directory / "apache", uri, [kind] * 3, _APACHE_SETTINGS))
        pids = {"ours": _pids(ours.bookies), "apache": _pids(apaches.bookies)}
        sides = {
            name: stack.enter_context(Sides(java, each))
            for name, each in (("ours", ours.metadata_service_uri), ("apache", uri))
        }
        ways = [(party, bookies) for party in (JAVA_V3, OURS_V3, OURS_V2) for bookies in sides]
        for number in range(rounds + 1):
            for party, bookies in ways if number % 2 else reversed(ways):
                cost = _cost(sides[bookies], party, entries, pids[bookies])
                if number:
                    took[party, bookies].append(cost)
    for party, bookies in ways:
        mine, apaches_of = took[party, bookies], took[party, "apache"] if bookies == "ours" else ()
        name = f"{party}.{bookies}"
        _tell(name, "s", [one.seconds for one in mine], [one.seconds for one in apaches_of], entries)
        _tell(f"{name}.cpu", "us/entry", [one.cpu_us for one in mine], [one.cpu_us for one in apaches_of], entries)


def _pids(bookies: Iterable[LocalBookie]) -> list[int]:
    return [bookie.pid for bookie in bookies if bookie.pid]


def _cost(sides: Sides, party: Party, entries: int, pids: Sequence[int]) -> Cost:
    ledger = unconfirmed_ledger(sides, entries)
    before_s = sum(map(cpu_seconds, pids))
    seconds = recovery_s(sides, party, *ledger)
    return Cost(seconds, (sum(map(cpu_seconds, pids)) - before_s) / len(pids) / entries * 1e6)


def _tell(name: str, unit: str, rounds: Sequence[float], apaches: Sequence[float], entries: int) -> None:
    more = {}
    if apaches:
        ratios = [mine / theirs for mine, theirs in zip(rounds, apaches, strict=True)]
        more = {"ratio": round(statistics.median(ratios), 2), "ratios": [round(one, 2) for one in ratios]}
    shown = [round(one, 2) for one in rounds]
    figure(NAME, name, statistics.median(rounds), unit, entries=entries, rounds=shown, **more)
