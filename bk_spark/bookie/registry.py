"""Which bookies are there, where they listen, and which ones a new ensemble gets. Source: facts §3.4."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from typing import Final

from bk_spark.bookie.zookeeper import LOST, ZooKeeper
from bk_spark.protocol.errors import BookieUnavailableError, MetadataFormatError, NotEnoughBookiesError
from bk_spark.protocol.registration import NATIVE_PROTOCOL, BookieServiceInfo

_READ_ONLY: Final = "readonly"


class BookieRegistry:
    """The bookies registered under one cluster root. Blocking; thread-safe.

    The lists are cached and followed by watches; after a lost session they are read anew.
    ``on_change`` is called (in ZooKeeper's thread) when bookies came or went.
    """

    def __init__(self, zk: ZooKeeper, root: str, on_change: Callable[[], None] | None = None) -> None:
        self._zk = zk
        self._available = f"{root}/available"
        self._lock = threading.Lock()
        self._writable: tuple[str, ...] | None = None
        self._addresses: dict[str, tuple[str, int]] = {}
        #: Counts changes, so that an answer read before a change is not cached after it.
        self._generation = 0
        self._random = random.SystemRandom()
        self._on_change = on_change
        zk.add_state_listener(self._on_state)

    def writable(self) -> tuple[str, ...]:
        """Ids of the bookies that take writes."""
        with self._lock:
            if self._writable is not None:
                return self._writable
            generation = self._generation
        names = self._zk.children(self._available, watch=self._changed)
        writable = tuple(sorted(name for name in names or () if name != _READ_ONLY))
        with self._lock:
            # Where the znode is missing there is no watch that would end the caching.
            if generation == self._generation and names is not None:
                self._writable = writable
        return writable

    def address(self, bookie_id: str) -> tuple[str, int]:
        """Host and port of a registered bookie. Raises BookieUnavailableError."""
        with self._lock:
            if bookie_id in self._addresses:
                return self._addresses[bookie_id]
            generation = self._generation
        found = None
        for path in (f"{self._available}/{bookie_id}", f"{self._available}/{_READ_ONLY}/{bookie_id}"):
            found = self._zk.get(path, watch=self._changed)
            if found is not None:
                break
        if found is None:
            raise BookieUnavailableError("the bookie is not registered", bookie_id=bookie_id)
        try:
            endpoint = BookieServiceInfo.decode(found.data, bookie_id).endpoint(NATIVE_PROTOCOL)
        except MetadataFormatError as error:
            raise BookieUnavailableError(f"unusable registration: {error.message}", bookie_id=bookie_id) from error
        if endpoint is None:
            raise BookieUnavailableError(f"registered without a {NATIVE_PROTOCOL} endpoint", bookie_id=bookie_id)
        address = endpoint.host, endpoint.port
        with self._lock:
            if generation == self._generation:
                self._addresses[bookie_id] = address
        return address

    def choose(self, count: int, exclude: Collection[str] = ()) -> tuple[str, ...]:
        """``count`` different writable bookies, in random order. Raises NotEnoughBookiesError."""
        candidates = [bookie for bookie in self.writable() if bookie not in exclude]
        if len(candidates) < count:
            raise NotEnoughBookiesError(
                f"{count} writable bookies are needed, {len(candidates)} of {len(self.writable())} registered under "
                f"{self._available} can be used; start more bookies or use a smaller ensembleSize"
            )
        return tuple(self._random.sample(candidates, count))

    def close(self) -> None:
        """Follow the session no longer."""
        self._zk.remove_state_listener(self._on_state)

    def _changed(self, path: str) -> None:
        with self._lock:
            self._generation += 1
            if path == self._available:
                self._writable = None
            self._addresses.pop(path.rpartition("/")[2], None)
        if self._on_change is not None:
            self._on_change()

    def _on_state(self, state: str) -> None:
        if state == LOST:
            with self._lock:
                self._generation += 1
                self._writable = None
                self._addresses.clear()
