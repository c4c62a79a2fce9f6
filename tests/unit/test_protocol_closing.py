"""Closing by the writer: every re-read rule, and every interleaving with recoveries and re-replication (C13, C14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from random import Random

import pytest

from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code, DigestType
from bk_spark.protocol.entries.digest import Buffer, digest_function
from bk_spark.protocol.entries.entry import Entry, pack_entry, verify_entry
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger.closing import ATTEMPTS, LedgerClosing
from bk_spark.protocol.ledger.end_search import EndSearch, EntryFailed, EntryRead, ReadEntry
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
    ReadMetadata,
)
from bk_spark.protocol.machine import EndedBy, Succeeded
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire.answers_v2 import ReadAnswer
from tests.support.ledgers import LEDGER, PASSWORD, ledger

PLAIN = Quorum(3, 3, 2)
START = ledger(PLAIN, (0, "b1 b2 b3"), (5, "b1 b2 b4"))
END = (9, 100)
VERSION = 7
UNKNOWN = MetadataFailed(OutcomeUnknownError("connection lost"))
CONFLICT = MetadataFailed(MetadataConflictError("changed by another client"))


def closing(**settings: int) -> LedgerClosing:
    return LedgerClosing(LEDGER, START, VERSION, *END, **settings)


def proposal(machine: LedgerClosing, version: int = VERSION) -> LedgerMetadata:
    (action,) = machine.take_actions()
    assert isinstance(action, CompareAndSet)
    assert action.version == version
    return action.metadata


def found(machine: LedgerClosing, metadata: LedgerMetadata, version: int = VERSION + 1) -> None:
    """The compare-and-set loses, and reading shows ``metadata``."""
    machine.handle(CONFLICT)
    assert machine.take_actions() == [ReadMetadata()]
    machine.handle(MetadataFound(metadata, version))


def outcome(machine: LedgerClosing) -> LedgerMetadata | Exception:
    assert machine.take_actions() == []
    match machine.outcome:
        case Succeeded(metadata):
            return metadata
        case EndedBy(error):
            return error
    raise AssertionError("it has not ended")


def test_nobody_interferes() -> None:
    machine = closing()
    closed = proposal(machine)
    assert closed == START.closed(*END)
    machine.handle(MetadataWritten(closed, VERSION + 1))
    assert outcome(machine) == closed
    # Later events are ignored.
    machine.handle(MetadataFound(START.closed(1, 1), VERSION + 2))
    machine.handle(UNKNOWN)
    machine.fail(MetadataUnavailableError("away"))
    assert outcome(machine) == closed


@pytest.mark.parametrize("lost", [UNKNOWN, CONFLICT])
def test_c13_a_lost_reply_is_found_out(lost: MetadataFailed) -> None:
    machine = closing()
    closed = proposal(machine)
    machine.handle(lost)
    assert machine.take_actions() == [ReadMetadata()]
    machine.handle(MetadataFound(closed, VERSION + 1))
    assert outcome(machine) == closed


def test_c13_a_lost_request_is_sent_again() -> None:
    machine = closing()
    proposal(machine)
    machine.handle(UNKNOWN)
    machine.take_actions()
    machine.handle(MetadataFound(START, VERSION))
    assert proposal(machine) == START.closed(*END)


@pytest.mark.parametrize("end", [(8, 90), (9, 99), (10, 110), (-1, 0)])
def test_closed_elsewhere(end: tuple[int, int]) -> None:
    machine = closing()
    proposal(machine)
    found(machine, START.closed(*end))
    error = outcome(machine)
    assert isinstance(error, LedgerFencedError)
    assert f"at entry {end[0]} ({end[1]} bytes)" in error.message
    assert "last acknowledged entry is 9 (100 bytes)" in error.message


@pytest.mark.parametrize(
    "change",
    [
        lambda: replace(START, segments=(Segment(0, ("b1", "b2", "b9")), START.segments[1])),
        lambda: replace(START, segments=(START.segments[0], Segment(5, ("b1", "b9", "b4")))),
        START.in_recovery,
        lambda: replace(START.in_recovery(), custom_metadata={"by": b"somebody"}),
    ],
    ids=["re-replicated", "last segment re-replicated", "in recovery", "in recovery, with custom metadata"],
)
def test_changed_by_others(change: Callable[[], LedgerMetadata]) -> None:
    """The close is based on the metadata found, and keeps all of them."""
    machine = closing()
    proposal(machine)
    changed = change()
    found(machine, changed, VERSION + 3)
    assert proposal(machine, VERSION + 3) == changed.closed(*END)


@pytest.mark.parametrize(
    "segments", [START.segments[:1], (*START.segments, Segment(7, ("b7", "b8", "b9")))], ids=["one gone", "one more"]
)
def test_segments_of_a_second_writer_are_not_closed_over(segments: tuple[Segment, ...]) -> None:
    machine = closing()
    proposal(machine)
    found(machine, replace(START, segments=segments))
    error = outcome(machine)
    assert isinstance(error, MetadataConflictError)
    assert "this writer's at [0, 5]" in error.message


def test_metadata_that_keep_changing() -> None:
    machine = closing()
    for _ in range(ATTEMPTS):
        proposal(machine)
        found(machine, START.in_recovery(), VERSION)
    assert isinstance(outcome(machine), MetadataConflictError)


@pytest.mark.parametrize("error", [MetadataUnavailableError("away"), OutcomeUnknownError("the session is lost")])
@pytest.mark.parametrize("lost", [UNKNOWN, CONFLICT])
def test_metadata_that_cannot_be_read(error: BookKeeperError, lost: MetadataFailed) -> None:
    machine = closing()
    proposal(machine)
    machine.handle(lost)
    machine.take_actions()
    machine.handle(MetadataFailed(error))
    assert outcome(machine) is error


@pytest.mark.parametrize("error", [MetadataUnavailableError("away"), NoSuchLedgerError("deleted")])
def test_metadata_that_cannot_be_written(error: BookKeeperError) -> None:
    machine = closing()
    proposal(machine)
    machine.handle(MetadataFailed(error))
    assert outcome(machine) is error


# --- C14: everybody at once ---------------------------------------------------------------------


@dataclass
class Store:
    metadata: LedgerMetadata = START
    version: int = 0
    #: All ends at which the ledger was closed.
    closed: list[LedgerMetadata] = field(default_factory=list)

    def write(self, metadata: LedgerMetadata, version: int) -> bool:
        if version != self.version:
            return False
        was_closed = self.metadata.state is LedgerState.CLOSED
        self.metadata, self.version = metadata, version + 1
        if metadata.state is LedgerState.CLOSED:
            self.closed.append(metadata)
        assert not was_closed or metadata.state is LedgerState.CLOSED
        return True


#: One client: each step is one message that reaches the store. Yields its result at the end, None before.
Client = Iterator[LedgerMetadata | BookKeeperError | None]


def writer(store: Store, lost_reply: int) -> Client:
    """The reply number ``lost_reply`` of the store is lost."""
    machine, requests = LedgerClosing(LEDGER, START, 0, *END), 0
    while machine.outcome is None:
        (action,) = machine.take_actions()
        yield None
        match action:
            case CompareAndSet(metadata, version):
                requests += 1
                done = store.write(metadata, version)
                lost = requests == lost_reply
                machine.handle(UNKNOWN if lost else MetadataWritten(metadata, version + 1) if done else CONFLICT)
            case ReadMetadata():
                machine.handle(MetadataFound(store.metadata, store.version))
    result = outcome(machine)
    assert isinstance(result, LedgerMetadata | BookKeeperError)
    yield result


def recoverer(store: Store, spare: str) -> Client:
    """It finds the writer's end, because the writer has drained. ``spare`` replaced a failed bookie."""
    while True:
        yield None
        found, version = store.metadata, store.version
        if found.state is LedgerState.CLOSED:
            yield found
            return
        if found.state is LedgerState.OPEN:
            yield None
            found = found.in_recovery()
            if not store.write(found, version):
                continue
            version += 1
        yield None
        ensemble = (spare, *found.last_segment.ensemble[1:])
        closed = found.with_segment(Segment(END[0], ensemble)).closed(*END)
        if store.write(closed, version):
            yield closed
            return


def replicator(store: Store) -> Client:
    yield None
    found, version = store.metadata, store.version
    yield None
    first = replace(found.segments[0], ensemble=("b1", "b2", "b7"))
    store.write(replace(found, segments=(first, *found.segments[1:])), version)
    yield store.metadata


Clients = Callable[[Store], list[Client]]


@pytest.mark.parametrize("lost_reply", [0, 1, 2])
@pytest.mark.parametrize(
    "others",
    [
        lambda store: [recoverer(store, "b8"), recoverer(store, "b9")],
        lambda store: [recoverer(store, "b8"), replicator(store)],
    ],
    ids=["two recoverers", "a recoverer and re-replication"],
)
def test_c14_every_interleaving_gives_one_end(others: Clients, lost_reply: int) -> None:
    """A writer that closes among others: every order in which their messages reach the store. Orders in which every
    client saw the same are tried once."""
    orders: list[tuple[int, ...]] = [()]
    known: set[object] = set()
    ends = over_recovery = 0
    while orders:
        order = orders.pop()
        store = Store()
        clients = [writer(store, lost_reply), *others(store)]
        results: dict[int, LedgerMetadata | BookKeeperError] = {}
        saw: list[list[tuple[int, LedgerState, object]]] = [[] for _ in clients]
        for number in order:
            saw[number].append((store.version, store.metadata.state, store.metadata.segments))
            result = next(clients[number])
            if result is not None:
                results[number] = result
        key = (tuple(map(tuple, saw)), store.version, store.metadata.state, store.metadata.segments)
        if key in known:
            continue
        known.add(key)
        left = [number for number in range(len(clients)) if number not in results]
        if left:
            orders += [(*order, number) for number in left]
            continue
        ends += 1
        assert store.metadata.state is LedgerState.CLOSED
        # Re-replication may write a closed ledger again, at the same end.
        assert {(closed.last_entry_id, closed.length) for closed in store.closed} == {END}
        for result in results.values():
            assert isinstance(result, LedgerMetadata), result
        over_recovery += any(seen[1] is LedgerState.IN_RECOVERY for seen in saw[0])
    assert ends > 50
    assert over_recovery > 10


# --- why closing over IN_RECOVERY is safe -------------------------------------------------------

DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
PAYLOADS = [b"first", b"second one"]
DRAINED = (1, sum(map(len, PAYLOADS)))


def answer(holders: Sequence[frozenset[str]], read: ReadEntry) -> ReadAnswer:
    held = [entry_id for entry_id, at in enumerate(holders) if read.bookie_id in at]
    wanted = max(held, default=NO_ENTRY) if read.entry_id == LAST_ENTRY else read.entry_id
    if wanted not in held:
        return ReadAnswer(LEDGER, read.entry_id, Code.NO_ENTRY, memoryview(b""))
    length = sum(map(len, PAYLOADS[: wanted + 1]))
    stored = pack_entry(LEDGER, wanted, wanted - 1, length, PAYLOADS[wanted], DIGEST)
    return ReadAnswer(LEDGER, read.entry_id, Code.OK, memoryview(stored))


def verify(stored: Buffer, entry_id: int | None) -> Entry:
    return verify_entry(stored, LEDGER, entry_id, DigestType.CRC32C, DIGEST)


def recovered_end(holders: Sequence[frozenset[str]], silent: str | None, order: Random) -> tuple[int, int] | None:
    """Return the end that a recovery finds when bookies answer in any order. None if it cannot tell."""
    search = EndSearch(LEDGER, ledger(PLAIN).in_recovery(), verify, read_timeout_ms=1, read_ahead_entries=2)
    reads: list[ReadEntry] = []
    written = 0
    while search.outcome is None:
        reads += [action for action in search.take_actions() if isinstance(action, ReadEntry)]
        order.shuffle(reads)
        read = reads.pop(0)
        if read.bookie_id == silent:
            error = BookieUnavailableError("away")
            search.handle(EntryFailed(read.attempt, read.bookie_id, read.entry_id, error))
        else:
            search.handle(EntryRead(read.attempt, read.bookie_id, read.entry_id, answer(holders, read)))
        written += sum(len(entry.payload) for entry in search.take_found())
    if isinstance(search.outcome, EndedBy):
        return None
    assert search.length is not None
    return search.outcome.result, search.length + written


BOOKIES = ("b1", "b2", "b3")
ACK_QUORUMS = [frozenset(some) for size in (2, 3) for some in combinations(BOOKIES, size)]


@pytest.mark.parametrize("silent", [None, *BOOKIES])
def test_a_recovery_of_a_drained_ledger_finds_its_very_end(silent: str | None) -> None:
    """For every placement of acknowledged entries, every bookie away, and every order of answers."""
    told = 0
    for holders in product(ACK_QUORUMS, repeat=2):
        for seed in range(20):
            end = recovered_end(holders, silent, Random(seed))
            assert end in (DRAINED, None)
            told += end is not None
    assert told > 100
