"""Rules of logs, broken on purpose. The checks must find these.

Each function breaks a rule while the given stack is open.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bk_spark.bookie.metadata.cluster_clock import ClusterClock
from bk_spark.log.core import applications, changes, commit, index_move, steps, takeover
from bk_spark.log.core.append import read_tail
from bk_spark.log.core.changes import Change, SeenTail
from bk_spark.log.core.plan import Plan, Readings
from bk_spark.log.core.readers import follow, read_range
from bk_spark.log.core.readers.reader_actions import LookAtTail, TakeList
from bk_spark.log.core.steps import (
    Closed,
    Conflict,
    Created,
    Event,
    Failed,
    Found,
    ListChildren,
    Listed,
    OutcomeUnknown,
    Read,
    Steps,
    Sync,
    Transact,
)
from bk_spark.log.core.tail import tail_changes
from bk_spark.log.core.tail.tail_changes import SealedTail, TailPlace
from bk_spark.log.core.tail.writing import TailWriting
from bk_spark.log.formats import message
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths, app_key
from bk_spark.log.formats.znodes import Head, LedgerRegistration, Policy, decode_application, decode_registration
from bk_spark.log.gc import expiry, housekeeping, maintenance, reap_rules, reaper, reaping, references, truncation
from bk_spark.log.gc.reap_rules import Run
from bk_spark.log.gc.retention import Retain
from bk_spark.log.history.states import LogStates
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.protocol.errors import BookKeeperError, LogFencedError, MetadataConflictError
from bk_spark.protocol.metadata.znodes import CheckOp, DeleteOp, SetOp, TransactionOp
from tests.simulation.logs import streaming
from tests.simulation.logs.ledgers import ModelLedger, ModelLedgers, ledger_path
from tests.simulation.logs.readers import ReaderZooKeeper
from tests.simulation.logs.streaming import Driver
from tests.simulation.logs.writers import LogWriter

Operations = tuple[TransactionOp, ...]


def _rewrite(stack: ExitStack, change: type[Any], rewrite: Callable[[Any, Operations], Operations]) -> None:
    """Rewrite what ``change`` decides to send."""
    decide = change.decide

    def decided(self: Change[Any], readings: Readings, now_ms: int, maybe: Any) -> Any:
        step = decide(self, readings, now_ms, maybe)
        return replace(step, transaction=rewrite(self, step.transaction)) if isinstance(step, Plan) else step

    stack.enter_context(patch.object(change, "decide", decided))


# --- commits ----------------------------------------------------------------------------------------


def old_ledgers_are_deleted_before_the_commit(stack: ExitStack) -> None:
    """The driver of a new run first deletes unreferenced ledgers of earlier runs (L2)."""
    commit_batch = Driver._commit

    def commit_and_delete(driver: Driver, request: CommitRequest) -> Generator[Any, Any, None]:
        yield from _delete_old_ledgers(driver, request)
        yield from commit_batch(driver, request)

    stack.enter_context(patch.object(Driver, "_commit", commit_and_delete))


def _delete_old_ledgers(driver: Driver, request: CommitRequest) -> Generator[Any, Any, None]:
    paths, app = driver.query.paths, request.app
    yield Sync(paths.head)
    found = yield Read((paths.app(app),))
    listed = yield ListChildren(paths.runs_at(app_key(app)))
    if not isinstance(found, Found) or not isinstance(listed, Listed):
        return
    znode = found.znodes[paths.app(app)]
    application = None if znode is None else decode_application(znode.data, "")
    for run in listed.names or ():
        if application is None or run == request.run:
            continue
        ledgers = yield ListChildren(paths.run_at(app, run))
        for name in (ledgers.names or ()) if isinstance(ledgers, Listed) else ():
            if int(name) not in application.in_use:
                yield Transact((DeleteOp(ledger_path(int(name))), DeleteOp(f"{paths.run_at(app, run)}/{name}")))


def lost_replies_are_answered_by_sending_again(stack: ExitStack) -> None:
    """After an unknown outcome the same transaction is sent again, and its result is believed."""

    def resend(operations: Operations) -> Steps[Event]:
        event = yield Transact(operations)
        while isinstance(event, OutcomeUnknown):
            event = yield Transact(operations)
        return event

    def change_steps(change: Change[Any], now_ms: Callable[[], int], seen: SeenTail | None = None) -> Steps[Any]:
        for _ in range(changes.MIN_CONFLICTS):
            step = yield from changes._Attempts(change, now_ms, seen or SeenTail()).decide()
            if isinstance(step, Plan):
                for operations in step.preparations:
                    yield from resend(operations)
                event = yield from resend(step.transaction)
                if isinstance(event, Conflict):
                    raise MetadataConflictError(f"{change.what}: the log was changed by others ({event.reason})")
                return step.result
            if hasattr(step, "result"):
                return step.result
        raise MetadataConflictError("too many conflicts")

    stack.enter_context(patch.object(takeover, "change_steps", change_steps))


def batches_are_not_looked_for(stack: ExitStack) -> None:
    """A batch that is in the log is committed again."""
    stack.enter_context(patch.object(commit, "is_done", lambda application, request, log_name: False))


def a_set_back_checkpoint_counts_as_done(stack: ExitStack) -> None:
    """Everything a query committed before counts as Spark's repetition (F2)."""
    stack.enter_context(patch.object(applications, "_check_not_set_back", lambda *_: None))


def all_queries_count_as_one(stack: ExitStack) -> None:
    """As batch writes in foreachBatch once did: a constant as the query's id, and no number of the batch (F1)."""
    stack.enter_context(patch.object(streaming.Query, "query_id", "batch"))
    a_set_back_checkpoint_counts_as_done(stack)


def ranges_are_not_compared(stack: ExitStack) -> None:
    """Nothing checks for batches or entries that are already in the log."""
    batches_are_not_looked_for(stack)
    check = applications.check_ledgers

    def unchecked(readings: Readings, paths: LogPaths, application: Any, request: CommitRequest) -> Any:
        return check(readings, paths, application and replace(application, in_use={}), request)

    stack.enter_context(patch.object(applications, "check_ledgers", unchecked))


def _never_condemned(data: bytes, path: str) -> LedgerRegistration:
    return replace(decode_registration(data, path), condemned=False)


def condemned_ledgers_are_committed(stack: ExitStack) -> None:
    """Step 3 does not check whether a ledger is condemned."""
    stack.enter_context(patch.object(applications, "decode_registration", _never_condemned))


def the_run_is_not_checked(stack: ExitStack) -> None:
    """A commit's transaction does not check the znode of its run."""
    _rewrite(
        stack,
        commit.BatchCommit,
        lambda self, ops: tuple(
            op for op in ops if not (isinstance(op, CheckOp) and op.path.startswith(self.paths.ledgers))
        ),
    )


def registrations_are_kept_whatever_becomes_of_their_run(stack: ExitStack) -> None:
    """A retry believes what the first attempt read, though the run's znode was written since."""
    for module in (changes, applications):
        stack.enter_context(patch.object(module, "is_unchanged", lambda then, now: True))


def messages_are_taken_as_they_come(stack: ExitStack) -> None:
    """Segments are in the order in which tasks ended."""
    joined = message._joined

    def unsorted(messages: Any) -> Any:
        return [part for one in messages for part in joined([one])]

    stack.enter_context(patch.object(message, "_joined", unsorted))


def versions_are_published_after_their_rows(stack: ExitStack) -> None:
    """The rows name a version of the schema that is not written with them."""

    def rewrite(self: Any, operations: Operations) -> Operations:
        return tuple(op for op in operations if not (isinstance(op, SetOp) and op.path == self.paths.settings))

    _rewrite(stack, commit.BatchCommit, rewrite)


def settings_are_written_whatever_they_are(stack: ExitStack) -> None:
    """Of two commits that grow the schema at once, the second drops the first one's version."""

    def rewrite(self: Any, operations: Operations) -> Operations:
        return tuple(
            replace(op, version=-1) if isinstance(op, SetOp) and op.path == self.paths.settings else op
            for op in operations
        )

    _rewrite(stack, commit.BatchCommit, rewrite)


def the_open_tail_is_dropped(stack: ExitStack) -> None:
    """A commit removes an open tail from the list, whatever it holds."""

    def drop(readings: Readings, paths: LogPaths, head: Head, *, fence: bool, remedy: str) -> SealedTail:
        return SealedTail(read_tail(readings, paths, head), (), ())

    stack.enter_context(patch.object(commit, "seal_tail", drop))


def commit_times_are_the_drivers(stack: ExitStack) -> None:
    """A commit gets the time of its driver's clock, regardless of earlier commit times."""
    stack.enter_context(patch.object(Head, "change_time_ms", lambda head, now_ms: now_ms))


# --- clocks ----------------------------------------------------------------------------------------


def the_time_is_this_machines(stack: ExitStack) -> None:
    """Ages are measured by the local time of day (T1, T2)."""
    stack.enter_context(patch.object(ClusterClock, "now_ms", lambda clock: clock._wall_ms()))


def the_time_is_counted_from_sending(stack: ExitStack) -> None:
    """The cluster's time is estimated too late instead of too early."""

    def now_ms(clock: ClusterClock) -> int:
        now_s = clock.monotonic_s()
        return int(now_s * 1000 + clock._measured().at(now_s).high_ms)

    stack.enter_context(patch.object(ClusterClock, "now_ms", now_ms))


def clocks_are_not_compared(stack: ExitStack) -> None:
    """A process with a wrong clock still deletes."""
    stack.enter_context(patch.object(ClusterClock, "check", lambda clock: None))


def a_measurement_outlives_its_session(stack: ExitStack) -> None:
    """A machine that was suspended continues with its old time."""
    is_fresh = ClusterClock.is_fresh

    def fresh(clock: ClusterClock, session_id: int) -> bool:
        return clock._known is not None and is_fresh(clock, clock._known.session_id)

    stack.enter_context(patch.object(ClusterClock, "is_fresh", fresh))


def the_policy_is_not_checked(stack: ExitStack) -> None:
    """Retention applies a policy that was replaced meanwhile."""
    stack.enter_context(patch.object(Retain, "decide", lambda self, *given: self._truncate.decide(*given)))


# --- all changes ------------------------------------------------------------------------------------


def heads_are_written_whatever_they_are(stack: ExitStack) -> None:
    """The head is overwritten without checking its version."""

    def blind(self: Change[Any], operations: Operations) -> Operations:
        return tuple(
            replace(op, version=-1) if isinstance(op, SetOp | CheckOp) and op.path == self.paths.head else op
            for op in operations
        )

    for change in (commit.BatchCommit, tail_changes.OpenTail, tail_changes.RollTail, tail_changes.SealTail):
        _rewrite(stack, change, blind)


def readings_of_new_sessions_count(stack: ExitStack) -> None:
    """A new session's reads count, though its server may be behind the old session's sync."""
    stack.enter_context(patch.object(steps.LogMachine, "_held_to_session", lambda self, answer: answer.event))


# --- maintenance ------------------------------------------------------------------------------------


def claims_of_others_are_ignored(stack: ExitStack) -> None:
    """Maintenance starts even if it was started a moment ago."""
    stack.enter_context(patch.object(maintenance, "INTERVAL_MS", 0))


def claims_of_unknown_outcome_count_as_anothers(stack: ExitStack) -> None:
    """A process whose claim to maintenance succeeded but lost its reply leaves maintenance to others."""
    stack.enter_context(patch.object(maintenance, "decode_maintenance", lambda data, path: b""))


# --- log writers ------------------------------------------------------------------------------------


def tails_are_sealed_without_recovery(stack: ExitStack) -> None:
    """The end of the tail is read without fencing."""

    def look(ledgers: ModelLedgers, ledger_id: int, *, fails: bool) -> Event:
        ledger = ledgers.all[ledger_id]
        if ledger.end is not None:
            return Closed(ledger_id, ledger.end, ledger.size_bytes())
        return Closed(ledger_id, ledger.acknowledged - 1, 100 * ledger.acknowledged)

    stack.enter_context(patch.object(ModelLedgers, "_recover", look))


def rolls_do_not_close(stack: ExitStack) -> None:
    """A roll seals the entries acknowledged so far, and leaves the ledger open."""

    def leave(ledgers: ModelLedgers, ledger: ModelLedger, *, fails: bool) -> Event:
        if ledger.fenced:
            return close(ledgers, ledger, fails=fails)
        return Closed(ledger.ledger_id, ledger.acknowledged - 1, 100 * ledger.acknowledged)

    close = ModelLedgers._close
    stack.enter_context(patch.object(ModelLedgers, "_close", leave))


def entries_are_told_when_sent(stack: ExitStack) -> None:
    """A log writer's user is told of entries before they are acknowledged."""

    def tell(writer: LogWriter, place: TailPlace, told: int) -> int:
        if writer.ended:
            return told
        last = len(writer._entries(place)) - 1
        for entry_id in range(told + 1, last + 1):
            writer.world.watch.acknowledged(writer.paths, place.base_offset + entry_id, place.ledger_id, entry_id)
        return last

    stack.enter_context(patch.object(LogWriter, "_tell", tell))


def fenced_writers_are_told_of_all_they_sent(stack: ExitStack) -> None:
    """A log writer that loses its tail takes everything it sent for acknowledged."""

    def told(self: TailWriting, became: str, acknowledged: int, cause: BookKeeperError) -> LogFencedError:
        return real(self, became, self.place.base_offset + self._entries, cause)

    real = TailWriting._fenced_error
    stack.enter_context(patch.object(TailWriting, "_fenced_error", told))


def tails_are_listed_though_condemned(stack: ExitStack) -> None:
    """A log writer lists a ledger without checking whether the reaper took it for an orphan."""
    stack.enter_context(patch.object(tail_changes, "decode_registration", _never_condemned))


# --- the reaper -------------------------------------------------------------------------------------


def condemning_leaves_the_run_alone(stack: ExitStack) -> None:
    """Condemning a ledger does not write the znode of its run."""

    def leave(self: reaper.Condemn, operations: Operations) -> Operations:
        run_path = self._run.path(self.paths)
        return tuple(CheckOp(op.path, op.version) if op.path == run_path else op for op in operations)

    _rewrite(stack, reaper.Condemn, leave)


def _unchecked(self: Any, operations: Operations) -> Operations:
    apps = f"{self.paths.apps}/"
    return tuple(
        op
        for op in operations
        if not (isinstance(op, CheckOp) and (op.path == self.paths.head or op.path.startswith(apps)))
    )


def the_reaper_checks_neither_head_nor_application(stack: ExitStack) -> None:
    """A ledger that was unreferenced at the first look counts as unreferenced later."""
    _rewrite(stack, reaper.Condemn, _unchecked)
    _rewrite(stack, reaper.DeleteLedgers, _unchecked)


def the_reaper_does_not_check_the_head(stack: ExitStack) -> None:
    def unchecked(self: Any, operations: Operations) -> Operations:
        return tuple(op for op in operations if not (isinstance(op, CheckOp) and op.path == self.paths.head))

    _rewrite(stack, reaper.Condemn, unchecked)
    _rewrite(stack, reaper.DeleteLedgers, unchecked)


def ledgers_are_deleted_at_once(stack: ExitStack) -> None:
    """Readers get no grace."""
    stack.enter_context(patch.object(reaper, "limits_of", lambda limits, read: replace(limits, delete_grace_ms=0)))


def ledgers_are_deleted_without_recovery(stack: ExitStack) -> None:
    """Writers of condemned ledgers are not fenced."""

    def leave(round_: Any, run: Run, ledger_ids: Any) -> Generator[Any, Any, frozenset[int]]:
        return frozenset(ledger_ids)
        yield

    stack.enter_context(patch.object(reaper._Round, "_recover", leave))


def ledgers_in_use_are_condemned(stack: ExitStack) -> None:
    """A ledger that was truncated completely is condemned, though its worker may append to it (L3)."""
    reason_to_condemn = reap_rules.reason_to_condemn

    def at_once(run: Run, holder: reap_rules.Holder, ledger_id: int, *arguments: Any, **options: Any) -> Any:
        if holder.last_in_use(ledger_id) is not None:
            return reap_rules.Reason.DROPPED
        return reason_to_condemn(run, holder, ledger_id, *arguments, **options)

    stack.enter_context(patch.object(reaping, "reason_to_condemn", at_once))


def runs_at_work_count_as_over(stack: ExitStack) -> None:
    """Every unreferenced ledger counts as an orphan."""
    stack.enter_context(patch.object(reap_rules.Holder, "has_ended", lambda holder, run: True))


def runs_are_removed_without_writing_the_head(stack: ExitStack) -> None:
    """A run's znode may be created again, with the version that a commit still holds for the old one."""

    def unguarded(self: Any, operations: Operations) -> Operations:
        return tuple(op for op in operations if op.path != self.paths.head)

    _rewrite(stack, housekeeping.RemoveRuns, unguarded)


# --- earlier states ---------------------------------------------------------------------------------


def the_past_is_let_go_at_once(stack: ExitStack) -> None:
    """The reaper drops what was overwritten or truncated, whatever the policy promises."""
    start_to_keep = expiry.start_to_keep

    def start(segments: Any, policy: Policy, now_ms: int) -> Any:
        return start_to_keep(segments, replace(policy, history_ms=0), now_ms)

    stack.enter_context(patch.object(expiry, "start_to_keep", start))


def the_past_is_let_go_by_a_policy_of_before(stack: ExitStack) -> None:
    """The policy may have changed since the reaper read it."""

    def unchecked(self: expiry.Expire, operations: Operations) -> Operations:
        return tuple(op for op in operations if op.path != self.paths.policy)

    _rewrite(stack, expiry.Expire, unchecked)
    stack.enter_context(patch.object(expiry, "policy_of", lambda znode, paths: _Any()))


class _Any:
    """Equal to everything."""

    check = property(lambda self: self)

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def the_reaper_takes_what_is_kept_of_the_past(stack: ExitStack) -> None:
    """Only the present state of the log counts as referring to ledgers."""
    scan = references._scan

    def scan_present(paths: LogPaths, head: Head, list_offset: int) -> Steps[Any]:
        return scan(paths, head, head.first_offset)

    stack.enter_context(patch.object(references, "_scan", scan_present))


def truncations_are_not_recorded(stack: ExitStack) -> None:
    """A later look at an earlier state does not see where the log began then."""
    plan_pages = truncation.plan_pages

    def plan(*arguments: Any) -> Any:
        return plan_pages(*arguments[:-1], ())

    stack.enter_context(patch.object(truncation, "plan_pages", plan))


def overwritten_states_begin_where_the_log_does(stack: ExitStack) -> None:
    """A read as of a commit begins where the log begins now."""
    of = LogStates.of

    def clipped(states: LogStates, as_of: Any, now_ms: Any) -> Any:
        state = of(states, as_of, now_ms)
        first_offset = min(state.end_offset, max(state.first_offset, states._head.first_offset))
        return replace(state, first_offset=first_offset)

    stack.enter_context(patch.object(LogStates, "of", clipped))


def times_count_though_commits_may_still_come(stack: ExitStack) -> None:
    """A read as of this moment takes the last commit that is there, and a commit with an earlier time comes later."""
    stack.enter_context(patch.object(LogStates, "_check_settled", lambda states, time, now_ms: None))


# --- the index --------------------------------------------------------------------------------------


def index_ledgers_are_not_closed(stack: ExitStack) -> None:
    """The head refers to an index ledger that is still open."""
    write = ModelLedgers._write

    def leave_open(ledgers: ModelLedgers, *arguments: Any, **options: Any) -> Event:
        with patch.object(ModelLedgers, "_close", lambda self, ledger, fails: Closed(ledger.ledger_id, 0, 0)):
            return write(ledgers, *arguments, **options)

    stack.enter_context(patch.object(ModelLedgers, "_write", leave_open))


def unwritten_index_ledgers_count(stack: ExitStack) -> None:
    """A move treats a ledger as written although not all of it could be written."""
    write = ModelLedgers._write

    def believe(ledgers: ModelLedgers, *arguments: Any, **options: Any) -> Event:
        event = write(ledgers, *arguments, **options)
        last = max(ledgers.all)
        return Created(last) if isinstance(event, Failed) and ledgers.exists(last) else event

    stack.enter_context(patch.object(ModelLedgers, "_write", believe))


def moves_are_published_though_condemned(stack: ExitStack) -> None:
    stack.enter_context(patch.object(index_move, "decode_registration", _never_condemned))


# --- readers ----------------------------------------------------------------------------------------


def tails_are_followed_from_their_start(stack: ExitStack) -> None:
    """Entries of an open tail are delivered again."""
    stack.enter_context(patch.object(follow, "_entry_at", lambda tail, offset: tail.first_entry))


def tails_are_followed_wherever_they_begin(stack: ExitStack) -> None:
    """An open tail is followed though, since the list was taken, the earlier tail was sealed and this one opened:
    the sealed entries are skipped."""

    def look_at_tail(snapshot: LogSnapshot, read: Any = None) -> Any:
        page = snapshot._tail_page_now()
        return (page.table[len(page.table) - 1] if page.open_tail else None), page.end_offset > snapshot.next_offset

    stack.enter_context(patch.object(LogSnapshot, "look_at_tail", look_at_tail))


def lists_taken_too_early_are_final(stack: ExitStack) -> None:
    """A reader does not look again for a tail that was sealed after the list was taken."""

    def find(self: Any) -> Any:
        taken = yield TakeList()
        self._next_offset = taken.next_offset
        tail = (yield LookAtTail()).tail
        return tail, 0 if tail is None else (yield from read_range._tail_end(tail))

    stack.enter_context(patch.object(read_range.ReadRange, "_find_tail", find))


def lists_are_never_outdated(stack: ExitStack) -> None:
    """A reader of a tail that was sealed since the list was taken gets an error that its offset is beyond the end."""
    look_at_tail = LogSnapshot.look_at_tail
    stack.enter_context(patch.object(LogSnapshot, "look_at_tail", lambda snapshot: (look_at_tail(snapshot)[0], False)))


def the_watch_is_set_after_the_list_was_taken(stack: ExitStack) -> None:
    """Changes in between go unnoticed."""

    def late(self: follow.Follow) -> Any:
        steps = real(self)
        action: Any = next(steps)
        while True:
            is_arm = isinstance(action, follow.Arm)
            try:
                event = follow.Armed(0.0) if is_arm else (yield action)
                action = steps.send(event)
                if is_arm:
                    event = yield action
                    yield follow.Arm()
                    action = steps.send(event)
            except StopIteration:
                return
            except BookKeeperError as error:
                action = steps.throw(error)

    real = follow.Follow.steps
    stack.enter_context(patch.object(follow.Follow, "steps", late))


def snapshots_do_not_sync(stack: ExitStack) -> None:
    """A snapshot shows the state of its server, which may be behind."""
    stack.enter_context(patch.object(ReaderZooKeeper, "sync", lambda self, path: None))
