"""The collection of all parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.racks import Racks
from bk_spark.log.formats.names import DEFAULT_ROOT
from bk_spark.overview.bookies import Bookies
from bk_spark.overview.http_call import HttpCaller
from bk_spark.overview.ledgers import Ledgers
from bk_spark.overview.logs import Logs
from bk_spark.overview.repairs import Repairs
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri

#: The limit of one collection's requests to ZooKeeper.
_TIMEOUT_MS: Final = 20_000

Record = dict[str, Any]


class Overview:
    """The cluster at a glance. For one thread at a time; it blocks.

    Parameters
    ----------
    zk
        The session. The caller closes it.
    uri
        Where the cluster is.
    racks
        Given a function that returns a bookie's address, returns where racks are looked up.
    caller
        Returns how bookies are asked over HTTP.
    log_root
        The znode that holds the logs.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        uri: MetadataServiceUri,
        racks: Callable[[Callable[[str], tuple[str, int]]], Racks],
        caller: Callable[[], HttpCaller],
        log_root: str = DEFAULT_ROOT,
    ) -> None:
        store = LedgerStore(zk, uri)
        self._zk = zk
        self._uri = str(uri)
        self._bookies = Bookies(zk, uri.root, racks, caller)
        self._ledgers = Ledgers(store)
        self._repairs = Repairs(store)
        self._logs = Logs(zk, log_root)

    def collect(self) -> Record:
        """Return the cluster as JSON. A part that cannot be collected is None, and ``problems`` says why."""
        problems: list[str] = []

        def part(name: str, collect: Callable[[], Any]) -> Any:
            try:
                with self._zk.within(_TIMEOUT_MS):
                    return collect()
            except BookKeeperError as error:
                problems.append(f"{name}: {error.message}")
                return None

        logs = part("logs", self._logs.collect)
        bookies = part("bookies", self._bookies.collect)
        return {
            "collected_ms": unix_time_ms(),
            "cluster": self._uri,
            "bookies": None if bookies is None else bookies[0],
            "bookie_states": None if bookies is None else bookies[1],
            "ledgers": part("ledgers", self._ledgers.collect),
            "repair": part("repair", self._repairs.collect),
            "logs": None if logs is None else logs[0],
            "readers": None if logs is None else logs[1],
            "other_logs": 0 if logs is None else logs[2],
            "other_readers": 0 if logs is None else logs[3],
            "problems": problems,
        }
