"""How a task's rows are told apart by ledgers that fail anywhere: against ledgers that follow a script."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bk_spark.log.entries.arrow_format import batches_in
from bk_spark.log.entries.row_places import RowRun
from bk_spark.log.formats.message import LedgerRange
from bk_spark.log.formats.schema_merge import ANY_CASE
from bk_spark.log.tables import routed_rows
from bk_spark.log.tables.append_rows import MAX_LOST, EntryForm, TaskWriter
from bk_spark.log.tables.routed_rows import RoutedRows
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    InvalidArgumentError,
    LedgerFencedError,
    NotEnoughBookiesError,
    RunRetiredError,
)


class ScriptedLedger:
    """Takes ``room`` entries; the next one fences it. Of those it has, the last ``in_flight`` are not acknowledged
    before a flush. It is what tasks see of an open ledger, and that ledger's writer."""

    def __init__(self, ledger_id: int, room: int, in_flight: int = 0) -> None:
        self.ledger_id = ledger_id
        self.entries: list[bytes] = []
        self.last_add_confirmed = -1
        self.fenced = self.abandoned = False
        self._room = room
        self._in_flight = in_flight
        self.writer = self

    @property
    def last_add_pushed(self) -> int:
        return len(self.entries) - 1

    def append_many(self, payloads: Payloads) -> int:
        for payload in payloads:
            if self.fenced or len(self.entries) >= self._room:
                self.fenced = True
                raise LedgerFencedError("fenced", ledger_id=self.ledger_id)
            self.entries.append(bytes(payload))
            self.last_add_confirmed = max(self.last_add_confirmed, self.last_add_pushed - self._in_flight)
        return self.last_add_pushed

    def flush(self) -> int:
        if self.fenced:
            raise LedgerFencedError("fenced", ledger_id=self.ledger_id)
        self.last_add_confirmed = self.last_add_pushed
        return self.last_add_confirmed

    def abandon(self) -> None:
        self.abandoned = True

    def fence_now(self) -> None:
        self.fenced = True


class ScriptedLedgers:
    """Hands out ``ledgers`` one after another; with ``roll_entries`` they are due after so many."""

    def __init__(self, ledgers: Sequence[ScriptedLedger], roll_entries: int | None = None) -> None:
        self.left = list(ledgers)
        self.given_back: list[ScriptedLedger] = []
        self.successor: str | None = None
        self._roll_entries = roll_entries

    def take(self) -> ScriptedLedger:
        if not self.left:
            raise NotEnoughBookiesError("no more")
        return self.left.pop(0)

    def is_due(self, ledger: ScriptedLedger) -> bool:
        return self._roll_entries is not None and len(ledger.entries) >= self._roll_entries

    def give_back(self, ledger: ScriptedLedger) -> None:
        assert ledger.last_add_confirmed == ledger.last_add_pushed
        self.given_back.append(ledger)

    def check_run(self) -> None:
        if self.successor is not None:
            raise RunRetiredError(f"run {self.successor} took over")


def _task(ledgers: ScriptedLedgers) -> TaskWriter:
    return TaskWriter(ledgers)  # type: ignore[arg-type]


def _payloads(*values: bytes) -> Payloads:
    return Payloads.of(values)


def _named(ranges: Sequence[LedgerRange], ledgers: Sequence[ScriptedLedger]) -> list[bytes]:
    """What the ranges name, in order; each range's figures are checked."""
    by_id = {ledger.ledger_id: ledger for ledger in ledgers}
    named: list[bytes] = []
    for one in ranges:
        ledger = by_id[one.ledger_id]
        assert one.last_entry <= ledger.last_add_confirmed
        entries = ledger.entries[one.first_entry : one.last_entry + 1]
        assert one.size_bytes == sum(map(len, entries))
        named += entries
    return named


def test_all_in_one_ledger() -> None:
    ledger = ScriptedLedger(7, room=100)
    ledgers = ScriptedLedgers([ledger])
    task = _task(ledgers)
    task.append(_payloads(b"a", b"bb"), 2)
    task.append(_payloads(b"ccc"), 1)
    assert task.finish() == (LedgerRange(7, 0, 2, 3, 6),)
    assert ledgers.given_back == [ledger]


def test_a_task_without_rows_takes_no_ledger() -> None:
    ledgers = ScriptedLedgers([])
    assert _task(ledgers).finish() == ()


def test_a_ledger_used_before_goes_on_after_its_last_entry() -> None:
    ledger = ScriptedLedger(7, room=100)
    first = _task(ScriptedLedgers([ledger]))
    first.append(_payloads(b"a", b"b"), 2)
    first.finish()
    second = _task(ScriptedLedgers([ledger]))
    second.append(_payloads(b"c"), 1)
    assert second.finish() == (LedgerRange(7, 2, 2, 1, 1),)


@pytest.mark.parametrize("in_flight", [0, 1, 2, 5])
def test_the_range_ends_at_the_last_acknowledged_entry(in_flight: int) -> None:
    """The ledger is fenced at the fifth entry; in the middle of a batch of rows."""
    ledgers = [ScriptedLedger(1, room=4, in_flight=in_flight), ScriptedLedger(2, room=100)]
    pool = ScriptedLedgers(ledgers)
    task = _task(pool)
    task.append(_payloads(b"a", b"bb", b"ccc"), 3)
    task.append(_payloads(b"d", b"ee", b"fff"), 3)
    task.append(_payloads(b"g"), 1)
    ranges = task.finish()
    assert _named(ranges, ledgers) == [b"a", b"bb", b"ccc", b"d", b"ee", b"fff", b"g"]
    acknowledged = max(0, 4 - in_flight)
    assert [(one.ledger_id, one.entries) for one in ranges] == [
        (ledger_id, count) for ledger_id, count in ((1, acknowledged), (2, 7 - acknowledged)) if count
    ]
    assert ledgers[0].abandoned
    assert pool.given_back == [ledgers[1]]


def test_fenced_between_the_last_row_and_the_flush() -> None:
    ledgers = [ScriptedLedger(1, room=100, in_flight=2), ScriptedLedger(2, room=100)]
    task = _task(ScriptedLedgers(ledgers))
    task.append(_payloads(b"a", b"b", b"c"), 3)
    ledgers[0].fence_now()
    ranges = task.finish()
    assert [(one.ledger_id, one.first_entry, one.last_entry) for one in ranges] == [(1, 0, 0), (2, 0, 1)]
    assert _named(ranges, ledgers) == [b"a", b"b", b"c"]


def test_an_entry_of_many_rows_is_never_cut() -> None:
    ledgers = [ScriptedLedger(1, room=1), ScriptedLedger(2, room=100)]
    task = _task(ScriptedLedgers(ledgers))
    for _ in range(3):
        task.append(_payloads(b"arrow stream"), 1000)
    assert [(one.ledger_id, one.rows) for one in task.finish()] == [(1, 1000), (2, 2000)]


def test_a_ledger_that_is_due_is_rolled_in_mid_task() -> None:
    ledgers = [ScriptedLedger(1, room=100), ScriptedLedger(2, room=100), ScriptedLedger(3, room=100)]
    pool = ScriptedLedgers(ledgers, roll_entries=4)
    task = _task(pool)
    for number in range(5):
        task.append(_payloads(b"%d" % number, b"x"), 2)
    ranges = task.finish()
    assert [(one.ledger_id, one.entries) for one in ranges] == [(1, 4), (2, 4), (3, 2)]
    assert len(_named(ranges, ledgers)) == 10
    assert pool.given_back == ledgers


def test_lost_while_it_is_rolled() -> None:
    ledgers = [ScriptedLedger(1, room=100, in_flight=3), ScriptedLedger(2, room=100)]
    task = _task(ScriptedLedgers(ledgers, roll_entries=4))
    task.append(_payloads(b"a", b"b", b"c", b"d"), 4)
    ledgers[0].fence_now()
    task.append(_payloads(b"e"), 1)
    ranges = task.finish()
    assert _named(ranges, ledgers) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_retired_run_ends_the_task() -> None:
    ledgers = ScriptedLedgers([ScriptedLedger(1, room=1), ScriptedLedger(2, room=9)])
    ledgers.successor = "run-2"
    task = _task(ledgers)
    task.append(_payloads(b"a"), 1)
    with pytest.raises(RunRetiredError, match="run-2 took over"):
        task.append(_payloads(b"b"), 1)
    assert len(ledgers.left) == 1
    task.abandon()


def test_ledgers_that_acknowledge_nothing_are_tried_a_few_times() -> None:
    ledgers = ScriptedLedgers([ScriptedLedger(number, room=0) for number in range(10)])
    with pytest.raises(LedgerFencedError):
        _task(ledgers).append(_payloads(b"a"), 1)
    assert len(ledgers.left) == 10 - MAX_LOST


def test_ledgers_that_acknowledge_something_may_be_lost_any_number_of_times() -> None:
    ledgers = [ScriptedLedger(number, room=1) for number in range(20)]
    task = _task(ScriptedLedgers(ledgers))
    task.append(_payloads(*(b"%d" % number for number in range(20))), 20)
    assert _named(task.finish(), ledgers) == [b"%d" % number for number in range(20)]


def test_an_error_that_is_not_the_ledgers_ends_the_task() -> None:
    class Refusing(ScriptedLedger):
        def append_many(self, payloads: Payloads) -> int:
            raise InvalidArgumentError("too large")

    ledger = Refusing(1, room=9)
    task = _task(ScriptedLedgers([ledger, ScriptedLedger(2, room=9)]))
    with pytest.raises(InvalidArgumentError):
        task.append(_payloads(b"a"), 1)
    task.abandon()
    assert ledger.abandoned


def test_no_bookies_for_another_ledger() -> None:
    task = _task(ScriptedLedgers([ScriptedLedger(1, room=1)]))
    with pytest.raises(NotEnoughBookiesError):
        task.append(_payloads(b"a", b"b"), 2)
    task.abandon()


@pytest.mark.parametrize("seed", range(200))
def test_any_losses_anywhere(seed: int) -> None:
    """Every row is named once and in order, and nothing that was not acknowledged."""
    dice = random.Random(seed)
    ledgers = [ScriptedLedger(n, room=dice.randrange(1, 30), in_flight=dice.randrange(0, 4)) for n in range(100)]
    ledgers.append(ScriptedLedger(100, room=10_000))
    pool = ScriptedLedgers(ledgers, roll_entries=dice.choice([None, 5, 20]))
    task = _task(pool)
    rows: list[bytes] = []
    try:
        for _ in range(dice.randrange(1, 20)):
            sizes = [dice.randrange(0, 9) for _ in range(dice.randrange(1, 12))]
            batch = [bytes([65 + len(rows) % 26]) * size for size in sizes]
            rows += batch
            task.append(Payloads(memoryview(b"".join(batch)), np.cumsum([0, *sizes])), len(batch))
        ranges = task.finish()
    except LedgerFencedError:
        return  # three of no use in a row: the task fails, as it should
    assert _named(ranges, ledgers) == rows
    assert sum(one.rows for one in ranges) == len(rows)


def test_a_broken_connection_is_a_loss_too() -> None:
    class Broken(ScriptedLedger):
        def flush(self) -> int:
            raise BookieUnavailableError("connection broke")

    ledgers = [Broken(1, room=9, in_flight=1), ScriptedLedger(2, room=9)]
    task = _task(ScriptedLedgers(ledgers))
    task.append(_payloads(b"a", b"b"), 2)
    assert [(one.ledger_id, one.entries) for one in task.finish()] == [(1, 1), (2, 1)]


def _routed(form: EntryForm) -> tuple[RoutedRows, dict[str, ScriptedLedger]]:
    """Rows of task 4 that go to logs named by column ``log``, and the ledger of each log."""
    ledgers: dict[str, ScriptedLedger] = {}

    def open_log(name: str) -> tuple[Any, EntryForm]:
        ledgers[name] = ScriptedLedger(len(ledgers), room=1000)
        return ScriptedLedgers([ledgers[name]]), form

    return RoutedRows("log", open_log, 10, 4), ledgers


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_raw", [False, True])
def test_a_wrong_row_has_its_number_in_the_task_whatever_log_it_names(seed: int, is_raw: bool) -> None:
    """Rows are counted through all logs, and through entries that were sent before."""
    rng = random.Random(seed)
    schema = None if is_raw else pa.schema([pa.field("value", pa.binary())])
    rows, _ = _routed(EntryForm(schema, 1000, None, 600))
    sizes = [rng.choice([1, 5, 40]) for _ in range(6)]
    wrong = rng.randrange(sum(sizes))
    values = [rng.randbytes(2000 if number == wrong else 20) for number in range(sum(sizes))]
    # Some batches are of one log.
    logs = [rng.choice("abc"[: rng.choice([1, 3])]) for _ in values]
    table = pa.table({"value": pa.array(values, pa.binary()), "log": logs})
    batches, start = [], 0
    for size in sizes:
        batches += table.slice(start, size).combine_chunks().to_batches()
        start += size
    with pytest.raises(InvalidArgumentError, match=rf"row {wrong} of partition 4\b"):
        rows.append(iter(batches))


def _mixed_batch(rows: int, logs: str) -> pa.RecordBatch:
    values = pa.array([bytes(20)] * rows, pa.binary())
    return pa.record_batch({"value": values, "log": [logs[number % len(logs)] for number in range(rows)]})


def test_a_task_for_several_logs_holds_a_bounded_amount_and_sends_the_most_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routed_rows, "MAX_GATHERED_BYTES", 4000)
    rows, ledgers = _routed(EntryForm(pa.schema({"value": pa.binary()}), 2000, None, 2000))
    sent_before: set[str] = set()

    def batches() -> Iterator[pa.RecordBatch]:
        # A row takes 20 bytes, 4 for its end, and 8 for its place in the task.
        yield _mixed_batch(80, "b")
        yield _mixed_batch(60, "ac")
        assert not any(ledger.entries for ledger in ledgers.values())
        yield _mixed_batch(40, "ac")
        sent_before.update(name for name, ledger in ledgers.items() if ledger.entries)
        yield _mixed_batch(20, "ac")

    rows.append(batches())
    assert sent_before == {"b"}
    assert all(ledger.entries for ledger in ledgers.values())


def test_rows_that_wait_are_counted_once_whatever_comes_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred logs, to count all of them for each batch and log took nine times as long as the rest."""
    counted = []

    def count(run: RowRun) -> int:
        counted.append(run)
        return 8 * run.rows

    monkeypatch.setattr(RowRun, "size_bytes", property(count))
    rows, ledgers = _routed(EntryForm(pa.schema({"value": pa.binary()}), 1 << 20, None, 1 << 20))
    rows.append(_mixed_batch(30, "abc") for _ in range(20))
    assert [len(ledger.entries) for ledger in ledgers.values()] == [1, 1, 1]
    assert len(counted) <= 2 * 3 * 20


def test_rows_for_several_logs_find_columns_as_those_for_one_do() -> None:
    """Spark compares names without regard to case, unless it is told otherwise."""
    schema = pa.schema({"ID": pa.int64(), "at": pa.struct({"Day": pa.int32()})})
    rows, ledgers = _routed(EntryForm(schema, 1000, None, 600, ANY_CASE))
    batch = pa.RecordBatch.from_pylist(
        [{"id": number, "AT": {"day": number}, "log": "ab"[number % 2]} for number in range(4)],
        pa.schema({"id": pa.int32(), "AT": pa.struct({"day": pa.int32()}), "log": pa.string()}),
    )
    rows.append(iter([batch]))
    for first, name in enumerate("ab"):
        ((found,),) = (batches_in(memoryview(entry), "entry") for entry in ledgers[name].entries)
        assert found.to_pylist() == [{"ID": number, "at": {"Day": number}} for number in (first, first + 2)]
