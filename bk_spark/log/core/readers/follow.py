"""Follows a log as it grows: what to read next, and when to wait. No I/O, no clock.

Sealed entries are read from the list. After them there may be an open tail, the ledger that a log writer is writing. It
is read as its entries are confirmed, until it is closed. Confirmed entries stay in the log no matter who seals the
tail, so their offsets are final. Then the list is read again.

Times are from a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

from bk_spark.log.core.readers.reader_actions import (
    Arm,
    Armed,
    AwaitChange,
    Delivered,
    Ended,
    FollowTail,
    ListTaken,
    LookAtTail,
    More,
    ReaderAction,
    ReaderEvent,
    ReadSealed,
    TailSeen,
    TakeList,
    TimeIsUp,
    deliver_steps,
    lost_tail,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchEntryError, NoSuchLedgerError

_Steps: TypeAlias = Generator[ReaderAction, ReaderEvent, None]


class Follow:
    """The steps of following a log, starting at offset ``start``.

    They end when nothing new has arrived for ``max_wait_ms`` (None: never). They raise the errors of reading,
    and LogRangeGoneError if ``start`` is beyond the log's end. ``offset`` is where to resume after that.

    Raises InvalidArgumentError if ``max_wait_ms`` is negative.
    """

    def __init__(self, log_name: str, start: int, max_wait_ms: float | None) -> None:
        if max_wait_ms is not None and max_wait_ms < 0:
            raise InvalidArgumentError(f"max_wait_ms must not be negative, got {max_wait_ms}")
        self.offset = start
        self._log_name = log_name
        self._max_wait_ms = max_wait_ms
        self._until_ms: float | None = None
        #: The tail whose ledger was already deleted when it should have been read.
        self._gone = -1
        #: The end of a list that was outdated when its tail was read.
        self._outdated_end = -1

    def steps(self) -> _Steps:
        """Follow the log. Call it once."""
        started = False
        while True:
            # Arm before taking the list, so that later changes are noticed.
            armed = yield Arm()
            assert isinstance(armed, Armed), armed
            if not started:
                started = True
                self._news(armed.now_ms)
            taken = yield TakeList()
            assert isinstance(taken, ListTaken), taken
            if self.offset < taken.next_offset:
                yield from deliver_steps(self._log_name, ReadSealed(self.offset, taken.next_offset), self._delivered)
            seen = yield LookAtTail()
            assert isinstance(seen, TailSeen), seen
            if seen.tail is not None:
                if (yield from self._follow_tail(seen.tail)):
                    continue
            elif self.offset > taken.next_offset:
                self._check_outdated(taken, seen)
                continue
            if isinstance((yield AwaitChange(self._until_ms)), TimeIsUp):
                return

    def _follow_tail(self, tail: Segment) -> Generator[ReaderAction, ReaderEvent, bool]:
        """Follow the tail. Returns whether to take the list again at once."""
        try:
            event = yield FollowTail(tail, _entry_at(tail, self.offset), self._until_ms)
            while isinstance(event, Delivered):
                self._delivered(event)
                event = yield More()
            assert isinstance(event, Ended), event
        except NoSuchLedgerError as error:
            if tail.ledger_id == self._gone:
                raise lost_tail(tail) from error
            # The tail was sealed, truncated and deleted. The list will show it.
            self._gone = tail.ledger_id
            return True
        except NoSuchEntryError:
            # The tail ended before this offset. Once it is sealed, the list will show it.
            pass
        return False

    def _check_outdated(self, taken: ListTaken, seen: TailSeen) -> None:
        """Check entries read from the tail beyond the list taken. They are valid if the tail was sealed just now."""
        if not seen.is_outdated or taken.next_offset == self._outdated_end:
            raise LogRangeGoneError(
                f"log {self._log_name}: offset {self.offset} is beyond the log's end, {taken.next_offset}"
            )
        self._outdated_end = taken.next_offset

    def _delivered(self, block: Delivered) -> None:
        self.offset = block.end_offset
        self._news(block.now_ms)

    def _news(self, now_ms: float) -> None:
        if self._max_wait_ms is not None:
            self._until_ms = now_ms + self._max_wait_ms


def _entry_at(tail: Segment, offset: int) -> int:
    return tail.first_entry + offset - tail.base_offset
