"""A cluster in memory that performs the actions of a repair at once, for tests of single rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bk_spark.bookie.placement.placement import find_misplaced, unspread_windows
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    EntryUnknownError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    SessionLostError,
)
from bk_spark.protocol.ledger.reading.read_actions import EntriesRead, ReadEntries, ReportFailure, RequestFailed
from bk_spark.protocol.machine import EndedBy, Machine, StartTimer, StopRequest, StopTimer, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.actions import (
    AskPace,
    AskThrottle,
    BookiesFound,
    ChooseTarget,
    EntriesWritten,
    FindMisplaced,
    LastAddConfirmed,
    LedgerFound,
    LedgerRecovered,
    MembersReplaced,
    MisplacedFound,
    PacePassed,
    ReadBookies,
    ReadLastAddConfirmed,
    ReadLedger,
    RecoverLedger,
    RepairResult,
    ReplaceMembers,
    TargetChosen,
    ThrottlePassed,
    WriteEntries,
)
from bk_spark.protocol.replication.ledger_repair import LedgerRepair
from bk_spark.protocol.replication.repair_settings import RepairSettings
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of

BOOKIES = tuple(f"b{number}" for number in range(1, 7))
REPAIRED_QUORUM = Quorum(3, 3, 2)


def closed(quorum: Quorum = REPAIRED_QUORUM, last: int = 9, *segments: tuple[int, str]) -> LedgerMetadata:
    """A closed ledger, in the form of :func:`tests.support.ledgers.ledger`."""
    return ledger(quorum, *segments).closed(last, 10 * (last + 1))


def stored_entry(metadata: LedgerMetadata, entry_id: int) -> bytes:
    """An entry as its writer stored it."""
    assert metadata.digest_type is not None
    digest = digest_function(metadata.digest_type, PASSWORD)
    return pack_entry(LEDGER, entry_id, entry_id - 1, 10 * entry_id, payload_of(entry_id), digest)


class RepairedCluster:
    """One ledger, its bookies, and its znode. ``before`` is called with each action before it is performed.

    Every acknowledged entry is on its whole write quorum at first.
    """

    def __init__(self, metadata: LedgerMetadata, bookies: Collection[str], last_entry_id: int) -> None:
        self.metadata: LedgerMetadata | None = metadata
        self.version = 3
        self.created_zxid = 11
        #: The creation of the ledger that was read last.
        self.read_zxid = 0
        self.last_add_confirmed = last_entry_id
        self.writable = set(bookies)
        self.read_only: set[str] = set()
        #: The registrations of bookies that came back.
        self.registrations: dict[str, int] = {}
        self.disks: dict[str, dict[int, bytes]] = {bookie_id: {} for bookie_id in bookies}
        #: Bookies that do not answer.
        self.silent: set[str] = set()
        self.session_lost = False
        #: If known, members should be in two racks.
        self.racks: dict[str, str] = {}
        self.before: Callable[[Any], None] = lambda action: None
        #: What was written, as (bookie, entry).
        self.written: list[tuple[str, int]] = []
        self.read: list[tuple[str, int]] = []
        self.actions: list[Any] = []
        for entry_id in range(last_entry_id + 1):
            for index in metadata.quorum.write_set(entry_id):
                bookie_id = metadata.segment_of(entry_id).ensemble[index]
                self.disks[bookie_id][entry_id] = stored_entry(metadata, entry_id)

    def lose(self, *bookies: str) -> None:
        """These bookies are gone for good, with their disks."""
        for bookie_id in bookies:
            self.writable.discard(bookie_id)
            self.disks[bookie_id].clear()

    def come_back_empty(self, bookie_id: str) -> None:
        """The bookie registers again, with an empty disk."""
        self.registrations[bookie_id] = self.registrations.get(bookie_id, 1) + 1
        self.disks[bookie_id].clear()

    def repair(self, missing: Collection[str] = (), **settings: Any) -> RepairResult:
        """Run one repair to its end."""
        result: RepairResult = self.run(LedgerRepair(LEDGER, missing, RepairSettings(**settings), Random(1)))
        return result

    def run(self, machine: Machine[Any, Any, Any]) -> Any:
        """Run a machine to its end, and return its result."""
        todo = deque(machine.take_actions())
        while machine.outcome is None:
            action = todo.popleft()
            self.actions.append(action)
            self.before(action)
            try:
                event = self.perform(action)
            except Exception as error:
                machine.fail(error)
            else:
                if event is not None:
                    machine.handle(event)
            todo.extend(machine.take_actions())
        if isinstance(machine.outcome, EndedBy):
            raise machine.outcome.error
        return machine.outcome.result

    def holders(self, entry_id: int) -> set[str]:
        """The members that should have the entry."""
        assert self.metadata is not None
        ensemble = self.metadata.segment_of(entry_id).ensemble
        return {ensemble[index] for index in self.metadata.quorum.write_set(entry_id)}

    def assert_whole(self) -> None:
        """Every entry is on every bookie of its write set, byte for byte, and all of these are registered."""
        assert self.metadata is not None
        for entry_id in range(self.metadata.last_entry_id + 1):
            for bookie_id in self.holders(entry_id):
                assert bookie_id in self.writable | self.read_only, (entry_id, bookie_id)
                assert self.disks[bookie_id].get(entry_id) == stored_entry(self.metadata, entry_id), entry_id

    # --- performing ---

    def perform(self, action: Any) -> Any:
        match action:
            case ReadLedger():
                self.read_zxid = self.created_zxid
                return LedgerFound(self._stored(), self.version, self.created_zxid)
            case ReadBookies(members):
                here = self.writable | self.read_only
                registrations = {each: self.registrations.get(each, 1) for each in members & here}
                return BookiesFound(frozenset(self.writable), frozenset(self.read_only), registrations)
            case ReadLastAddConfirmed():
                return LastAddConfirmed(self.last_add_confirmed)
            case ChooseTarget(quorum, ensemble, index, exclude, among):
                free = sorted(self.writable.difference(ensemble, exclude).intersection(among or self.writable))
                if not free:
                    raise NotEnoughBookiesError("no writable bookie is left")
                unspread = {each: self._unspread(quorum, ensemble, index, each) for each in free}
                best = min(free, key=unspread.__getitem__)
                return TargetChosen(best, unspread[best])
            case FindMisplaced(quorum, ensemble):
                return MisplacedFound(*find_misplaced(quorum, self._racks_of(ensemble), 2 if self.racks else 1))
            case ReplaceMembers(metadata, version):
                return self._replace(metadata, version)
            case RecoverLedger():
                return self._recover()
            case StartTimer(name) if isinstance(name, str):
                return TimerFired(name)
            case ReadEntries(request_id, bookie_id, entry_ids):
                return self._read(request_id, bookie_id, entry_ids)
            case WriteEntries():
                return self._write(action)
            case AskPace(request_id):
                return PacePassed(request_id)
            case AskThrottle(request_id):
                return ThrottlePassed(request_id)
            case StartTimer() | StopTimer() | StopRequest() | ReportFailure():
                return None
        raise AssertionError(action)

    def _unspread(self, quorum: Quorum, ensemble: tuple[str, ...], index: int, bookie_id: str) -> int:
        """Write quorums in one rack, if this bookie had the position."""
        if not self.racks:
            return 0
        return unspread_windows(quorum, self._racks_of([*ensemble[:index], bookie_id, *ensemble[index + 1 :]]), 2)

    def _racks_of(self, members: Sequence[str]) -> list[str]:
        return [self.racks.get(member, "/elsewhere") for member in members]

    def _stored(self) -> LedgerMetadata:
        if self.metadata is None:
            raise NoSuchLedgerError("the ledger does not exist")
        return self.metadata

    def _replace(self, metadata: LedgerMetadata, version: int) -> MembersReplaced:
        if self.session_lost:
            raise SessionLostError("the session ended")
        self._stored()
        if self.created_zxid != self.read_zxid:
            raise NoSuchLedgerError("the ledger was deleted")
        if version != self.version:
            raise MetadataConflictError("changed by another client")
        self.metadata = metadata
        self.version += 1
        return MembersReplaced(self.version)

    def _recover(self) -> LedgerRecovered:
        """As a recovery that is allowed to find fewer copies than the write quorum."""
        metadata = self._stored()
        for entry_id in range(self.last_add_confirmed + 1):
            if not any(entry_id in self.disks[bookie] for bookie in self.holders(entry_id) - self.silent):
                raise EntryUnknownError("no replica could tell", entry_id=entry_id)
        self.metadata = replace(metadata, state=LedgerState.CLOSED, last_entry_id=self.last_add_confirmed, length=99)
        self.version += 2
        return LedgerRecovered()

    def _read(self, request_id: int, bookie_id: str, entry_ids: range) -> EntriesRead | RequestFailed:
        self.read += [(bookie_id, entry_id) for entry_id in entry_ids]
        if bookie_id in self.silent or bookie_id not in self.writable | self.read_only:
            return RequestFailed(request_id, BookieUnavailableError("cannot connect"))
        disk = self.disks[bookie_id]
        answers = {
            entry_id: ReadAnswer(
                LEDGER,
                entry_id,
                Code.OK if entry_id in disk else Code.NO_ENTRY,
                memoryview(disk.get(entry_id, b"")),
            )
            for entry_id in entry_ids
        }
        return EntriesRead(request_id, answers)

    def _write(self, action: WriteEntries) -> EntriesWritten | RequestFailed:
        if action.bookie_id in self.silent or action.bookie_id not in self.writable | self.read_only:
            return RequestFailed(action.request_id, BookieUnavailableError("cannot connect"))
        records, at = action.entries.records, 0
        for entry_id in action.entries.entry_ids:
            size = int.from_bytes(records[at : at + 4], "big")
            self.disks[action.bookie_id][entry_id] = bytes(records[at + 4 : at + 4 + size])
            self.written.append((action.bookie_id, entry_id))
            at += 4 + size
        assert at == len(records)
        return EntriesWritten(action.request_id, Code.OK)
