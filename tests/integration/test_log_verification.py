"""What verification of a log finds, and what it does not take for a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.log.formats.page import decode_page, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.znodes import decode_head, encode_head
from bk_spark.log.verification import MAX_UNREADABLE_IN_A_ROW, NO_LEDGER, Kind, Problem, Verification
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster
from tests.support.registrations import mend

PASSWORD = b"secret"
#: Everything on one bookie.
SETTINGS = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
CONFIG = ClientConfig(read_attempts=1, explicit_lac_interval_ms=50)


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri, CONFIG) as running:
        yield running


@pytest.fixture
def log(client: BlockingClient, fresh_root: str) -> Log:
    return LogStore.of(client, fresh_root).create_log("events", SETTINGS, PASSWORD)


def write(log: Log, batch_id: int, count: int, merge_schema: str | None = None) -> int:
    """A closed ledger with all of its ``count`` entries committed: one segment."""
    writer = log.create_ledger("app", "run")
    writer.append_many([b"%d" % number for number in range(count)])
    log.ledgers.close(writer.ledger_id)
    parts = (LedgerRange(writer.ledger_id, 0, count - 1, count, count),)
    message = CommitMessage(log.log_id, "app", "run", "q", batch_id, 0, parts)
    log.commit(CommitRequest.from_messages([message], merge_schema=merge_schema))
    return writer.ledger_id


def problems(log: Log, *, read_entries: bool = True) -> list[tuple[Kind, int, int, int]]:
    return [(p.kind, p.start, p.end, p.ledger_id) for p in Verification(log, read_entries=read_entries).problems()]


def test_settings_that_are_older_than_the_list(client: BlockingClient, fresh_root: str) -> None:
    """As after a znode was restored by hand."""
    schema = '{"type":"struct","fields":[{"name":"id","type":"integer"}]}'
    settings = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.ARROW, PASSWORD, schema)
    log = LogStore.of(client, fresh_root).create_log("grown", settings, PASSWORD)
    old = client.zookeeper.get(log.paths.settings)
    assert old is not None
    write(log, 0, 3)
    ledger_id = write(log, 1, 4, schema.replace("integer", "long"))
    assert problems(log, read_entries=False) == []
    client.zookeeper.transaction([SetOp(log.paths.settings, old.data, -1)])
    assert problems(log, read_entries=False) == [(Kind.SCHEMA_MISSING, 3, 7, ledger_id)]


def test_nothing_is_wrong_with_ledgers_at_work_and_ledgers_of_others(log: Log, client: BlockingClient) -> None:
    write(log, 0, 10)
    outside = client.create(password=PASSWORD)
    outside.append_many([b"a", b"b"])
    outside.close()
    log.append_ledger(outside.ledger_id)
    at_work = log.create_ledger("app", "run")
    at_work.append_many([b"x"] * 4)
    at_work.flush()
    message = CommitMessage(log.log_id, "app", "run", "q", 1, 0, (LedgerRange(at_work.ledger_id, 1, 3, 3, 3),))
    log.commit(CommitRequest.from_messages([message]))
    with log.open_writer() as writer:
        writer.append(b"tail")
        writer.flush()
        verification = Verification(log)
        assert list(verification.problems()) == []
        assert verification.counts.entries_read == verification.counts.entries == 15
        assert verification.counts.ledgers == 4
    log.ledgers.abandon(at_work.ledger_id)


def test_entries_that_are_listed_twice(log: Log, client: BlockingClient) -> None:
    """No change of the list makes such a one: here it is written by hand."""
    ledger_id = write(log, 0, 6)
    path = log.paths.page(0)
    znode, head_znode = client.zookeeper.get(path), client.zookeeper.get(log.paths.head)
    assert znode is not None
    assert head_znode is not None
    page = decode_page(znode.data, path, log_id=log.log_id, number=0)
    segment = next(iter(page.table))
    again = replace(segment, first_entry=3, last_entry=5, base_offset=6, rows=3)
    broken = replace(page, table=SegmentTable.concat([page.table, SegmentTable.of([again])]), commits=None)
    head = replace(decode_head(head_znode.data, log.paths.head), next_offset=9)
    client.zookeeper.transaction(
        [SetOp(path, encode_page(broken), -1), SetOp(log.paths.head, encode_head(head), head_znode.version)]
    )
    found = list(Verification(log).problems())
    assert [(p.kind, p.start, p.end) for p in found] == [(Kind.LISTED_TWICE, 6, 9)]
    assert found == [Problem(Kind.LISTED_TWICE, 6, 9, ledger_id, "the same entries are at offset 3")]


def test_metadata_that_cannot_be_understood(log: Log, client: BlockingClient) -> None:
    first, second = write(log, 0, 2), write(log, 1, 2)
    zk = client.zookeeper
    zk.transaction([SetOp(log.ledgers.ledger_path(first), b"BookieMetadataFormatVersion\t9\n", -1)])
    zk.transaction([SetOp(log.paths.registration("app", "run", second), b"\x08\x63", -1)])
    assert problems(log) == [(Kind.METADATA_UNREADABLE, 0, 2, first), (Kind.METADATA_UNREADABLE, 2, 4, second)]


def test_znodes_that_are_no_ledgers_are_named_and_do_not_hide_other_problems(log: Log, client: BlockingClient) -> None:
    first, second = write(log, 0, 2), write(log, 1, 2)
    outside = client.create(password=PASSWORD)
    outside.append(b"a")
    outside.close()
    log.append_ledger(outside.ledger_id)
    run = log.paths.run("app", "run")
    foreign = [f"{log.paths.appended}/backup", f"{run}/0{first}", f"{run}/٣"]
    zk = client.zookeeper
    zk.transaction([*map(CreateOp, foreign), DeleteOp(log.paths.registration("app", "run", second))])
    found = list(Verification(log).problems())
    assert {(p.kind, p.start, p.end, p.ledger_id) for p in found} == {
        (Kind.FOREIGN_ZNODE, 0, 0, NO_LEDGER),
        (Kind.NOT_REGISTERED, 2, 4, second),
    }
    assert sorted(p.detail.split()[1] for p in found if p.kind is Kind.FOREIGN_ZNODE) == sorted(foreign)
    assert log.run_ledgers("app", "run") == [first]


def test_a_bookie_that_is_down_may_have_the_entries(
    mended_cluster: LocalCluster, log: Log, client: BlockingClient
) -> None:
    ledger_id = write(log, 0, 3 * MAX_UNREADABLE_IN_A_ROW)
    (only,) = client.metadata(ledger_id).segments[0].ensemble
    next(bookie for bookie in mended_cluster.bookies if bookie.id == only).kill()
    unreadable = [(Kind.ENTRY_UNREADABLE, n, n + 1, ledger_id) for n in range(MAX_UNREADABLE_IN_A_ROW)]
    rest = (Kind.NOT_READ, MAX_UNREADABLE_IN_A_ROW, 3 * MAX_UNREADABLE_IN_A_ROW, ledger_id)
    assert problems(log) == [*unreadable, rest]
    assert problems(log, read_entries=False) == []
    mend(mended_cluster)
    assert problems(log) == []
