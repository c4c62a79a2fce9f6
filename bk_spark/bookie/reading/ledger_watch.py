"""Shares one ZooKeeper watch of a ledger's metadata among all its followers.

A watch in ZooKeeper cannot be removed before it fires.
"""

from __future__ import annotations

from collections.abc import Callable

from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices

#: Called when a ledger's metadata changed, or may have.
Listener = Callable[[], None]


class LedgerWatches:
    """The ledgers that a client watches. Single event loop.

    A watch without listeners stays until the ledger changes, and serves the next follower. So each ledger has at most
    one watch, no matter how many follow it.
    """

    def __init__(self, services: ClusterServices) -> None:
        self._services = services
        self._listeners: dict[int, list[Listener]] = {}

    async def read(self, ledger_id: int, listener: Listener) -> StoredMetadata:
        """Read the latest metadata and watch them.

        Parameters
        ----------
        listener
            Called once when the metadata change after this read, possibly before this method returns. Never called
            after :meth:`forget`, or if this method raises.

        Raises the errors of ``services.read_latest``.
        """
        watched = ledger_id in self._listeners
        self._listeners.setdefault(ledger_id, []).append(listener)
        try:
            if watched:
                return await self._services.read_latest(ledger_id)
            return await self._services.read_watched(ledger_id, lambda: self._changed(ledger_id))
        except BaseException:
            self.forget(ledger_id, listener)
            if not watched:
                # The watch was not set. Others relied on it: they must read the metadata again.
                self._changed(ledger_id)
            raise

    def forget(self, ledger_id: int, listener: Listener) -> None:
        """Do not call ``listener`` any more. Unknown listeners are ignored."""
        listeners = self._listeners.get(ledger_id, [])
        if listener in listeners:
            listeners.remove(listener)

    def _changed(self, ledger_id: int) -> None:
        for listener in self._listeners.pop(ledger_id, []):
            listener()
