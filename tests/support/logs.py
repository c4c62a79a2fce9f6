"""Logs on the session's cluster, for tests of log writers and readers, and of code that only reads the list."""

from __future__ import annotations

import itertools
import uuid

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.log.gc.expiry import expire_steps
from bk_spark.log.gc.retention import policy_steps
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"secret"
RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
#: A log writer must publish its last add confirmed when it pauses.
TELLING = ClientConfig(explicit_lac_interval_ms=100)

_MADE_UP_IDS = itertools.count(1)


def new_log(client: BlockingClient, settings: LogSettings = RAW) -> Log:
    return LogStore.of(client).create_log(f"log-{uuid.uuid4().hex[:12]}", settings, PASSWORD)


def entries(log: Log) -> list[bytes]:
    """The entries of all sealed segments of an untruncated raw log, read with the ledger client alone."""
    found: list[bytes] = []
    for segment in log.snapshot().segments():
        assert segment.base_offset == len(found), f"segments leave a hole at offset {len(found)}: {segment}"
        assert segment.last_entry is not None, f"an open tail: {segment}"
        reader = log.ledgers.reader(segment.ledger_id)
        for block in reader.read_blocks(segment.first_entry, segment.last_entry, known_to_exist=True):
            found += map(bytes, block.payloads)
        assert len(found) == segment.end_offset, f"{segment} holds {len(found) - segment.base_offset} entries"
        assert segment.rows == segment.entries, f"a raw segment has one row an entry: {segment}"
    return found


def listed_ledgers(log: Log) -> set[int]:
    """Ledgers that hold committed entries."""
    return {segment.ledger_id for segment in log.snapshot().segments()}


def registered_ledgers(log: Log) -> dict[int, tuple[str, str]]:
    """All ledgers created for a log; the application and the run of each, in the form of their znodes' names."""
    zk, root = log.zookeeper, log.paths.ledgers
    return {
        int(ledger): (app, run)
        for app in zk.children(root) or ()
        for run in zk.children(f"{root}/{app}") or ()
        for ledger in zk.children(f"{root}/{app}/{run}") or ()
    }


def commit(log: Log, batch_id: int, payloads: list[bytes], *, fence_tail: bool = False) -> None:
    """Commit like Spark, with a ledger of its own that stays open."""
    writer = log.create_ledger("app", "run")
    last = writer.append_many(payloads)
    writer.flush()
    part = LedgerRange(writer.ledger_id, 0, last, len(payloads), sum(map(len, payloads)))
    message = CommitMessage(log.log_id, "app", "run", "query", batch_id, 0, (part,))
    log.commit(CommitRequest.from_messages([message], fence_tail=fence_tail))
    log.ledgers.abandon(writer.ledger_id)


def commit_made_up(log: Log, *segments: tuple[int, int], overwrite: bool = False) -> list[int]:
    """Append ``segments``, entries and bytes of each, in one commit without ledgers; return each segment's made-up
    ledger."""
    app, ledgers = uuid.uuid4().hex, [next(_MADE_UP_IDS) for _ in segments]
    registrar = log.ledger_registrar(app, app)
    log.zookeeper.transaction([operation for ledger_id in ledgers for operation in registrar(ledger_id)])
    messages = tuple(
        CommitMessage(log.log_id, app, app, "", 0, number, (LedgerRange(ledger_id, 0, entries - 1, entries, size),))
        for number, (ledger_id, (entries, size)) in enumerate(zip(ledgers, segments, strict=True))
    )
    log.commit(CommitRequest(log.log_id, app, app, "", 0, messages, overwrite, anonymous=True))
    return ledgers


def let_go_of_the_past(log: Log) -> None:
    """Drop from the list what was truncated or overwritten, as the reaper does first."""
    log.run(expire_steps(log.paths, log.run(policy_steps(log.paths)), lambda: 0))
