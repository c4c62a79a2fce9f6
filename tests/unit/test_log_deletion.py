"""L5: a log is deleted, by several at once, and made again; nothing that was sent before reaches the new one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from bk_spark.log import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.core.changes import MAX_UNAVAILABLE, change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.registrations import registrar
from bk_spark.log.core.steps import (
    Action,
    Closed,
    Conflict,
    Done,
    Event,
    Failed,
    ListChildren,
    Listed,
    OutcomeUnknown,
    RecoverLedger,
    Steps,
    Transact,
    Unavailable,
    syncs,
)
from bk_spark.log.formats.names import INDEX, WRITERS, LogPaths
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.znodes import Head, encode_head
from bk_spark.log.gc.deletion import MAX_FAILURES, MAX_UNFENCED, DeletionReport, delete_steps
from bk_spark.log.gc.truncation import Truncate
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    LogReplacedError,
    MetadataUnavailableError,
    NoSuchLogError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog
from tests.support.zookeeper_model import RefusedError

NEXT_PATHS = LogPaths(PATHS.root, PATHS.name, "11111111-2222-4333-8444-555555555555")
LEDGERS = (1, 2, 3, 40, 50, 60)
OUTSIDE = 70


def metadata_path(ledger_id: int) -> str:
    return f"/ledgers-{ledger_id}"


def new_log(zk: ModelLog, paths: LogPaths, ledgers: tuple[int, ...]) -> None:
    """A log with one committed ledger, others in runs of every kind, one appended ledger, and all small znodes."""
    if zk.read(paths.head) is None:
        page = encode_page(SegmentPage(paths.log_id, 0, 0, SegmentTable.of(())))
        zk.transact(
            [
                CreateOp(paths.head, encode_head(Head(paths.log_id))),
                CreateOp(paths.identity),
                CreateOp(paths.settings),
                CreateOp(paths.pages),
                CreateOp(paths.page(0), page),
                CreateOp(paths.apps),
                CreateOp(paths.ledgers),
            ]
        )
    runs = [
        paths.run("app", "r0"),
        paths.run("app", "r1"),
        paths.run_at(WRITERS, "w"),
        paths.run_at(INDEX, "move"),
    ]
    for run in runs:
        for path in (run.rpartition("/")[0], run):
            if zk.read(path) is None:
                zk.transact([CreateOp(path)])
    for number, ledger_id in enumerate(ledgers):
        zk.transact([CreateOp(metadata_path(ledger_id)), *registrar(paths, runs[number % 4])(ledger_id)])
    zk.transact([CreateOp(paths.appended), CreateOp(paths.appended_ledger(OUTSIDE)), CreateOp(paths.policy)])
    message = CommitMessage(paths.log_id, "app", "r0", "q", 0, 0, (LedgerRange(ledgers[0], 0, 9, 10, 10),))
    run_to_end(change_steps(BatchCommit(paths, CommitRequest.from_messages([message])), lambda: 1), Tree(zk, Random(0)))


@dataclass
class Tree:
    """A client that lists children and recovers ledgers too; ``dead`` ledgers cannot be recovered, and bookies know the
    ids of ``refused`` ones with another password."""

    zk: ModelLog
    rng: Random
    fault_rate: float = 0.0
    dead: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()
    recovered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = Client(self.zk, self.rng, self.fault_rate)

    def perform(self, action: Action) -> Event:
        match action:
            case ListChildren(path):
                if self.rng.random() < self.fault_rate:
                    return Unavailable("model")
                return Listed(self.zk.children(path))
            case RecoverLedger(ledger_id):
                self.recovered.append(ledger_id)
                if ledger_id in self.refused:
                    return Failed(UnauthorizedError("another password"))
                if ledger_id in self.dead:
                    return Failed(BookieUnavailableError("no bookie"))
                path = metadata_path(ledger_id)
                znode = self.zk.read(path)
                if znode is not None:
                    self.zk.transact([SetOp(path, b"closed", znode.version)])
                    # The ledger client shares the session.
                    self.client.perform(Transact(()))
                return Closed(ledger_id, 9, 100)
        return self.client.perform(action)


def deletion(paths: LogPaths = PATHS) -> Steps[DeletionReport]:
    return delete_steps(paths, metadata_path, lambda: 5_000)


def run_to_end(steps: Steps, tree: Tree, perform: Callable[[Action], Event] | None = None) -> object:  # type: ignore[type-arg]
    try:
        action = next(steps)
        for _ in range(10_000):
            action = steps.send((perform or tree.perform)(action))
    except StopIteration as end:
        return end.value
    raise AssertionError("does not end")


def left(zk: ModelLog) -> set[str]:
    return {path for path in zk.paths() if path.startswith((PATHS.head, "/ledgers-"))}


@pytest.fixture
def zk() -> ModelLog:
    model = ModelLog()
    model.transact([CreateOp(metadata_path(OUTSIDE))])
    new_log(model, PATHS, LEDGERS)
    return model


def test_everything_goes_but_ledgers_the_log_did_not_make(zk: ModelLog) -> None:
    tree = Tree(zk, Random(0))
    assert run_to_end(deletion(), tree) == DeletionReport(len(LEDGERS), ())
    assert left(zk) == {metadata_path(OUTSIDE)}
    assert sorted(tree.recovered) == sorted(LEDGERS)


def test_from_its_beginning_on_every_change_is_refused(zk: ModelLog) -> None:
    steps = deletion()
    tree = Tree(zk, Random(0))
    action = next(steps)
    while not isinstance(action, Transact):
        action = steps.send(tree.perform(action))
    assert isinstance(tree.perform(action), Done)
    assert zk.read(PATHS.identity) is None
    for change in (Truncate(PATHS, 5), BatchCommit(PATHS, CommitRequest(LOG_ID, "app", "r0", "q", 1))):
        with pytest.raises(NoSuchLogError, match="was deleted"):
            run_to_end(change_steps(change, lambda: 1), Tree(zk, Random(0)))  # type: ignore[arg-type]
    with pytest.raises(RefusedError):
        zk.transact([*registrar(PATHS, PATHS.run("app", "r0"))(99)])
    # What deletes after the first transaction is tied to this log by a znode that no other log has.
    action = steps.send(Done())
    while True:
        if isinstance(action, Transact):
            assert {CheckOp(PATHS.deleting, -1), DeleteOp(PATHS.deleting)} & set(action.operations)
        try:
            action = steps.send(tree.perform(action))
        except StopIteration:
            break
    assert left(zk) == {metadata_path(OUTSIDE)}


@pytest.mark.parametrize("name", ["backup", "040", "٤٠", "9" * 5_000])
def test_znodes_of_others_among_the_ledgers_go_with_the_log(zk: ModelLog, name: str) -> None:
    run = PATHS.run("app", "r1")
    zk.transact([CreateOp(f"{run}/{name}"), CreateOp(f"{PATHS.appended}/{name}")])
    assert run_to_end(deletion(), Tree(zk, Random(0))) == DeletionReport(len(LEDGERS), ())
    assert left(zk) == {metadata_path(OUTSIDE)}


def test_ledgers_whose_bookies_are_away_are_deleted_and_named(zk: ModelLog) -> None:
    tree = Tree(zk, Random(0), dead=frozenset(LEDGERS))
    report = run_to_end(deletion(), tree)
    assert report == DeletionReport(len(LEDGERS), tuple(sorted(LEDGERS)))
    assert len(tree.recovered) == MAX_UNFENCED, "no more are tried"
    assert left(zk) == {metadata_path(OUTSIDE)}


def test_ledgers_whose_ids_bookies_know_with_another_password_do_not_keep_others_from_being_fenced(
    zk: ModelLog,
) -> None:
    refused = frozenset(sorted(LEDGERS)[: MAX_UNFENCED + 1])
    assert len(refused) < len(LEDGERS)
    tree = Tree(zk, Random(0), refused=refused)
    report = run_to_end(deletion(), tree)
    assert report == DeletionReport(len(LEDGERS), tuple(sorted(refused)))
    assert sorted(tree.recovered) == sorted(LEDGERS)


def test_a_deletion_that_stopped_goes_on(zk: ModelLog) -> None:
    """Wherever it stopped; also where the last transaction's reply was lost."""
    full = 0
    for stop_after in range(1, 100):
        model = ModelLog()
        model.transact([CreateOp(metadata_path(OUTSIDE))])
        new_log(model, PATHS, LEDGERS)
        sent = 0
        tree = Tree(model, Random(0))
        steps = deletion()
        action = next(steps)
        try:
            while True:
                event = tree.perform(action)
                sent += isinstance(action, Transact)
                if sent == stop_after:
                    break
                action = steps.send(event)
        except StopIteration:
            full = sent
            break
        if model.read(PATHS.head) is not None:
            run_to_end(deletion(), Tree(model, Random(0)))
        else:
            with contextlib.suppress(StopIteration):
                steps.send(OutcomeUnknown("lost"))
        assert left(model) == {metadata_path(OUTSIDE)}
    assert full >= 6


def test_a_zookeeper_that_stays_away_is_given_up(zk: ModelLog) -> None:
    tree = Tree(zk, Random(0))
    asked = 0

    def perform(action: Action) -> Event:
        nonlocal asked
        if syncs(action):
            asked += 1
            if asked > 1:
                return Unavailable("away")
        return tree.perform(action)

    with pytest.raises(MetadataUnavailableError, match="stopped; the log can no longer be used. Delete it"):
        run_to_end(deletion(), tree, perform)
    assert asked == MAX_UNAVAILABLE + 2


def test_transactions_that_are_refused_without_end_are_given_up(zk: ModelLog) -> None:
    tree = Tree(zk, Random(0))
    sent = 0

    def perform(action: Action) -> Event:
        nonlocal sent
        if isinstance(action, Transact):
            sent += 1
            if sent > 1:
                return Conflict("busy")
        return tree.perform(action)

    with pytest.raises(MetadataUnavailableError, match=r"deletion of log flights stopped; .*\(busy\)"):
        run_to_end(deletion(), tree, perform)
    assert sent == MAX_FAILURES + 2
    run_to_end(deletion(), tree)
    assert left(zk) == {metadata_path(OUTSIDE)}


def test_a_log_that_is_gone_or_another_is_left_alone(zk: ModelLog) -> None:
    before = zk.zxid
    with pytest.raises(LogReplacedError):
        run_to_end(deletion(NEXT_PATHS), Tree(zk, Random(0)))
    assert zk.zxid == before
    run_to_end(deletion(), Tree(zk, Random(0)))
    with pytest.raises(NoSuchLogError):
        run_to_end(deletion(), Tree(zk, Random(0)))


@dataclass
class Actor:
    tree: Tree
    make: Callable[[], Steps[object]]
    steps: Steps[object] | None = None
    action: Action | None = None
    ended: bool = False

    def step(self) -> None:
        try:
            if self.steps is None:
                self.steps = self.make()
                self.action = next(self.steps)
                return
            assert self.action is not None
            self.action = self.steps.send(self.tree.perform(self.action))
        except (StopIteration, NoSuchLogError, LogReplacedError):
            self.ended = True
        except (MetadataUnavailableError, OutcomeUnknownError):
            self.steps = None


@pytest.mark.parametrize("seed", range(120))
def test_l5_late_transactions_do_not_touch_the_log_that_was_made_again(seed: int) -> None:
    rng = Random(seed)
    zk = ModelLog()
    zk.transact([CreateOp(metadata_path(OUTSIDE))])
    new_log(zk, PATHS, LEDGERS)
    message = CommitMessage(LOG_ID, "app", "r0", "q", 1, 0, (LedgerRange(1, 10, 19, 10, 10),))
    request = CommitRequest.from_messages([message])
    actors = [
        Actor(Tree(zk, rng, 0.06, frozenset(rng.sample(LEDGERS, 2))), deletion),
        Actor(Tree(zk, rng, 0.06), deletion),
        Actor(Tree(zk, rng, 0.06), lambda: change_steps(BatchCommit(PATHS, request), lambda: 2)),
        Actor(Tree(zk, rng, 0.06), lambda: change_steps(Truncate(PATHS, 10), lambda: 2)),
    ]
    made_again = False
    for _ in range(6_000):
        alive = [actor for actor in actors if not actor.ended]
        if not alive:
            break
        rng.choice(alive).step()
        for actor in actors:
            if actor.tree.client.zk.late and rng.random() < 0.02:
                actor.tree.client.zk.deliver_late(rng)
        if not made_again and zk.read(PATHS.head) is None:
            # The same ledger ids, too: what would delete them must not.
            assert left(zk) == {metadata_path(OUTSIDE)}
            new_log(zk, NEXT_PATHS, LEDGERS)
            made_again = True
            after = {path: zk.read(path) for path in left(zk)}
    assert made_again
    assert all(actor.ended for actor in actors)
    for actor in actors:
        while actor.tree.client.zk.late:
            actor.tree.client.zk.deliver_late(rng)
    recovered = {metadata_path(ledger_id) for ledger_id in LEDGERS}
    for path in after.keys() - recovered:
        assert zk.read(path) == after[path]
    assert left(zk) == set(after)
