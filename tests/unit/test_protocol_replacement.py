"""The search for bookies that replace failed ones: which are tried, in which order, and when it gives up."""

from __future__ import annotations

import pytest

from bk_spark.bookie.runners import run_blocking
from bk_spark.protocol.errors import MetadataUnavailableError, NotEnoughBookiesError
from bk_spark.protocol.ledger.replacement import (
    BookiePicked,
    BookieTried,
    PickBookie,
    SearchAction,
    SearchEvent,
    TryBookie,
    replacement_search,
)
from bk_spark.protocol.ledger.writer_actions import BookiesChosen, ChooseBookies, NoBookies

ENSEMBLE = ("b1", "b2", "b3")


class Cluster:
    """Choose the first allowed bookie of ``bookies``. Those that ``work`` answer."""

    def __init__(self, bookies: str, work: str) -> None:
        self.bookies = bookies.split()
        self.work = work.split()
        self.picks: list[PickBookie] = []
        self.tried: list[str] = []

    def perform(self, action: SearchAction) -> SearchEvent:
        match action:
            case PickBookie(exclude=exclude):
                self.picks.append(action)
                left = [bookie for bookie in self.bookies if bookie not in exclude]
                if not left:
                    raise NotEnoughBookiesError("none left")
                return BookiePicked(left[0])
            case TryBookie(bookie_id):
                self.tried.append(bookie_id)
                return BookieTried(bookie_id in self.work)

    def search(self, failed: tuple[int, ...], *, avoid: str = "", needed: bool = False) -> BookiesChosen | NoBookies:
        wanted = ChooseBookies(failed, frozenset(ENSEMBLE), frozenset(avoid.split()), needed)
        return run_blocking(replacement_search(wanted, ENSEMBLE), self.perform)


def test_what_does_not_answer_is_passed_over_and_tried_once() -> None:
    cluster = Cluster("b4 b5 b6", "b6")
    assert cluster.search((1,)) == BookiesChosen({1: "b6"})
    assert cluster.tried == ["b4", "b5", "b6"]


def test_each_failed_position_gets_its_own_and_the_next_search_knows_of_it() -> None:
    cluster = Cluster("b4 b5", "b4 b5")
    assert cluster.search((0, 2)) == BookiesChosen({0: "b4", 2: "b5"})
    assert [pick.members for pick in cluster.picks] == [ENSEMBLE, ("b4", "b2", "b3")]


def test_some_are_better_than_none() -> None:
    assert Cluster("b4 b5", "b5").search((0, 2)) == BookiesChosen({0: "b5"})


def test_when_all_were_tried_it_says_why_there_is_none() -> None:
    cluster = Cluster("b4 b5", "")
    answer = cluster.search((0,))
    assert isinstance(answer, NoBookies)
    assert answer.error.message == "none left"
    assert cluster.tried == ["b4", "b5"]


@pytest.mark.parametrize("needed", [False, True])
def test_bookies_to_avoid_are_tried_last_and_only_where_one_is_needed(needed: bool) -> None:
    cluster = Cluster("b4 b5", "b4")
    answer = cluster.search((0,), avoid="b4", needed=needed)
    assert cluster.tried == (["b5", "b4"] if needed else ["b5"])
    assert isinstance(answer, BookiesChosen) is needed


def test_an_error_of_the_cluster_ends_the_search() -> None:
    cluster = Cluster("b4", "b4")

    def away(action: SearchAction) -> SearchEvent:
        raise MetadataUnavailableError("away")

    cluster.perform = away  # type: ignore[method-assign]
    answer = cluster.search((0, 1), needed=True)
    assert isinstance(answer, NoBookies)
    assert isinstance(answer.error, MetadataUnavailableError)
