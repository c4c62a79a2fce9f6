"""One watch per ledger for all who follow it: a watch in ZooKeeper cannot be taken back before it fires."""

from __future__ import annotations

from collections.abc import Callable

from bk_spark.bookie.metadata.ledger_store import StoredMetadata
from bk_spark.bookie.services import ClusterServices

#: Called when a ledger's metadata changed, or may have.
Listener = Callable[[], None]


class LedgerWatches:
    """The ledgers that a client watches. Single event loop.

    A watch that nobody listens to any more stays until the ledger changes, and serves whoever comes next: so
    there is at most one per ledger, however often it is followed anew.
    """

    def __init__(self, services: ClusterServices) -> None:
        self._services = services
        self._listeners: dict[int, list[Listener]] = {}

    async def read(self, ledger_id: int, listener: Listener) -> StoredMetadata:
        """The latest metadata; ``listener`` is called once when they change after this read (perhaps before this
        returns), unless it is forgotten. Raises as ``services.read_latest``; then it is not called."""
        watched = ledger_id in self._listeners
        self._listeners.setdefault(ledger_id, []).append(listener)
        try:
            if watched:
                return await self._services.read_latest(ledger_id)
            return await self._services.read_watched(ledger_id, lambda: self._changed(ledger_id))
        except BaseException:
            self.forget(ledger_id, listener)
            if not watched:
                # There is no watch: others who counted on it must look for themselves.
                self._changed(ledger_id)
            raise

    def forget(self, ledger_id: int, listener: Listener) -> None:
        """Do not call ``listener``; unknown ones are ignored."""
        listeners = self._listeners.get(ledger_id, [])
        if listener in listeners:
            listeners.remove(listener)

    def _changed(self, ledger_id: int) -> None:
        for listener in self._listeners.pop(ledger_id, []):
            listener()
