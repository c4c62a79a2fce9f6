"""Metadata, registry and placement for use from an event loop. ZooKeeper calls block, so they run in threads.

Every call ends within ``ClientConfig.metadata_timeout_ms`` with an answer or an error. If ZooKeeper cannot be reached,
it raises a retriable MetadataUnavailableError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, Final, TypeVar

from bk_spark.bookie.client_counts import ClientCounts
from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.ledger_store import CreateWith, LedgerStore, StoredMetadata
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement.placement import Placement, Spread, find_misplaced, judge_spread, unspread_windows
from bk_spark.bookie.placement.quarantine import Quarantine
from bk_spark.bookie.placement.racks import Racks, RackZnode, rack_sources
from bk_spark.bookie.placement.registry import BookiesSeen, RegisteredBookie, RegistrationClient
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, MetadataUnavailableError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
#: How long calls under way may continue when the client is closed.
_CLOSE_GRACE_S: Final = 2.0


class ClusterServices:
    """Awaitable ledger metadata, list of bookies and placement of one cluster. The constructor blocks.

    Raises MetadataUnavailableError, and InvalidArgumentError for settings or a URI that do not fit the cluster.
    """

    def __init__(self, zk: ZooKeeper, uri: MetadataServiceUri, config: ClientConfig) -> None:
        self._zk = zk
        #: What the client counts. Changed in its event loop only.
        self.counts = ClientCounts()
        self._timeout_s = config.metadata_timeout_ms / 1000
        with zk.within(config.metadata_timeout_ms):
            self._store = LedgerStore(zk, uri)
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="bk-metadata")
        self._closed = False
        #: Guards the fields below and the end of the executor.
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self._subscribers: dict[object, tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = {}
        self._refreshing = False
        #: A writer waits for a replacement bookie, and must be notified when bookies register.
        self._wanting = False
        if zk.rest is not None:
            zk.rest.may_rest = lambda: not (self._wanting and self._subscribers)
        self._registry = RegistrationClient(zk, uri.root, on_stale=self._on_stale, on_change=self._notify)
        self._rack_sources = rack_sources(zk, config)
        self._racks = Racks(self._rack_sources, self._registry.address)
        self._placement = Placement(
            random.SystemRandom(),
            config.min_racks_per_write_quorum if self._rack_sources else 1,
            config.enforce_min_racks_per_write_quorum,
        )
        self._quarantine = Quarantine(
            first_ms=config.first_quarantine_ms,
            longest_ms=config.bookie_quarantine_time_ms,
            error_threshold=config.bookie_error_threshold,
            interval_ms=config.bookie_health_check_interval_ms,
        )
        self._health_check = config.bookie_health_check_enabled

    def close(self, session: ZooKeeper | None = None) -> None:
        """Wait a moment for calls under way, then close ``session`` if given, and end the threads.

        Later calls raise MetadataUnavailableError. Blocks for a bounded time. Safe to repeat.
        """
        with self._lock:
            self._closed = True
            running = set(self._running)
            self._subscribers.clear()
            self._threads.shutdown(wait=False, cancel_futures=True)
        wait(running, _CLOSE_GRACE_S)
        self._registry.close()
        for source in self._rack_sources:
            if isinstance(source, RackZnode):
                source.close()
        if session is not None:
            # This also ends calls that wait for an answer.
            session.close()
        self._threads.shutdown(wait=True)

    # --- ledgers ---

    async def create(
        self, metadata: LedgerMetadata, create_with: CreateWith | None, ledger_id: int | None = None
    ) -> tuple[int, StoredMetadata]:
        """See :meth:`LedgerStore.create`."""
        return await self._call(self._store.create, metadata, create_with, ledger_id)

    async def read(self, ledger_id: int) -> StoredMetadata:
        """Read a ledger's metadata, maybe old ones. Raises NoSuchLedgerError, MetadataFormatError."""
        return await self._call(self._store.read, ledger_id)

    async def read_latest(self, ledger_id: int) -> StoredMetadata:
        """Do the same as :meth:`read`, after bringing ZooKeeper's server up to date."""
        return await self._call(self._store.read_latest, ledger_id)

    async def read_watched(self, ledger_id: int, on_change: Callable[[], None]) -> StoredMetadata:
        """Do the same as :meth:`read_latest`, and watch the ledger's znode.

        ``on_change`` is called once, in this event loop, when the znode changes, is deleted, or the watch is lost. The
        caller must then read again. The call may come before this returns, but never after it raised.
        """
        loop = asyncio.get_running_loop()
        wanted = True

        def changed(path: str) -> None:
            _call_in(loop, lambda: on_change() if wanted else None)

        try:
            return await self._call(self._store.read_latest, ledger_id, changed)
        except BaseException:
            wanted = False
            raise

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        """Compare-and-set. See :meth:`LedgerStore.write`."""
        return await self._call(self._store.write, ledger_id, metadata, version)

    async def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        """Read, change and compare-and-set until it succeeds. See :meth:`LedgerStore.update`."""
        return await self._call(self._store.update, ledger_id, change)

    async def delete(self, ledger_id: int) -> None:
        """See :meth:`LedgerStore.delete`."""
        await self._call(self._store.delete, ledger_id)

    async def ledger_batches(self) -> AsyncGenerator[list[int], None]:
        """Yield the ids of all ledgers, ascending, as they are read from ZooKeeper."""
        batches = self._store.list_ledgers()
        while (batch := await self._call(next, batches, None)) is not None:
            yield batch

    # --- bookies ---

    async def bookies(self) -> tuple[RegisteredBookie, ...]:
        """Return all registered bookies, by id."""
        return await self._call(self._registry.bookies)

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Return host and port of a registered bookie. Raises BookieUnavailableError."""
        return await self._call(self._registry.address, bookie_id)

    async def grpc_address(self, bookie_id: str) -> tuple[str, int]:
        """Return host and port of a registered bookie's gRPC. Raises BookieUnavailableError, also if it serves none."""
        return await self._call(self._registry.grpc_address, bookie_id)

    async def choose_ensemble(self, quorum: Quorum) -> tuple[str, ...]:
        """Choose different writable bookies for a new ledger. Raises NotEnoughBookiesError."""
        return await self._call(self._choose_ensemble, quorum)

    async def choose_replacement(
        self, quorum: Quorum, ensemble: Sequence[str], index: int, exclude: Collection[str]
    ) -> str:
        """Choose a writable bookie for position ``index`` of ``ensemble``. It is in neither ``ensemble`` nor
        ``exclude``. Raises NotEnoughBookiesError."""
        return await self._call(self._choose_replacement, quorum, tuple(ensemble), index, frozenset(exclude))

    async def look_at_bookies(self, bookie_ids: Collection[str]) -> BookiesSeen:
        """Return the writable and the read-only bookies, and the registrations of some.

        The lists are older than the registrations. So a bookie that registers again has its new registration. While all
        is watched and unchanged, nothing blocks, and no thread is needed.
        """
        known = self._registry.known(bookie_ids)
        return known if known is not None else await self._call(self._look_at_bookies, bookie_ids)

    async def choose_target(
        self,
        quorum: Quorum,
        ensemble: Sequence[str],
        index: int,
        exclude: Collection[str],
        among: Collection[str] | None = None,
    ) -> tuple[str, int]:
        """Do the same as :meth:`choose_replacement` for copies of a lost bookie, but never refuse a bookie because of
        its rack: fewer copies are worse than badly placed ones. Return the bookie, and how many write quorums are then
        not spread as they should be. With ``among``, only these bookies are chosen."""
        return await self._call(self._choose_target, quorum, tuple(ensemble), index, frozenset(exclude), among)

    async def find_misplaced(self, quorum: Quorum, ensemble: Sequence[str]) -> tuple[int, int]:
        """Return the position of ``ensemble`` whose move to another rack helps most, and how many write quorums are not
        spread over as many racks as they should be. If that is 0, as it is if the rack of a member is unknown, the
        position does not matter."""
        return await self._call(self._find_misplaced, quorum, tuple(ensemble))

    async def judge_spread(self, ensembles: Sequence[tuple[Quorum, Sequence[str]]]) -> list[Spread]:
        """Return for each ensemble whether every write quorum is spread over as many racks as it should be."""
        return await self._call(self._judge_spread, ensembles)

    def bookie_failed(self, bookie_id: str) -> None:
        """Report a refused or broken connection, or no answer. The bookie is chosen last for a while. Cheap."""
        self._quarantine.failed(bookie_id, self._registry.last_zxid(bookie_id))

    def bookie_answered(self, bookie_id: str) -> None:
        """Report a successful connection to a bookie. Cheap."""
        self._quarantine.answered(bookie_id)

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call ``on_change`` in this event loop when bookies come or go. Call the result to unsubscribe."""
        key = object()
        with self._lock:
            self._subscribers[key] = (asyncio.get_running_loop(), on_change)
        # Starts watching the lists.
        self._on_stale()

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers.pop(key, None)

        return unsubscribe

    def _choose_ensemble(self, quorum: Quorum) -> tuple[str, ...]:
        writable = self._registry.writable()
        return self._placement.ensemble(
            quorum,
            self._racks.of(writable),
            self._quarantined(writable),
            hosts=self._racks.hosts(writable),
            read_only=len(self._registry.read_only()),
        )

    def _choose_replacement(self, quorum: Quorum, ensemble: Sequence[str], index: int, exclude: Collection[str]) -> str:
        usable = set(self._registry.writable()).difference(ensemble, exclude)
        self._wanting = True
        chosen, _ = self._replacement(self._placement, quorum, ensemble, index, usable)
        self._wanting = False
        return chosen

    def _replacement(
        self, placement: Placement, quorum: Quorum, ensemble: Sequence[str], index: int, usable: set[str]
    ) -> tuple[str, Mapping[str, str]]:
        """Return one of ``usable``, and the racks of all."""
        racks = self._racks.of([*ensemble, *usable])
        chosen = placement.replacement(
            quorum,
            ensemble,
            index,
            usable,
            racks,
            self._quarantined(usable),
            hosts=self._racks.hosts([*ensemble, *usable]),
            read_only=len(self._registry.read_only()),
        )
        return chosen, racks

    def _look_at_bookies(self, bookie_ids: Collection[str]) -> BookiesSeen:
        writable, read_only = frozenset(self._registry.writable()), frozenset(self._registry.read_only())
        zxids = {}
        for bookie_id in (writable | read_only).intersection(bookie_ids):
            with contextlib.suppress(BookieUnavailableError):
                zxids[bookie_id] = self._registry.registration(bookie_id).zxid
        return BookiesSeen(writable, read_only, zxids)

    def _choose_target(
        self,
        quorum: Quorum,
        ensemble: Sequence[str],
        index: int,
        exclude: Collection[str],
        among: Collection[str] | None,
    ) -> tuple[str, int]:
        usable = set(self._registry.writable()).difference(ensemble, exclude)
        if among is not None:
            usable.intersection_update(among)
        placement = replace(self._placement, enforce=False)
        chosen, racks = self._replacement(placement, quorum, ensemble, index, usable)
        members = [chosen if position == index else bookie_id for position, bookie_id in enumerate(ensemble)]
        return chosen, unspread_windows(quorum, [racks[each] for each in members], placement.min_racks)

    def _find_misplaced(self, quorum: Quorum, ensemble: Sequence[str]) -> tuple[int, int]:
        known = self._racks.of(ensemble)
        return find_misplaced(quorum, [known[bookie_id] for bookie_id in ensemble], self._placement.min_racks)

    def _judge_spread(self, ensembles: Sequence[tuple[Quorum, Sequence[str]]]) -> list[Spread]:
        writable = self._registry.writable()
        racks = self._racks.of({*writable, *(each for _, ensemble in ensembles for each in ensemble)})
        offered = {racks[each] for each in writable}
        return [
            judge_spread(quorum, [racks[each] for each in ensemble], offered, self._placement.min_racks)
            for quorum, ensemble in ensembles
        ]

    def _quarantined(self, bookies: Collection[str]) -> Collection[str]:
        """Return those of ``bookies`` to choose last. A bookie that registered again since it failed is free."""
        if not self._health_check:
            return ()
        self._free_registered(bookies)
        members = self._quarantine.members().intersection(bookies)
        return members if members and self._registry.health_check_enabled() else ()

    def _free_registered(self, bookies: Collection[str]) -> bool:
        freed = False
        for bookie_id in self._quarantine.members().intersection(bookies):
            with contextlib.suppress(BookieUnavailableError):
                freed |= self._quarantine.registered(bookie_id, self._registry.registration(bookie_id).zxid)
        return freed

    # --- following the lists of bookies for subscribers ---

    def _on_stale(self) -> None:
        if self._zk.rest is not None and not self._wanting:
            # Watches end with the session. Reading the lists without a need would start a new session.
            return
        with self._lock:
            if self._subscribers and not self._refreshing and not self._closed:
                self._refreshing = True
                self._submit(self._refresh)

    def _refresh(self) -> None:
        # A change after this line starts another round.
        self._refreshing = False
        try:
            with self._zk.within(self._timeout_s * 1000):
                writable = self._registry.writable()
                self._registry.read_only()
                if self._free_registered(writable):
                    self._notify()
        except BookKeeperError as error:
            # Another round runs when the connection is back.
            _LOG.warning("the list of bookies cannot be read: %s", error)

    def _notify(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers.values())
        for loop, on_change in subscribers:
            _call_in(loop, on_change)

    # --- threads ---

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        deadline = time.monotonic() + self._timeout_s

        def run() -> _T:
            with self._zk.within((deadline - time.monotonic()) * 1000):
                return function(*arguments)

        with self._lock:
            if self._closed:
                raise MetadataUnavailableError("the client is closed")
            future = self._submit(run)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                # close() cancelled the call. The caller itself was not cancelled.
                raise MetadataUnavailableError("the client is closed") from None
            raise

    def _submit(self, function: Callable[[], _T]) -> Future[_T]:
        """Run ``function`` on a thread. The caller holds the lock."""
        future = self._threads.submit(function)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    # Nobody waits on a closed loop.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)
