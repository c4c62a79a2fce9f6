"""How long the list keeps what an overwrite or a truncation took out of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bk_spark.log.core.append import read_head, read_tail
from bk_spark.log.core.changes import Change, change_steps, step_of
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, StaleError
from bk_spark.log.formats.commits import CommitTable
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS, Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, Policy, decode_head, decode_policy, encode_head, encode_policy
from bk_spark.log.gc.expiry import Expire, start_to_keep
from bk_spark.log.gc.retention import ReadPolicy, SetPolicy, policy_of
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.metadata.znodes import CreateOp, SetOp
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog

HOUR_MS = 3_600_000
SEGMENTS = [Segment(n, 0, 9, 10 * n, 10, 100, 1_000) for n in range(4)]


class Segments:
    """A list of which the log began at 0, since 10 hours at 20, and begins at 30."""

    first_offset = 30
    next_offset = 40
    last_commit_time_ms = 10 * HOUR_MS

    def offset_at(self, time_ms: int) -> int:
        raise NotImplementedError

    def segment_at(self, offset: int) -> tuple[int, Segment]:
        raise NotImplementedError

    def tables_from_end(self) -> Iterator[SegmentTable]:
        raise NotImplementedError

    def first_offset_at(self, time_ms: int) -> int | None:
        return None if time_ms < 0 else 0 if time_ms < 10 * HOUR_MS else 20

    def page_of(self, offset: int) -> int:
        return offset // 10


def test_the_list_begins_where_the_log_did_when_the_promise_begins() -> None:
    policy = Policy(history_ms=5 * HOUR_MS)
    before = 15 * HOUR_MS + COMMIT_TIME_LAG_MS - 1
    assert start_to_keep(Segments(), policy, before) == SegmentStart(0, 0)
    assert start_to_keep(Segments(), policy, before + 1) == SegmentStart(20, 2)


def test_without_a_promise_it_begins_where_the_log_does() -> None:
    assert start_to_keep(Segments(), Policy(), 0) == SegmentStart(30, 3)


def test_what_is_not_known_stays() -> None:
    assert start_to_keep(Segments(), Policy(history_ms=5 * HOUR_MS), HOUR_MS) is None


def model(*, kept_offset: int | None = 0, first_offset: int = 0) -> ModelLog:
    zk = ModelLog()
    commits = None if kept_offset is None else CommitTable.begin(first_offset, len(SEGMENTS))
    page = SegmentPage(LOG_ID, 0, 0, SegmentTable.of(SEGMENTS), commits)
    zk.transact([SetOp(PATHS.page(0), encode_page(page), 0)])
    head = Head(LOG_ID, first_offset, 40, last_commit_time_ms=1_000, kept_offset=kept_offset)
    zk.transact([SetOp(PATHS.head, encode_head(head), 0)])
    if zk.read(PATHS.policy) is None:
        zk.transact([CreateOp(PATHS.policy, encode_policy(Policy()))])
    return zk


def head_of(zk: ModelLog) -> Head:
    znode = zk.read(PATHS.head)
    assert znode is not None
    return decode_head(znode.data, PATHS.head)


def policy_now(zk: ModelLog) -> ReadPolicy:
    return policy_of(zk.read(PATHS.policy), PATHS)


def run(zk: ModelLog, change: Change[Any], now_ms: int = 5_000) -> object:
    steps, client = change_steps(change, lambda: now_ms), Client(zk, Random(1))
    try:
        action = next(steps)
        while True:
            action = steps.send(client.perform(action))
    except StopIteration as end:
        return end.value


def test_a_truncation_leaves_what_it_drops_in_the_list() -> None:
    zk = model()
    assert run(zk, Truncate(PATHS, 25)) == 20
    assert head_of(zk) == Head(LOG_ID, 20, 40, 0, 0, 1_000, kept_offset=0, last_change_time_ms=5_000)
    znode = zk.read(PATHS.page(0))
    assert znode is not None
    commits = decode_page(znode.data, "/p", log_id=LOG_ID, number=0).commits
    assert commits is not None
    assert [(record.first_offset, record.time_ms) for record in commits.records()] == [(20, 5_000)]


def test_the_list_begins_later_and_never_earlier() -> None:
    zk = model(first_offset=20)
    assert run(zk, Expire(PATHS, SegmentStart(10, 0), policy_now(zk))) == 10
    assert run(zk, Expire(PATHS, SegmentStart(0, 0), policy_now(zk))) == 10
    assert head_of(zk).kept_offset == 10
    assert head_of(zk).first_offset == 20


def test_another_policy_ends_it() -> None:
    zk = model(first_offset=20)
    expire = Expire(PATHS, SegmentStart(20, 0), policy_now(zk))
    znode = zk.read(PATHS.policy)
    assert znode is not None
    zk.transact([SetOp(PATHS.policy, encode_policy(Policy(history_ms=HOUR_MS)), znode.version)])
    assert run(zk, expire) == 0
    assert head_of(zk).kept_offset == 0


def test_its_transaction_checks_the_policy() -> None:
    zk = model(first_offset=20)
    read = policy_now(zk)
    readings = Readings({path: zk.read(path) for path in (PATHS.head, PATHS.policy)})
    step = step_of(Expire(PATHS, SegmentStart(20, 0), read), readings, 0)
    assert isinstance(step, Plan)
    assert read.check in step.transaction
    assert isinstance(step_of(Expire(PATHS, SegmentStart(0, 0), read), readings, 0), AlreadyDone)


def test_a_page_that_was_read_after_a_truncation_is_not_taken_with_an_older_head() -> None:
    zk = model()
    head = zk.read(PATHS.head)
    run(zk, Truncate(PATHS, 25))
    readings = Readings({PATHS.head: head, PATHS.page(0): zk.read(PATHS.page(0))})
    with pytest.raises(StaleError, match="before and after an overwrite or a truncation"):
        read_tail(readings, PATHS, read_head(readings, PATHS).head)
    # Read again, the second truncation is decided from the first one.
    assert run(zk, Truncate(PATHS, 12)) == 20


class TestALogOfTheFirstRelease:
    def test_it_keeps_nothing_and_stays_as_it_is(self) -> None:
        zk = model(kept_offset=None)
        page = zk.read(PATHS.page(0))
        assert run(zk, Truncate(PATHS, 25)) == 20
        assert head_of(zk) == Head(LOG_ID, 20, 40, 0, 0, 1_000)
        assert zk.read(PATHS.page(0)) == page
        run(zk, SetPolicy(PATHS, Policy(retention_time_ms=5)))
        assert head_of(zk).kept_offset is None
        znode = zk.read(PATHS.head)
        assert znode is not None
        assert znode.data[:2] == b"\x08\x01"

    def test_it_begins_to_record_when_its_policy_asks_for_it(self) -> None:
        zk = model(kept_offset=None, first_offset=10)
        run(zk, SetPolicy(PATHS, Policy(history_ms=5)))
        assert head_of(zk) == Head(LOG_ID, 10, 40, 0, 0, 1_000, kept_offset=10)
        znode = zk.read(PATHS.policy)
        assert znode is not None
        assert decode_policy(znode.data, "/p") == Policy(history_ms=5)
        assert run(zk, Truncate(PATHS, 25)) == 20
        assert head_of(zk).list_offset == 10

    def test_setting_it_again_changes_nothing(self) -> None:
        zk = model(first_offset=10)
        run(zk, SetPolicy(PATHS, Policy(history_ms=5)))
        before = zk.zxid
        run(zk, SetPolicy(PATHS, Policy(history_ms=5)))
        assert zk.zxid == before


def test_heads_that_make_no_sense_are_refused() -> None:
    good = Head(LOG_ID, 20, 40, kept_offset=20)
    assert decode_head(encode_head(good), "/h") == good
    with pytest.raises(Exception, match="damaged"):
        decode_head(encode_head(replace(good, kept_offset=21)), "/h")
    with pytest.raises(Exception, match="damaged"):
        decode_head(b"\x08\x01" + encode_head(good)[2:], "/h")
    with pytest.raises(Exception, match="damaged"):
        decode_head(b"\x08\x02" + encode_head(replace(good, kept_offset=None))[2:], "/h")
