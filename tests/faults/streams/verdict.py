"""What a log holds in the end, read with the ledger client alone, against the rows that went in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import BookKeeperError

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Content:
    """Values in the order of their offsets, and the ledgers that hold them."""

    values: list[int]
    ledgers: frozenset[int]
    segments: int


def content_of(client: BlockingClient, log: str, password: bytes) -> Content:
    """Every entry of every segment, one ledger after another. Raises what the ledger client raises."""
    values: list[int] = []
    ledgers = set()
    segments = 0
    reached = 0
    for segment in LogStore(client.zookeeper).open_log(log).snapshot().segments():
        assert segment.base_offset == reached, f"segments leave a hole at offset {reached}: {segment}"
        assert segment.last_entry is not None, f"an open tail: {segment}"
        reader = client.open_for_reading(segment.ledger_id, password, read_lac=False)
        before = len(values)
        for block in reader.read_blocks(segment.first_entry, segment.last_entry, known_to_exist=True):
            values += [int(bytes(payload)) for payload in block.payloads]
        assert len(values) - before == segment.entries, f"{segment} holds {len(values) - before} entries"
        assert segment.rows == segment.entries, f"a raw segment has one row an entry: {segment}"
        reached = segment.end_offset
        ledgers.add(segment.ledger_id)
        segments += 1
    return Content(values, frozenset(ledgers), segments)


def problems_of(content: Content, rows_per_batch: int, partitions: int | None) -> list[str]:
    """Every row once, whole batches, and in order: as a whole, or (``partitions``) within each partition of the
    rate source, which deals out a batch's numbers in turn."""
    values = content.values
    found = []
    expected = range(len(values))
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    twice = [value for value, count in counts.items() if count > 1]
    missing = [value for value in range(max(values, default=-1) + 1) if value not in counts]
    if twice:
        found.append(f"{len(twice)} rows more than once, such as {twice[:_SHOWN]}")
    if missing:
        found.append(f"{len(missing)} rows missing, such as {missing[:_SHOWN]}")
    if len(values) % rows_per_batch:
        found.append(f"{len(values)} rows are no whole batches of {rows_per_batch}")
    if found:
        return found
    for start in range(0, len(values), rows_per_batch):
        batch = values[start : start + rows_per_batch]
        want = expected[start : start + rows_per_batch]
        if partitions is not None:
            if sorted(batch) != list(want):
                found.append(f"batch at row {start} holds rows of others")
                continue
            for number in range(partitions):
                own = [value for value in batch if (value - start) % partitions == number]
                if own != sorted(own):
                    found.append(f"partition {number} of the batch at row {start} is out of order")
        elif batch != list(want):
            found.append(f"the batch at row {start} is out of order")
    return found[:_SHOWN]


def orphans_of(client: BlockingClient, log: str, content: Content) -> list[str]:
    """Registered ledgers that the log does not refer to, and referenced ones that are not there."""
    found = []
    opened = LogStore(client.zookeeper).open_log(log)
    zk = client.zookeeper
    root = f"/bk_spark/logs/{log}"
    registered = set()
    for app in zk.children(f"{root}/ledgers") or ():
        application = None
        for run in zk.children(f"{root}/ledgers/{app}") or ():
            for ledger in zk.children(f"{root}/ledgers/{app}/{run}") or ():
                registered.add(int(ledger))
                if int(ledger) not in content.ledgers:
                    application = application or opened.application(app)
                    # The present run may still hold ledgers that it has committed nothing of.
                    if application is None or application.run != run:
                        found.append(f"ledger {ledger} of run {run} is an orphan")
    for ledger_id in content.ledgers:
        if ledger_id not in registered:
            found.append(f"ledger {ledger_id} is in the list and not registered")
        try:
            client.metadata(ledger_id)
        except BookKeeperError as error:
            found.append(f"ledger {ledger_id} is in the list: {error}")
    return found
