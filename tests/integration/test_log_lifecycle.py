"""Truncation, retention, appended ledgers and deletion of logs, with real ZooKeeper and bookies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.index_move import move_steps
from bk_spark.log.core.registrations import registrar as registrar_at
from bk_spark.log.core.steps import Action, Done, Event, Found, LedgerRegistrar, Read, Sync, Transact
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import LedgerRegistration, Policy, decode_head, encode_registration
from bk_spark.log.gc.deletion import BeginDeletion
from bk_spark.log.runs import LogRuns
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LedgerFencedError,
    LedgerRefusedError,
    LogExistsError,
    LogRangeGoneError,
    LogReplacedError,
    MetadataConflictError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.znodes import DeleteOp, SetOp, TransactionConflictError
from bk_spark.protocol.quorum import Quorum
from tests.support.logs import let_go_of_the_past

PASSWORD = b"secret"
RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
SCHEMA = '{"type":"struct","fields":[]}'
ARROW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.ARROW, PASSWORD, SCHEMA)


@dataclass
class Clock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(client: BlockingClient, fresh_root: str, clock: Clock) -> LogStore:
    return LogStore(client.zookeeper, f"{fresh_root}/logs", client=client, now_ms=clock)


@pytest.fixture
def log(store: LogStore) -> Log:
    return store.create_log("events", RAW, PASSWORD)


def commit(log: Log, batch_id: int, *parts: LedgerRange, run: str = "r0") -> None:
    messages = [CommitMessage(log.log_id, "app", run, "q", batch_id, n, (part,)) for n, part in enumerate(parts)]
    log.commit(CommitRequest(log.log_id, "app", run, "q", batch_id, tuple(messages)))


def write(log: Log, payloads: list[bytes], *, run: str = "r0") -> int:
    """A closed ledger registered for a run."""
    writer = log.create_ledger("app", run)
    writer.append_many(payloads)
    log.ledgers.close(writer.ledger_id)
    return writer.ledger_id


def foreign(client: BlockingClient, payloads: list[bytes], password: bytes = PASSWORD) -> int:
    writer = client.create(password=password)
    writer.append_many(payloads)
    writer.close()
    return writer.ledger_id


def tree(client: BlockingClient, path: str) -> list[str]:
    names = client.zookeeper.children(path)
    return [] if names is None else [path, *(below for name in names for below in tree(client, f"{path}/{name}"))]


def test_truncation_drops_whole_segments_and_its_readers_are_told(log: Log) -> None:
    ledger_id = write(log, [b"x" * n for n in range(1, 31)])
    for batch in range(3):
        commit(log, batch, LedgerRange(ledger_id, 10 * batch, 10 * batch + 9, 10, 100))
    assert log.truncate(9) == 0
    before = log.snapshot()
    assert log.truncate(25) == 20
    snapshot = log.snapshot()
    assert (snapshot.first_offset, snapshot.next_offset) == (20, 30)
    assert [s.base_offset for s in snapshot.segments()] == [20]
    assert [s.base_offset for s in before.segments()] == [0, 10, 20]
    with pytest.raises(LogRangeGoneError, match=r"offsets \[5, 20\) are gone"):
        snapshot.segments(5, 25)
    assert log.truncate(3) == 20
    with pytest.raises(InvalidArgumentError, match="ends at offset 30: it cannot be truncated up to 99999;"):
        log.truncate(99_999)
    assert log.snapshot().first_offset == 20
    assert log.truncate(30, dry_run=True) == 30
    assert log.snapshot().first_offset == 20
    assert log.truncate(30) == 30
    assert list(log.snapshot().segments()) == []
    with pytest.raises(InvalidArgumentError, match="must not be negative"):
        log.truncate(-1)


def test_truncation_over_many_pages(client: BlockingClient, log: Log) -> None:
    registrar = log.ledger_registrar("app", "r0")
    client.zookeeper.transaction(registrar(1))
    rng = Random(3)
    entry = 0
    for batch in range(4):
        parts = []
        for _ in range(4_000):
            count = rng.randrange(1, 50)
            parts.append(LedgerRange(1, entry, entry + count - 1, rng.randrange(1 << 20), rng.randrange(1 << 30)))
            entry += count + 1
        commit(log, batch, *parts)
    snapshot = log.snapshot()
    tables = list(snapshot.tables())
    assert len(tables) > 4
    assert [t.columns[3].tolist() for t in snapshot.tables_from_end()] == [t.columns[3].tolist() for t in tables[::-1]]
    for table in tables[1::2]:
        middle = int(table.base_offset[len(table) // 2])
        assert log.truncate(middle) == middle
        assert next(log.snapshot().segments()).base_offset == middle


def test_truncation_and_retention_by_size_in_index_ledgers(client: BlockingClient, log: Log, store: LogStore) -> None:
    client.zookeeper.transaction(log.ledger_registrar("app", "r0")(1))
    rng = Random(4)
    entry = 0
    for batch in range(3):
        parts = []
        for _ in range(4_000):
            count = rng.randrange(1, 50)
            parts.append(LedgerRange(1, entry, entry + count - 1, rng.randrange(1 << 20), rng.randrange(1 << 30)))
            entry += count + 1
        commit(log, batch, *parts)
    tables = list(log.snapshot().tables())
    moved = log.run(move_steps(log.paths, lambda: 1, max_znode_pages=1, keep_pages=1))
    assert moved.pages >= 2
    segments = list(log.snapshot().segments())
    middle = segments[len(tables[0]) + 20]
    assert log.truncate(middle.end_offset - 1) == middle.base_offset
    assert next(log.snapshot().segments()) == middle
    let_go_of_the_past(log)
    head = decode_head(client.zookeeper.get(log.paths.head).data, "head")  # type: ignore[union-attr]
    assert (head.first_page, head.first_offset) == (1, middle.base_offset)

    later = segments[len(tables[0]) + 500]
    log.set_policy(Policy(retention_size_bytes=sum(s.size_bytes for s in segments[len(tables[0]) + 500 :])))
    assert log.apply_retention() == later.base_offset
    assert log.apply_retention() == later.base_offset
    # Without the ledgers the index is out of reach.
    with pytest.raises(InvalidArgumentError, match="index ledgers: open the log with its password"):
        store.open_log("events").truncate(later.end_offset)


def test_retention_leaves_what_a_log_writer_wrote_until_all_of_it_is_old(
    metadata_service_uri: str, fresh_root: str, clock: Clock
) -> None:
    config = ClientConfig(explicit_lac_interval_ms=50)
    with BlockingClient(metadata_service_uri, config) as client:
        store = LogStore(client.zookeeper, f"{fresh_root}/logs", client=client, now_ms=clock)
        log = store.create_log("events", RAW, PASSWORD)
        log.set_policy(Policy(retention_time_ms=100_000))
        with log.open_writer() as writer:
            writer.append(b"early")
            writer.flush()
            clock.now_ms += 1_000_000
            assert log.apply_retention() == 0
            writer.append(b"late")
        # Its segment has the time of the opening, but it was written to until just now.
        assert (log.apply_retention(), log.snapshot().next_offset) == (0, 2)
        clock.now_ms += 100_001 + COMMIT_TIME_LAG_MS
        with log.open_writer() as writer:
            assert log.apply_retention() == 0
            clock.now_ms += 100_001 + COMMIT_TIME_LAG_MS
            assert log.apply_retention() == 2
            writer.append(b"third")
        assert (log.snapshot().first_offset, log.snapshot().next_offset) == (2, 3)


def test_retention_by_time(log: Log, clock: Clock) -> None:
    assert log.policy() == Policy()
    assert log.apply_retention() == 0
    ledger_id = write(log, [b"x"] * 40)
    for batch, at_ms in enumerate((1_000_000, 2_000_000, 2_000_000, 3_000_000)):
        clock.now_ms = at_ms
        commit(log, batch, LedgerRange(ledger_id, 10 * batch, 10 * batch + 9, 10, 100))
    log.set_policy(Policy(retention_time_ms=500_000))
    log.set_policy(Policy(retention_time_ms=1_500_000))
    assert log.policy() == Policy(retention_time_ms=1_500_000)
    # The first segment is surely older than the limit when the one after it is.
    for at_ms, first in ((3_400_000, 0), (3_500_000, 0), (3_500_001, 20), (4_500_000, 20), (4_500_001, 40)):
        # A commit may have come a little after its time.
        clock.now_ms = at_ms + COMMIT_TIME_LAG_MS
        assert log.apply_retention() == first
        assert log.snapshot().first_offset == first
    assert log.apply_retention() == 40
    with pytest.raises(InvalidArgumentError, match=r"retention time \(ms\) must be 0 .* not -1"):
        log.set_policy(Policy(retention_time_ms=-1))


def test_retention_by_size(log: Log) -> None:
    ledger_id = write(log, [b"x"] * 40)
    for batch, size in enumerate((100, 50, 70, 10)):
        commit(log, batch, LedgerRange(ledger_id, 10 * batch, 10 * batch + 9, 10, size))
    for limit, first in ((300, 0), (230, 0), (131, 0), (130, 10), (81, 10), (80, 20), (11, 20), (10, 30), (1, 30)):
        log.set_policy(Policy(retention_size_bytes=limit))
        assert log.apply_retention() == first, limit
    log.set_policy(Policy())
    assert log.apply_retention() == 30


def test_a_ledger_of_others_becomes_a_segment(client: BlockingClient, store: LogStore, log: Log) -> None:
    own = write(log, [b"own"] * 3)
    commit(log, 0, LedgerRange(own, 0, 2, 3, 9))
    ledger_id = foreign(client, [b"a", b"bb", b"ccc"])
    assert log.append_ledger(ledger_id) == range(3, 6)
    (segment,) = log.snapshot().segments(3, 6)
    assert (segment.ledger_id, segment.entries, segment.rows, segment.size_bytes) == (ledger_id, 3, 3, 6)
    with pytest.raises(LedgerRefusedError, match=f"in the log already, from offset 3 on .*ledger {ledger_id}"):
        log.append_ledger(ledger_id)

    with pytest.raises(LedgerRefusedError, match="was made for this log"):
        log.append_ledger(own)
    with pytest.raises(LedgerRefusedError, match="cannot be read with the log's password"):
        log.append_ledger(foreign(client, [b"a"], b"another"))
    with pytest.raises(NoSuchLedgerError):
        log.append_ledger(1 << 50)
    writer = client.create(password=PASSWORD)
    with pytest.raises(LedgerRefusedError, match="is OPEN"):
        log.append_ledger(writer.ledger_id)
    writer.close()
    with pytest.raises(LedgerRefusedError, match="is empty"):
        log.append_ledger(writer.ledger_id)
    arrow = store.create_log("tables", ARROW, PASSWORD)
    with pytest.raises(LedgerRefusedError, match="entryFormat arrow"):
        arrow.append_ledger(ledger_id)
    with pytest.raises(InvalidArgumentError, match="without its password"):
        store.open_log("events").append_ledger(ledger_id)
    assert log.snapshot().next_offset == 6


def test_l5_a_log_is_deleted_with_its_ledgers_and_made_again(
    client: BlockingClient, store: LogStore, log: Log, fresh_root: str
) -> None:
    committed = write(log, [b"x"] * 10)
    commit(log, 0, LedgerRange(committed, 0, 9, 10, 10))
    unreferenced = write(log, [b"x"], run="r1")
    outside = foreign(client, [b"kept"])
    log.append_ledger(outside)
    log.set_policy(Policy(1, 1))
    # Somebody is still writing, and holds a message that is not committed.
    writer = log.create_ledger("app", "r0")
    writer.append(b"y")
    writer.flush()
    reader = store.open_log("events", password=PASSWORD)
    old_id = log.log_id

    with pytest.raises(UnauthorizedError, match="wrong password for log events"):
        store.delete_log("events", b"wrong")
    with pytest.raises(InvalidArgumentError, match="only be deleted from a store that has a client"):
        LogStore(client.zookeeper, store.root).delete_log("events", PASSWORD)
    report = store.delete_log("events", PASSWORD)
    assert (report.ledgers, report.not_fenced) == (3, ())
    assert tree(client, f"{store.root}/events") == []
    for ledger_id in (committed, unreferenced, writer.ledger_id):
        with pytest.raises(NoSuchLedgerError):
            client.metadata(ledger_id)
    assert client.open_for_reading(outside, PASSWORD).read(0, 0) == [b"kept"]
    writer.append(b"z")
    with pytest.raises(LedgerFencedError):
        writer.flush()
    writer.abandon()
    with pytest.raises(NoSuchLogError):
        reader.snapshot()
    with pytest.raises(NoSuchLogError):
        store.delete_log("events", PASSWORD)
    assert store.list_logs() == []

    again = store.create_log("events", RAW, PASSWORD)
    assert again.log_id != old_id
    with pytest.raises(LogReplacedError):
        reader.snapshot()
    with pytest.raises(LogReplacedError):
        commit(log, 1, LedgerRange(writer.ledger_id, 0, 0, 1, 1))
    with pytest.raises(LogReplacedError):
        store.open_log("events", log_id=old_id)
    with pytest.raises(LogReplacedError):
        log.truncate(5)
    assert (again.snapshot().first_offset, again.snapshot().next_offset) == (0, 0)


def test_a_half_deleted_log_is_none_and_its_deletion_goes_on(client: BlockingClient, store: LogStore, log: Log) -> None:
    ledger_id = write(log, [b"x"])
    paths = LogPaths(store.root, "events", log.log_id)
    log.change(BeginDeletion(paths))
    assert not store.exists("events")
    assert store.list_logs() == []
    assert store.list_logs(deleted=True) == ["events"]
    with pytest.raises(NoSuchLogError, match="not all of its znodes .* are gone yet .* delete it again"):
        store.open_log("events")
    with pytest.raises(LogExistsError, match="not all of its znodes .* are gone yet .* delete it again"):
        store.create_log("events", RAW, PASSWORD)
    with pytest.raises(NoSuchLogError, match="was deleted"):
        log.snapshot()
    with pytest.raises((NoSuchLogError, MetadataConflictError)):
        write(log, [b"x"])
    assert store.delete_log("events", PASSWORD).ledgers == 1
    with pytest.raises(NoSuchLedgerError):
        client.metadata(ledger_id)
    store.create_log("events", RAW, PASSWORD)


def test_deleting_while_somebody_holds_the_lock_and_the_tail(client: BlockingClient, store: LogStore, log: Log) -> None:
    """Ephemeral znodes under the head go too, and a ledger that is gone already is no obstacle."""
    ledger_id = write(log, [b"x"])
    client.delete(ledger_id)
    client.zookeeper.create(f"{log.paths.lock}/holder-0000000000", ephemeral=True)
    client.zookeeper.create(log.paths.owner, b"", ephemeral=True)
    # Of another cluster, or made anew under the id of one that was deleted: not the log's.
    writer = client.create(password=PASSWORD)
    registration = f"{log.paths.run('app', 'r0')}/{writer.ledger_id}"
    client.zookeeper.create(registration, encode_registration(LedgerRegistration()))
    assert store.delete_log("events", PASSWORD).ledgers == 0
    assert tree(client, f"{store.root}/events") == []
    writer.append(b"x")
    assert writer.close().last_entry_id == 0


def test_a_deletion_that_arrives_late_is_refused_by_the_next_log(
    client: BlockingClient, store: LogStore, log: Log
) -> None:
    """The first transaction of a deletion that was lost arrives when the log has been made again."""
    steps = change_steps(BeginDeletion(log.paths), lambda: 5)
    action = next(steps)
    while not isinstance(action, Transact):
        action = steps.send(_performed(client, action))
    store.delete_log("events", PASSWORD)
    store.create_log("events", RAW, PASSWORD)
    with pytest.raises(MetadataConflictError):
        client.zookeeper.transaction(action.operations)
    assert {type(op) for op in action.operations} >= {DeleteOp, SetOp}
    assert store.exists("events")


def test_a_ledger_that_was_made_for_another_log_is_not_appended(store: LogStore, log: Log) -> None:
    """The other log's reaper knows nothing of this one."""
    ledger_id = write(log, [b"x"])
    other = store.create_log("others", RAW, PASSWORD)
    log.ledgers.recover(ledger_id)
    with pytest.raises(LedgerRefusedError, match="was made for log events .* append copies"):
        other.append_ledger(ledger_id)
    assert other.snapshot().next_offset == 0


def _performed(client: BlockingClient, action: Action) -> Event:
    match action:
        case Sync(path):
            client.zookeeper.sync(path)
            return Done()
        case Read(paths):
            return Found(client.zookeeper.get_many(paths))
    raise AssertionError(action)


def test_a_ledger_is_created_though_the_run_s_empty_znode_is_removed_in_between(log: Log) -> None:
    """By a reaper, after the znode was found and before the ledger is created."""
    prepare = LogRuns.ledger_registrar
    attempts = 0

    def removed_since(runs: LogRuns, app: str, run: str) -> LedgerRegistrar:
        nonlocal attempts
        attempts += 1
        registrar = prepare(runs, app, run)
        if attempts < 3:
            log.zookeeper.delete(log.paths.run(app, run))
        return registrar

    with patch.object(LogRuns, "ledger_registrar", removed_since):
        writer = log.create_ledger("app", "run")
    assert attempts == 3
    assert log.run_ledgers("app", "run") == [writer.ledger_id]
    log.ledgers.abandon(writer.ledger_id)


def test_no_ledger_is_created_for_a_run_whose_znode_is_always_removed(log: Log) -> None:
    def without_znode(runs: LogRuns, app: str, run: str) -> LedgerRegistrar:
        return registrar_at(log.paths, log.paths.run(app, run))

    with (
        patch.object(LogRuns, "ledger_registrar", without_znode),
        pytest.raises(TransactionConflictError, match="NoNodeError"),
    ):
        log.create_ledger("app", "run")
