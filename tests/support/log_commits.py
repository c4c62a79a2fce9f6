"""Segments put into logs without ledgers, for tests of what only looks at the list."""

from __future__ import annotations

import itertools
import uuid

from bk_spark.bookie.zookeeper import ZooKeeper
from bk_spark.log import CommitMessage, CommitRequest, LedgerRange, Log

_LEDGER_IDS = itertools.count(1)


def append(zk: ZooKeeper, log: Log, *segments: tuple[int, int], overwrite: bool = False) -> list[int]:
    """Append ``segments``, entries and bytes of each, in one commit; the made-up ledger of each."""
    app, ledgers = uuid.uuid4().hex, [next(_LEDGER_IDS) for _ in segments]
    registrar = log.ledger_registrar(app, app)
    for ledger_id in ledgers:
        zk.transaction(registrar(ledger_id))
    messages = tuple(
        CommitMessage(log.log_id, app, app, "", 0, number, (LedgerRange(ledger_id, 0, entries - 1, entries, size),))
        for number, (ledger_id, (entries, size)) in enumerate(zip(ledgers, segments, strict=True))
    )
    log.commit(CommitRequest(log.log_id, app, app, "", 0, messages, overwrite, anonymous=True))
    return ledgers
