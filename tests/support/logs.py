"""Logs on the session's cluster, for tests of log writers and readers."""

from __future__ import annotations

import uuid

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, Log, LogSettings, LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.quorum import Quorum

PASSWORD = b"secret"
RAW = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.RAW, PASSWORD)
#: A log writer must tell its last add confirmed when it pauses.
TELLING = ClientConfig(explicit_lac_interval_ms=100)


def new_log(client: BlockingClient) -> Log:
    return LogStore.of(client).create_log(f"log-{uuid.uuid4().hex[:12]}", RAW, PASSWORD)


def entries(log: Log) -> list[bytes]:
    """Of all sealed segments, read with the ledger client alone."""
    found: list[bytes] = []
    for segment in log.snapshot().segments():
        assert segment.base_offset == len(found)
        assert segment.last_entry is not None
        reader = log.ledgers.reader(segment.ledger_id)
        for block in reader.read_blocks(segment.first_entry, segment.last_entry, known_to_exist=True):
            found += map(bytes, block.payloads)
    return found


def commit(log: Log, batch_id: int, payloads: list[bytes], *, fence_tail: bool = False) -> None:
    """As Spark does it; of a ledger of its own that stays open."""
    writer = log.ledgers.create(log.ledger_registrar("app", "run"))
    last = writer.append_many(payloads)
    writer.flush()
    part = LedgerRange(writer.ledger_id, 0, last, len(payloads), sum(map(len, payloads)))
    message = CommitMessage(log.log_id, "app", "run", "query", batch_id, 0, (part,))
    log.commit(CommitRequest.from_messages([message], fence_tail=fence_tail))
    log.ledgers.abandon(writer.ledger_id)
