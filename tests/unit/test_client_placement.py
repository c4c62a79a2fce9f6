"""Placement against brute force: every small cluster, every quorum, every set of bookies that failed lately."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from bk_spark.bookie.placement.placement import (
    DEFAULT_RACK,
    Placement,
    Spread,
    find_misplaced,
    judge_spread,
    shared_hosts,
    unspread_windows,
)
from bk_spark.protocol.errors import NotEnoughBookiesError
from bk_spark.protocol.quorum import Quorum

ROOM = "make room on their disks, which are probably full (a bookie's log says why it is read-only)"


def clusters(most: int) -> Iterator[dict[str, str]]:
    """Up to ``most`` bookies in up to three racks, larger racks first: every shape once."""
    for sizes in itertools.product(range(most + 1), repeat=3):
        if list(sizes) == sorted(sizes, reverse=True) and 0 < sum(sizes) <= most:
            racks = [f"/r{number}" for number, size in enumerate(sizes) for _ in range(size)]
            yield {f"b{number}": rack for number, rack in enumerate(racks)}


def quorums(most: int) -> Iterator[Quorum]:
    for size in range(1, most + 1):
        for write in range(1, size + 1):
            yield Quorum(size, write, 1)


def fewest_unspread(quorum: Quorum, racks: dict[str, str], least: int, last: Sequence[str] = ()) -> tuple[int, int]:
    """By trying everything: the fewest bookies of ``last`` in an ensemble, and with these the fewest bad windows."""
    return min(
        (sum(bookie in last for bookie in order), unspread_windows(quorum, [racks[bookie] for bookie in order], least))
        for order in itertools.permutations(racks, quorum.ensemble_size)
    )


@pytest.mark.parametrize("least", [2, 3])
def test_every_small_cluster_is_spread_as_far_as_it_can_be(least: int) -> None:
    source = random.Random(1)
    for racks in clusters(5):
        for quorum in quorums(len(racks)):
            policy = Placement(source, least)
            ensemble = policy.ensemble(quorum, racks)
            assert len(set(ensemble)) == quorum.ensemble_size
            assert set(ensemble) <= racks.keys()
            unspread = unspread_windows(quorum, [racks[bookie] for bookie in ensemble], least)
            best = fewest_unspread(quorum, racks, least)[1]
            assert unspread == best, (quorum, racks, ensemble)
            strict = Placement(source, least, enforce=True)
            if best:
                with pytest.raises(NotEnoughBookiesError, match="enforceMinNumRacks.*/r0 has"):
                    strict.ensemble(quorum, racks)
            else:
                found = strict.ensemble(quorum, racks)
                assert unspread_windows(quorum, [racks[bookie] for bookie in found], least) == 0


def test_bookies_that_failed_are_taken_last_and_as_few_as_possible() -> None:
    source = random.Random(2)
    for racks in clusters(4):
        for quorum in quorums(len(racks)):
            for count in range(len(racks) + 1):
                for last in itertools.combinations(racks, count):
                    ensemble = Placement(source, 2).ensemble(quorum, racks, last)
                    unspread = unspread_windows(quorum, [racks[bookie] for bookie in ensemble], 2)
                    found = sum(bookie in last for bookie in ensemble), unspread
                    assert found == fewest_unspread(quorum, racks, 2, last), (quorum, racks, last, ensemble)
                    plain = Placement(source).ensemble(quorum, racks, last)
                    assert sum(bookie in last for bookie in plain) == max(
                        0, quorum.ensemble_size - (len(racks) - count)
                    )


def test_a_spread_that_is_enforced_takes_a_bookie_that_failed_rather_than_none() -> None:
    racks = {"b0": "/a", "b1": "/a", "b2": "/b"}
    policy = Placement(random.Random(3), 2, enforce=True)
    assert "b2" in policy.ensemble(Quorum(2, 2, 2), racks, last={"b2"})
    assert set(policy.ensemble(Quorum(2, 2, 2), {**racks, "b3": "/b"}, last={"b2"})).isdisjoint({"b2"})


def bad_windows(quorum: Quorum, ensemble: Sequence[str], index: int, bookie: str, racks: dict[str, str]) -> int:
    """Windows with position ``index`` that are not in two racks when ``bookie`` is there."""
    kinds = [racks[member] for member in [*ensemble[:index], bookie, *ensemble[index + 1 :]]]
    windows = {frozenset(quorum.write_set(entry)) for entry in range(quorum.ensemble_size)}
    need = min(2, quorum.write_quorum_size)
    return sum(len({kinds[position] for position in window}) < need for window in windows if index in window)


@pytest.mark.parametrize("enforce", [False, True])
def test_replacements_keep_the_spread_where_any_can(enforce: bool) -> None:
    source = random.Random(4)
    for racks in clusters(5):
        for quorum in quorums(len(racks)):
            policy = Placement(source, 2, enforce)
            ensemble = Placement(source, 2).ensemble(quorum, racks)
            usable = set(racks).difference(ensemble)
            for index in range(quorum.ensemble_size):
                bad = {bookie: bad_windows(quorum, ensemble, index, bookie, racks) for bookie in usable}
                best = min(bad.values(), default=None)
                if best is None or (enforce and best):
                    with pytest.raises(NotEnoughBookiesError):
                        policy.replacement(quorum, ensemble, index, usable, racks)
                else:
                    chosen = policy.replacement(quorum, ensemble, index, usable, racks)
                    assert chosen in usable
                    assert bad[chosen] == best


def test_replacements_prefer_bookies_that_did_not_fail() -> None:
    racks = {"b0": "/a", "b1": "/b", "b2": "/a", "b3": "/b", "b4": "/b"}
    policy = Placement(random.Random(5), 2)
    quorum = Quorum(2, 2, 2)
    for _ in range(20):
        # b4 alone keeps the spread and did not fail.
        assert policy.replacement(quorum, ("b0", "b1"), 1, {"b2", "b3", "b4"}, racks, last={"b3"}) == "b4"
        # Rather a write quorum in one rack than a bookie that is likely dead.
        assert policy.replacement(quorum, ("b0", "b1"), 1, {"b2", "b3"}, racks, last={"b3"}) == "b2"
        assert policy.replacement(quorum, ("b0", "b1"), 1, {"b3"}, racks, last={"b3"}) == "b3"
    strict = Placement(random.Random(5), 2, enforce=True)
    assert strict.replacement(quorum, ("b0", "b1"), 1, {"b2", "b3"}, racks, last={"b3"}) == "b3"
    with pytest.raises(NotEnoughBookiesError, match="/a has 1"):
        strict.replacement(quorum, ("b0", "b1"), 1, {"b2"}, racks)
    with pytest.raises(NotEnoughBookiesError, match="no writable bookie is left"):
        strict.replacement(quorum, ("b0", "b1"), 1, {"b0", "b1"}, racks)


def test_members_whose_rack_nobody_knows() -> None:
    policy = Placement(random.Random(6), 2)
    chosen = policy.replacement(Quorum(2, 2, 2), ("gone", "b1"), 1, {"b2", "b3"}, {"b2": DEFAULT_RACK, "b3": "/a"})
    assert chosen == "b3"


def test_an_unknown_rack_is_no_wrong_rack() -> None:
    quorum = Quorum(3, 2, 2)

    def judge(members: str, writable: str, least: int = 2) -> Spread:
        names = {"?": DEFAULT_RACK}
        racks = [names.get(each, each) for each in members]
        return judge_spread(quorum, racks, {names.get(each, each) for each in writable}, least)

    assert judge("abc", "abc") is Spread.SPREAD
    assert judge("aab", "ab") is Spread.MISPLACED
    assert judge("aaa", "ab?") is Spread.MISPLACED
    # No source of racks can be read, or one knows too little.
    assert judge("???", "???") is judge("aa?", "ab") is judge("ab?", "ab") is Spread.UNKNOWN
    # Bookies of unknown rack are nowhere to move copies to.
    assert judge("aaa", "a?") is judge("aab", "a") is Spread.UNMOVABLE
    assert judge("???", "???", least=1) is judge("aaa", "a", least=1) is Spread.SPREAD


def test_the_default_rack_spreads_no_write_quorum() -> None:
    """Every small cluster again, with bookies of unknown rack in place of one of the racks."""
    source = random.Random(7)
    for shape in clusters(5):
        for unknown in set(shape.values()):
            racks = {bookie: DEFAULT_RACK if rack == unknown else rack for bookie, rack in shape.items()}
            # What is unknown may as well be all in one known rack.
            known = sorted(set(racks.values()) - {DEFAULT_RACK})
            worst = {bookie: known[0] if known and rack == DEFAULT_RACK else rack for bookie, rack in racks.items()}
            for quorum in quorums(len(racks)):
                strict = Placement(source, 2, enforce=True)
                try:
                    found = strict.ensemble(quorum, racks)
                except NotEnoughBookiesError:
                    continue
                assert unspread_windows(quorum, [worst[bookie] for bookie in found], 2) == 0
    racks = {"b1": "/a", "b2": "/b", "b3": DEFAULT_RACK, "b4": "/a"}
    for _ in range(20):
        # A known rack is better than an unknown one, which may be the same.
        assert Placement(source, 2).replacement(Quorum(2, 2, 2), ("b1", "gone"), 1, {"b2", "b3", "b4"}, racks) == "b2"
        assert set(Placement(source, 2).ensemble(Quorum(2, 2, 2), racks)) in ({"b1", "b2"}, {"b2", "b4"})
        # It is better than the same rack for certain.
        same = {"b1": "/a", "b3": DEFAULT_RACK, "b4": "/a"}
        assert "b3" in Placement(source, 2).ensemble(Quorum(2, 2, 2), same)
        assert Placement(source, 2).replacement(Quorum(2, 2, 2), ("b1", "gone"), 1, {"b3", "b4"}, same) == "b3"
    with pytest.raises(NotEnoughBookiesError, match="of the remaining bookies, /a has 1, /default-rack has 1"):
        Placement(source, 2, enforce=True).replacement(Quorum(2, 2, 2), ("b1", "gone"), 1, {"b3", "b4"}, racks)


def test_what_is_moved_to_another_rack() -> None:
    quorum = Quorum(3, 2, 2)

    def move(members: str, least: int = 2) -> tuple[int, int]:
        return find_misplaced(quorum, [{"?": DEFAULT_RACK}.get(each, each) for each in members], least)

    assert move("abc") == move("aba", least=1) == (0, 0)
    assert unspread_windows(quorum, [DEFAULT_RACK] * 3, 1) == unspread_windows(Quorum(1, 1, 1), [DEFAULT_RACK], 2) == 0
    assert move("aba") == (0, 1)
    assert move("baa") == (1, 1)
    # The first position is in two of three write quorums, like each other one.
    assert move("aaa") == (0, 3)
    # Nobody knows whether these are spread.
    assert move("a?a") == move("??a") == move("???") == (0, 0)


def test_too_few_bookies() -> None:
    with pytest.raises(NotEnoughBookiesError, match="3 writable bookies are needed, 2 are registered"):
        Placement(random.Random(7)).ensemble(Quorum(3, 3, 2), {"b1": DEFAULT_RACK, "b2": DEFAULT_RACK})


@pytest.mark.parametrize(
    ("size", "writable", "read_only", "text"),
    [
        (3, 2, 0, "3 writable bookies are needed, 2 are registered; start more bookies or use a smaller ensembleSize"),
        (1, 0, 0, "1 writable bookies are needed, 0 are registered: start bookies, or check that metadataServiceUri"),
        (3, 0, 3, f"3 writable bookies are needed, 0 are registered, and 3 more are read-only: {ROOM}, or start more"),
        (3, 2, 1, f"3 writable bookies are needed, 2 are registered, and 1 more are read-only: {ROOM}, or start more"),
    ],
)
def test_too_few_bookies_are_told_with_what_helps(size: int, writable: int, read_only: int, text: str) -> None:
    racks = {f"b{n}": DEFAULT_RACK for n in range(writable)}
    with pytest.raises(NotEnoughBookiesError) as raised:
        Placement(random.Random(7)).ensemble(Quorum(size, size, size), racks, read_only=read_only)
    assert str(raised.value).startswith(text)
    assert ("smaller ensembleSize" in str(raised.value)) == (writable > 0)


def test_a_replacement_that_only_read_only_bookies_could_be() -> None:
    policy = Placement(random.Random(7))
    with pytest.raises(NotEnoughBookiesError, match=f"which failed; 2 are read-only: {re.escape(ROOM)}"):
        policy.replacement(Quorum(2, 2, 2), ("b0", "b1"), 1, (), {"b0": DEFAULT_RACK}, read_only=2)


def test_the_same_source_gives_the_same_choice() -> None:
    racks = {f"b{number}": f"/r{number % 4}" for number in range(12)}
    for least in (1, 2, 3):
        first, second = (
            [Placement(random.Random(8), least).ensemble(Quorum(5, 3, 2), racks) for _ in range(3)] for _ in range(2)
        )
        assert first == second


def test_choices_are_spread_over_all_bookies() -> None:
    racks = {f"b{number}": f"/r{number % 3}" for number in range(9)}
    for least in (1, 2):
        policy = Placement(random.Random(9), least)
        taken = Counter(bookie for _ in range(900) for bookie in policy.ensemble(Quorum(3, 3, 2), racks))
        assert min(taken.values()) > 200, taken
        firsts = Counter(policy.ensemble(Quorum(3, 3, 2), racks)[0] for _ in range(900))
        assert min(firsts.values()) > 50, firsts


@pytest.mark.parametrize(("quorum", "count"), [(Quorum(20, 10, 5), 40), (Quorum(7, 3, 2), 300), (Quorum(9, 4, 2), 12)])
def test_large_clusters_take_no_time(quorum: Quorum, count: int) -> None:
    racks = {f"b{number}": f"/r{number % 11}" for number in range(count)}
    ensemble = Placement(random.Random(10), 3).ensemble(quorum, racks)
    assert unspread_windows(quorum, [racks[bookie] for bookie in ensemble], 3) == 0
    # Nearly everything in one rack: no spread to be had, and the search ends all the same.
    lopsided = {bookie: "/r0" if number > 3 else f"/r{number}" for number, bookie in enumerate(racks)}
    ensemble = Placement(random.Random(10), 3).ensemble(quorum, lopsided)
    assert len(set(ensemble)) == quorum.ensemble_size


def fewest_shared(quorum: Quorum, racks: dict[str, str], hosts: dict[str, str]) -> int:
    """By trying everything: the fewest windows that share a host, with the racks spread as far as they can be."""
    orders = list(itertools.permutations(racks, quorum.ensemble_size))
    unspread = [unspread_windows(quorum, [racks[bookie] for bookie in order], 2) for order in orders]
    best = [order for order, count in zip(orders, unspread, strict=True) if count == min(unspread)]
    return min(shared_hosts(quorum, [hosts[bookie] for bookie in order]) for order in best)


def test_copies_are_on_several_hosts_as_far_as_they_can_be() -> None:
    """Two bookies of one host fail together."""
    source = random.Random(3)
    for hosts in clusters(6):
        racks = dict.fromkeys(hosts, DEFAULT_RACK)
        for quorum in quorums(min(4, len(hosts))):
            ensemble = Placement(source, 2).ensemble(quorum, racks, hosts=hosts)
            assert len(set(ensemble)) == quorum.ensemble_size
            shared = shared_hosts(quorum, [hosts[bookie] for bookie in ensemble])
            assert shared == fewest_shared(quorum, racks, hosts), (quorum, hosts, ensemble)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2), Quorum(6, 3, 2)])
def test_racks_come_before_hosts_and_hosts_within_racks(quorum: Quorum) -> None:
    racks = {f"h{host}:{port}": f"/r{host // 3}" for host in range(6) for port in range(3)}
    hosts = {bookie: bookie.partition(":")[0] for bookie in racks}
    for seed in range(50):
        ensemble = Placement(random.Random(seed), 2).ensemble(quorum, racks, hosts=hosts)
        assert not unspread_windows(quorum, [racks[bookie] for bookie in ensemble], 2)
        assert not shared_hosts(quorum, [hosts[bookie] for bookie in ensemble])
    # Both racks are one host here: the spread over racks counts.
    one = dict.fromkeys(racks, "h") | {"h0:0": "h0"}
    ensemble = Placement(random.Random(1), 2).ensemble(quorum, racks, hosts=one)
    assert not unspread_windows(quorum, [racks[bookie] for bookie in ensemble], 2)


def test_a_bookie_that_failed_lately_is_not_chosen_for_its_host() -> None:
    hosts = {"h1:1": "h1", "h1:2": "h1", "h2:1": "h2"}
    racks = dict.fromkeys(hosts, DEFAULT_RACK)
    for seed in range(20):
        assert set(Placement(random.Random(seed)).ensemble(Quorum(2, 2, 2), racks, ["h2:1"], hosts=hosts)) == {
            "h1:1",
            "h1:2",
        }


def test_a_replacement_is_on_another_host() -> None:
    hosts = {f"h{host}:{port}": f"h{host}" for host in range(4) for port in range(3)}
    racks = dict.fromkeys(hosts, DEFAULT_RACK)
    ensemble = ("h0:0", "h1:0", "h2:0")
    policy = Placement(random.Random(1), 2)
    found = {policy.replacement(Quorum(3, 3, 2), ensemble, 1, hosts, racks, hosts=hosts) for _ in range(40)}
    # Its own host is free again.
    assert found == {"h1:1", "h1:2", "h3:0", "h3:1", "h3:2"}
    only = ["h0:1", "h2:1"]
    assert policy.replacement(Quorum(3, 3, 2), ensemble, 1, only, racks, hosts=hosts) in only
