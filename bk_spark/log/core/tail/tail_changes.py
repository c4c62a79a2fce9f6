"""The open tail: how log writers open, roll and seal it, and who holds it. Only decisions, no I/O.

The last segment of the tail page may be open: a ledger that a log writer is writing. The znode ``<log>/owner``
(ephemeral, message ``Owner``) names the writer. It is created, replaced and removed in the transaction that changes the
tail. So an open tail belongs to that writer or to nobody. Without an open tail the znode means nothing.

* The owner's znode is only a courtesy to others: fencing keeps the log correct. A ledger is fenced and closed before
  its tail is sealed. So its end never changes again, and everyone who seals it finds the same end.
* The page is read before the owner. In the opposite order, a writer that opens its tail between the two reads would
  seem to have gone.
* An owner's znode that was deleted and created again has the same version. So a transaction that deletes one also
  checks the tail page, which changes whenever the tail passes to another writer.
* A writer whose session expired creates the znode again (:class:`KeepTail`) if the open tail is still a ledger of its
  own run. A ledger is registered under ``+writers/<writer id>``. It is listed only while its registration exists and
  is not condemned. The version of the run's znode covers this, as with commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.log.core.append import ReadHead, ReadTail, plan_append, read_head, read_tail, sealed
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.steps import Closed
from bk_spark.log.formats.names import WRITERS, LogPaths
from bk_spark.log.formats.page import decode_page
from bk_spark.log.formats.segment import Segment, SegmentTable
from bk_spark.log.formats.znodes import Head, Owner, decode_owner, decode_registration, encode_owner
from bk_spark.protocol.errors import LedgerRefusedError, LogFencedError, LogTailOpenError
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, TransactionOp


@dataclass(frozen=True, slots=True)
class TailPlace:
    """A writer's open tail: entries of ``ledger_id`` get offsets starting at ``base_offset``."""

    ledger_id: int
    base_offset: int
    commit_time_ms: int


@dataclass(frozen=True, slots=True)
class TailState:
    """The state of the tail before a writer opens it: the open segment, and the sealed segment before it."""

    open: Segment | None
    before: Segment | None


@dataclass(frozen=True, slots=True)
class SealedTail:
    """The tail as read, the segments that replace its open segment (none if it is empty or there is none), and the
    operations on its owner."""

    tail: ReadTail
    segments: tuple[Segment, ...]
    operations: tuple[TransactionOp, ...]

    @property
    def end_offset(self) -> int:
        """Where appended segments begin."""
        return self.segments[-1].end_offset if self.segments else self.tail.page.end_offset


def writer_run(paths: LogPaths, writer_id: str) -> str:
    """Return the parent znode of the registrations of a log writer's ledgers."""
    return paths.run_at(WRITERS, writer_id)


def seal_tail(readings: Readings, paths: LogPaths, head: Head, *, fence: bool, remedy: str) -> SealedTail:
    """Seal the tail before an append. An open tail is sealed if its owner is gone, or with ``fence``.

    Raises LogTailOpenError, which names the owner. ``remedy`` completes "close it, …".
    """
    tail = read_tail(readings, paths, head)
    if tail.open is None:
        return SealedTail(tail, (), ())
    owner = readings.get(paths.owner)
    if not fence:
        check_no_owner(readings, paths, tail.open, remedy)
    segments = sealed(tail.open, readings.closed(tail.open.ledger_id))
    return SealedTail(tail, segments, () if owner is None else (DeleteOp(paths.owner, owner.version),))


class _TailChange:
    """What the changes of one writer share."""

    def __init__(self, paths: LogPaths, owner: Owner) -> None:
        self.paths = paths
        self._owner = owner
        self._run_path = writer_run(paths, owner.writer_id)

    @property
    def again(self) -> str:
        return "open a new writer: what was acknowledged is in the log"

    def _read(self, readings: Readings) -> tuple[ReadHead, ReadTail]:
        read = read_head(readings, self.paths)
        return read, read_tail(readings, self.paths, read.head)

    def _is_owner(self, readings: Readings) -> bool:
        znode = readings.get(self.paths.owner)
        return znode is not None and decode_owner(znode.data, self.paths.owner).writer_id == self._owner.writer_id

    def _own(self, readings: Readings) -> tuple[TransactionOp, ...]:
        """Return operations that make the owner's znode this writer's."""
        path, znode = self.paths.owner, readings.get(self.paths.owner)
        create = CreateOp(path, encode_owner(self._owner), ephemeral=True)
        if znode is None:
            return (create,)
        if self._is_owner(readings):
            return (CheckOp(path, znode.version),)
        return DeleteOp(path, znode.version), create

    def _disown(self, readings: Readings) -> tuple[TransactionOp, ...]:
        znode = readings.get(self.paths.owner)
        return (DeleteOp(self.paths.owner, znode.version),) if znode is not None and self._is_owner(readings) else ()

    def _check_ledger(self, readings: Readings, ledger_id: int) -> CheckOp:
        """Check that the ledger is registered and not condemned. Raises LedgerRefusedError."""
        run = readings.get(self._run_path)
        path = f"{self._run_path}/{ledger_id}"
        registration = readings.get(path)
        if run is None or registration is None or decode_registration(registration.data, path).condemned:
            raise LedgerRefusedError(
                f"log {self.paths.name}: a ledger made for log writer {self._owner.writer_id} was condemned before it "
                "became part of the log",
                ledger_id=ledger_id,
            )
        return CheckOp(self._run_path, run.version)

    def _open(
        self,
        readings: Readings,
        read: ReadHead,
        tail: ReadTail,
        before: tuple[Segment, ...],
        ledger_id: int,
        now_ms: int,
        registered: CheckOp,
    ) -> Plan[TailPlace]:
        """Make ``ledger_id`` the open tail, after ``before``."""
        time_ms = read.head.change_time_ms(now_ms)
        base = before[-1].end_offset if before else read.head.next_offset
        opened = Segment(ledger_id, 0, None, base, 0, 0, time_ms)
        append = plan_append(readings, self.paths, read, SegmentTable.of([*before, opened]), time_ms, tail)
        return Plan(
            append.preparations,
            (CheckOp(self.paths.identity, -1), *append.operations, *self._own(readings), registered),
            _place(opened),
        )

    def _opened_already(
        self, readings: Readings, tail: ReadTail, opened: Segment
    ) -> AlreadyDone[TailPlace] | Plan[TailPlace]:
        """Return the result if the tail is ``opened`` by this writer already: an earlier transaction took effect."""
        if self._is_owner(readings):
            return AlreadyDone(_place(opened))
        return Plan((), (*self._checks(tail), *self._own(readings)), _place(opened))

    def _checks(self, tail: ReadTail) -> tuple[CheckOp, ...]:
        """Check that the log was not replaced and that its tail is unchanged."""
        return CheckOp(self.paths.identity, -1), CheckOp(self.paths.page(tail.page.number), tail.version)

    def _is_writers(self, readings: Readings, tail: Segment) -> bool:
        return readings.get(f"{self._run_path}/{tail.ledger_id}") is not None

    def _what_became(self, readings: Readings, tail: ReadTail) -> str:
        """Describe the state of the writer's tail, for error texts."""
        if tail.open is None:
            return "it was sealed by a commit or by another writer"
        if self._is_writers(readings, tail.open):
            return "the next writer or commit seals its ledger"
        znode = readings.get(self.paths.owner)
        if znode is None:
            return "another writer took it over and is gone"
        owner = decode_owner(znode.data, self.paths.owner)
        return f"writer {owner.writer_id} (host {owner.host}, process {owner.process_id}) took it over"

    def _lost(self, readings: Readings, tail: ReadTail, ledger_id: int | None = None) -> LogFencedError:
        return LogFencedError(
            f"log {self.paths.name}: log writer {self._owner.writer_id} has lost the tail: "
            f"{self._what_became(readings, tail)}",
            ledger_id=ledger_id,
        )


class LookAtTail(_TailChange):
    """Checks whether the tail can be opened. Changes nothing. If it cannot, this saves a ledger and a fencing."""

    def __init__(self, paths: LogPaths, owner: Owner, *, take_over: bool) -> None:
        super().__init__(paths, owner)
        self._take_over = take_over

    @property
    def what(self) -> str:
        """The same text as for :class:`OpenTail`: users see one step."""
        return f"opening of a writer of log {self.paths.name}"

    def decide(self, readings: Readings, now_ms: int, maybe: TailState | None) -> AlreadyDone[TailState]:
        """Raises LogTailOpenError if another live writer holds the tail, NoSuchLogError, LogReplacedError."""
        read, tail = self._read(readings)
        _check_free(readings, self.paths, tail, take_over=self._take_over)
        return AlreadyDone(TailState(tail.open, self._before(readings, read.head, tail)))

    def _before(self, readings: Readings, head: Head, tail: ReadTail) -> Segment | None:
        table = tail.page.table
        if not len(table) and tail.page.number > head.first_page:
            # A missing page has moved to the index: its ledgers were closed long ago.
            path = self.paths.page(tail.page.number - 1)
            znode = readings.get(path)
            if znode is not None:
                table = decode_page(znode.data, path, log_id=head.log_id, number=tail.page.number - 1).table
        if not len(table):
            return None
        (last,) = table[-1:]
        return last if last.base_offset >= head.first_offset else None


class OpenTail(_TailChange):
    """Makes ``ledger_id``, created and registered for ``owner``, the open tail. Seals a tail that was open."""

    def __init__(self, paths: LogPaths, owner: Owner, ledger_id: int, *, take_over: bool) -> None:
        super().__init__(paths, owner)
        self._ledger_id = ledger_id
        self._take_over = take_over

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"opening of a writer of log {self.paths.name}"

    def decide(
        self, readings: Readings, now_ms: int, maybe: TailPlace | None
    ) -> AlreadyDone[TailPlace] | Plan[TailPlace]:
        """Raises LogTailOpenError if another live writer holds the tail and it is not to be taken over,
        LedgerRefusedError if the ledger was condemned in the meantime, NoSuchLogError, LogReplacedError."""
        read, tail = self._read(readings)
        if tail.open is not None and tail.open.ledger_id == self._ledger_id:
            return self._opened_already(readings, tail, tail.open)
        _check_free(readings, self.paths, tail, take_over=self._take_over)
        registered = self._check_ledger(readings, self._ledger_id)
        before = () if tail.open is None else sealed(tail.open, readings.closed(tail.open.ledger_id))
        return self._open(readings, read, tail, before, self._ledger_id, now_ms, registered)


class RollTail(_TailChange):
    """Seals the writer's open tail as it was ``closed``, and makes ``new_ledger_id`` the open tail."""

    def __init__(self, paths: LogPaths, owner: Owner, closed: Closed, new_ledger_id: int) -> None:
        super().__init__(paths, owner)
        self._closed = closed
        self._new_ledger_id = new_ledger_id

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"roll of the tail of log {self.paths.name}"

    def decide(
        self, readings: Readings, now_ms: int, maybe: TailPlace | None
    ) -> AlreadyDone[TailPlace] | Plan[TailPlace]:
        """Raises LogFencedError if the tail is not this writer's any more, LedgerRefusedError if the new ledger was
        condemned in the meantime, NoSuchLogError, LogReplacedError."""
        read, tail = self._read(readings)
        if tail.open is not None and tail.open.ledger_id == self._new_ledger_id:
            return self._opened_already(readings, tail, tail.open)
        if tail.open is None or tail.open.ledger_id != self._closed.ledger_id:
            raise self._lost(readings, tail, self._closed.ledger_id)
        registered = self._check_ledger(readings, self._new_ledger_id)
        before = sealed(tail.open, self._closed)
        return self._open(readings, read, tail, before, self._new_ledger_id, now_ms, registered)


class SealTail(_TailChange):
    """Seals the writer's open tail as it was ``closed``, and removes its owner. The result is the log's
    ``next_offset``. If another process sealed it before, it ended at the same entry and nothing is left to do."""

    def __init__(self, paths: LogPaths, owner: Owner, closed: Closed) -> None:
        super().__init__(paths, owner)
        self._closed = closed

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"sealing of the tail of log {self.paths.name}"

    @property
    def again(self) -> str:
        """A writer that is closed again goes on here."""
        return "close the writer again, or leave it to the next one: what was acknowledged is in the log"

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        """Raises NoSuchLogError, LogReplacedError."""
        read, tail = self._read(readings)
        owner = self._disown(readings)
        if tail.open is not None and tail.open.ledger_id == self._closed.ledger_id:
            time_ms = read.head.change_time_ms(now_ms)
            added = SegmentTable.of(sealed(tail.open, self._closed))
            append = plan_append(readings, self.paths, read, added, time_ms, tail)
            return Plan(
                append.preparations,
                (CheckOp(self.paths.identity, -1), *append.operations, *owner),
                append.head.next_offset,
            )
        if owner:
            return Plan((), (*self._checks(tail), *owner), read.head.next_offset)
        return AlreadyDone(read.head.next_offset)


class KeepTail(_TailChange):
    """Creates the owner's znode again after the writer's session expired."""

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"check of the tail of log {self.paths.name}"

    def decide(
        self, readings: Readings, now_ms: int, maybe: TailPlace | None
    ) -> AlreadyDone[TailPlace] | Plan[TailPlace]:
        """Raises LogFencedError if the open tail is not this writer's, NoSuchLogError, LogReplacedError."""
        _, tail = self._read(readings)
        if tail.open is None or not self._is_writers(readings, tail.open):
            raise self._lost(readings, tail)
        return self._opened_already(readings, tail, tail.open)


class ReleaseTail(_TailChange):
    """Removes the owner's znode if it is this writer's. If the tail is still open, the next writer can take it. The
    result describes the state of the tail."""

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"release of the tail of log {self.paths.name}"

    def decide(self, readings: Readings, now_ms: int, maybe: str | None) -> AlreadyDone[str] | Plan[str]:
        """Raises NoSuchLogError, LogReplacedError."""
        _, tail = self._read(readings)
        became, owner = self._what_became(readings, tail), self._disown(readings)
        return Plan((), (*self._checks(tail), *owner), became) if owner else AlreadyDone(became)


def _check_free(readings: Readings, paths: LogPaths, tail: ReadTail, *, take_over: bool) -> None:
    if tail.open is not None and not take_over:
        check_no_owner(readings, paths, tail.open, ", or open with take_over=True, which ends that writer")


def check_no_owner(readings: Readings, paths: LogPaths, tail: Segment, remedy: str) -> None:
    """Raise LogTailOpenError, which names the owner, if a writer holds the tail. ``remedy`` completes "close it"."""
    znode = readings.get(paths.owner)
    if znode is not None:
        owner = decode_owner(znode.data, paths.owner)
        raise LogTailOpenError(
            f"log {paths.name}: log writer {owner.writer_id} (host {owner.host}, process {owner.process_id}) holds "
            f"the tail open: close it{remedy}",
            ledger_id=tail.ledger_id,
        )


def _place(opened: Segment) -> TailPlace:
    return TailPlace(opened.ledger_id, opened.base_offset, opened.commit_time_ms)
