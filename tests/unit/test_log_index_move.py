"""Moves of pages into index ledgers, among commits, truncations, each other and a reaper without patience.

Seeded random schedules: replies get lost, transactions arrive late, servers lag. After every change the whole list is
read, and so is the list of some earlier head: as a reader does that took its snapshot before a move.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from bk_spark.log import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.index import IndexWalk, decode_indexed_page, directory_steps, walk_steps
from bk_spark.log.core.index_move import MAX_ZNODE_PAGES, MoveReport, move_steps
from bk_spark.log.core.steps import (
    Action,
    Created,
    EntryRead,
    Event,
    Failed,
    OutcomeUnknown,
    Pause,
    ReadEntry,
    Steps,
    Transact,
    WriteLedger,
)
from bk_spark.log.formats.names import INDEX
from bk_spark.log.formats.page import SegmentPage, decode_page, encode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import (
    Head,
    IndexPosition,
    LedgerRegistration,
    decode_head,
    decode_registration,
    encode_registration,
)
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.errors import (
    BookKeeperError,
    MetadataConflictError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bk_spark.protocol.metadata.znodes import CheckOp, DeleteOp, SetOp, Znode
from tests.support.log_model import LOG_ID, PATHS, Client, ModelLog
from tests.support.page_cache import pages_decoded_once
from tests.support.zookeeper_model import RefusedError


@pytest.fixture(autouse=True, scope="module")
def page_cache() -> Iterator[None]:
    with pages_decoded_once():
        yield


APP, RUN, LEDGER = "app", "r0", 1
BATCHES = 14


class World(ModelLog):
    """ZooKeeper, and index ledgers: entries of each, for ever but for what the reaper deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers: dict[int, tuple[bytes, ...]] = {}
        self.next_ledger = 100
        self.register(APP, RUN, LEDGER)

    def entry(self, ledger_id: int, entry_id: int) -> bytes:
        if ledger_id not in self.ledgers:
            raise NoSuchLedgerError("the ledger does not exist", ledger_id=ledger_id)
        return self.ledgers[ledger_id][entry_id]

    def head_at(self, state: int) -> Head:
        znode = self.read(PATHS.head, state)
        assert znode is not None
        return decode_head(znode.data, PATHS.head)


class IndexClient(Client):
    """A session, and a client of the ledgers."""

    def __init__(self, world: World, rng: Random, fault_rate: float = 0.0) -> None:
        super().__init__(world, rng, fault_rate)
        self.world, self.rng, self.rate = world, rng, fault_rate

    def _perform(self, action: Action) -> Event:
        match action:
            case WriteLedger(register, entries):
                self.world.next_ledger += 1
                ledger_id = self.world.next_ledger
                fault = self.rng.random() < self.rate
                if fault and self.rng.random() < 0.5:
                    return Failed(NotEnoughBookiesError("model"))
                self.world.transact(register(ledger_id))
                if fault:
                    return Failed(NotEnoughBookiesError("model"))
                self.world.ledgers[ledger_id] = entries
                return Created(ledger_id)
            case ReadEntry(ledger_id, entry_id):
                try:
                    return EntryRead(self.world.entry(ledger_id, entry_id))
                except NoSuchLedgerError as error:
                    return Failed(error)
            case _:
                return super()._perform(action)


def walk_of(world: World, head: Head) -> IndexWalk:
    walk: IndexWalk = result_of(walk_steps(PATHS, head), IndexClient(world, Random(0)))
    return walk


def result_of(steps: Any, client: IndexClient, perform: Callable[[Action], Event] | None = None) -> Any:
    try:
        action = next(steps)
        for _ in range(1000):
            action = steps.send((perform or client.perform)(action))
    except StopIteration as end:
        return end.value
    raise AssertionError("does not end")


def read_list(world: World, head: Head) -> list[Segment]:
    """The list of the present ``head``, checked to have no holes."""
    walk = walk_of(world, head)
    segments: list[Segment] = []
    for number in range(head.first_page, head.tail_page + 1):
        if number < walk.pages.end_page:
            page = decode_indexed_page(world.entry(*walk.pages.place(number)), PATHS, walk.pages, number)
            assert world.read(PATHS.page(number)) is None, "a page that was moved is still a znode"
        else:
            page = page_in(world.read(PATHS.page(number)), number)
        assert not segments or page.base_offset == segments[-1].end_offset
        segments += page.table
    assert (segments[-1].end_offset if segments else 0) == head.next_offset
    return [segment for segment in segments if segment.base_offset >= head.first_offset]


def page_in(znode: Znode | None, number: int) -> SegmentPage:
    assert znode is not None, f"page {number} is missing"
    return decoded_page(znode.data, number)


@functools.cache
def decoded_page(data: bytes, number: int) -> SegmentPage:
    return decode_page(data, PATHS.page(number), log_id=LOG_ID, number=number)


def read_old(world: World, old: Head, number: int) -> SegmentPage | None:
    """A page of an old head's list, as a reader finds it that has this head only; None where it was truncated."""
    present = world.head()
    for head in (old, present):
        if head.index is not None and number < head.index.end_page:
            try:
                walk = walk_of(world, head)
                if number >= walk.pages.first_page:
                    return decode_indexed_page(world.entry(*walk.pages.place(number)), PATHS, walk.pages, number)
            except NoSuchLedgerError:
                pass
        elif (znode := world.read(PATHS.page(number))) is not None:
            return page_in(znode, number)
    assert number < present.first_page, f"page {number} is not found, and was not truncated"
    return None


@dataclass
class Actor:
    """Does one thing after another, one action at a time."""

    name: str
    client: IndexClient
    tasks: Iterator[Any]
    steps: Any = None
    action: Action | None = None
    ended: bool = False
    results: list[Any] = field(default_factory=list)
    failures: list[BookKeeperError] = field(default_factory=list)

    def step(self) -> None:
        try:
            if self.steps is None:
                self.steps = next(self.tasks, None)
                if self.steps is None:
                    self.ended = True
                else:
                    self.action = next(self.steps)
                return
            assert self.action is not None
            self.action = self.steps.send(self.client.perform(self.action))
        except StopIteration as end:
            self.results.append(end.value)
            self.steps = None
        except (MetadataUnavailableError, MetadataConflictError, NoSuchLedgerError, NotEnoughBookiesError) as error:
            self.failures.append(error)
            self.steps = None


def request_of(batch_id: int) -> CommitRequest:
    ranges = tuple(LedgerRange(LEDGER, 1000 * batch_id + 10 * n, 1000 * batch_id + 11 * n, n + 1, 70) for n in range(3))
    message = CommitMessage(LOG_ID, APP, RUN, "query", batch_id, 0, ranges)
    return CommitRequest(LOG_ID, APP, RUN, "query", batch_id, (message,))


def commits(world: World) -> Iterator[Any]:
    # A batch whose driver was told of a failure comes again.
    while not is_complete(world):
        application = world.application(APP)
        batch_id = 0 if application is None else application.batch_id + 1
        yield change_steps(BatchCommit(PATHS, request_of(batch_id)), lambda: 1000 + world.zxid)


def moves(world: World, name: str, count: int) -> Iterator[Any]:
    for number in range(count):
        yield move(f"{name}-{number}")


def truncations(world: World, rng: Random, count: int) -> Iterator[Any]:
    for _ in range(count):
        while (head := world.head()).tail_page - head.first_page < 5 and not is_complete(world):
            yield nothing_steps()
        # Where a segment starts stays true, so it does not matter when this was looked up.
        number = rng.choice(range(head.first_page, head.tail_page))
        page = read_old(world, head, number)
        assert page is not None
        start = SegmentStart(rng.choice(page.table.base_offset.tolist()), number)
        yield change_steps(Truncate(PATHS, start.offset, start), lambda: 0)


def nothing_steps() -> Steps[None]:
    yield Pause(1)


def is_complete(world: World) -> bool:
    application = world.application(APP)
    return application is not None and application.batch_id == BATCHES - 1


def reap(world: World) -> int:
    """Condemn and delete every index ledger that the present head does not need: at once, moves under way included."""
    head, version = world.head(), world.read(PATHS.head)
    assert version is not None
    needed = walk_of(world, head).ledgers
    reaped = 0
    for run in world.children(f"{PATHS.ledgers}/{INDEX}") or ():
        run_path = PATHS.run_at(INDEX, run)
        for name in world.children(run_path) or ():
            path = f"{run_path}/{name}"
            znode, run_znode = world.read(path), world.read(run_path)
            assert znode is not None
            assert run_znode is not None
            condemned = decode_registration(znode.data, path).condemned
            assert not (condemned and int(name) in needed), f"ledger {name} is condemned and needed"
            if int(name) not in needed and not condemned:
                data = encode_registration(LedgerRegistration(None, 1))
                world.transact(
                    [
                        CheckOp(PATHS.identity, -1),
                        CheckOp(PATHS.head, version.version),
                        SetOp(run_path, b"", run_znode.version),
                        SetOp(path, data, znode.version),
                    ]
                )
                world.ledgers.pop(int(name), None)
                reaped += 1
    return reaped


def check(world: World, known: dict[int, Segment], rng: Random) -> None:
    head = world.head()
    for segment in read_list(world, head):
        assert known.setdefault(segment.base_offset, segment) == segment
    if rng.random() < 0.7:
        return
    old = world.head_at(rng.randrange(1, world.zxid + 1))
    for number in range(old.first_page, old.tail_page + 1):
        page = read_old(world, old, number)
        if page is not None:
            assert all(known[segment.base_offset] == segment for segment in page.table)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of about two segments, moved three at most, with directories of four lines."""
    monkeypatch.setattr("bk_spark.log.formats.page.MAX_PAGE_BYTES", 64)
    monkeypatch.setattr("bk_spark.log.formats.page._FULL_BYTES", 50)
    monkeypatch.setattr("bk_spark.log.core.index_move.MAX_MOVED_PAGES", 3)
    monkeypatch.setattr("bk_spark.log.core.index_move.MAX_LINES", 4)


@functools.cache
def simulate(seed: int, fault_rate: float = 0.2) -> tuple[World, list[Actor]]:
    rng = Random(seed)
    world = World()
    known: dict[int, Segment] = {}

    def actor(name: str, tasks: Iterator[Any]) -> Actor:
        return Actor(name, IndexClient(world, rng, fault_rate), tasks)

    actors = [
        actor("driver", commits(world)),
        actor("mover a", moves(world, "a", 12)),
        actor("mover b", moves(world, "b", 12)),
        actor("truncator", truncations(world, rng, rng.choice([0, 2, 4]))),
    ]
    reaped = 0
    for _ in range(10_000):
        alive = [actor for actor in actors if not actor.ended]
        if not alive:
            break
        before = world.zxid
        rng.choice(alive).step()
        for one in actors:
            if one.client.zk.late and rng.random() < 0.05:
                one.client.zk.deliver_late(rng)
        if rng.random() < 0.03:
            reaped += reap(world)
        if world.zxid != before:
            check(world, known, rng)
    assert all(one.ended for one in actors), f"stuck: {actors}"
    for one in actors:
        while one.client.zk.late:
            one.client.zk.deliver_late(rng)
            check(world, known, rng)
    reap(world)
    check(world, known, rng)
    actors[0].results.append(reaped)
    return world, actors


@pytest.mark.parametrize("seed", range(30))
def test_l1_moves_lose_no_segment_whatever_happens_around_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    world, _ = simulate(seed)
    assert world.head().next_offset == BATCHES * 6, "every batch is in the log once"
    # Moves without faults leave as few znodes as they may.
    client = IndexClient(world, Random(0))
    for number in range(20):
        report = result_of(move(f"last-{number}"), client)
    assert report == MoveReport(0, None)
    head = world.head()
    assert head.tail_page - max(head.first_page, head.index.end_page if head.index else 0) <= 2
    read_list(world, head)


def test_schedules_reach_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves published, refused because another was first, failed, lost; several directories; truncation into the
    index; ledgers reaped."""
    small(monkeypatch)
    moved = refused = failed = lost = chained = truncated = reaped = 0
    for seed in range(30):
        world, actors = simulate(seed)
        reports = [report for one in actors[1:3] for report in one.results]
        moved += sum(report.pages > 0 for report in reports)
        refused += sum(report.pages == 0 and report.ledger_id is not None for report in reports)
        failed += sum(len(one.failures) for one in actors[1:3])
        lost += sum(one.client.lost_replies for one in actors[1:3])
        head = world.head()
        chained += len(walk_of(world, head).directories) > 1
        truncated += head.index is not None and 0 < head.first_page < head.index.end_page
        reaped += actors[0].results[-1]
    print(f"{moved} moves, {refused} in vain, {failed} failed, {lost} lost, {chained} {truncated}, {reaped} reaped")
    assert min(moved, refused, failed, lost, chained, truncated, reaped) > 1


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> tuple[World, IndexClient]:
    """A log of five batches in about eight pages."""
    small(monkeypatch)
    world = World()
    client = IndexClient(world, Random(0))
    for batch_id in range(5):
        result_of(change_steps(BatchCommit(PATHS, request_of(batch_id)), lambda: 1000), client)
    return world, client


def move(new_id: str = "m") -> Any:
    return move_steps(PATHS, lambda: 0, max_znode_pages=2, keep_pages=1, new_id=lambda: new_id)


def test_nothing_is_moved_before_there_are_many_full_pages(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    before = world.zxid
    assert world.head().tail_page <= MAX_ZNODE_PAGES
    assert result_of(move_steps(PATHS, lambda: 0), client) == MoveReport(0, None)
    assert world.zxid == before


def test_a_move_whose_reply_is_lost_is_found_done(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    lost: list[Action] = []

    def perform(action: Action) -> Event:
        event = client.perform(action)
        if isinstance(action, Transact) and any(op.path == PATHS.head for op in action.operations) and not lost:
            lost.append(action)
            return OutcomeUnknown("reply lost")
        return event

    assert result_of(move(), client, perform) == MoveReport(3, 101)
    assert len(lost) == 1
    page = page_in(world.read(PATHS.page(3)), 3)
    assert world.head().index == IndexPosition(101, 3, 3, page.base_offset)


def test_a_ledger_that_was_condemned_meanwhile_is_never_referred_to(filled: tuple[World, IndexClient]) -> None:
    """Also not by a transaction that was under way when the reaper came: the run's znode has another version."""
    world, client = filled
    before = world.head()
    late: list[Transact] = []

    def perform(action: Action) -> Event:
        if isinstance(action, Transact) and any(op.path == PATHS.head for op in action.operations) and not late:
            late.append(action)
            assert reap(world) == 1
            return OutcomeUnknown("under way")
        return client.perform(action)

    assert result_of(move(), client, perform) == MoveReport(0, 101)
    with pytest.raises(RefusedError, match="CheckOp"):
        world.transact(late[0].operations)
    assert world.head() == before
    assert result_of(move("again"), client) == MoveReport(3, 102)


def test_damaged_pages_are_not_moved(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    znode = world.read(PATHS.page(1))
    assert znode is not None
    page = page_in(znode, 1)
    for data, match in (
        (b"\x08\x03" + znode.data[2:], "format version 3"),
        (encode_page(SegmentPage(LOG_ID, 1, page.base_offset, SegmentTable.of(()))), "damaged"),
        (encode_page(SegmentPage(LOG_ID, 1, page.base_offset + 1, page.table)), "damaged"),
    ):
        world.transact([SetOp(PATHS.page(1), data, -1)])
        before = world.zxid
        with pytest.raises(MetadataFormatError, match=match):
            result_of(move(), client)
        assert world.zxid == before
    world.transact([DeleteOp(PATHS.page(1))])
    with pytest.raises(MetadataFormatError, match="is missing"):
        result_of(move(), client)


def truncate_to_page(world: World, client: IndexClient, number: int) -> None:
    """And let the reaper delete the pages before it."""
    start = SegmentStart(page_in(world.read(PATHS.page(number)), number).base_offset, number)
    result_of(change_steps(Truncate(PATHS, start.offset, start), lambda: 0), client)
    earlier = [PATHS.page(each) for each in range(number)]
    world.transact([DeleteOp(path) for path in earlier if world.read(path) is not None])


def after_writing(client: IndexClient, work: Callable[[], object]) -> tuple[Callable[[Action], Event], list[Transact]]:
    """Performs actions, and ``work`` once the index ledger is written; the transactions sent after that."""
    sent: list[Transact] = []
    written = False

    def perform(action: Action) -> Event:
        nonlocal written
        if written and isinstance(action, Transact):
            sent.append(action)
        event = client.perform(action)
        if isinstance(action, WriteLedger):
            written = True
            work()
        return event

    return perform, sent


def test_what_is_truncated_meanwhile_does_not_hold_up_the_rest(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    perform, sent = after_writing(client, lambda: truncate_to_page(world, client, 2))
    assert result_of(move(), client, perform) == MoveReport(3, 101)
    assert len(sent) == 1
    head = world.head()
    assert (head.first_page, walk_of(world, head).pages.first_page) == (2, 2)
    read_list(world, head)
    # The next directory forgets the pages that are gone.
    assert result_of(move("next"), client).pages > 0
    found = result_of(directory_steps(PATHS, world.head().index or IndexPosition(0, 0, 0, 0)), client)
    assert (found.first_page, found.previous) == (2, None)
    read_list(world, world.head())


def test_a_move_of_nothing_but_truncated_pages_has_no_effect(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    perform, sent = after_writing(client, lambda: truncate_to_page(world, client, 3))
    assert result_of(move(), client, perform) == MoveReport(0, 101)
    assert sent == []
    assert world.head().index is None


def test_the_second_of_two_moves_at_once_sends_nothing(filled: tuple[World, IndexClient]) -> None:
    world, client = filled
    perform, sent = after_writing(client, lambda: result_of(move("other"), client))
    assert result_of(move(), client, perform) == MoveReport(0, 101)
    assert sent == []
    index = world.head().index
    assert index is not None
    assert index.ledger_id == 102
    read_list(world, world.head())
