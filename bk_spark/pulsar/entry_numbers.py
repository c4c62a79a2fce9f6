"""What is readable of one topic, as a line of entries. Pure.

A topic is a list of ledgers. To count, to limit and to compare, its entries are numbered across the ledgers. The
numbers are valid as long as the object that gave them: positions outside of a process are always (ledger, entry).

Ledgers go in three ways. Retention and truncation remove the first ones. A ledger without entries is dropped when it is
closed, wherever it is. And a topic that is deleted and made again has only ledgers with higher ids.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.transactions import Position

#: The end of a topic that has had no ledger yet.
NOTHING_YET: Final = Position(-1, 0)
#: Ledgers that an error names one by one.
_MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class ReadableLedger:
    """The readable entries 0 to ``entries`` - 1 of a ledger. ``size_bytes`` are theirs, as far as known.

    ``closed_at_ms`` is when it was closed by the broker's clock, None if it is the topic's open ledger.
    ``offloaded_to`` is set if the entries are no longer on the bookies: it says where they are.
    """

    ledger_id: int
    entries: int
    size_bytes: int
    closed_at_ms: int | None
    offloaded_to: str | None = None


def check_on_bookies(topic: str, ledgers: Iterable[ReadableLedger]) -> None:
    """Raise InvalidArgumentError if only tiered storage has the entries of some ledgers. It names them."""
    gone = [one for one in ledgers if one.offloaded_to is not None]
    if not gone:
        return
    named = ", ".join(str(one.ledger_id) for one in gone[:_MOST_NAMED])
    more = f" and {len(gone) - _MOST_NAMED} more up to {gone[-1].ledger_id}" if len(gone) > _MOST_NAMED else ""
    places = ", or ".join(dict.fromkeys(str(one.offloaded_to) for one in gone))
    after = json.dumps({topic: f"{gone[-1].ledger_id}:{gone[-1].entries}"}, ensure_ascii=False)
    raise InvalidArgumentError(
        f"topic {topic}: ledger{'s' if len(gone) > 1 else ''} {named}{more} {'were' if len(gone) > 1 else 'was'} moved "
        f"to tiered storage ({places}), and the entries are no longer on the bookies. Read them through a broker, or "
        f"start after them: startingOffsets {after}",
        ledger_id=gone[0].ledger_id,
    )


class EntryNumbers:
    """Numbers the entries of one topic. :meth:`update` follows the topic; numbers that were given stay valid."""

    def __init__(self, ledgers: Sequence[ReadableLedger] = ()) -> None:
        #: All ledgers that were ever seen, ascending, and the number of the first entry of each.
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._ledgers: tuple[ReadableLedger, ...] = ()
        self._end = 0
        self.update(ledgers)

    @property
    def ledgers(self) -> tuple[ReadableLedger, ...]:
        """The ledgers of the last update."""
        return self._ledgers

    @property
    def first(self) -> int:
        """The number of the first readable entry."""
        return self._start_of(self._ledgers[0].ledger_id) if self._ledgers else self._end

    @property
    def end(self) -> int:
        """The number after the last readable entry."""
        return self._end

    def update(self, ledgers: Sequence[ReadableLedger]) -> None:
        """Take over what is readable now. Only the last ledger that was known may have got entries since then."""
        before = self._ledgers
        last_known = self._ids[-1] if self._ids else -1
        there = {one.ledger_id for one in ledgers}
        if before and before[-1].ledger_id not in there and before[-1].closed_at_ms is None:
            # It was open when it was last seen. It was dropped if it had no entries, which is certain only if one
            # before it is still there: ledgers are trimmed from the front. Else entries nobody saw may be gone.
            dropped = before[-1].entries == 0 and any(one.ledger_id in there for one in before[:-1])
            self._end += 0 if dropped else 1
        for one in ledgers:
            if one.ledger_id > last_known:
                self._ids.append(one.ledger_id)
                self._starts.append(self._end)
                self._end += one.entries
            elif one.ledger_id == last_known:
                self._end = self._starts[-1] + one.entries
        self._ledgers = tuple(ledgers)

    def number(self, position: Position) -> int:
        """Return the number of a position.

        The number is less than :attr:`first` if some entries after the position are gone, or may be. A position after
        the readable end of the last ledger has the number that its entry will have."""
        if position.ledger_id < 0:
            # The topic had no ledger yet.
            return self._starts[0] if self._starts else self._end
        at = bisect_right(self._ids, position.ledger_id) - 1
        if at < 0:
            # At least one entry is gone. How many is not known.
            return (self._starts[0] if self._starts else self._end) - 1
        if self._ids[at] == position.ledger_id:
            return self._starts[at] + position.entry_id
        # A ledger between two others, or after all, had no entries. Or somebody set the list back.
        is_last = at + 1 == len(self._starts)
        return self._end + position.entry_id if is_last else self._starts[at + 1]

    def position(self, number: int) -> Position:
        """Return the position of a number from :attr:`first` to :attr:`end`.

        The end of a ledger that another one follows is the start of that one."""
        at = bisect_right(self._starts, number) - 1
        return Position(self._ids[at], number - self._starts[at]) if at >= 0 else NOTHING_YET

    def ranges(self, start: int, end: int) -> list[tuple[ReadableLedger, int, int]]:
        """Return ledgers, each with its first and last entry, that make up the readable part of ``[start, end)``.

        ``end`` may be after the readable end of the open ledger: another process saw that these entries exist."""
        found = []
        for one in self._ledgers:
            base = self._start_of(one.ledger_id)
            is_open = one.closed_at_ms is None and one is self._ledgers[-1]
            first, last = max(start - base, 0), (end - base if is_open else min(end - base, one.entries)) - 1
            if first <= last:
                found.append((one, first, last))
        return found

    def _start_of(self, ledger_id: int) -> int:
        return self._starts[bisect_right(self._ids, ledger_id) - 1]
