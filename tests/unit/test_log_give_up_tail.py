"""An open tail whose ledger was deleted is given up: once, whichever reply is lost, and only if it is lost."""

from __future__ import annotations

import pytest

from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.steps import Steps, Transact
from bk_spark.log.core.tail.give_up import MAX_LOST_ENTRIES, GiveUpTail
from bk_spark.log.core.tail.tail_changes import TailPlace
from bk_spark.log.core.tail.writer_steps import open_steps
from bk_spark.protocol.errors import InvalidArgumentError, LedgerRefusedError, LogTailOpenError
from bk_spark.protocol.metadata.znodes import CreateOp
from tests.support.log_model import PATHS
from tests.support.tail_model import TailWorld, owner_of

pytestmark = pytest.mark.unit


def ledger_path(ledger_id: int) -> str:
    return f"{PATHS.head}/model-ledger-{ledger_id}"


def opened(world: TailWorld, writer: str, *, exists: bool = True) -> TailPlace:
    """Have a writer open the tail. ``exists``: its ledger has metadata."""
    place = world.run(open_steps(PATHS, owner_of(writer), world.clock, take_over=False))
    if exists:
        world.zk.transact([CreateOp(ledger_path(place.ledger_id), b"")])
    return place


def giving_up(world: TailWorld, entries: int) -> Steps[range]:
    return change_steps(GiveUpTail(PATHS, entries, ledger_path), world.clock)


@pytest.fixture
def world() -> TailWorld:
    """A log whose tail was lost at offset 0."""
    world = TailWorld()
    opened(world, "a", exists=False)
    world.expire_owner()
    return world


@pytest.mark.parametrize("entries", [0, 5])
@pytest.mark.parametrize("lost", [None, "not applied", "applied", "applied, and another writer came"])
def test_the_log_goes_on_behind_what_is_lost(world: TailWorld, entries: int, lost: str | None) -> None:
    machine = world.start(giving_up(world, entries))
    machine.until(lambda action: isinstance(action, Transact))
    if lost is not None:
        machine.lose_reply(applied=lost != "not applied")
    if lost == "applied, and another writer came":
        assert opened(world, "b").base_offset == entries
        assert machine.finish() == range(entries)
        assert world.open_tail is not None
        return
    assert machine.finish() == range(entries)
    assert world.open_tail is None
    assert [segment.entries for segment in world.zk.segments()] == ([entries] if entries else [])
    assert opened(world, "b").base_offset == entries


def test_what_is_not_lost_stays() -> None:
    world = TailWorld()
    with pytest.raises(LedgerRefusedError, match="has no open end"):
        world.run(giving_up(world, 5))
    place = opened(world, "a")
    for _ in range(2):
        with pytest.raises(LedgerRefusedError, match=rf"bkctl ledger delete {place.ledger_id} --force"):
            world.run(giving_up(world, 5))
        world.expire_owner()
    assert world.open_tail is not None


def test_who_writes_to_a_ledger_that_is_gone_is_asked_to_close_it() -> None:
    world = TailWorld()
    opened(world, "a", exists=False)
    with pytest.raises(LogTailOpenError, match="holds the tail open: close it, so that it learns"):
        world.run(giving_up(world, 5))


@pytest.mark.parametrize("entries", [-1, MAX_LOST_ENTRIES + 1])
def test_a_number_out_of_bounds(entries: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"must be 0 to {MAX_LOST_ENTRIES}, not {entries}"):
        GiveUpTail(PATHS, entries, ledger_path)
