"""The machine that searches for replacements of failed bookies.

A candidate must accept a connection and answer a read, because a bookie that hangs still accepts connections. If it
fails, the next candidate is tried. Each candidate is tried once, so the search ends.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from bk_spark.protocol.errors import BookKeeperError, NotEnoughBookiesError
from bk_spark.protocol.ledger.writer_actions import BookiesChosen, ChooseBookies, NoBookies
from bk_spark.protocol.machine import StepMachine


@dataclass(frozen=True, slots=True)
class PickBookie:
    """Choose a bookie for ``index`` of the ensemble ``members``, not in ``exclude``. An error goes to ``fail``."""

    members: tuple[str, ...]
    index: int
    exclude: frozenset[str]


@dataclass(frozen=True, slots=True)
class TryBookie:
    """Connect to the bookie and get an answer from it, within the add timeout."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class BookiePicked:
    """The answer to :class:`PickBookie`. If no bookie is left, ``fail`` reports NotEnoughBookiesError instead."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class BookieTried:
    """The answer to :class:`TryBookie`. ``works``: it answered in time."""

    works: bool


SearchAction = PickBookie | TryBookie
SearchEvent = BookiePicked | BookieTried
_Steps = Generator[SearchAction, SearchEvent, BookiesChosen | NoBookies]


def replacement_search(
    wanted: ChooseBookies, ensemble: Sequence[str]
) -> StepMachine[SearchAction, SearchEvent, BookiesChosen | NoBookies]:
    """Return a machine that finds connected bookies for as many failed positions as possible."""
    return StepMachine(_search(wanted, ensemble))


def _search(wanted: ChooseBookies, ensemble: Sequence[str]) -> _Steps:
    found: dict[int, str] = {}
    tried: set[str] = set()
    refused: BookKeeperError = NotEnoughBookiesError("no bookie failed")
    for index in wanted.failed:
        while index not in found:
            members = tuple(found.get(at, bookie_id) for at, bookie_id in enumerate(ensemble))
            try:
                bookie_id = yield from _pick(wanted, members, index, wanted.exclude | tried)
            except BookKeeperError as error:
                refused = error
                break
            tried.add(bookie_id)
            answer = yield TryBookie(bookie_id)
            assert isinstance(answer, BookieTried)
            if answer.works:
                found[index] = bookie_id
    return BookiesChosen(found) if found else NoBookies(refused)


def _pick(
    wanted: ChooseBookies, members: tuple[str, ...], index: int, exclude: frozenset[str]
) -> Generator[SearchAction, SearchEvent, str]:
    try:
        picked = yield PickBookie(members, index, exclude | wanted.avoid)
    except NotEnoughBookiesError:
        if not wanted.needed:
            raise
        picked = yield PickBookie(members, index, exclude)
    assert isinstance(picked, BookiePicked)
    return picked.bookie_id
