"""Recovery: marking, writing back and closing, among other clients. The search has tests of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import Buffer, digest_function
from bk_spark.protocol.entries.entry import Entry, pack_entry, verify_entry
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    EntryUnknownError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger.end_search import READ_AHEAD_ENTRIES, EntryFailed, EntryRead, Purpose, ReadEntry
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.ledger.recovery import (
    ATTEMPTS,
    AwaitConnections,
    ForWriteBacks,
    LedgerRecovery,
    ToldWriteBacks,
    WriteBacksReady,
)
from bk_spark.protocol.ledger.writer_actions import (
    AddsAnswered,
    BookieFailed,
    BookiesChosen,
    ChooseBookies,
    ConnectBookie,
    LeaveBookie,
    SendAdds,
    WriterAction,
    WriterEvent,
    WriterLimits,
)
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from bk_spark.protocol.wire.wire_v2 import AddRun, parse_requests
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of
from tests.support.wire import frames

DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
LOST = OutcomeUnknownError("connection lost")
#: A change of the metadata by another client, or the error of the call.
Meddling = Callable[[LedgerMetadata], LedgerMetadata] | Exception


def length_of(last_entry_id: int) -> int:
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


def verify(entry: Buffer, entry_id: int | None) -> Entry:
    return verify_entry(entry, LEDGER, entry_id, DigestType.CRC32C, DIGEST)


class Stage:
    """Bookies that answer at once, a store, and one recovery. ``held`` says who holds which entries."""

    def __init__(self, metadata: LedgerMetadata | None = None, *, lac: int = -1, **held: range) -> None:
        self.metadata, self.version = metadata or ledger(), 3
        self.held = {bookie: {entry: min(lac, entry - 1) for entry in entries} for bookie, entries in held.items()}
        self.silent: set[str] = set()
        #: Adds are answered while this is set.
        self.answering = True
        #: Connections are made while this is set.
        self.connected = True
        #: What happens before each write and each read that come next; what happens after each write.
        self.before_writes: deque[Meddling] = deque()
        self.before_reads: deque[Meddling] = deque()
        self.lost_replies = 0
        #: What reached the store and the bookies, in order.
        self.calls: list[str] = []
        #: Actions of the writer of write-backs, except its adds.
        self.asked: list[WriterAction] = []
        self.reads: list[ReadEntry] = []
        #: Entry id, LAC and flags of each add, for each bookie.
        self.adds: dict[str, list[tuple[int, int, FlagV2]]] = {}
        self.machine = LedgerRecovery(
            LEDGER,
            verify,
            lambda flags: EntryPackager(LEDGER, DigestType.CRC32C, PASSWORD, flags),
            read_timeout_ms=1_000,
            limits=WriterLimits(max_unanswered_entries=200),
        )

    def run(self) -> LedgerMetadata:
        """Return the recovery's result. Raises its error, and AssertionError if it still waits."""
        self.settle()
        match self.machine.outcome:
            case Succeeded(metadata):
                return metadata
            case EndedBy(error):
                raise error
        raise AssertionError("it has not ended")

    def settle(self) -> None:
        while True:
            actions = self.machine.take_actions()
            if not actions:
                return
            for action in actions:
                match action:
                    case ReadMetadata() | CompareAndSet():
                        self.machine.handle(self.call(action))
                    case ReadEntry():
                        self.reads.append(action)
                        self.machine.handle(self.answer(action))
                    case ForWriteBacks(attempt, SendAdds() as adds):
                        assert attempt == self.machine.attempt
                        self.add(adds)
                    case ForWriteBacks(_, ConnectBookie() | LeaveBookie() | ChooseBookies() as for_writer):
                        self.asked.append(for_writer)
                    case AwaitConnections(attempt) if self.connected:
                        self.machine.handle(WriteBacksReady(attempt))
                    case ForWriteBacks():
                        raise AssertionError(action)

    def call(self, action: ReadMetadata | CompareAndSet) -> MetadataEvent:
        meddling = self.before_reads if isinstance(action, ReadMetadata) else self.before_writes
        meddler = meddling.popleft() if meddling else None
        if isinstance(meddler, MetadataUnavailableError):
            return MetadataFailed(meddler)
        if callable(meddler):
            self.metadata, self.version = meddler(self.metadata), self.version + 1
        if isinstance(action, ReadMetadata):
            self.calls.append("read")
            return MetadataFound(self.metadata, self.version)
        self.calls.append(action.metadata.state.name)
        if action.version != self.version:
            return MetadataFailed(MetadataConflictError("changed by another client"))
        self.metadata, self.version = action.metadata, self.version + 1
        if self.lost_replies:
            self.lost_replies -= 1
            return MetadataFailed(LOST)
        return MetadataWritten(self.metadata, self.version)

    def answer(self, read: ReadEntry) -> EntryRead | EntryFailed:
        if read.purpose is not Purpose.LENGTH:
            assert self.metadata.state is not LedgerState.OPEN, "it fences before the metadata say IN_RECOVERY"
        held = self.held.get(read.bookie_id, {})
        if read.bookie_id in self.silent:
            error = BookieUnavailableError("away", bookie_id=read.bookie_id)
            return EntryFailed(read.attempt, read.bookie_id, read.entry_id, error)
        wanted = max(held, default=None) if read.entry_id == LAST_ENTRY else read.entry_id
        if wanted is None or wanted not in held:
            answer = ReadAnswer(LEDGER, read.entry_id, Code.NO_ENTRY, memoryview(b""))
        else:
            stored = pack_entry(LEDGER, wanted, held[wanted], length_of(wanted), payload_of(wanted), DIGEST)
            answer = ReadAnswer(LEDGER, read.entry_id, Code.OK, memoryview(stored))
        return EntryRead(read.attempt, read.bookie_id, read.entry_id, answer)

    def add(self, action: SendAdds) -> None:
        ids: list[int] = []
        for run in parse_requests(frames(bytes(view) for view in action.frames)):
            assert isinstance(run, AddRun)
            for start, end in zip(run.offsets[:-1].tolist(), run.offsets[1:].tolist(), strict=True):
                entry = verify(bytes(run.records[start + 4 : end]), None)
                ids.append(entry.entry_id)
                assert (entry.payload, entry.length) == (payload_of(entry.entry_id), length_of(entry.entry_id))
                said = (entry.entry_id, entry.last_add_confirmed, FlagV2(run.flags))
                self.adds.setdefault(action.bookie_id, []).append(said)
        if self.answering:
            self.add_answers(action.bookie_id, ids, Code.OK)

    def add_answers(self, bookie_id: str, ids: list[int], code: Code) -> None:
        self.tell(AddsAnswered(bookie_id, np.array(ids), np.full(len(ids), code, np.int32)))

    def tell(self, event: WriterEvent) -> None:
        """The writer of the present search."""
        self.machine.handle(ToldWriteBacks(self.machine.attempt, event))


def test_an_empty_ledger_is_marked_fenced_and_closed() -> None:
    stage = Stage()
    closed = stage.run()
    assert stage.calls == ["read", "IN_RECOVERY", "CLOSED"]
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, -1, 0)
    assert closed == stage.metadata
    assert stage.machine.take_actions() == []


def test_a_closed_ledger_is_left_as_it_is() -> None:
    stage = Stage(ledger().closed(4, 44))
    assert stage.run() == stage.metadata
    assert (stage.calls, stage.reads) == (["read"], [])


def test_a_ledger_that_is_in_recovery_is_not_marked_again() -> None:
    stage = Stage(ledger().in_recovery(), b1=range(3), b2=range(3))
    assert stage.run().last_entry_id == 2
    assert stage.calls == ["read", "CLOSED"]


@pytest.mark.parametrize("last_entry_id", [4, 4 * READ_AHEAD_ENTRIES], ids=["at once", "in parts"])
def test_c10_what_lies_beyond_the_lac_is_written_back_with_the_lac_of_the_start(last_entry_id: int) -> None:
    """A reader must not see an entry that another recovery may still cut off. Nor does the writer's LAC go into later
    parts once the first ones are acknowledged."""
    entries = range(last_entry_id + 1)
    stage = Stage(lac=1, b1=entries, b2=entries)
    closed = stage.run()
    assert (closed.last_entry_id, closed.length) == (last_entry_id, length_of(last_entry_id))
    wanted = [(entry, 1, FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY) for entry in entries[2:]]
    assert stage.adds == {"b1": wanted, "b2": wanted, "b3": wanted}


def test_it_closes_only_when_all_that_was_found_lies_on_an_ack_quorum() -> None:
    stage = Stage(b1=range(2), b2=range(2), b3=range(2))
    stage.answering = False
    stage.settle()
    for bookie_id, ids in (("b1", [0, 1]), ("b2", [0])):
        stage.add_answers(bookie_id, ids, Code.OK)
        stage.settle()
        assert (stage.calls[-1], stage.machine.outcome) == ("IN_RECOVERY", None)
    stage.add_answers("b3", [1], Code.OK)
    assert stage.run().last_entry_id == 1


def test_the_close_publishes_the_ensemble_of_the_write_backs() -> None:
    stage = Stage(b1=range(2), b2=range(2), b3=range(2))
    stage.answering = False
    stage.settle()
    assert stage.asked == [ConnectBookie(bookie_id) for bookie_id in ("b1", "b2", "b3")]
    stage.tell(BookieFailed("b2"))
    stage.settle()
    assert isinstance(stage.asked[-1], ChooseBookies)
    stage.tell(BookiesChosen({1: "b4"}))
    stage.answering = True
    stage.settle()
    assert stage.machine.outcome is None
    stage.add_answers("b1", [0, 1], Code.OK)
    closed = stage.run()
    assert [segment.ensemble for segment in closed.segments] == [("b1", "b4", "b3")]
    # Only the closing compare-and-set publishes it.
    assert stage.calls == ["read", "IN_RECOVERY", "CLOSED"]


def test_a_bookie_that_cannot_be_reached_is_replaced_before_it_misses_a_write_back() -> None:
    stage = Stage(b1=range(100), b2=range(100), b3=range(100))
    stage.connected = False
    stage.settle()
    assert stage.adds == {}
    stage.tell(BookieFailed("b2"))
    stage.machine.handle(WriteBacksReady(stage.machine.attempt))
    stage.settle()
    assert stage.machine.outcome is None
    stage.tell(BookiesChosen({1: "b4"}))
    closed = stage.run()
    assert (closed.last_entry_id, closed.last_segment.ensemble) == (99, ("b1", "b4", "b3"))
    assert [add[0] for add in stage.adds["b4"]] == list(range(100))


def test_what_ends_the_write_backs_ends_the_recovery() -> None:
    stage = Stage(b1=range(2), b2=range(2))
    stage.answering = False
    stage.settle()
    stage.add_answers("b1", [0], Code.FENCED)
    with pytest.raises(LedgerFencedError):
        stage.run()


def test_what_cannot_be_proven_ends_the_recovery_and_leaves_the_ledger() -> None:
    stage = Stage(b1=range(2), b2=range(2))
    stage.silent = {"b2", "b3"}
    with pytest.raises(EntryUnknownError):
        stage.run()
    assert stage.metadata.state is LedgerState.IN_RECOVERY


def test_nothing_more_is_read_while_a_bookie_owes_too_much() -> None:
    stage = Stage(b1=range(600), b2=range(600), b3=range(600))
    stage.answering = False
    stage.settle()
    read = max(read.entry_id for read in stage.reads)
    assert 200 < read < 200 + 5 * READ_AHEAD_ENTRIES
    # The ack quorum has them all. The third bookie still owes them.
    for bookie_id in ("b1", "b2"):
        stage.add_answers(bookie_id, list(range(read + 1)), Code.OK)
    stage.settle()
    assert max(read.entry_id for read in stage.reads) == read
    stage.answering = True
    stage.add_answers("b3", list(range(read + 1)), Code.OK)
    assert stage.run().last_entry_id == 599


# --- metadata that change, replies that are lost ---------------------------------------------------


def test_marking_is_tried_again_upon_what_is_there() -> None:
    stage = Stage(b1=range(3), b2=range(3), b4=range(3))
    # The writer changes its ensemble before it hears of the recovery.
    changed = ledger(Quorum(3, 3, 2), (0, "b1 b2 b4"))
    stage.before_writes.append(lambda found: changed)
    closed = stage.run()
    assert stage.calls == ["read", "IN_RECOVERY", "read", "IN_RECOVERY", "CLOSED"]
    assert (closed.last_entry_id, closed.segments) == (2, changed.segments)
    assert {read.bookie_id for read in stage.reads} == {"b1", "b2", "b4"}


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY], ids=lambda state: state.name)
def test_c13_a_lost_reply_is_found_out(state: LedgerState) -> None:
    """The reply of the first compare-and-set: marking or closing."""
    stage = Stage(ledger(state=state), b1=range(3), b2=range(3))
    stage.lost_replies = 1
    assert stage.run().last_entry_id == 2
    marked = ["read", "IN_RECOVERY", "read", "CLOSED"]
    assert stage.calls == (marked if state is LedgerState.OPEN else ["read", "CLOSED", "read"])


def test_another_client_closes_while_it_is_marked() -> None:
    stage = Stage()
    stage.before_writes.append(lambda found: found.closed(7, 70))
    assert stage.run().last_entry_id == 7
    assert stage.reads == []


def test_another_client_closes_first_and_its_end_counts() -> None:
    stage = Stage(ledger().in_recovery(), b1=range(3), b2=range(3))
    stage.before_writes.append(lambda found: found.closed(1, length_of(1)))
    assert (stage.run().last_entry_id, stage.calls) == (1, ["read", "CLOSED", "read"])


def test_metadata_that_changed_are_searched_anew() -> None:
    stage = Stage(ledger().in_recovery(), lac=0, b1=range(3), b2=range(3), b4=range(5), b5=range(5))
    changed = ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (3, "b4 b5 b1")).in_recovery()
    stage.before_writes.append(lambda found: changed)
    closed = stage.run()
    assert (closed.last_entry_id, closed.length, closed.segments) == (4, length_of(4), changed.segments)
    assert {read.attempt for read in stage.reads} == {1, 2}
    again = {read.bookie_id for read in stage.reads if read.attempt == 2 and read.purpose is Purpose.FENCE}
    assert again == {"b4", "b5", "b1"}
    # Entries written back again carry the LAC that the second search began with.
    assert [add[:2] for add in stage.adds["b4"]] == [(3, 2), (4, 2)]


@pytest.mark.parametrize(("state", "most"), [(LedgerState.OPEN, 8), (LedgerState.IN_RECOVERY, ATTEMPTS)])
def test_metadata_that_keep_changing_end_the_recovery(state: LedgerState, most: int) -> None:
    stage = Stage(ledger(state=state))
    stage.before_writes.extend([lambda found: found] * 100)
    with pytest.raises(MetadataConflictError, match="keeps changing"):
        stage.run()
    assert len(stage.calls) - stage.calls.count("read") == most


def test_metadata_that_cannot_be_read_or_written_end_the_recovery() -> None:
    away = MetadataUnavailableError("away")
    for reads, writes in (([away], []), ([], [away]), ([None, away], [lambda found: found]), ([], [None, away])):
        stage = Stage()
        stage.before_reads.extend(reads)  # type: ignore[arg-type]
        stage.before_writes.extend(writes)  # type: ignore[arg-type]
        with pytest.raises(MetadataUnavailableError, match="away"):
            stage.run()
        assert stage.metadata.state is not LedgerState.CLOSED


def test_a_read_whose_outcome_is_unknown_is_not_repeated() -> None:
    stage = Stage()
    stage.before_reads.append(LOST)
    with pytest.raises(OutcomeUnknownError):
        stage.run()


def test_an_error_nobody_thought_of_ends_the_recovery() -> None:
    stage = Stage()
    stage.machine.fail(RuntimeError("nobody thought of this"))
    stage.machine.handle(MetadataFound(ledger(), 3))
    with pytest.raises(RuntimeError):
        stage.run()
    assert stage.calls == []
