"""What operators ask of self-healing, by HTTP and by gRPC. It works on the znodes of the cluster.

A request that is refused, or fails, raises HttpError, or what ZooKeeper's client raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.admin.routes import HttpError

#: Ledgers that a list names, at most. Some 3,500 are read in a second.
_MAX_LISTED: Final = 50_000
_T = TypeVar("_T")


class ReplicationOperations:
    """Belongs to the event loop.

    Parameters
    ----------
    zookeeper
        Returns the session to use, or None while there is none.
    root
        The root of the cluster's znodes.
    """

    def __init__(self, zookeeper: Callable[[], ZooKeeper | None], root: str) -> None:
        self._zookeeper = zookeeper
        self._root = root

    async def is_enabled(self) -> bool:
        """Return whether ledgers are repaired."""
        return not await self._call(ReplicationSwitches, ReplicationSwitches.is_disabled)

    async def set_enabled(self, enabled: bool) -> None:
        """Switch the repair on or off, in the whole cluster."""
        await self._call(ReplicationSwitches, ReplicationSwitches.enable if enabled else ReplicationSwitches.disable)

    async def auditor(self) -> str | None:
        """Return the bookie that has the auditor. None: none is elected. "": its vote does not say."""
        vote = await self._call(AuditorElection, AuditorElection.auditor)
        return None if vote is None else vote.bookie_id or ""

    async def marks(self, missing: str | None, excluded: str | None) -> dict[int, list[str]]:
        """Return the under-replicated ledgers, each with its missing bookies.

        Parameters
        ----------
        missing
            Only ledgers that lack copies of this bookie.
        excluded
            Only ledgers that lack no copy of this bookie.
        """

        def read(store: UnderReplicationStore) -> dict[int, list[str]]:
            found: dict[int, list[str]] = {}
            for page in store.marks():
                for ledger_id, mark in page.items():
                    if (missing is None or missing in mark.missing) and excluded not in mark.missing:
                        found[ledger_id] = list(mark.missing)
                if len(found) > _MAX_LISTED:
                    raise HttpError(
                        HTTPStatus.CONFLICT,
                        f"more than {_MAX_LISTED} ledgers are under-replicated: use bkctl listunderreplicated",
                    )
            return found

        return await self._call(UnderReplicationStore, read)

    async def trigger_audit(self) -> None:
        """Ask the auditor to look for lost bookies now."""
        await self._prepared()
        await self._call(ReplicationSwitches, ReplicationSwitches.trigger_audit)

    async def delay_s(self) -> int | None:
        """Return lostBookieRecoveryDelay. None: it was never set."""
        delay = await self._call(ReplicationSwitches, ReplicationSwitches.recovery_delay)
        return None if delay is None else delay.seconds

    async def set_delay(self, seconds: int) -> None:
        """Set lostBookieRecoveryDelay."""
        await self._prepared()
        try:
            await self._call(ReplicationSwitches, lambda switches: switches.set_recovery_delay(seconds))
        except InvalidArgumentError as error:
            raise HttpError(HTTPStatus.BAD_REQUEST, str(error)) from None

    async def _prepared(self) -> None:
        """Create the znodes above those that are written, if no auditor ever ran here."""
        await self._call(UnderReplicationStore, UnderReplicationStore.prepare)

    async def _call(self, make: Callable[[ZooKeeper, str], Any], use: Callable[[Any], _T]) -> _T:
        """Use what ``make`` returns for the session, in a thread."""
        zookeeper = self._zookeeper()
        if zookeeper is None:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "there is no session with ZooKeeper; try again")
        return await asyncio.to_thread(use, make(zookeeper, self._root))
