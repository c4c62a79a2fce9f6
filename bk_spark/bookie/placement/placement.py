"""Chooses bookies for a ledger. Without I/O.

Entry ``e`` is stored by ``Qw`` neighbours in the ensemble, from ``e mod E`` on (compatibility.md §4.1). So each
*window* of ``Qw`` neighbours, including those that wrap around, should have several racks. A window is spread when its
bookies are in at least ``min(min_racks, Qw)`` racks. The rule is Apache's (``minNumRacksPerWriteQuorum``). The default
rack does not count as one: bookies whose rack no source tells are there.

Two bookies of one host fail together, so a window should not have both. Apache's policy does not look at hosts. This
comes after racks, is never enforced, and costs nothing where each bookie has a host of its own.

Bookies that failed lately (``last``) are chosen only if there are too few others, and then as few as possible.

Any ensemble of different bookies is legal metadata (compatibility.md §4.13), so the spread is optional unless
``enforce`` is set.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import NotEnoughBookiesError
from bk_spark.protocol.quorum import Quorum

#: The rack of a bookie whose rack is unknown. Source: compatibility.md §4.13.
DEFAULT_RACK: Final = "/default-rack"
#: The remedy in messages about read-only bookies.
_ROOM: Final = "make room on their disks, which are probably full (a bookie's log says why it is read-only)"
#: Maximum number of steps of the search for a spread ensemble. After that the best found so far is used.
_SEARCH_STEPS: Final = 20_000
#: How often bookies are chosen for an order of racks. The choice with the fewest windows that share a host is used.
_HOST_TRIES: Final = 10


class Spread(enum.Enum):
    """Whether an ensemble keeps the placement policy."""

    SPREAD = enum.auto()
    #: Some write quorum is in too few racks.
    MISPLACED = enum.auto()
    #: The same, and the writable bookies are in too few racks, too: moves cannot help now.
    UNMOVABLE = enum.auto()
    #: The rack of some member is unknown.
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement policy. With ``min_racks`` 1, racks do not matter. The same random source gives the same choices."""

    random: random.Random
    min_racks: int = 1
    enforce: bool = False

    def ensemble(
        self,
        quorum: Quorum,
        racks: Mapping[str, str],
        last: Collection[str] = (),
        *,
        hosts: Mapping[str, str] | None = None,
        read_only: int = 0,
    ) -> tuple[str, ...]:
        """Choose different bookies from the keys of ``racks`` (whose values are their racks), in ensemble order.
        ``hosts`` has their hosts. ``read_only`` is the number of read-only bookies, for error texts.

        Raises NotEnoughBookiesError: too few bookies, or with ``enforce`` no spread ensemble.
        """
        size = quorum.ensemble_size
        good = sorted(bookie for bookie in racks if bookie not in last)
        poor = sorted(bookie for bookie in racks if bookie in last)
        if len(racks) < size:
            raise NotEnoughBookiesError(too_few_writable(size, len(racks), read_only))
        least_poor = max(0, size - len(good))
        need = self._need(quorum)
        if need == 1 or (not self.enforce and len(set(racks.values())) == 1):
            return self._fill(quorum, [""] * size, {"": good}, {"": poor}, hosts or {})
        most_poor = min(size, len(poor)) if len(set(racks.values())) >= need else least_poor
        for poor_count in range(least_poor, most_poor + 1):
            for search in self._searches(quorum, need, _by_rack(good, racks), _by_rack(poor, racks), poor_count):
                order = search.run()
                if order is not None and not (search.strict and search.unspread):
                    return self._fill(quorum, order, search.good, search.poor, hosts or {})
        raise NotEnoughBookiesError(
            f"every write quorum of {quorum.write_quorum_size} bookies must span at least {need} racks "
            f"(enforceMinNumRacksPerWriteQuorum), and no ensemble of {size} writable bookies does: "
            f"{_count_racks(racks.values())}"
        )

    def replacement(
        self,
        quorum: Quorum,
        ensemble: Sequence[str],
        index: int,
        usable: Collection[str],
        racks: Mapping[str, str],
        last: Collection[str] = (),
        *,
        hosts: Mapping[str, str] | None = None,
        read_only: int = 0,
    ) -> str:
        """Choose one of ``usable`` that is not in ``ensemble``, for its position ``index``.

        ``racks`` and ``hosts`` have those of both. A bookie that ``racks`` lacks is in the default rack, one that
        ``hosts`` lacks has a host of its own. Raises NotEnoughBookiesError.
        """
        candidates = sorted(set(usable).difference(ensemble))
        need = self._need(quorum)
        host_of = hosts or {}
        others = [
            [ensemble[each] for each in window if each != index] for window in _windows(quorum) if index in window
        ]
        neighbours = [{host_of.get(bookie, "") for bookie in window} for window in others]
        # Racks do not matter if one is enough.
        windows = [[racks.get(bookie, DEFAULT_RACK) for bookie in window] for window in (others if need > 1 else ())]

        def cost(bookie: str) -> tuple[bool, int, int, int, int]:
            found = [{*window, racks.get(bookie, DEFAULT_RACK)} for window in windows]
            known = list(map(_count_known, found))
            host = host_of.get(bookie)
            shared = sum(host in window for window in neighbours)
            return bookie in last, sum(kind < need for kind in known), shared, -sum(known), -sum(map(len, found))

        costs = {bookie: cost(bookie) for bookie in candidates}
        if self.enforce:
            costs = {bookie: found for bookie, found in costs.items() if found[1] == 0}
        if costs:
            best = min(costs.values())
            return self.random.choice([bookie for bookie, found in costs.items() if found == best])
        if candidates:
            raise NotEnoughBookiesError(
                f"no writable bookie lets every write quorum span at least {need} racks "
                f"(enforceMinNumRacksPerWriteQuorum); of the remaining bookies, "
                f"{_count_racks(racks.get(bookie, DEFAULT_RACK) for bookie in candidates)}"
            )
        raise NotEnoughBookiesError(
            f"no writable bookie is left to replace {ensemble[index]}, which failed; "
            + (f"{read_only} are read-only: {_ROOM}, or start more bookies" if read_only else "start more bookies")
        )

    def _need(self, quorum: Quorum) -> int:
        return min(self.min_racks, quorum.write_quorum_size)

    def _searches(
        self, quorum: Quorum, need: int, good: dict[str, list[str]], poor: dict[str, list[str]], poor_count: int
    ) -> Iterator[_Search]:
        """Yield the searches to try, one after another. An unknown rack may be another one, so it is better than a
        known one twice, unless the spread is enforced."""
        if self.enforce or (DEFAULT_RACK in good and _count_known(good) >= need):
            yield _Search(quorum, need, good, poor, poor_count, self.random, strict=True)
        if not self.enforce:
            yield _Search(quorum, need, good, poor, poor_count, self.random, strict=False)

    def _fill(
        self,
        quorum: Quorum,
        order: Sequence[str],
        good: Mapping[str, Sequence[str]],
        poor: Mapping[str, Sequence[str]],
        hosts: Mapping[str, str],
    ) -> tuple[str, ...]:
        """Choose a bookie for each rack in ``order``, one that failed lately only if the rack has no others."""
        if len(set(hosts.values())) in (1, len(hosts)):
            # All on one host, or each on its own.
            return self._sample(order, good, poor)
        tries = (self._on_many_hosts(quorum, order, good, poor, hosts) for _ in range(_HOST_TRIES))
        best, fewest = next(tries)
        while fewest and (found := next(tries, None)) is not None:
            best, fewest = min((best, fewest), found, key=lambda tried: tried[1])
        return best

    def _sample(
        self, order: Sequence[str], good: Mapping[str, Sequence[str]], poor: Mapping[str, Sequence[str]]
    ) -> tuple[str, ...]:
        chosen: dict[str, list[str]] = {}
        for rack, count in Counter(order).items():
            of_good = self.random.sample(good[rack], min(count, len(good[rack])))
            of_poor = self.random.sample(poor[rack], count - len(of_good))
            chosen[rack] = of_good + of_poor
            self.random.shuffle(chosen[rack])
        return tuple(chosen[rack].pop() for rack in order)

    def _on_many_hosts(
        self,
        quorum: Quorum,
        order: Sequence[str],
        good: Mapping[str, Sequence[str]],
        poor: Mapping[str, Sequence[str]],
        hosts: Mapping[str, str],
    ) -> tuple[tuple[str, ...], int]:
        """For one position after the other, choose a bookie whose host its window lacks, and among these one whose host
        is in the ensemble least often. Return the bookies, and how many windows share a host."""
        chosen: list[str] = []
        used: Counter[str] = Counter()
        windows = _windows(quorum)
        for position, rack in enumerate(order):
            near = {
                hosts[chosen[other]] for window in windows if position in window for other in window if other < position
            }
            left = [bookie for bookie in good[rack] if bookie not in chosen]
            left = left or [bookie for bookie in poor[rack] if bookie not in chosen]
            costs = [(hosts[bookie] in near, used[hosts[bookie]]) for bookie in left]
            least = min(costs)
            bookie = self.random.choice([bookie for bookie, cost in zip(left, costs, strict=True) if cost == least])
            chosen.append(bookie)
            used[hosts[bookie]] += 1
        return tuple(chosen), shared_hosts(quorum, [hosts[bookie] for bookie in chosen])


def too_few_writable(needed: int, writable: int, read_only: int) -> str:
    """Return an error text: ``needed`` writable bookies are required, but only ``writable`` exist, and ``read_only``
    others."""
    text = f"{needed} writable bookies are needed, {writable} are registered"
    if not writable and not read_only:
        return f"{text}: start bookies, or check that metadataServiceUri names the cluster whose bookies run"
    smaller = ("use a smaller ensembleSize",) if writable else ()
    if not read_only:
        return f"{text}; {' or '.join(('start more bookies', *smaller))}"
    return f"{text}, and {read_only} more are read-only: {', or '.join((_ROOM, 'start more bookies', *smaller))}"


def unspread_windows(quorum: Quorum, racks: Sequence[str], min_racks: int) -> int:
    """Count the windows of an ensemble in these racks that are not spread over ``min_racks`` (or Qw, if fewer)."""
    need = min(min_racks, quorum.write_quorum_size)
    if need <= 1:
        return 0
    return sum(_count_known(racks[position] for position in window) < need for window in _windows(quorum))


def shared_hosts(quorum: Quorum, hosts: Sequence[str]) -> int:
    """Count the windows of an ensemble on these hosts that have two bookies of one host."""
    return sum(len({hosts[position] for position in window}) < len(window) for window in _windows(quorum))


def find_misplaced(quorum: Quorum, racks: Sequence[str], min_racks: int) -> tuple[int, int]:
    """Return the position of an ensemble in these racks whose move to another rack helps most, and how many windows are
    not spread. 0, if it is unknown: nothing is moved because of a rack that no source tells."""
    if DEFAULT_RACK in racks:
        return 0, 0
    # The empty name stands for a rack where no bookie is.
    elsewhere = [[*racks[:index], "", *racks[index + 1 :]] for index in range(len(racks))]
    left = [unspread_windows(quorum, moved, min_racks) for moved in elsewhere]
    return left.index(min(left)), unspread_windows(quorum, racks, min_racks)


def judge_spread(quorum: Quorum, racks: Sequence[str], writable: Collection[str], min_racks: int) -> Spread:
    """Judge an ensemble in these racks, in a cluster whose writable bookies are in the racks ``writable``."""
    need = min(min_racks, quorum.write_quorum_size)
    if need <= 1:
        return Spread.SPREAD
    if DEFAULT_RACK in racks:
        return Spread.UNKNOWN
    if not unspread_windows(quorum, racks, min_racks):
        return Spread.SPREAD
    return Spread.MISPLACED if _count_known(writable) >= need else Spread.UNMOVABLE


def _windows(quorum: Quorum) -> list[tuple[int, ...]]:
    # If every bookie stores every entry, all windows are the same.
    return [quorum.write_set(entry) for entry in range(quorum.ensemble_size if quorum.striped else 1)]


def _by_rack(bookies: Sequence[str], racks: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {rack: [] for rack in sorted(set(racks.values()))}
    for bookie in bookies:
        found[racks[bookie]].append(bookie)
    return found


def _count_known(racks: Iterable[str]) -> int:
    """Count the racks that are known."""
    return len({*racks} - {DEFAULT_RACK})


def _count_racks(racks: Iterable[str]) -> str:
    return ", ".join(f"{rack} has {count}" for rack, count in sorted(Counter(racks).items()))


class _Search:
    """Depth-first search for the order of racks with the fewest windows that are not spread.

    With ``strict``, the default rack spreads no window. Racks that the window lacks come first. Among these, racks with
    more bookies are more likely to be first. With enough racks the first descent succeeds. Afterwards ``unspread`` is
    the number of windows that could not be spread.
    """

    def __init__(
        self,
        quorum: Quorum,
        need: int,
        good: dict[str, list[str]],
        poor: dict[str, list[str]],
        poor_count: int,
        source: random.Random,
        *,
        strict: bool,
    ) -> None:
        self.strict = strict
        self.good = good
        self.poor = poor
        self.unspread = 0
        self._size = quorum.ensemble_size
        self._width = quorum.write_quorum_size
        self._windows = _windows(quorum)
        self._need = need
        self._poor_left = poor_count
        self._random = source
        self._used: Counter[str] = Counter()
        self._order: list[str] = []
        self._best: list[str] | None = None
        self._best_unspread = len(self._windows) + 1
        self._steps = 0

    def run(self) -> list[str] | None:
        """Return the racks in order. None if there are too few bookies."""
        self._descend(0)
        self.unspread = self._best_unspread
        return self._best

    def _descend(self, unspread: int) -> None:
        self._steps += 1
        if len(self._order) == self._size:
            # Each position was counted when it completed a window. This is better than the best so far, because worse
            # branches were cut.
            self._best, self._best_unspread = list(self._order), unspread
            return
        for rack in self._candidates():
            takes_poor = self._used[rack] >= len(self.good[rack])
            self._used[rack] += 1
            self._poor_left -= takes_poor
            self._order.append(rack)
            worse = unspread + self._completed_unspread()
            if worse < self._best_unspread:
                self._descend(worse)
            self._order.pop()
            self._poor_left += takes_poor
            self._used[rack] -= 1
            if self._best is not None and (self._best_unspread <= unspread or self._steps > _SEARCH_STEPS):
                # This branch cannot be better, or the search has reached its limit.
                return

    def _candidates(self) -> list[str]:
        window = self._order[-(self._width - 1) :]
        keys: dict[str, tuple[bool, float]] = {}
        for rack, bookies in self.good.items():
            used = self._used[rack]
            left = len(bookies) + (len(self.poor[rack]) if self._poor_left else 0) - used
            if used >= len(bookies):
                left = min(left, self._poor_left)
            if left > 0:
                # Weighted random order: more bookies left, more likely to be first.
                keys[rack] = (
                    rack in window or (self.strict and rack == DEFAULT_RACK),
                    -(self._random.random() ** (1 / left)),
                )
        return sorted(keys, key=keys.__getitem__)

    def _completed_unspread(self) -> int:
        """Count the windows that the last position completes and that are not spread."""
        newest = len(self._order) - 1
        ignored = {DEFAULT_RACK} if self.strict else set()
        return sum(
            len({self._order[position] for position in window} - ignored) < self._need
            for window in self._windows
            if max(window) == newest
        )
