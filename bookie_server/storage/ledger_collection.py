"""Which ledgers may go: those that exist here and not in the metadata store. Source: compatibility facts §5.11.

Ledger ids are compared range by range, where a range is what one znode has as children (10,000 ids; with the flat
layout all of them), in ascending order. Only ranges with ledgers of this bookie are looked at. Of a range with few of
them each ledger's znode is read; of others the children are listed, which is one request, and only ledgers that the
list lacks are read. A listing may be a part of the truth (scenario B8), so it never decides: a ledger is deleted
where its own znode was read as absent, just before. Any error of the metadata store ends the pass; ledgers that it
has not decided stay.

Ledgers that come to be while the pass runs are not in its snapshot of local ledgers and so are no victims.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bk_spark.protocol.errors import BookKeeperError
from bookie_server.storage import files
from bookie_server.storage.collected_storage import CollectedStorage, RunBlocking
from bookie_server.storage.ledger_metadata_reads import READS_AT_ONCE, MetadataReads
from bookie_server.storage.records import Int64s
from bookie_server.storage.throttle import StopSignal

_LOG: Final = logging.getLogger(__name__)
#: Up to so many local ledgers of a range are read one by one: cheaper than a list of up to 10,000 names.
DIRECT_READS: Final = 16
#: Victims named in the log.
_NAMED: Final = 10


@dataclass(slots=True)
class LedgerPass:
    """What a pass did. ``problem`` is "" where it came to its end."""

    deleted: list[int] = field(default_factory=list)
    failed: int = 0
    problem: str = ""


class LedgerCollection:
    """Deletes ledgers of ``storage`` that the metadata store does not know (any more)."""

    def __init__(
        self, storage: CollectedStorage, reads: MetadataReads, run_blocking: RunBlocking, stop: StopSignal
    ) -> None:
        self._storage = storage
        self._reads = reads
        self._run = run_blocking
        self._stop = stop

    async def run(self) -> LedgerPass:
        """One pass. Raises CollectorStoppedError, SyncFailedError."""
        result = LedgerPass()
        try:
            local = await self._storage.local_ledgers()
            await self._run(self._reads.begin)
            for ledger_ids in _ranges(local[local >= 0], self._reads.ids_per_range):
                self._stop.check()
                for batch in _batches(await self._run(self._suspects, ledger_ids)):
                    await self._delete(await self._run(self._absent, batch), result)
        except (BookKeeperError, OSError) as error:
            if isinstance(error, files.SyncFailedError):
                raise
            result.problem = str(error)
            _LOG.warning("collection of ledgers ends early; those not compared stay: %s", error)
        finally:
            if result.deleted:
                await self._storage.sync_deletions()
                _LOG.info("deleted %d ledgers: %s", len(result.deleted), _some(result.deleted))
        return result

    async def _delete(self, ledger_ids: list[int], result: LedgerPass) -> None:
        for ledger_id in ledger_ids:
            try:
                await self._storage.delete_ledger(ledger_id)
                result.deleted.append(ledger_id)
            except files.SyncFailedError:
                raise
            except OSError as error:
                result.failed += 1
                _LOG.error("ledger %d cannot be deleted: %s", ledger_id, error)

    def _suspects(self, ledger_ids: list[int]) -> list[int]:
        """Those of one range's ledgers that the listing lacks; all where it is cheaper to read them."""
        if len(ledger_ids) <= DIRECT_READS:
            return ledger_ids
        path, _, _ = self._reads.path(ledger_ids[0]).rpartition("/")
        names = self._reads.names_in(path)
        return [ledger_id for ledger_id in ledger_ids if self._reads.path(ledger_id)[len(path) + 1 :] not in names]

    def _absent(self, ledger_ids: list[int]) -> list[int]:
        found = self._reads.get([self._reads.path(ledger_id) for ledger_id in ledger_ids])
        return [ledger_id for ledger_id in ledger_ids if found[self._reads.path(ledger_id)] is None]


def _ranges(ledger_ids: Int64s, ids_per_range: int) -> Iterator[list[int]]:
    """The ids (ascending), range by range."""
    cuts = (np.flatnonzero(np.diff(ledger_ids // ids_per_range)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(ledger_ids)], strict=True):
        if first < last:
            yield ledger_ids[first:last].tolist()


def _batches(ledger_ids: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(ledger_ids), READS_AT_ONCE):
        yield ledger_ids[first : first + READS_AT_ONCE]


def _some(ledger_ids: list[int]) -> str:
    more = ", …" if len(ledger_ids) > _NAMED else ""
    return ", ".join(map(str, ledger_ids[:_NAMED])) + more
