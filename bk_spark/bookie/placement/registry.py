"""The registered bookies, whether they are writable, and their addresses. Source: compatibility.md §3.1, §3.4."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.metadata.zookeeper import CONNECTED, LOST, ZooKeeper
from bk_spark.protocol.errors import BookieUnavailableError, MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.metadata.registration import GRPC_PROTOCOL, NATIVE_PROTOCOL, BookieServiceInfo

_READ_ONLY: Final = "readonly"


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    """The address of a registered bookie, and that of its gRPC, if it has one. ``zxid`` is the transaction that created
    this registration, and identifies it."""

    address: tuple[str, int]
    zxid: int
    grpc_address: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RegisteredBookie:
    """A listed bookie: its id, whether it is read-only, host and port (None if its registration names none)."""

    bookie_id: str
    read_only: bool
    address: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class BookiesSeen:
    """The ids of the writable and of the read-only bookies, and the zxids of some registrations. A bookie without a
    usable registration has none."""

    writable: frozenset[str]
    read_only: frozenset[str]
    zxids: Mapping[str, int]


class RegistrationClient:
    """The bookies registered under one cluster root. Blocking and thread-safe.

    All data are cached and watched, and read again after a watch was called or lost. There are two callbacks, which
    must be quick: ``on_stale`` (in ZooKeeper's thread) when the lists may have changed, and ``on_change`` (in the
    thread that read) when a list differs from the previous one.
    """

    def __init__(
        self,
        zk: ZooKeeper,
        root: str,
        *,
        on_stale: Callable[[], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._zk = zk
        self._available = f"{root}/available"
        self._read_only_path = f"{self._available}/{_READ_ONLY}"
        self._switch_path = f"{root}/disableHealthCheck"
        self._lock = threading.Lock()
        #: The current lists, by path of the parent.
        self._lists: dict[str, frozenset[str]] = {}
        #: The same, as last read.
        self._last_lists: dict[str, frozenset[str]] = {}
        self._registrations: dict[str, BookieRegistration] = {}
        #: The same, as last read.
        self._last_registrations: dict[str, BookieRegistration] = {}
        self._health_check: bool | None = None
        #: Counts changes, so that an answer read before a change is not cached after it.
        self._generation = 0
        self._on_stale = on_stale
        self._on_change = on_change
        zk.add_state_listener(self._on_state)

    def writable(self) -> tuple[str, ...]:
        """Return the ids of writable bookies. A bookie that is changing to read-only, or back, is not included."""
        return tuple(sorted(_writable(self._list(self._available), self._list(self._read_only_path))))

    def read_only(self) -> tuple[str, ...]:
        """Return the ids of read-only bookies."""
        return tuple(sorted(self._list(self._read_only_path)))

    def known(self, bookie_ids: Collection[str]) -> BookiesSeen | None:
        """Return the lists and the registrations of those of ``bookie_ids`` that are listed. None if anything of it has
        to be read. Does not block."""
        with self._lock:
            if self._available not in self._lists or self._read_only_path not in self._lists:
                return None
            read_only = self._lists[self._read_only_path]
            writable = _writable(self._lists[self._available], read_only)
            wanted = (writable | read_only).intersection(bookie_ids)
            if not wanted <= self._registrations.keys():
                return None
            return BookiesSeen(writable, read_only, {each: self._registrations[each].zxid for each in wanted})

    def bookies(self) -> tuple[RegisteredBookie, ...]:
        """Return all registered bookies, by id."""
        read_only = set(self.read_only())
        found = []
        for bookie_id in sorted({*self.writable(), *read_only}):
            try:
                address = self.address(bookie_id)
            except BookieUnavailableError:
                address = None
            found.append(RegisteredBookie(bookie_id, bookie_id in read_only, address))
        return tuple(found)

    def address(self, bookie_id: str) -> tuple[str, int]:
        """Return host and port of a registered bookie. Raises BookieUnavailableError."""
        return self.registration(bookie_id).address

    def grpc_address(self, bookie_id: str) -> tuple[str, int]:
        """Return host and port of a registered bookie's gRPC. Raises BookieUnavailableError."""
        found = self.registration(bookie_id).grpc_address
        if found is None:
            raise BookieUnavailableError(
                "it does not serve gRPC: set grpcServerEnabled=true there, or transport=native here",
                bookie_id=bookie_id,
            )
        return found

    def registration(self, bookie_id: str) -> BookieRegistration:
        """Return a bookie's registration. Raises BookieUnavailableError if it is missing or not usable.

        While ZooKeeper cannot be reached, the last known registration is used, but only for a bookie whose id is its
        address. The address of any other bookie may belong to another one by now.
        """
        with self._lock:
            if bookie_id in self._registrations:
                return self._registrations[bookie_id]
            last = self._last_registrations.get(bookie_id)
        if last is not None and "{}:{}".format(*last.address) != bookie_id:
            last = None
        if last is not None and not self._zk.connected:
            return last
        try:
            return self._read_registration(bookie_id)
        except MetadataUnavailableError:
            if last is None:
                raise
            return last

    def _read_registration(self, bookie_id: str) -> BookieRegistration:
        with self._lock:
            generation = self._generation
        found = None
        for path in (f"{self._available}/{bookie_id}", f"{self._read_only_path}/{bookie_id}"):
            found = self._zk.get(path, watch=self._changed)
            if found is not None:
                break
        if found is None:
            raise BookieUnavailableError("the bookie is not registered", bookie_id=bookie_id)
        try:
            info = BookieServiceInfo.decode(found.data, bookie_id)
        except MetadataFormatError as error:
            raise BookieUnavailableError(f"unusable registration: {error.message}", bookie_id=bookie_id) from error
        endpoint, grpc = info.endpoint(NATIVE_PROTOCOL), info.endpoint(GRPC_PROTOCOL)
        if endpoint is None:
            raise BookieUnavailableError(f"registered without a {NATIVE_PROTOCOL} endpoint", bookie_id=bookie_id)
        grpc_address = None if grpc is None else (grpc.host, grpc.port)
        registration = BookieRegistration((endpoint.host, endpoint.port), found.created_zxid, grpc_address)
        with self._lock:
            self._last_registrations[bookie_id] = registration
            if generation == self._generation:
                self._registrations[bookie_id] = registration
        return registration

    def last_zxid(self, bookie_id: str) -> int:
        """Return the zxid of the bookie's last known registration, without asking ZooKeeper. 0 if there is none."""
        with self._lock:
            last = self._last_registrations.get(bookie_id)
        return 0 if last is None else last.zxid

    def health_check_enabled(self) -> bool:
        """Return False while an operator has disabled quarantines with the znode ``disableHealthCheck``."""
        with self._lock:
            if self._health_check is not None:
                return self._health_check
            generation = self._generation
        enabled = self._zk.exists(self._switch_path, watch=self._changed) is None
        with self._lock:
            if generation == self._generation:
                self._health_check = enabled
        return enabled

    def close(self) -> None:
        """Stop following the session."""
        self._zk.remove_state_listener(self._on_state)

    def _list(self, parent: str) -> frozenset[str]:
        with self._lock:
            if parent in self._lists:
                return self._lists[parent]
            generation = self._generation
        names = self._zk.children(parent, watch=self._changed)
        found = frozenset(names or ())
        with self._lock:
            # Without the znode there is no watch that would end the caching.
            if generation == self._generation and names is not None:
                self._lists[parent] = found
            before = self._last_lists.get(parent)
            self._last_lists[parent] = found
        if before is not None and before != found and self._on_change is not None:
            self._on_change()
        return found

    def _changed(self, path: str) -> None:
        with self._lock:
            self._generation += 1
            self._lists.pop(path, None)
            self._registrations.pop(path.rpartition("/")[2], None)
            if path == self._switch_path:
                self._health_check = None
        if self._on_stale is not None:
            self._on_stale()

    def _on_state(self, state: str) -> None:
        if state == LOST:
            with self._lock:
                self._generation += 1
                self._lists.clear()
                self._registrations.clear()
                self._health_check = None
        elif state == CONNECTED and self._on_stale is not None:
            self._on_stale()


def _writable(available: frozenset[str], read_only: frozenset[str]) -> frozenset[str]:
    """The writable ones of what is below ``available``. A bookie that changes its mode may be in both lists."""
    return available - {_READ_ONLY} - read_only
