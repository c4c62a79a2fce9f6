"""Ledgers that a log did not make become one segment each, once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bk_spark.log.core.append_ledger import AppendLedger, registered_steps
from bk_spark.log.core.changes import change_steps, step_of
from bk_spark.log.core.plan import AlreadyDone, Need, NeedClosed, Plan, Readings
from bk_spark.log.core.steps import (
    Action,
    Closed,
    Event,
    OutcomeUnknown,
    Steps,
    Transact,
    Unavailable,
)
from bk_spark.log.formats.names import WRITERS
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, Owner, decode_appended, encode_head, encode_owner
from bk_spark.log.gc.truncation import Truncate
from bk_spark.protocol.errors import (
    LedgerRefusedError,
    LogReplacedError,
    LogTailOpenError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment as LedgerSegment
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, Znode
from bk_spark.protocol.quorum import Quorum
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog
from tests.support.zookeeper_model import RefusedError

OPEN = LedgerMetadata(Quorum(3, 3, 2), (LedgerSegment(0, ("a:1", "b:1", "c:1")),))
METADATA_PATH = "/ledgers-7"


def store(zk: ModelLog, metadata: LedgerMetadata, path: str = METADATA_PATH) -> None:
    data = ledger_metadata.encode(metadata)
    zk.transact([CreateOp(path, data) if zk.read(path) is None else SetOp(path, data, -1)])


def change(token: bytes = b"t1", ledger_id: int = 7, path: str = METADATA_PATH) -> AppendLedger:
    return AppendLedger(PATHS, ledger_id, path, token)


def outcome(zk: ModelLog, asked: AppendLedger, now_ms: int = 1_000) -> AlreadyDone[range] | Plan[range]:
    znodes: dict[str, Znode | None] = {}
    while True:
        step = step_of(asked, Readings(znodes), now_ms)
        if not isinstance(step, Need):
            assert isinstance(step, AlreadyDone | Plan)
            return step
        assert not znodes.keys() & set(step.paths)
        znodes |= {path: zk.read(path) for path in step.paths}


def append(zk: ModelLog, asked: AppendLedger, now_ms: int = 1_000) -> range:
    made = outcome(zk, asked, now_ms)
    assert isinstance(made, Plan), made
    for operations in (*made.preparations, made.transaction):
        zk.transact(operations)
    return made.result


@pytest.fixture
def zk() -> ModelLog:
    model = ModelLog()
    store(model, OPEN.closed(41, 4_200))
    return model


def test_all_entries_become_one_segment(zk: ModelLog) -> None:
    assert append(zk, change()) == range(42)
    assert zk.segments() == [Segment(7, 0, 41, 0, 42, 4_200, 1_000)]
    znode = zk.read(PATHS.appended_ledger(7))
    assert znode is not None
    assert decode_appended(znode.data, "x").offset == 0
    store(zk, OPEN.closed(0, 5), "/ledgers-8")
    assert append(zk, change(ledger_id=8, path="/ledgers-8"), now_ms=500) == range(42, 43)
    assert zk.segments()[1:] == [Segment(8, 0, 0, 42, 1, 5, 1_000)], "times never fall"


def test_the_transaction_checks_what_was_read(zk: ModelLog) -> None:
    made = outcome(zk, change())
    assert isinstance(made, Plan)
    checks = {op.path: op.version for op in made.transaction if isinstance(op, CheckOp | SetOp)}
    assert checks == {PATHS.identity: -1, PATHS.head: 0, PATHS.page(0): 0, METADATA_PATH: 0}
    zk.transact([DeleteOp(METADATA_PATH)])
    with pytest.raises(RefusedError):
        zk.transact(made.transaction)


def test_a_ledger_in_the_log_is_refused_with_its_offset(zk: ModelLog) -> None:
    store(zk, OPEN.closed(9, 100), "/ledgers-8")
    append(zk, change(ledger_id=8, path="/ledgers-8"))
    append(zk, change())
    with pytest.raises(LedgerRefusedError, match=r"in the log already, from offset 10 on.*ledger 7"):
        outcome(zk, change(b"t2"))
    assert outcome(zk, change()) == AlreadyDone(range(10, 52)), "its own work"


def test_a_ledger_that_was_truncated_may_come_again(zk: ModelLog) -> None:
    append(zk, change())
    truncated = step_of(Truncate(PATHS, 42), Readings({PATHS.head: zk.read(PATHS.head)}), 0)
    assert isinstance(truncated, Plan)
    zk.transact(truncated.transaction)
    assert append(zk, change(b"t2")) == range(42, 84)
    assert [s.base_offset for s in zk.segments()] == [42]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (OPEN, "the ledger is OPEN; only a closed ledger"),
        (OPEN.in_recovery(), "the ledger is IN_RECOVERY; only a closed"),
        (OPEN.closed(-1, 0), "the ledger is empty"),
        (OPEN.closed(1 << 41, 10), "larger than a segment may be"),
        (OPEN.closed(1, 1 << 47), "larger than a segment may be"),
    ],
)
def test_ledgers_that_cannot_become_a_segment(zk: ModelLog, metadata: LedgerMetadata, text: str) -> None:
    store(zk, metadata)
    with pytest.raises(LedgerRefusedError, match=text):
        outcome(zk, change())


def test_a_tail_without_its_writer_is_sealed_first(zk: ModelLog) -> None:
    opened = SegmentPage(LOG_ID, 0, 0, SegmentTable.of([Segment(99, 0, None, 0, 0, 0, 500)]))
    zk.transact([SetOp(PATHS.page(0), encode_page(opened), -1)])
    head = Head(LOG_ID, last_commit_time_ms=500)
    zk.transact([SetOp(PATHS.head, encode_head(head), -1)])
    znodes: dict[str, Znode | None] = {}
    while isinstance(step := step_of(change(), Readings(znodes), 1_000), Need):
        znodes |= {path: zk.read(path) for path in step.paths}
    assert step == NeedClosed(99)
    made = step_of(change(), Readings(znodes, {99: Closed(99, 4, 50)}), 1_000)
    assert isinstance(made, Plan)
    assert made.result == range(5, 47)
    zk.transact(made.transaction)
    assert zk.segments() == [Segment(99, 0, 4, 0, 5, 50, 500), Segment(7, 0, 41, 5, 42, 4_200, 1_000)]

    zk.transact([CreateOp(PATHS.owner, encode_owner(Owner("w", "host-1", 17, 0)))])
    zk.transact([SetOp(PATHS.page(0), encode_page(opened), -1)])
    zk.transact([SetOp(PATHS.head, encode_head(head), -1), DeleteOp(PATHS.appended_ledger(7))])
    with pytest.raises(LogTailOpenError, match="host host-1, process 17.* close it, then append the ledger"):
        outcome(zk, change())


def test_a_ledger_that_does_not_exist(zk: ModelLog) -> None:
    with pytest.raises(NoSuchLedgerError, match="ledger 8"):
        outcome(zk, change(ledger_id=8, path="/ledgers-8"))


def test_another_log_under_the_name_is_refused(zk: ModelLog) -> None:
    other = replace(zk.head(), log_id="00000000-0000-4000-8000-000000000000")
    zk.transact([SetOp(PATHS.head, encode_head(other), -1)])
    with pytest.raises(LogReplacedError):
        outcome(zk, change())


def run(steps: Steps, perform) -> object:  # type: ignore[no-untyped-def, type-arg]
    try:
        action = next(steps)
        while True:
            action = steps.send(perform(action))
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("seed", range(40))
def test_several_at_once_with_lost_replies(zk: ModelLog, seed: int) -> None:
    """Each ledger is in the list once; who was told that it is not knows why."""
    rng = Random(seed)
    store(zk, OPEN.closed(4, 50), "/ledgers-8")
    asked = [(7, METADATA_PATH, b"a"), (7, METADATA_PATH, b"b"), (8, "/ledgers-8", b"c")]
    clients = [Client(zk, rng, 0.25) for _ in asked]
    machines = [change_steps(change(token, ledger, path), lambda: 5) for ledger, path, token in asked]
    actions: dict[int, Action] = {n: next(machine) for n, machine in enumerate(machines)}
    results: dict[int, range | None] = {}
    while actions:
        number = rng.choice(list(actions))
        try:
            actions[number] = machines[number].send(clients[number].perform(actions[number]))
            continue
        except StopIteration as end:
            results[number] = end.value
        except (LedgerRefusedError, MetadataUnavailableError):
            results[number] = None
        del actions[number]
    for client in clients:
        while client.zk.late:
            client.zk.deliver_late(rng)
    listed = {s.ledger_id: range(s.base_offset, s.end_offset) for s in zk.segments()}
    assert len(listed) == len(zk.segments())
    assert all(result is None or result == listed[asked[n][0]] for n, result in results.items())
    assert not (results[0] and results[1])


def test_a_lost_reply_is_settled_by_the_token(zk: ModelLog) -> None:
    client = Client(zk, Random(0))

    def perform(action: Action) -> Event:
        event = client.perform(action)
        return OutcomeUnknown("lost") if isinstance(action, Transact) else event

    assert run(change_steps(change(), lambda: 5), perform) == range(42)


def test_a_ledger_of_the_logs_own_writers_is_found() -> None:
    zk = ModelLog()
    zk.register("app", "r0", 3)
    zk.transact([CreateOp(f"{PATHS.ledgers}/{WRITERS}")])
    zk.transact([CreateOp(PATHS.run_at(WRITERS, "w"))])
    zk.transact([CreateOp(f"{PATHS.run_at(WRITERS, 'w')}/5")])
    perform = Client(zk, Random(0)).perform

    assert run(registered_steps(PATHS, 3), perform) == PATHS.registration("app", "r0", 3)
    assert run(registered_steps(PATHS, 5), perform) == f"{PATHS.run_at(WRITERS, 'w')}/5"
    assert run(registered_steps(PATHS, 4), perform) is None
    with pytest.raises(MetadataUnavailableError):
        run(registered_steps(PATHS, 4), lambda _: Unavailable("away"))
