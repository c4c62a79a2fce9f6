"""Truncation: whole segments leave the start of the list, once, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from bk_spark.log import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.core.changes import change_steps, step_of
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.plan import AlreadyDone, Need, Plan, Readings, Stale
from bk_spark.log.core.steps import Action, Event, OutcomeUnknown, Steps, Transact
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, IndexPosition, encode_head
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LogReplacedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, SetOp, Znode
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog
from tests.support.page_cache import pages_decoded_once


@pytest.fixture(autouse=True, scope="module")
def page_cache() -> Iterator[None]:
    with pages_decoded_once():
        yield


#: Entries of the segments, in pages of three; the last page's last is an open tail where asked for.
ENTRIES = (10, 1, 4, 7, 2, 5, 3, 6)
STARTS = [sum(ENTRIES[:n]) for n in range(len(ENTRIES))]
END = sum(ENTRIES)


def pages(*, open_tail: bool = False) -> list[SegmentPage]:
    segments = [
        Segment(n, 0, count - 1, start, count, count * 10, 1_000 * n)
        for n, (start, count) in enumerate(zip(STARTS, ENTRIES, strict=True))
    ]
    if open_tail:
        segments.append(Segment(99, 0, None, END, 0, 0, 50_000))
    parts = [segments[n : n + 3] for n in range(0, len(segments), 3)]
    return [SegmentPage(LOG_ID, n, part[0].base_offset, SegmentTable.of(part)) for n, part in enumerate(parts)]


def model(*, open_tail: bool = False, first_offset: int = 0) -> ModelLog:
    zk = ModelLog()
    made = pages(open_tail=open_tail)
    zk.transact([SetOp(PATHS.page(0), encode_page(made[0]), 0)])
    zk.transact([CreateOp(PATHS.page(page.number), encode_page(page)) for page in made[1:]])
    head = Head(LOG_ID, first_offset, END, tail_page=2, last_commit_time_ms=50_000)
    zk.transact([SetOp(PATHS.head, encode_head(head), 0)])
    return zk


def outcome(zk: ModelLog, change: Truncate) -> AlreadyDone[int] | Plan[int] | Stale:
    znodes: dict[str, Znode | None] = {}
    while True:
        step = step_of(change, Readings(znodes), 0)
        if not isinstance(step, Need):
            assert isinstance(step, AlreadyDone | Plan | Stale)
            return step
        assert not znodes.keys() & set(step.paths)
        znodes |= {path: zk.read(path) for path in step.paths}


@pytest.mark.parametrize("open_tail", [False, True])
def test_the_log_begins_at_the_segment_that_holds_the_offset(open_tail: bool) -> None:
    for offset in range(END + 3 if open_tail else END + 1):
        zk = model(open_tail=open_tail)
        made = outcome(zk, Truncate(PATHS, offset, tail_end=END + 2))
        expected = END if offset >= END else max(start for start in STARTS if start <= offset)
        assert not isinstance(made, Stale)
        assert made.result == expected
        assert not isinstance(made, Stale)
        assert made.result == expected
        if offset < ENTRIES[0]:
            assert isinstance(made, AlreadyDone)
            continue
        assert isinstance(made, Plan)
        assert made.preparations == ()
        zk.transact(made.transaction)
        head = zk.head()
        assert (head.first_offset, head.next_offset, head.tail_page) == (expected, END, 2)
        page = pages(open_tail=open_tail)[head.first_page]
        assert page.base_offset <= expected <= page.end_offset
        assert [s.base_offset for s in zk.segments()] == [s for s in STARTS if s >= expected] + [END] * open_tail


def test_a_log_never_begins_earlier_again() -> None:
    zk = model(first_offset=STARTS[4])
    for offset in (0, STARTS[3], STARTS[4], STARTS[4] + 1):
        assert outcome(zk, Truncate(PATHS, offset)) == AlreadyDone(STARTS[4])


def test_the_transaction_checks_the_log_the_head_and_the_page() -> None:
    zk = model()
    made = outcome(zk, Truncate(PATHS, STARTS[5]))
    assert isinstance(made, Plan)
    checks = {op.path: op.version for op in made.transaction if isinstance(op, CheckOp | SetOp)}
    assert checks == {PATHS.identity: -1, PATHS.head: 1, PATHS.page(1): 0}


def test_pages_are_found_by_bisection() -> None:
    zk = ModelLog()
    count = 500
    for number in range(count):
        table = SegmentTable.of([Segment(number, 0, 9, 10 * number, 10, 100, 1)])
        data = encode_page(SegmentPage(LOG_ID, number, 10 * number, table))
        path = PATHS.page(number)
        zk.transact([SetOp(path, data, 0) if number == 0 else CreateOp(path, data)])
    zk.transact([SetOp(PATHS.head, encode_head(Head(LOG_ID, 0, 10 * count, tail_page=count - 1)), 0)])
    for number in (1, 250, count - 1):
        znodes: dict[str, Znode | None] = {}
        while isinstance(step := step_of(Truncate(PATHS, 10 * number + 5), Readings(znodes), 0), Need):
            znodes |= {path: zk.read(path) for path in step.paths}
        assert isinstance(step, Plan)
        assert step.result == 10 * number
        assert len(znodes) <= 12


def test_pages_in_the_index_need_to_be_named() -> None:
    zk = model()
    index = IndexPosition(7, 0, end_page=1, end_offset=STARTS[3])
    zk.transact([SetOp(PATHS.head, encode_head(Head(LOG_ID, 0, END, 0, 2, 50_000, index)), 1)])
    with pytest.raises(MetadataConflictError, match="grew past offset 12, and the offset's page left ZooKeeper"):
        outcome(zk, Truncate(PATHS, 12))
    made = outcome(zk, Truncate(PATHS, 12, SegmentStart(STARTS[2], 0)))
    assert isinstance(made, Plan)
    assert made.result == STARTS[2]
    later = outcome(zk, Truncate(PATHS, STARTS[4]))
    assert isinstance(later, Plan)
    zk.transact(later.transaction)
    assert (zk.head().first_offset, zk.head().first_page, zk.head().index) == (STARTS[4], 1, index)
    assert isinstance(outcome(zk, Truncate(PATHS, 12, SegmentStart(STARTS[2], 0))), AlreadyDone)


def test_what_cannot_be_truncated_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must not be negative, got -1"):
        Truncate(PATHS, -1)
    zk = model()
    zk.transact([SetOp(PATHS.head, encode_head(Head(LOG_ID, 0, END, tail_page=2, deleted_time_ms=5)), -1)])
    with pytest.raises(NoSuchLogError, match="was deleted"):
        outcome(zk, Truncate(PATHS, 5))
    zk.transact([SetOp(PATHS.head, encode_head(Head("00000000-0000-4000-8000-000000000000")), -1)])
    with pytest.raises(LogReplacedError):
        outcome(zk, Truncate(PATHS, 5))


@pytest.mark.parametrize("offset", [END + 1, 99_999, (1 << 63) - 1])
def test_an_offset_beyond_the_end_is_refused_and_nothing_is_dropped(offset: int) -> None:
    zk = model()
    refused = rf"ends at offset {END}: it cannot be truncated up to {offset}; give an offset up to {END}"
    with pytest.raises(InvalidArgumentError, match=refused):
        run(change_steps(Truncate(PATHS, offset), lambda: 0), Client(zk, Random(1)))
    assert zk.head().first_offset == 0
    assert run(change_steps(Truncate(PATHS, END), lambda: 0), Client(zk, Random(1)))[0] == END


def test_an_open_tail_counts_as_far_as_the_caller_saw_it() -> None:
    zk = model(open_tail=True)
    with pytest.raises(InvalidArgumentError, match=f"ends at offset {END + 4}"):
        run(change_steps(Truncate(PATHS, END + 5, tail_end=END + 4), lambda: 0), Client(zk, Random(1)))
    assert zk.head().first_offset == 0
    assert run(change_steps(Truncate(PATHS, END + 4, tail_end=END + 4), lambda: 0), Client(zk, Random(1)))[0] == END


def run(
    steps: Steps[Any], client: Client, action: Action | None = None, *, lose_reply: bool = False
) -> tuple[Any, int]:
    """The result and how many transactions were sent; goes on with ``action`` where that was asked for last."""
    sent = 0
    try:
        if action is None:
            action = next(steps)
        while True:
            event: Event = client.perform(action)
            if isinstance(action, Transact):
                sent += 1
                if lose_reply and sent == 1:
                    event = OutcomeUnknown("lost")
            action = steps.send(event)
    except StopIteration as end:
        return end.value, sent


def test_a_lost_reply_is_settled_by_reading() -> None:
    zk = model()
    result, sent = run(change_steps(Truncate(PATHS, STARTS[5] + 1), lambda: 0), Client(zk, Random(1)), lose_reply=True)
    assert (result, sent) == (STARTS[5], 1)


def test_what_comes_after_a_truncation_whose_reply_was_lost_stays() -> None:
    zk = model()
    zk.register("app", "run", 1)
    steps = change_steps(Truncate(PATHS, END), lambda: 0)
    client = Client(zk, Random(1))
    action = next(steps)
    while not isinstance(action, Transact):
        action = steps.send(client.perform(action))
    client.perform(action)
    message = CommitMessage(LOG_ID, "app", "run", "q", 0, 0, (LedgerRange(1, 0, 9, 1, 1),))
    run(change_steps(BatchCommit(PATHS, CommitRequest.from_messages([message])), lambda: 0), Client(zk, Random(2)))
    assert run(steps, client, steps.send(OutcomeUnknown("lost")))[0] == END
    assert (zk.head().first_offset, zk.head().next_offset) == (END, END + 10)


@pytest.mark.parametrize("seed", range(60))
def test_l1_truncations_and_commits_at_once(seed: int) -> None:
    """Every commit stays in the list or is truncated; the log begins where the furthest truncation asked for."""
    rng = Random(seed)
    zk = ModelLog()
    zk.register("app", "run", 1)
    client = Client(zk, rng)
    others = [Client(zk, rng, 0.2) for _ in range(2)]
    targets = [rng.randrange(0, 120) for _ in others]
    machines = [change_steps(Truncate(PATHS, target), lambda: 0) for target in targets]
    actions: dict[int, Action] = {n: next(machine) for n, machine in enumerate(machines)}
    results: dict[int, int] = {}
    batch = 0
    while actions or batch < 12:
        if batch < 12 and (not actions or rng.random() < 0.2):
            message = CommitMessage(
                LOG_ID, "app", "run", "q", batch, 0, (LedgerRange(1, 10 * batch, 10 * batch + 9, 1, 1),)
            )
            run(change_steps(BatchCommit(PATHS, CommitRequest.from_messages([message])), lambda: 0), client)
            batch += 1
        elif actions:
            number = rng.choice(list(actions))
            try:
                actions[number] = machines[number].send(others[number].perform(actions[number]))
            except StopIteration as end:
                results[number] = end.value
                del actions[number]
            except InvalidArgumentError:
                # The log did not reach that far when this was read; perhaps it does by now.
                assert zk.head().first_offset < targets[number]
                machines[number] = change_steps(Truncate(PATHS, targets[number]), lambda: 0)
                actions[number] = next(machines[number])
            except MetadataUnavailableError:
                # Its client stayed away from ZooKeeper; the truncation may still have taken effect.
                del actions[number]
        for other in others:
            if other.zk.late and rng.random() < 0.1:
                other.zk.deliver_late(rng)
        segments = zk.segments()
        assert [s.end_offset for s in segments[:-1]] == [s.base_offset for s in segments[1:]]
        assert not segments or segments[0].base_offset == zk.head().first_offset
    assert zk.head().next_offset == 120
    for number, result in results.items():
        assert result <= zk.head().first_offset
        assert result <= targets[number] or result % 10 == 0
    assert zk.head().first_offset <= max(targets)
