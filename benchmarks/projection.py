"""What it costs to decode some columns of an entry beside all, and whether statistics in entries would pay.

The flights of New York in 2013 (19 columns, in order of time), as entries of 1 MiB before compression. Figures are CPU
time of one process for an entry: decoding all columns, 2 of 19, and those in wider types as after a growth of the
schema. ``read`` is the CPU time of the same process for fetching an entry from a bookie, with its checksum.

``skipped`` tells of a condition on a column that follows time, and of one on a column that does not: how many entries
minimum and maximum of the column would let a reader skip, and the share of fetching and decoding that this saves at
most, if they were kept in entries.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import figure
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.entries.arrow_format import batches_in, entries_of
from bk_spark.log.entries.entry_rows import EntryRows
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.entries.projection import Projection
from bk_spark.log.entries.row_places import RowPlaces
from bk_spark.log.formats.schema_merge import EXACT
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from examples.demo import flights

_BENCHMARK: Final = "projection"
_ENTRY_BYTES: Final = 1 << 20
_RUNS: Final = 5
_WANTED: Final = ("carrier", "dep_delay")


def main(arguments: Sequence[str] = ()) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks projection", description=__doc__).parse_args(arguments)
    table = pa.Table.from_pandas(flights(), preserve_index=False).combine_chunks()
    for compression in (None, "lz4", "zstd"):
        entries = [
            memoryview(entry)
            for entry, _ in entries_of(
                iter(table.to_batches()),
                table.schema,
                compression=compression,
                entry_bytes=_ENTRY_BYTES,
                max_entry_bytes=5 << 20,
                places=RowPlaces(0),
                names=EXACT,
            )
        ]
        _measure(compression or "none", entries, table.schema)


def _measure(compression: str, entries: list[memoryview], schema: pa.Schema) -> None:
    projection = Projection(_WANTED, EXACT)
    wider = pa.schema([pa.field("carrier", pa.string()), pa.field("dep_delay", pa.float64()), ("younger", pa.int64())])
    all_us = _cpu_us(entries, lambda entry: batches_in(entry, "entry"))
    two_us = _cpu_us(entries, lambda entry: batches_in(entry, "entry", projection))
    grown_us = _cpu_us(entries, lambda entry: list(_rows(EntryRows(wider, EntryFormat.ARROW), entry)))
    read_us = _read_us(entries)
    size = {"compression": compression, "entry_bytes": sum(map(len, entries)) // len(entries)}
    figure(_BENCHMARK, "decode.all", all_us, "us/entry", **size)
    figure(_BENCHMARK, "decode.2_of_19", two_us, "us/entry", times_less=round(all_us / two_us, 2), **size)
    figure(_BENCHMARK, "decode.2_of_19_and_a_younger_one", grown_us, "us/entry", **size)
    figure(_BENCHMARK, "read", read_us, "us/entry", **size)
    for name, low, high in (("time_hour", "2013-07-01", "2013-07-02"), ("carrier", "UA", "UA")):
        skipped = sum(not _may_match(entry, name, low, high) for entry in entries) / len(entries)
        saved = skipped * two_us / (read_us + two_us)
        figure(_BENCHMARK, f"skipped.{name}", skipped, "of entries", saves_at_most=round(saved, 4), **size)


def _rows(rows: EntryRows, entry: memoryview) -> Iterable[pa.RecordBatch]:
    return rows.of(Payloads.of([entry]), Pieces.of([Piece(1, 0, 0, len(entry), 1, "flights", 0, 0)]))


def _cpu_us(entries: list[memoryview], work: Callable[[memoryview], object]) -> float:
    """CPU time for an entry, the least of several runs."""
    least = float("inf")
    for _ in range(_RUNS):
        started = time.process_time()
        for entry in entries:
            work(entry)
        least = min(least, time.process_time() - started)
    return least / len(entries) * 1e6


def _read_us(entries: list[memoryview]) -> float:
    """CPU time of a client for reading an entry. Bookies are other processes."""
    with (
        tempfile.TemporaryDirectory(prefix="bk-bench-") as directory,
        LocalCluster(Path(directory) / "cluster", bookies=1) as cluster,
        BlockingClient(cluster.metadata_service_uri) as client,
    ):
        writer = client.create(quorum=Quorum(1, 1, 1))
        for entry in entries:
            writer.append(entry)
        writer.close()
        reader = client.open_for_reading(writer.ledger_id)
        least = float("inf")
        for _ in range(_RUNS):
            started = time.process_time()
            reader.read(0, len(entries) - 1)
            least = min(least, time.process_time() - started)
    return least / len(entries) * 1e6


def _may_match(entry: memoryview, name: str, low: str, high: str) -> bool:
    for batch in batches_in(entry, "entry", Projection([name], EXACT)):
        limits = pc.min_max(batch.column(0))
        if limits["min"].as_py() <= high and limits["max"].as_py() >= low:
            return True
    return False
