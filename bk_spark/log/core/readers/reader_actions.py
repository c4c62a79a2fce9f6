"""What machines that read entries ask for.

============ ====================================================== =================================
action       meaning                                                events
============ ====================================================== =================================
TakeList     sync, and take the current list                        ListTaken
CheckListed  check that the list taken has these offsets            Checked
ReadSealed   begin to read sealed entries of the list taken         Delivered, Ended
LookAtTail   read the tail page of the list taken again             TailSeen
AskTailEnd   ask bookies how far the tail is readable               TailEnd
ReadTail     begin to read confirmed entries of the tail            Delivered, Ended
FollowTail   begin to read the tail's entries as they are confirmed Delivered, Ended
More         continue reading                                       Delivered, Ended
Arm          report changes of the head from now on                 Armed
AwaitChange  wait until the head changes, or until a time           Changed, TimeIsUp
============ ====================================================== =================================

ReadSealed, ReadTail, FollowTail and More each find one block. It is handed over before the machine receives
``Delivered``.
Errors are passed to the machine. Times are from a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from bk_spark.log.formats.segment import Segment
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchLedgerError


@dataclass(frozen=True, slots=True)
class TakeList:
    """Sync, and take the list as it is then. Later actions refer to it."""


@dataclass(frozen=True, slots=True)
class CheckListed:
    """Offsets ``[start, end)``. If some were truncated or are not written yet, this raises LogRangeGoneError."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadSealed:
    """Entries at offsets ``[start, end)``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LookAtTail:
    """Read the tail page of the list taken again: a writer may have opened or sealed its tail since."""


@dataclass(frozen=True, slots=True)
class AskTailEnd:
    """Ask the bookies of the open ``tail`` for its last add confirmed."""

    tail: Segment


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Entries of the open ``tail`` at offsets ``[start, end)``."""

    tail: Segment
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FollowTail:
    """Entries of the open ``tail`` from ``first_entry`` on. Ends when its ledger is closed, or nothing new has arrived
    by ``until_ms`` (None: no limit)."""

    tail: Segment
    first_entry: int
    until_ms: float | None


@dataclass(frozen=True, slots=True)
class More:
    """Hand over the next block of what ReadSealed, ReadTail or FollowTail began."""


@dataclass(frozen=True, slots=True)
class Arm:
    """From now on, a change of the head ends the next AwaitChange."""


@dataclass(frozen=True, slots=True)
class AwaitChange:
    """Wait until the head has changed since the last Arm, at most until ``until_ms`` (None: no limit)."""

    until_ms: float | None


ReaderAction: TypeAlias = (
    TakeList | CheckListed | ReadSealed | LookAtTail | AskTailEnd | ReadTail | FollowTail | More | Arm | AwaitChange
)


@dataclass(frozen=True, slots=True)
class ListTaken:
    """The list taken has the committed offsets ``[first_offset, next_offset)``."""

    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Checked:
    """All offsets asked for are in the list taken."""


@dataclass(frozen=True, slots=True)
class TailSeen:
    """The open ``tail`` that begins where the list taken ends, or None. ``is_outdated``: the list has grown since it
    was taken."""

    tail: Segment | None
    is_outdated: bool


@dataclass(frozen=True, slots=True)
class TailEnd:
    """Offsets below ``offset`` are readable."""

    offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A block that ends at ``end_offset`` was handed over. Its receiver was done with it at ``now_ms``."""

    end_offset: int
    now_ms: float


@dataclass(frozen=True, slots=True)
class Ended:
    """What was begun has no more blocks."""


@dataclass(frozen=True, slots=True)
class Armed:
    """Changes are reported since ``now_ms``, or since before."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Changed:
    """The head has changed, or may have: the connection to ZooKeeper was lost."""


@dataclass(frozen=True, slots=True)
class TimeIsUp:
    """The head did not change in time."""


ReaderEvent: TypeAlias = ListTaken | Checked | TailSeen | TailEnd | Delivered | Ended | Armed | Changed | TimeIsUp


def lost_tail(tail: Segment) -> NoSuchLedgerError:
    """The ledger of the open tail was deleted, though the log names it."""
    last = tail.base_offset - 1
    before = "" if last < 0 else f"Read what is before as of offset {last} (asOf). "
    return NoSuchLedgerError(
        f"the ledger at the log's open end was deleted, with all that was written from offset {tail.base_offset} on. "
        f"{before}To let the log go on: bkctl log give-up-tail, or write to a new log",
        ledger_id=tail.ledger_id,
    )


def deliver_steps(
    log_name: str, begin: ReadSealed | ReadTail, delivered: Callable[[Delivered], object] = lambda block: None
) -> Generator[Any, Any, None]:
    """Read what ``begin`` begins, to its end. Calls ``delivered`` for each block.

    A ledger that is gone was dropped from the log, or is lost. Raises LogRangeGoneError in the first case and
    NoSuchLedgerError in the second.
    """
    reached = begin.start
    try:
        event = yield begin
        while isinstance(event, Delivered):
            reached = event.end_offset
            delivered(event)
            event = yield More()
        assert isinstance(event, Ended), event
    except NoSuchLedgerError as error:
        taken = yield TakeList()
        if reached >= taken.first_offset:
            raise error
        raise LogRangeGoneError(
            f"log {log_name}: offsets [{reached}, {taken.first_offset}) were truncated while they were read"
        ) from error
