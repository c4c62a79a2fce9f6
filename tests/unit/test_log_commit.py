"""What a commit decides from what was read: the steps one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_spark.log import CommitMessage, CommitRequest, CommitStatus, LedgerRange
from bk_spark.log.core import append
from bk_spark.log.core.append import MAX_INLINE_PAGES, Append, ReadHead, ReadTail, plan_append
from bk_spark.log.core.applications import IN_USE_KEPT
from bk_spark.log.core.changes import step_of
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.plan import AlreadyDone, Need, NeedClosed, Plan, Readings, Stale
from bk_spark.log.formats.commits import CommitKind, CommitRecord
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import MAX_PAGE_BYTES, SegmentPage, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import (
    Head,
    IndexPosition,
    LedgerRegistration,
    Owner,
    encode_head,
    encode_owner,
    encode_registration,
)
from bk_spark.protocol.errors import (
    BatchRefusedError,
    InvalidArgumentError,
    LedgerRefusedError,
    LogReplacedError,
    LogTailOpenError,
    MetadataFormatError,
    NoSuchLogError,
    RunRetiredError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, TransactionOp, Znode
from tests.support.log_model import LOG_ID, PATHS, ModelLog
from tests.support.zookeeper_model import RefusedError

NOW_MS = 1_736_000_000_000


def ranges(*triples: tuple[int, int, int]) -> tuple[LedgerRange, ...]:
    return tuple(LedgerRange(ledger, first, last, last - first + 1, 100) for ledger, first, last in triples)


def request(
    batch_id: int,
    *triples: tuple[int, int, int],
    run: str = "run-1",
    app: str = "app",
    query_id: str = "query",
    overwrite: bool = False,
    anonymous: bool = False,
    query_batch_id: int | None = None,
    skip_committed: bool = False,
) -> CommitRequest:
    message = CommitMessage(LOG_ID, app, run, query_id, batch_id, 0, ranges(*triples), query_batch_id)
    return CommitRequest.from_messages(
        [message], overwrite=overwrite, anonymous=anonymous, skip_committed=skip_committed
    )


def outcome(
    zk: ModelLog, asked: CommitRequest, now_ms: int = NOW_MS, read: list[str] | None = None
) -> AlreadyDone | Stale | Plan:
    """The decision, after reading all that it asks for."""
    znodes: dict[str, Znode | None] = {}
    while True:
        step = step_of(BatchCommit(PATHS, asked), Readings(znodes), now_ms)
        assert not isinstance(step, NeedClosed)
        if not isinstance(step, Need):
            return step
        assert step.paths
        assert not znodes.keys() & set(step.paths), "asks for nothing twice"
        znodes |= {path: zk.read(path) for path in step.paths}
        if read is not None:
            read += step.paths


def plan(zk: ModelLog, asked: CommitRequest, now_ms: int = NOW_MS) -> Plan:
    made = outcome(zk, asked, now_ms)
    assert isinstance(made, Plan), made
    return made


def commit(zk: ModelLog, asked: CommitRequest, now_ms: int = NOW_MS) -> Plan:
    made = plan(zk, asked, now_ms)
    for operations in (*made.preparations, made.transaction):
        zk.transact(operations)
    return made


@pytest.fixture
def zk() -> ModelLog:
    """A log with registered ledgers 1 to 9 of run-1 and 21 to 29 of run-2."""
    model = ModelLog()
    model.register("app", "run-1", *range(1, 10))
    model.register("app", "run-2", *range(21, 30))
    return model


def spans(zk: ModelLog) -> list[tuple[int, int, int | None, int]]:
    return [(s.ledger_id, s.first_entry, s.last_entry, s.base_offset) for s in zk.segments()]


def test_a_commit_appends_in_partition_order_and_records_the_batch(zk: ModelLog) -> None:
    result = commit(zk, request(0, (2, 0, 9), (1, 0, 4))).result
    assert (result.status, result.start_offset, result.end_offset) == (CommitStatus.COMMITTED, 0, 15)
    assert spans(zk) == [(2, 0, 9, 0), (1, 0, 4, 10)]
    application = zk.application("app")
    assert application is not None
    assert (application.batch_id, application.run, application.query_id) == (0, "run-1", "query")
    assert (application.start_offset, application.end_offset) == (0, 15)
    assert dict(application.in_use) == {2: 9, 1: 4}

    commit(zk, request(1, (1, 5, 6), (3, 0, 0)))
    assert spans(zk)[2:] == [(1, 5, 6, 15), (3, 0, 0, 17)]
    application = zk.application("app")
    assert application is not None
    assert list(application.in_use.items()) == [(2, 9), (1, 6), (3, 0)], "the longest unused comes first"


def test_the_transaction_checks_the_version_of_everything_read(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    read: list[str] = []
    made = outcome(zk, request(1, (1, 10, 12), (2, 0, 3)), read=read)
    assert isinstance(made, Plan)
    checked = {op.path for op in made.transaction if isinstance(op, SetOp | CheckOp) and op.version >= 0}
    # Registrations are covered by the znode of their run, which was read before them.
    registrations = {path for path in read if path.startswith(PATHS.run("app", "run-1") + "/")}
    assert set(read) - registrations == checked
    assert read.index(PATHS.run("app", "run-1")) < min(map(read.index, registrations))
    assert CheckOp(PATHS.identity, -1) in made.transaction


@pytest.mark.parametrize("path", [PATHS.head, PATHS.page(0), PATHS.app("app"), PATHS.run("app", "run-1")])
def test_a_change_of_anything_read_refuses_the_transaction(zk: ModelLog, path: str) -> None:
    commit(zk, request(0, (1, 0, 9)))
    made = plan(zk, request(1, (1, 10, 12), (2, 0, 3)))
    changed = zk.read(path)
    assert changed is not None
    zk.transact([SetOp(path, changed.data, changed.version)])
    with pytest.raises(RefusedError):
        zk.transact(made.transaction)


def test_step_1_a_retired_run_is_told_its_successor(zk: ModelLog) -> None:
    """S3: the zombie driver wakes up after another run committed."""
    commit(zk, request(0, (1, 0, 9)))
    assert commit(zk, request(1, (21, 0, 9), run="run-2")).result.retired_runs == ("run-1",)
    for batch_id in (0, 1, 2):
        with pytest.raises(
            RunRetiredError, match="run run-1 of application 'app' may no longer .* run run-2 took over"
        ):
            outcome(zk, request(batch_id, (1, 10, 12)))
    commit(zk, request(2, (29, 0, 0), run="run-2"))
    zk.register("app", "run-3", 31)
    commit(zk, request(3, (31, 0, 0), run="run-3"))
    with pytest.raises(RunRetiredError, match="run run-2 took over, and batch 3 was committed last, by run run-3"):
        outcome(zk, request(1, (1, 10, 12)))


def test_the_last_32_retired_runs_are_remembered(zk: ModelLog) -> None:
    for number in range(40):
        commit(zk, request(number, run=f"r{number}"))
    application = zk.application("app")
    assert application is not None
    assert application.retired_runs == tuple(f"r{number}" for number in range(7, 39))
    # An older zombie's batches were committed by others long ago.
    assert isinstance(outcome(zk, request(1, run="r0")), AlreadyDone)


def test_step_2_a_batch_committed_before_is_done(zk: ModelLog) -> None:
    """S1: the commit took effect, its reply was lost, the batch comes again, from this run or the next."""
    commit(zk, request(5, (1, 0, 9)))
    for again in (request(5, (1, 0, 9)), request(5, (22, 0, 9), run="run-2"), request(4, (1, 0, 9))):
        assert isinstance(outcome(zk, again), AlreadyDone)
    assert len(spans(zk)) == 1


def test_step_2_a_batch_of_another_query_is_refused(zk: ModelLog) -> None:
    commit(zk, request(5, (1, 0, 9)))
    for batch_id in (0, 5):
        with pytest.raises(BatchRefusedError, match="query 'other' now offers batch .* name of its own"):
            outcome(zk, request(batch_id, (21, 0, 0), run="run-2", query_id="other"))
    commit(zk, request(6, (21, 0, 0), run="run-2", query_id="other"))


def test_f1_a_query_with_a_new_checkpoint_is_refused_whatever_the_version_counts(zk: ModelLog) -> None:
    """In foreachBatch: version 70 of the old query's batch 7 is in the log."""
    commit(zk, request(70, (1, 0, 9), query_batch_id=7))
    for version in (0, 70):
        with pytest.raises(BatchRefusedError, match="query 'other' now offers batch"):
            outcome(zk, request(version, (21, 0, 0), run="run-2", query_id="other", query_batch_id=version))
    # Outside of a query the number alone counts.
    with pytest.raises(BatchRefusedError, match="query 'batch' now offers batch 70"):
        outcome(zk, request(70, (21, 0, 0), run="run-2", query_id="batch"))


def test_f2_a_query_that_goes_back_by_more_than_its_last_batch_is_refused(zk: ModelLog) -> None:
    for batch_id in range(4):
        commit(zk, request(batch_id, (1, 10 * batch_id, 10 * batch_id + 9), query_batch_id=batch_id))
    assert isinstance(outcome(zk, request(3, (22, 0, 9), run="run-2", query_batch_id=3)), AlreadyDone)
    for batch_id in (2, 0):
        again = request(batch_id, (22, 0, 9), run="run-2", query_batch_id=batch_id)
        with pytest.raises(
            BatchRefusedError,
            match=f"has committed its batch 3 .* offers batch {batch_id}: its checkpoint was set back.* option skip",
        ):
            outcome(zk, again)
        made = outcome(zk, replace(again, skip_committed=True))
        assert isinstance(made, AlreadyDone)
        assert made.result.start_offset is None
        assert "10 rows were not compared" in made.result.warning
    assert len(spans(zk)) == 4
    # A number of its own that goes on does not hide it: these rows would be in the log twice.
    with pytest.raises(BatchRefusedError, match="set back"):
        outcome(zk, request(4, (22, 0, 9), run="run-2", query_batch_id=1))
    # Spark repeats a batch of two writes: the first of them is not the last one committed.
    commit(zk, request(4, (1, 40, 40), query_batch_id=4))
    commit(zk, request(5, (1, 41, 41), query_batch_id=4))
    assert isinstance(outcome(zk, request(4, (22, 0, 0), run="run-2", query_batch_id=4)), AlreadyDone)


def test_a_sinks_batch_is_refused_if_the_log_lacks_batches_before_it(zk: ModelLog) -> None:
    """ZooKeeper was restored from a backup that knows the query's batch 3."""
    commit(zk, request(3, (1, 0, 9), query_batch_id=3))
    for batch_id, missing in ((5, "batch 4"), (9, "batches 4 to 8")):
        offered = request(batch_id, (22, 0, 9), run="run-2", query_batch_id=batch_id)
        for sink in (replace(offered, consecutive=True), replace(offered, consecutive=True, skip_committed=True)):
            with pytest.raises(BatchRefusedError, match=f"the last one in the log is 3: the log lacks {missing}. "):
                outcome(zk, sink)
        # In foreachBatch a function may write some batches only.
        assert isinstance(outcome(zk, offered), Plan)
    assert isinstance(outcome(zk, request(3, (22, 0, 9), run="run-2", query_batch_id=3)), AlreadyDone)
    following = replace(request(4, (22, 0, 9), run="run-2", query_batch_id=4), consecutive=True)
    made = outcome(zk, following)
    assert isinstance(made, Plan)
    assert not made.result.warning


def test_a_sink_that_begins_late_is_told_so(zk: ModelLog) -> None:
    """Spark lets a query go on with another sink."""
    for batch_id, consecutive, told in (
        (0, True, ""),
        (7, False, ""),
        (7, True, "begins with its batch 7: the log has"),
    ):
        made = outcome(zk, replace(request(batch_id, (1, 0, 9), query_batch_id=batch_id), consecutive=consecutive))
        assert isinstance(made, Plan)
        assert told in made.result.warning
        assert bool(told) == bool(made.result.warning)


def test_a_repeated_batch_with_another_number_of_rows_is_told(zk: ModelLog) -> None:
    commit(zk, request(3, (1, 0, 9), query_batch_id=3))
    for last, told in ((9, ""), (6, "was committed with 10 rows; this repetition has 7, and none of them was added")):
        made = outcome(zk, request(3, (22, 0, last), run="run-2", query_batch_id=3))
        assert isinstance(made, AlreadyDone)
        assert told in made.result.warning
        assert bool(told) == bool(made.result.warning)
    # A batch job has no checkpoint: an older version is done.
    commit(zk, request(20, (2, 0, 9), app="app", query_id="batch"))
    made = outcome(zk, request(19, (23, 0, 1), run="run-2", query_id="batch"))
    assert isinstance(made, AlreadyDone)
    assert "batch 20 is committed; its 2 rows were not compared" in made.result.warning


def test_step_3_an_unregistered_ledger_is_refused(zk: ModelLog) -> None:
    with pytest.raises(LedgerRefusedError, match=r"not registered .*ledger 77"):
        outcome(zk, request(0, (1, 0, 0), (77, 0, 9)))
    with pytest.raises(LedgerRefusedError, match="not registered"):
        outcome(zk, request(0, (21, 0, 0)))
    with pytest.raises(LedgerRefusedError, match="no ledger is registered for application 'app', run run-9"):
        outcome(zk, request(0, (1, 0, 0), run="run-9"))


def test_step_3_a_condemned_ledger_is_refused(zk: ModelLog) -> None:
    path = PATHS.registration("app", "run-1", 3)
    zk.transact([SetOp(path, encode_registration(LedgerRegistration(None, NOW_MS)), 0)])
    with pytest.raises(LedgerRefusedError, match=r"about to be deleted.*ledger 3"):
        outcome(zk, request(0, (3, 0, 0)))


def test_l2_a_ledger_condemned_between_reading_and_committing_refuses_the_commit(zk: ModelLog) -> None:
    made = plan(zk, request(0, (3, 0, 0)))
    # As the reaper does it: the registration and its run in one transaction, which checks the head.
    zk.transact(
        [
            CheckOp(PATHS.head, 0),
            SetOp(PATHS.registration("app", "run-1", 3), encode_registration(LedgerRegistration(None, NOW_MS)), 0),
            SetOp(PATHS.run("app", "run-1"), b"", 0),
        ]
    )
    with pytest.raises(RefusedError):
        zk.transact(made.transaction)
    with pytest.raises(LedgerRefusedError, match="about to be deleted"):
        outcome(zk, request(0, (3, 0, 0)))


@pytest.mark.parametrize("first", [0, 5, 9])
def test_step_3_entries_committed_before_are_refused(zk: ModelLog, first: int) -> None:
    commit(zk, request(0, (1, 5, 9)))
    with pytest.raises(LedgerRefusedError, match=r"entries up to 9 are in the log already.*ledger 1"):
        outcome(zk, request(1, (1, first, 12)))
    commit(zk, request(1, (1, 11, 12)))


def test_step_3_holds_for_ledgers_that_left_the_application(zk: ModelLog) -> None:
    count = IN_USE_KEPT + 40
    zk.register("app", "run-1", *range(1000, 1000 + count))
    commit(zk, request(0, *((ledger, 0, 6) for ledger in range(1000, 1000 + count))))
    application = zk.application("app")
    assert application is not None
    assert len(application.in_use) == count, "all of the last batch stay"

    commit(zk, request(1, (1, 0, 0)))
    application = zk.application("app")
    assert application is not None
    assert len(application.in_use) == IN_USE_KEPT + 1
    assert 1000 not in application.in_use
    for first in (0, 6):
        with pytest.raises(LedgerRefusedError, match="entries up to 6 are in the log already"):
            outcome(zk, request(2, (1000, first, 9)))
    commit(zk, request(2, (1000, 7, 9)))
    application = zk.application("app")
    assert application is not None
    assert application.in_use[1000] == 9


def test_ledgers_of_an_earlier_run_are_no_longer_in_use(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    commit(zk, request(1, (21, 0, 0), run="run-2"))
    application = zk.application("app")
    assert application is not None
    assert dict(application.in_use) == {21: 0}


def test_an_empty_batch_leaves_the_list_alone_and_counts(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    made = commit(zk, request(1))
    assert not any(isinstance(op, SetOp) and op.path in (PATHS.head, PATHS.page(0)) for op in made.transaction)
    assert (made.result.start_offset, made.result.end_offset) == (10, 10)
    assert isinstance(outcome(zk, request(1)), AlreadyDone)
    assert CommitRequest(LOG_ID, "app", "run-1", "query", 2).messages == ()
    commit(zk, CommitRequest(LOG_ID, "app", "run-1", "query", 2))


def test_overwrite_starts_the_log_anew_and_keeps_applications(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    zk.register("other", "run-1", 41)
    commit(zk, request(0, (41, 0, 4), app="other", overwrite=True))
    head = zk.head()
    assert (head.first_offset, head.next_offset) == (10, 15)
    assert spans(zk) == [(41, 0, 4, 10)]
    assert zk.application("app") is not None
    assert isinstance(outcome(zk, request(0, (1, 0, 9))), AlreadyDone)


def test_overwrite_works_with_no_rows_and_on_an_empty_log(zk: ModelLog) -> None:
    commit(zk, request(0, overwrite=True))
    assert (zk.head().first_offset, zk.head().next_offset) == (0, 0)
    commit(zk, request(1, (1, 0, 9)))
    commit(zk, request(2, overwrite=True))
    assert (zk.head().first_offset, zk.head().next_offset) == (10, 10)
    assert spans(zk) == []
    commit(zk, request(3, (1, 10, 10)))
    assert spans(zk) == [(1, 10, 10, 10)]


def test_an_anonymous_application_keeps_no_ledgers(zk: ModelLog) -> None:
    once = request(0, (1, 0, 9), anonymous=True)
    commit(zk, once)
    application = zk.application("app")
    assert application is not None
    assert application.anonymous
    assert application.commit_time_ms == NOW_MS
    assert not application.in_use
    assert isinstance(outcome(zk, once), AlreadyDone)


def test_commit_times_never_decrease(zk: ModelLog) -> None:
    for batch_id, now_ms in enumerate([NOW_MS, NOW_MS - 5_000, NOW_MS + 1]):
        commit(zk, request(batch_id, (1, batch_id, batch_id)), now_ms)
    assert [segment.commit_time_ms for segment in zk.segments()] == [NOW_MS, NOW_MS, NOW_MS + 1]


def many(zk: ModelLog, batch_id: int, count: int, base: int = 0) -> CommitRequest:
    """A commit of ``count`` segments that no prediction makes small."""
    messages = []
    for partition in range(count):
        part = LedgerRange(
            1 + partition % 2, base + partition * 2, base + partition * 2, (partition * 977) % 99_991, partition
        )
        messages.append(CommitMessage(LOG_ID, "app", "run-1", "query", batch_id, partition, (part,)))
    return CommitRequest(LOG_ID, "app", "run-1", "query", batch_id, tuple(messages))


def test_a_full_tail_page_is_followed_by_a_new_one_in_the_same_transaction(zk: ModelLog) -> None:
    for batch_id in range(5):
        made = commit(zk, many(zk, batch_id, 1_500, batch_id * 10_000))
        assert made.preparations == ()
    assert zk.head().tail_page > 0
    assert len(zk.segments()) == 7_500
    for number in range(zk.head().tail_page + 1):
        page = zk.read(PATHS.page(number))
        assert page is not None
        assert len(page.data) <= MAX_PAGE_BYTES


def test_pages_of_a_very_large_commit_are_written_first(zk: ModelLog) -> None:
    large = many(zk, 0, 36_000)
    made = plan(zk, large)
    assert made.preparations
    for operations in (*made.preparations, made.transaction):
        assert sum(len(op.path) + 64 + len(getattr(op, "data", b"")) for op in operations) < 1_000_000
    for operations in made.preparations:
        zk.transact(operations)
    assert zk.segments() == [], "nothing refers to them yet"
    zk.transact(made.transaction)
    assert len(zk.segments()) == 36_000
    assert zk.head().tail_page > MAX_INLINE_PAGES


def test_pages_left_by_a_failed_commit_are_written_over(zk: ModelLog) -> None:
    for operations in plan(zk, many(zk, 0, 36_000)).preparations:
        zk.transact(operations)
    commit(zk, many(zk, 0, 9_000))
    assert zk.head().tail_page >= 1
    assert len(zk.segments()) == 9_000
    commit(zk, many(zk, 1, 36_000, 1_000_000))
    assert len(zk.segments()) == 45_000


def test_prepared_pages_that_another_wrote_over_are_not_published(zk: ModelLog) -> None:
    made = plan(zk, many(zk, 0, 36_000))
    for operations in made.preparations:
        zk.transact(operations)
    other = plan(zk, many(zk, 0, 37_000, 5))
    for operations in other.preparations:
        zk.transact(operations)
    with pytest.raises(RefusedError):
        zk.transact(made.transaction)
    zk.transact(other.transaction)
    assert len(zk.segments()) == 37_000


def test_published_pages_cannot_be_prepared_over(zk: ModelLog) -> None:
    late = plan(zk, many(zk, 0, 36_000))
    commit(zk, many(zk, 0, 35_000))
    with pytest.raises(RefusedError):
        zk.transact(late.preparations[0])


def test_pages_that_were_read_before_they_were_published_cannot_be_prepared_over(
    zk: ModelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing leaves their versions as they are. Only the head tells."""
    monkeypatch.setattr(append, "MAX_INLINE_PAGES", 0)
    made = plan(zk, many(zk, 0, 6_000))
    for operations in made.preparations:
        zk.transact(operations)
    late = plan(zk, many(zk, 0, 7_000, 5))
    zk.transact(made.transaction)
    assert late.preparations
    for operations in late.preparations:
        with pytest.raises(RefusedError):
            zk.transact(operations)
    assert len(zk.segments()) == 6_000


def test_an_open_tail_is_not_appended_to_while_its_owner_lives(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    table = SegmentTable.of([*zk.segments(), Segment(500, 0, None, 10, 0, 0, NOW_MS)])
    owner = encode_owner(Owner("w1", "host1", 77, NOW_MS))
    zk.transact([SetOp(PATHS.page(0), encode_page(SegmentPage(LOG_ID, 0, 0, table)), 1), CreateOp(PATHS.owner, owner)])
    for blocked in (request(1, (1, 10, 12)), request(1, overwrite=True)):
        with pytest.raises(LogTailOpenError, match=r"writer w1 \(host host1, process 77\).*fenceTail=true.*ledger 500"):
            outcome(zk, blocked)
    commit(zk, request(1))


def test_a_head_and_page_that_do_not_fit_are_read_again(zk: ModelLog) -> None:
    first = zk.read(PATHS.head)
    commit(zk, request(0, (1, 0, 9)))
    znodes = {PATHS.head: first, PATHS.app("app"): None, PATHS.run("app", "run-1"): zk.read(PATHS.run("app", "run-1"))}
    znodes |= {path: zk.read(path) for path in (PATHS.page(0), PATHS.registration("app", "run-1", 2))}
    assert isinstance(step_of(BatchCommit(PATHS, request(0, (2, 0, 9))), Readings(znodes), NOW_MS), Stale)


def test_the_index_position_outlives_commits(zk: ModelLog) -> None:
    index = IndexPosition(99, 3, 0, 0)
    zk.transact([SetOp(PATHS.head, encode_head(Head(LOG_ID, index=index)), 0)])
    commit(zk, request(0, (1, 0, 9)))
    assert zk.head().index == index


def test_l5_another_log_under_the_name_is_refused(zk: ModelLog) -> None:
    other = replace(PATHS, log_id="11111111-2222-3333-4444-555555555555")
    znodes = {PATHS.head: zk.read(PATHS.head), PATHS.app("app"): None, PATHS.run("app", "run-1"): None}
    asked = replace(request(0), log_id=other.log_id, messages=())
    with pytest.raises(LogReplacedError, match="deleted and created again"):
        step_of(BatchCommit(other, asked), Readings(znodes), NOW_MS)
    with pytest.raises(NoSuchLogError, match="deleted"):
        step_of(BatchCommit(PATHS, request(0)), Readings(znodes | {PATHS.head: None}), NOW_MS)


def test_l5_a_plan_for_the_old_log_fails_on_the_new_one_with_equal_versions(zk: ModelLog) -> None:
    made = plan(zk, request(0, overwrite=True))
    zk.transact([DeleteOp(PATHS.identity)])
    new = LogPaths(PATHS.root, PATHS.name, "11111111-2222-3333-4444-555555555555")
    zk.transact([CreateOp(new.identity)])
    with pytest.raises(RefusedError, match="id-0f1e2d3c"):
        zk.transact(made.transaction)


def test_metadata_of_a_newer_release_is_refused(zk: ModelLog) -> None:
    head = zk.read(PATHS.head)
    assert head is not None
    zk.transact([SetOp(PATHS.head, b"\x08\x03" + head.data[2:], 0)])
    with pytest.raises(MetadataFormatError, match="format version 3"):
        outcome(zk, request(0, (1, 0, 9)))


def test_a_batch_that_names_too_many_ledgers_is_refused(zk: ModelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.log.core.commit.MAX_APPLICATION_BYTES", 50)
    with pytest.raises(LedgerRefusedError, match="names 9 ledgers, too many for one commit"):
        outcome(zk, request(0, *((ledger, 0, 0) for ledger in range(1, 10))))


def operations_of(made: Plan) -> list[TransactionOp]:
    return [op for group in made.preparations for op in group] + list(made.transaction)


def test_nothing_is_ever_deleted(zk: ModelLog) -> None:
    commit(zk, request(0, (1, 0, 9)))
    for made in (plan(zk, request(1, overwrite=True)), plan(zk, many(zk, 2, 36_000, 50))):
        assert all(isinstance(op, CreateOp | SetOp | CheckOp) for op in operations_of(made))


def test_segments_without_their_commit_are_refused_where_commits_are_recorded() -> None:
    """The page would be damaged for every reader."""
    head = Head(LOG_ID, kept_offset=0)
    page = SegmentPage(LOG_ID, 0, 0, SegmentTable.of(()), None)
    added = SegmentTable.of([Segment(5, 0, 4, 0, 5, 100, 1_000), Segment(6, 0, 4, 5, 5, 100, 1_000)])

    def plan(record: CommitRecord | None, head: Head = head) -> Append:
        readings = Readings({PATHS.page(1): None})
        read, tail = ReadHead(head, 3), ReadTail(page, 2, None)
        return plan_append(readings, PATHS, read, added, 1_000, tail, record=record)

    for record in (None, CommitRecord(CommitKind.APPEND, 1, 1_000)):
        with pytest.raises(InvalidArgumentError, match=f"2 segments are appended with records of {int(bool(record))}"):
            plan(record)
    assert plan(CommitRecord(CommitKind.APPEND, 2, 1_000)).head.next_offset == 10
    # Logs of release 0.1.0 record none.
    assert plan(None, replace(head, kept_offset=None)).head.next_offset == 10
