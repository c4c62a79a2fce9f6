"""Giving up an open tail whose ledger was deleted, on an operator's word. Only decisions, no I/O.

Nobody can say where such a tail ended, so nobody can seal it, and the log takes no more entries. It is sealed here as
if it had a number of entries that the operator names. These offsets stay in the list, and reads of them fail as reads
of any ledger that is gone. No new entry gets one of them: a query that has read them would skip it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bk_spark.log.core.append import plan_append, read_head, read_tail, sealed
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.steps import Closed
from bk_spark.log.core.tail.tail_changes import check_no_owner
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.protocol.errors import InvalidArgumentError, LedgerRefusedError
from bk_spark.protocol.metadata.znodes import CheckOp

#: Far below the capacity of a segment.
MAX_LOST_ENTRIES: Final = 1 << 36


class GiveUpTail:
    """The change that seals a tail whose ledger was deleted. Its result are the offsets that were given up.

    Parameters
    ----------
    paths
        The log.
    entries
        How many entries the tail is taken to have had.
    ledger_path
        Returns the path of a ledger's metadata.
    """

    def __init__(self, paths: LogPaths, entries: int, ledger_path: Callable[[int], str]) -> None:
        if not 0 <= entries <= MAX_LOST_ENTRIES:
            raise InvalidArgumentError(
                f"log {paths.name}: the number of entries to give up must be 0 to {MAX_LOST_ENTRIES}, not {entries}"
            )
        self.paths = paths
        self._entries = entries
        self._ledger_path = ledger_path

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"giving up of the open end of log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition is refused if the first attempt took effect, because no open end is left."""
        return "give it up again: a repetition changes nothing"

    def decide(self, readings: Readings, now_ms: int, maybe: range | None) -> AlreadyDone[range] | Plan[range]:
        """Raises LedgerRefusedError if the log has no open end, or its ledger exists, LogTailOpenError if a writer
        holds it, NoSuchLogError, LogReplacedError."""
        read = read_head(readings, self.paths)
        tail = read_tail(readings, self.paths, read.head)
        # The page that names the ledger was read before. So a missing ledger was deleted, and is not yet to be created.
        is_lost = tail.open is not None and readings.get(self._ledger_path(tail.open.ledger_id)) is None
        if maybe is not None and not is_lost:
            return AlreadyDone(maybe)
        if tail.open is None:
            raise LedgerRefusedError(f"log {self.paths.name} has no open end: nothing has to be given up")
        ledger_id, base = tail.open.ledger_id, tail.open.base_offset
        if not is_lost:
            raise LedgerRefusedError(
                f"the ledger at the open end of log {self.paths.name} exists: the next writer or commit seals it. If "
                "none ever can, because all copies are lost or bookies refuse the log's password, keep what bkctl "
                f"readledger {ledger_id} can read of it, and delete it (bkctl ledger delete {ledger_id} --force)",
                ledger_id=ledger_id,
            )
        check_no_owner(readings, self.paths, tail.open, ", so that it learns that its entries are lost")
        lost = sealed(tail.open, Closed(ledger_id, tail.open.first_entry + self._entries - 1, 0))
        time_ms = read.head.change_time_ms(now_ms)
        append = plan_append(readings, self.paths, read, SegmentTable.of(lost), time_ms, tail)
        return Plan(
            append.preparations,
            (CheckOp(self.paths.identity, -1), *append.operations),
            range(base, base + self._entries),
        )
