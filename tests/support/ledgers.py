"""Ledger metadata with bookies that have short names, and a writer whose actions are easy to read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bk_spark.protocol.codes import Code, DigestType, FlagV2
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, MetadataConflictError
from bk_spark.protocol.ledger.claiming import ChooseLast
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.ledger.writer import LedgerWriter
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookieForced,
    BookiesChosen,
    ChooseBookies,
    ForceBookie,
    LeaveBookie,
    NoBookies,
    SendAdds,
    SendRefused,
    WriteLac,
    WriterEvent,
    WriterLimits,
    WriterTimer,
)
from bk_spark.protocol.machine import StartTimer, StopTimer, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.wire_v2 import AddRun, parse_requests
from tests.support.wire import frames

LEDGER = 7
PASSWORD = b"secret"


DEFAULT_QUORUM = Quorum(3, 3, 2)


def ledger(
    quorum: Quorum = DEFAULT_QUORUM,
    *segments: tuple[int, str],
    state: LedgerState = LedgerState.OPEN,
    digest_type: DigestType = DigestType.CRC32C,
) -> LedgerMetadata:
    """Return metadata with segments given as ``(first entry, "b1 b2 b3")``. Default: one segment of ``b1`` …"""
    default = (0, " ".join(f"b{number}" for number in range(1, quorum.ensemble_size + 1)))
    return LedgerMetadata(
        quorum,
        tuple(Segment(first, tuple(bookies.split())) for first, bookies in segments or (default,)),
        state=state,
        digest_type=digest_type,
        password=PASSWORD,
    )


def payload_of(entry_id: int) -> bytes:
    """Return the payload of a test's entry. Sizes differ."""
    return b"entry %d " % entry_id + b"." * (entry_id % 5)


def entry_ids_of(action: SendAdds) -> list[int]:
    """Return the ids of the entries in an action's frames. Also checks the frames."""
    ids: list[int] = []
    for run in parse_requests(frames(bytes(view) for view in action.frames)):
        assert isinstance(run, AddRun)
        assert set(run.ledger_ids.tolist()) == {LEDGER}
        ids += run.entry_ids.tolist()
    assert len(ids) == action.entries
    return ids


class WriterUnderTest:
    """A :class:`LedgerWriter` that sorts its actions. ``sent`` holds what each bookie got since the last query."""

    def __init__(
        self,
        metadata: LedgerMetadata | None = None,
        *,
        publish: bool = True,
        last_entry_id: int = -1,
        length: int = 0,
        deferred_sync: bool = False,
        password_is_known: bool = True,
        **limits: int,
    ) -> None:
        self.start = ledger() if metadata is None else metadata
        flags = FlagV2.NONE if publish else FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
        self.packager = EntryPackager(LEDGER, DigestType.CRC32C, PASSWORD, flags)
        self.machine = LedgerWriter(
            LEDGER,
            self.start,
            0,
            self.packager,
            last_entry_id=last_entry_id,
            length=length,
            publish=publish,
            deferred_sync=deferred_sync,
            password_is_known=password_is_known,
            limits=WriterLimits(**limits),
        )
        self._sent: dict[str, list[int]] = {}
        self._told = last_entry_id
        #: Each new last add confirmed.
        self.acknowledged: list[int] = []
        self.choices: list[ChooseBookies] = []
        self.proposals: list[LedgerMetadata] = []
        self.versions: list[int] = []
        #: Number of requested reads of the metadata.
        self.reads = 0
        #: Pauses of busy bookies.
        self.pauses: list[tuple[str, float]] = []
        self.timers: dict[object, float] = {}
        self.forces: list[ForceBookie] = []
        self.left: list[str] = []
        #: Bookies that are chosen last from now on.
        self.silent: list[str] = []
        self.lacs: list[WriteLac] = []

    def take(self) -> None:
        if self.lac != self._told:
            self._told = self.lac
            self.acknowledged.append(self.lac)
        for action in self.machine.take_actions():
            match action:
                case SendAdds(bookie_id):
                    self._sent.setdefault(bookie_id, []).extend(entry_ids_of(action))
                case ChooseBookies():
                    self.choices.append(action)
                case CompareAndSet(metadata, version):
                    self.proposals.append(metadata)
                    self.versions.append(version)
                case ReadMetadata():
                    self.reads += 1
                case StartTimer(SendRefused(bookie_id), after_ms):
                    self.pauses.append((bookie_id, after_ms))
                case StartTimer(name, after_ms):
                    self.timers[name] = after_ms
                case StopTimer(name):
                    self.timers.pop(name, None)
                case ForceBookie():
                    self.forces.append(action)
                case LeaveBookie(bookie_id):
                    self.left.append(bookie_id)
                case ChooseLast(bookie_id):
                    self.silent.append(bookie_id)
                case WriteLac():
                    self.lacs.append(action)

    def handle(self, event: WriterEvent) -> None:
        self.machine.handle(event)
        self.take()

    def fire(self, name: object) -> None:
        """Let a timer fire."""
        self.timers.pop(name, None)
        self.handle(TimerFired(name))

    def sent(self) -> dict[str, list[int]]:
        """Return what was sent since the last call."""
        self.take()
        sent, self._sent = self._sent, {}
        return sent

    def add(self, count: int = 1, lac: int | None = None) -> None:
        first = self.machine.last_add_pushed + 1
        self.machine.add(Payloads.of([payload_of(entry) for entry in range(first, first + count)]), lac)
        self.take()

    def answer(self, bookie_id: str, entry_ids: Iterable[int] | int, code: Code = Code.OK) -> None:
        ids = [entry_ids] if isinstance(entry_ids, int) else list(entry_ids)
        self.answers(bookie_id, [(entry_id, code) for entry_id in ids])

    def answers(self, bookie_id: str, answers: list[tuple[int, Code]]) -> None:
        ids = np.array([entry_id for entry_id, _ in answers], np.int64)
        self.handle(AddsAnswered(bookie_id, ids, np.array([int(code) for _, code in answers], np.int32)))

    def fail(self, *bookies: str) -> None:
        for bookie_id in bookies:
            self.handle(BookieFailed(bookie_id))

    def send_refused(self, bookie_id: str) -> None:
        """End the pause of a busy bookie."""
        self.handle(TimerFired(SendRefused(bookie_id)))

    def chosen(self, replacements: dict[int, str]) -> None:
        self.handle(BookiesChosen(replacements))

    def search_is_slow(self) -> None:
        self.handle(TimerFired(WriterTimer.SLOW_SEARCH))

    def written(self) -> None:
        """The last proposal was stored."""
        self.handle(MetadataWritten(self.proposals[-1], self.versions[-1] + 1))

    def conflict(self, found: LedgerMetadata) -> None:
        """The compare-and-set lost, or its reply did. The store holds ``found``."""
        reads = self.reads
        self.handle(MetadataFailed(MetadataConflictError("changed by another client")))
        assert self.reads == reads + 1
        self.handle(MetadataFound(found, self.versions[-1] + 1))

    def no_bookies(self, error: BookKeeperError) -> None:
        self.handle(NoBookies(error))

    def force(self) -> None:
        self.machine.force()
        self.take()

    def forced(self, last_entry_id: int, *bookies: str) -> None:
        """These bookies, or all, have synced."""
        for bookie_id in bookies or self.machine.ensemble.members:
            self.handle(BookieForced(bookie_id, last_entry_id))

    def close(self) -> None:
        self.machine.close()
        self.take()

    @property
    def lac(self) -> int:
        return self.machine.last_add_confirmed
