"""Reads a range of offsets: from which list, how much of it from the open tail. No I/O.

Confirmed entries of the open tail stay in the log no matter who seals it, so their offsets are final.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from bk_spark.log.core.readers.reader_actions import (
    AskTailEnd,
    Checked,
    CheckListed,
    ListTaken,
    LookAtTail,
    ReaderAction,
    ReaderEvent,
    ReadSealed,
    ReadTail,
    TailEnd,
    TailSeen,
    TakeList,
    deliver_steps,
    lost_tail,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchLedgerError

_T = TypeVar("_T")
_Steps = Generator[ReaderAction, ReaderEvent, _T]


class ReadRange:
    """Reads the offsets ``[start, end)``: first :meth:`plan_steps`, then :meth:`read_steps`."""

    def __init__(self, log_name: str, start: int, end: int) -> None:
        self._log_name = log_name
        self._start = start
        self._end = end
        self._next_offset = 0
        self._tail: Segment | None = None

    def plan_steps(self) -> _Steps[None]:
        """Find where the range is. Raises LogRangeGoneError if a part was truncated, or is not written yet."""
        start, end = self._start, self._end
        tail, readable = yield from self._find_tail()
        if tail is None:
            checked = yield CheckListed(start, end)
        else:
            if end > readable:
                raise LogRangeGoneError(
                    f"log {self._log_name}: offsets [{max(start, readable)}, {end}) are not written yet, the log can "
                    f"be read up to {readable}"
                )
            checked = yield CheckListed(min(start, tail.base_offset), tail.base_offset)
        assert isinstance(checked, Checked), checked
        self._tail = tail

    def read_steps(self) -> _Steps[None]:
        """Read the range. Raises LogRangeGoneError if a part was truncated meanwhile."""
        start, end, tail = self._start, self._end, self._tail
        if start < self._next_offset:
            yield from deliver_steps(self._log_name, ReadSealed(start, min(end, self._next_offset)))
        if tail is not None and end > tail.base_offset:
            yield from deliver_steps(self._log_name, ReadTail(tail, max(start, tail.base_offset), end))

    def _find_tail(self) -> _Steps[tuple[Segment | None, int]]:
        """Return the open tail, if the range extends beyond the list, and how far it is readable."""
        seen = gone = -1
        while True:
            taken = yield TakeList()
            assert isinstance(taken, ListTaken), taken
            self._next_offset = taken.next_offset
            if self._end <= taken.next_offset:
                return None, 0
            looked = yield LookAtTail()
            assert isinstance(looked, TailSeen), looked
            tail = looked.tail
            if tail is None:
                if taken.next_offset == seen:
                    return None, 0
                # The tail may have been sealed after the list was taken.
                seen = taken.next_offset
                continue
            try:
                return tail, (yield from _tail_end(tail))
            except NoSuchLedgerError as error:
                if tail.ledger_id == gone:
                    raise lost_tail(tail) from error
                # The tail was sealed, truncated and deleted. The list will show it.
                gone = tail.ledger_id


def readable_end_steps(next_offset: int) -> _Steps[int]:
    """Return the end of the readable entries of the list taken, which ends at ``next_offset``."""
    looked = yield LookAtTail()
    assert isinstance(looked, TailSeen), looked
    if looked.tail is None:
        return next_offset
    tail = looked.tail
    try:
        return (yield from _tail_end(tail))
    except NoSuchLedgerError as error:
        looked = yield LookAtTail()
        assert isinstance(looked, TailSeen), looked
        if looked.tail is None:
            return next_offset
        if looked.tail.ledger_id == tail.ledger_id:
            raise lost_tail(tail) from error
        raise


def _tail_end(tail: Segment) -> _Steps[int]:
    end = yield AskTailEnd(tail)
    assert isinstance(end, TailEnd), end
    return end.offset
