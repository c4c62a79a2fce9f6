"""What a log holds in the end, read with the ledger client alone, against the rows that went in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.log import Log
from bk_spark.protocol.errors import BookKeeperError
from tests.support.logs import listed_ledgers, registered_ledgers
from tests.support.streams import expected_numbers

_SHOWN: Final = 5


def problems_of(values: Sequence[int], rows_per_batch: int, partitions: int | None) -> list[str]:
    """Every row once, whole batches, and in the one right order: that of the rate source with so many ``partitions``,
    or the rows' own (None)."""
    found = []
    counts = Counter(values)
    twice = [value for value, count in counts.items() if count > 1]
    missing = [value for value in range(max(values, default=-1) + 1) if value not in counts]
    if twice:
        found.append(f"{len(twice)} rows more than once, such as {twice[:_SHOWN]}")
    if missing:
        found.append(f"{len(missing)} rows missing, such as {missing[:_SHOWN]}")
    batches, rest = divmod(len(values), rows_per_batch)
    if rest:
        found.append(f"{len(values)} rows are no whole batches of {rows_per_batch}")
    if not found:
        expected = expected_numbers(rows_per_batch, partitions or 1, batches)
        displaced = [offset for offset, value in enumerate(values) if value != expected[offset]]
        if displaced:
            shown = [(offset, values[offset], expected[offset]) for offset in displaced[:_SHOWN]]
            found.append(f"{len(displaced)} rows out of order, such as (offset, row, expected row) {shown}")
    return found


def orphans_of(client: BlockingClient, log: Log, *, days_later: bool) -> list[str]:
    """Registered ledgers that the log does not refer to, and referenced ones that are not there. A run that never
    committed may still do so, and keeps its ledgers, until ``days_later``."""
    found = []
    listed, registered = listed_ledgers(log), registered_ledgers(log)
    for ledger_id, (app, run) in registered.items():
        if ledger_id not in listed:
            application = log.application(app)
            # The present run may still hold ledgers that it has committed nothing of.
            gone = application is not None and application.successor_of(run) is not None
            if gone or (days_later and (application is None or application.run != run)):
                found.append(f"ledger {ledger_id} of run {run} is an orphan")
    for ledger_id in listed:
        if ledger_id not in registered:
            found.append(f"ledger {ledger_id} is in the list and not registered")
        try:
            client.metadata(ledger_id)
        except BookKeeperError as error:
            found.append(f"ledger {ledger_id} is in the list: {error}")
    return found
