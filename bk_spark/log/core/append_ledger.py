"""Appends a ledger that was not made for the log, as one segment. No I/O.

``<log>/appended/<ledger id>`` is created together with the segment. It records that the ledger is in the list, so the
ledger cannot be listed twice. The log keeps nothing else about it: a ledger without a registration is never deleted.
"""

from __future__ import annotations

from bk_spark.log.core.append import plan_append, read_head
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, write_over
from bk_spark.log.core.reading import children_steps, read_steps, sync_steps
from bk_spark.log.core.steps import Steps
from bk_spark.log.core.tail.tail_changes import seal_tail
from bk_spark.log.formats.commits import CommitKind, CommitRecord
from bk_spark.log.formats.names import MADE_FOR, LogPaths
from bk_spark.log.formats.segment import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, Segment, SegmentTable
from bk_spark.log.formats.znodes import Appended, Head, decode_appended, encode_appended
from bk_spark.protocol.errors import LedgerRefusedError, NoSuchLedgerError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp


class AppendLedger:
    """The change that appends all entries of a closed ledger, one row each. Its result is their range of offsets.

    ``metadata_path`` is the znode of the ledger's metadata. ``token`` is new for each change: it distinguishes this
    change's work from that of others.
    """

    def __init__(self, paths: LogPaths, ledger_id: int, metadata_path: str, token: bytes) -> None:
        self.paths = paths
        self._ledger_id = ledger_id
        self._metadata_path = metadata_path
        self._token = token

    @property
    def what(self) -> str:
        """For error texts: names the ledger and the log."""
        return f"appending of ledger {self._ledger_id} to log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition appends nothing twice, but it is refused if the first attempt took effect."""
        return "append it again: if it is in the log already, the error names its offset"

    def decide(self, readings: Readings, now_ms: int, maybe: range | None) -> AlreadyDone[range] | Plan[range]:
        """Raises NoSuchLogError, LogReplacedError, NoSuchLedgerError, LedgerRefusedError, LogTailOpenError, and
        MetadataFormatError if a znode cannot be decoded."""
        appended_path = self.paths.appended_ledger(self._ledger_id)
        readings.require(self.paths.head, self._metadata_path, self.paths.appended, appended_path)
        read = read_head(readings, self.paths)
        stored = readings.get(self._metadata_path)
        if stored is None:
            raise NoSuchLedgerError("the ledger to append does not exist", ledger_id=self._ledger_id)
        metadata = ledger_metadata.decode(stored.data)
        entries = metadata.last_entry_id + 1

        znode = readings.get(appended_path)
        if znode is not None:
            appended = decode_appended(znode.data, appended_path)
            if appended.token == self._token:
                return AlreadyDone(range(appended.offset, appended.offset + entries))
            self._check_gone(appended, read.head)
        self._check(metadata)

        tail = seal_tail(readings, self.paths, read.head, fence=False, remedy=", then append the ledger")
        start = tail.end_offset
        time_ms = read.head.change_time_ms(now_ms)
        segment = Segment(self._ledger_id, 0, metadata.last_entry_id, start, entries, metadata.length, time_ms)
        added = SegmentTable.of([*tail.segments, segment])
        record = CommitRecord(CommitKind.LEDGER, 1, time_ms)
        append = plan_append(readings, self.paths, read, added, time_ms, tail.tail, record=record)
        data = encode_appended(Appended(self._token, start))
        parents = () if readings.get(self.paths.appended) is not None else (CreateOp(self.paths.appended),)
        return Plan(
            append.preparations,
            (
                CheckOp(self.paths.identity, -1),
                CheckOp(self._metadata_path, stored.version),
                *append.operations,
                *tail.operations,
                *parents,
                write_over(appended_path, data, znode),
            ),
            range(start, append.head.next_offset),
        )

    def _check_gone(self, appended: Appended, head: Head) -> None:
        """Check that the segment was truncated. Truncation drops whole segments; the reaper removes the znode later."""
        if appended.offset >= head.first_offset:
            raise LedgerRefusedError(
                f"log {self.paths.name}: the ledger is in the log already, from offset {appended.offset} on",
                ledger_id=self._ledger_id,
            )

    def _check(self, metadata: LedgerMetadata) -> None:
        if metadata.state is not LedgerState.CLOSED:
            raise LedgerRefusedError(
                f"log {self.paths.name}: the ledger is {metadata.state.name}; only a closed ledger can be appended: "
                "close its writer, or recover it",
                ledger_id=self._ledger_id,
            )
        if metadata.last_entry_id < 0:
            raise LedgerRefusedError(
                f"log {self.paths.name}: the ledger is empty, there is nothing to append", ledger_id=self._ledger_id
            )
        made_for = metadata.custom_metadata.get(MADE_FOR)
        if made_for is not None:
            raise LedgerRefusedError(
                f"log {self.paths.name}: the ledger was made for log {made_for.decode(errors='replace')}, which "
                "deletes it when it no longer needs it: append copies of its entries instead",
                ledger_id=self._ledger_id,
            )
        if metadata.last_entry_id >= MAX_SEGMENT_ENTRIES - 1 or metadata.length >= MAX_SEGMENT_BYTES:
            raise LedgerRefusedError(
                f"log {self.paths.name}: the ledger is larger than a segment may be "
                f"({MAX_SEGMENT_ENTRIES} entries, {MAX_SEGMENT_BYTES} bytes)",
                ledger_id=self._ledger_id,
            )


def registered_steps(paths: LogPaths, ledger_id: int) -> Steps[str | None]:
    """Return the path of the ledger's registration with this log, or None. Raises MetadataUnavailableError.

    An existing ledger never gets a registration later: ledgers are registered when they are created.
    """
    yield from sync_steps(paths)
    candidates: list[str] = []
    for app in (yield from children_steps(paths, paths.ledgers)):
        for run in (yield from children_steps(paths, paths.runs_at(app))):
            candidates.append(f"{paths.run_at(app, run)}/{ledger_id}")
    znodes = yield from read_steps(paths, tuple(candidates))
    return next((path for path, znode in znodes.items() if znode is not None), None)
