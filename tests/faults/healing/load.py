"""What clients write before and while bookies are lost: small ledgers, long ones, and ledgers under way."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from bk_spark.bookie.client import Client
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from tests.faults.clients import CONFIG, Load, Writer, Written
from tests.faults.payloads import payload
from tests.faults.timeline import Timeline

#: So many that the auditor's search pauses before it marks them.
_SMALL_LEDGERS: Final = 110
_SMALL_ENTRIES: Final = 3
_AT_ONCE: Final = 8
_TEXT_VERSION: Final = 2
#: Their copies take seconds.
_LONG_LEDGERS: Final = 6
_LONG_ENTRIES: Final = 400
_WRITERS: Final = 3
_WRITE_TIMEOUT_S: Final = 60.0


class Claim(Protocol):
    """What a client says it wrote. ``seed`` decides the payloads."""

    @property
    def seed(self) -> int: ...

    @property
    def ledgers(self) -> list[Written]: ...


@dataclass(slots=True)
class SmallLedgers:
    seed: int
    ledgers: list[Written] = field(default_factory=list)


def write_small_ledgers(uri: str, seed: int, quorum: Quorum) -> SmallLedgers:
    """Write closed ledgers of a few entries. Half of them get metadata in the text format of older clients."""
    claim = SmallLedgers(seed)

    async def write() -> None:
        numbers = itertools.count()

        async def some() -> None:
            for number in numbers:
                if number >= _SMALL_LEDGERS:
                    return
                writer = await client.create(quorum=quorum)
                first = number * _SMALL_ENTRIES
                written = Written(writer.ledger_id, first, _SMALL_ENTRIES)
                await writer.append_many(Payloads.of([payload(seed, first + i) for i in range(_SMALL_ENTRIES)]))
                written.closed = await writer.close()
                written.acknowledged = _SMALL_ENTRIES
                claim.ledgers.append(written)

        async with Client(uri, CONFIG) as client:
            await asyncio.gather(*(some() for _ in range(_AT_ONCE)))

    asyncio.run(write())
    _rewrite(uri, claim.ledgers[::2])
    return claim


def _rewrite(uri: str, ledgers: list[Written]) -> None:
    parsed = MetadataServiceUri.parse(uri)
    zookeeper = ZooKeeper(parsed.servers)
    zookeeper.start()
    try:
        store = LedgerStore(zookeeper, parsed)
        for written in ledgers:
            change = partial(replace, format_version=_TEXT_VERSION)
            written.closed = store.update(written.ledger_id, change).metadata
    finally:
        zookeeper.close()


def write_long_ledgers(uri: str, seed: int, quorum: Quorum, timeline: Timeline) -> Writer:
    """Write closed ledgers of many entries."""
    writer = Writer(uri, Load(seed, quorum, _LONG_ENTRIES), timeline, "before")
    written = writer.wait_acknowledged(_LONG_LEDGERS * _LONG_ENTRIES, _WRITE_TIMEOUT_S)
    if not writer.stop(_WRITE_TIMEOUT_S) or not written:
        raise AssertionError(f"the first ledgers could not be written:\n{timeline}")
    return writer


def start_writers(uri: str, seed: int, quorum: Quorum, timeline: Timeline) -> list[Writer]:
    """Writers that roll ledgers, and leave some of them open."""
    return [
        Writer(
            uri,
            Load(seed + number, quorum, 80, largest_batch=6, pause_s=0.12, left_open_share=0.2),
            timeline,
            f"writer {number}",
        )
        for number in range(1, _WRITERS + 1)
    ]
