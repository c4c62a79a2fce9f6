"""Record batches of a task."""

from __future__ import annotations

import pickletools
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from bk_spark.datasource.entries.split_rows import Split, without_first_ledger
from bk_spark.datasource.options.parse import parse_options
from bk_spark.datasource.pulsar.positions import Edges
from bk_spark.datasource.pulsar.rows import TopicSplit
from bk_spark.log.entries.entry_rows import EntryRows, joined
from bk_spark.log.entries.fit import ColumnLookup
from bk_spark.log.entries.pieces import Piece, Pieces
from bk_spark.log.formats.schema_merge import ANY_CASE
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.pulsar.transactions import Position, TransactionId

KIB = 1 << 10
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.binary())])


def _batch(first: int, rows: int, value_bytes: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + rows), pa.int64())
    return pa.record_batch([ids, pa.array([bytes(value_bytes)] * rows, pa.binary())], schema=SCHEMA)


@pytest.mark.parametrize("seed", range(20))
def test_joining_keeps_rows_and_their_order(seed: int) -> None:
    rng = random.Random(seed)
    batches, rows = [], 0
    for _ in range(rng.randint(0, 60)):
        count = rng.choice([0, 1, 5, 100])
        batches.append(_batch(rows, count, rng.choice([0, 10, 2 * KIB, 100 * KIB])).slice(0, count))
        rows += count
    found = list(joined(iter(batches)))
    assert [one for batch in found for one in batch.column(0).to_pylist()] == list(range(rows))
    assert all(batch.schema == SCHEMA for batch in found)
    assert all(small.nbytes <= 1100 * KIB or small in batches for small in found)


_PIECES = Pieces.of([Piece(7, 0, 9, 0, 10, "persistent://public/default/t")])
_ABORTED = {"persistent://public/default/t": frozenset([TransactionId(1, 2)])}
_EDGES = {"persistent://public/default/t": Edges(first=(Position(7, 0), 3), until_ms=5)}


@pytest.mark.parametrize(
    "split",
    [
        Split(EntryFormat.ARROW, _PIECES, ColumnLookup(ANY_CASE)),
        TopicSplit(_PIECES, _ABORTED, _EDGES),
        TopicSplit(_PIECES, is_compacted=True),
    ],
)
def test_sparks_pickler_looks_up_one_name_in_a_split(split: Split | TopicSplit) -> None:
    """It does so in Python code, for each split of a plan, and there may be thousands."""
    pickled = cloudpickle.dumps(split)
    assert sum(operation.name == "STACK_GLOBAL" for operation, _, _ in pickletools.genops(pickled)) == 1
    found = cloudpickle.loads(pickled)
    assert type(found) is type(split)
    assert [*found.pieces] == [*split.pieces]
    assert {**vars(found), "pieces": None} == {**vars(split), "pieces": None}


def test_few_bytes_become_one_batch_and_many_stay_as_they_are() -> None:
    small, large = [_batch(n, 1, 100) for n in range(1000)], _batch(1000, 10, 100 * KIB)
    found = list(joined([*small, large, *small[:3]]))
    assert [batch.num_rows for batch in found] == [1000, 10, 3]
    assert found[1] is large


WITH_METADATA = pa.schema(
    [
        pa.field("value", pa.string()),
        pa.field("log", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("ledgerId", pa.int64()),
        pa.field("entryId", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


def _rows(pieces: list[Piece]) -> list[tuple[Any, ...]]:
    values = [b"%d/%d" % (one.ledger_id, entry) for one in pieces for entry in range(one.first, one.last + 1)]
    batches = EntryRows(WITH_METADATA, EntryFormat.RAW).of(Payloads.of(values), Pieces.of(pieces))
    table = pa.Table.from_batches(list(batches))
    times = table.column("timestamp").cast(pa.int64())
    return list(zip(*(c.to_pylist() for c in [*table.columns[:-1], times]), strict=True))


def test_tiny_pieces_of_several_ledgers_and_logs_have_their_own_metadata() -> None:
    pieces = [Piece(n % 3, n // 3, n // 3 + n % 2, 10, 1, "ab"[n % 2], 100 * n, 1000 + n) for n in range(10)]
    assert _rows(pieces) == [
        (
            f"{one.ledger_id}/{entry}",
            one.log,
            (one.base_offset or 0) + entry - one.first,
            one.ledger_id,
            entry,
            one.timestamp_ms,
        )
        for one in pieces
        for entry in range(one.first, one.last + 1)
    ]
    assert _rows([Piece(1, 3, 4, 10, 2)]) == [("1/3", None, None, 1, 3, None), ("1/4", None, None, 1, 4, None)]


def test_text_that_is_not_utf8_is_named_by_ledger_and_entry_among_tiny_pieces() -> None:
    pieces = [Piece(n % 2, 10 + n // 2, 10 + n // 2, 1, 1, "a", n, 0) for n in range(6)]
    payloads = Payloads.of([b"good", b"good", b"good", b"\xff", b"good", b"good"])
    with pytest.raises(InvalidArgumentError, match="not UTF-8") as raised:
        list(EntryRows(WITH_METADATA, EntryFormat.RAW).of(payloads, Pieces.of(pieces)))
    assert (raised.value.ledger_id, raised.value.entry_id) == (1, 11)


def test_a_ledger_that_is_gone_is_left_out_once_with_all_its_pieces(caplog: pytest.LogCaptureFixture) -> None:
    """Not once for each of thousands."""
    pieces = Pieces.of(Piece(n % 2, n // 2, n // 2, 1, 1, "a", n, 0) for n in range(1000))
    source = {"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "log": "a"}
    skipping = parse_options({**source, "failOnDataLoss": "false"}, writing=False)
    rest = without_first_ledger(pieces, skipping, NoSuchLedgerError("gone"))
    assert set(rest.ledger_id.tolist()) == {1}
    assert len(rest) == 500
    assert "offsets [0, 1) of log a and 499 more ranges of it are left out: ledger 0 was deleted" in caplog.text
    with pytest.raises(LogRangeGoneError, match=r"offsets \[0, 1\) of log a are gone"):
        without_first_ledger(pieces, parse_options(source, writing=False), NoSuchLedgerError("gone"))
