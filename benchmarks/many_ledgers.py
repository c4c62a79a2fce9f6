"""Measures a task that reads many tiny ledgers: opened one after the other, and ahead as in the data source.

Peer: the same ledgers, opened and read in sequence, in the same run. Both start with a new client. ``again`` is a
second read with the same client, which kept the handles.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import figure, timed
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.ledger.reading.range_windows import EntryRange
from bookie_server.local import LocalCluster

NAME = "many_ledgers"
ENTRY_BYTES = 100


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks many_ledgers", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ledgers", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=5, help="in each ledger")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=3) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        size = options.entries * ENTRY_BYTES
        ranges = [
            EntryRange(_ledger(client, options.entries), 0, options.entries - 1, size) for _ in range(options.ledgers)
        ]
        wanted = options.entries * options.ledgers

        def anew(read: Callable[[BlockingClient, list[EntryRange]], int]) -> None:
            with BlockingClient(cluster.metadata_service_uri) as fresh:
                assert read(fresh, ranges) == wanted

        def again() -> None:
            assert _ahead(client, ranges) == wanted

        sequential = timed(lambda: anew(_in_sequence), options.runs)
        figure(NAME, "sequential", sequential.median, "s", ledgers=options.ledgers)
        for name, timing in (
            ("ahead", timed(lambda: anew(_ahead), options.runs)),
            ("again", timed(again, options.runs)),
        ):
            figure(NAME, name, timing.median, "s", ledgers=options.ledgers)
            figure(NAME, f"{name}_faster", sequential.median / timing.median, "ratio")


def _ledger(client: BlockingClient, entries: int) -> int:
    writer = client.create()
    writer.append_many([b"x" * ENTRY_BYTES] * entries)
    writer.close()
    return writer.ledger_id


def _in_sequence(client: BlockingClient, ranges: list[EntryRange]) -> int:
    found = 0
    for one in ranges:
        reader = client.open_for_reading(one.ledger_id, read_lac=False)
        found += sum(len(block) for block in reader.read_blocks(one.first, one.last, known_to_exist=True))
    return found


def _ahead(client: BlockingClient, ranges: list[EntryRange]) -> int:
    return sum(len(part) for part in client.read_series(ranges))
