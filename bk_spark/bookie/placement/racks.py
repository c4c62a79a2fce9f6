"""Finds the racks of bookies. There are three sources. The first one that knows a bookie counts:

* a setting, ``host=/rack,host=/rack`` (a bookie id may stand for the host);
* a ZooKeeper znode, ``/bookies`` as Pulsar keeps it for Apache's client, followed by a watch;
* a script, ``networkTopologyScriptFileName``: called with hosts as arguments, it writes a rack for each.

Placement must not stop a writer. If a source is missing or unreadable, this is logged and its racks count as unknown.
If the znode becomes malformed, its previous content stays in force.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import LOST, ZooKeeper
from bk_spark.bookie.placement.placement import DEFAULT_RACK
from bk_spark.bookie.placement.rack_names import parse_rack_mapping, parse_rack_table
from bk_spark.bookie.placement.topology_script import TopologyScript
from bk_spark.protocol.errors import BookieUnavailableError, MetadataError, MetadataFormatError

_LOG = logging.getLogger(__name__)
#: Maximum number of hosts of bookies remembered after their registration ends.
_MAX_HOSTS: Final = 10_000

#: Host and port of a registered bookie.
AddressOf = Callable[[str], tuple[str, int]]


class RackSource(Protocol):
    """Knows the racks of some bookies."""

    def racks(self, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """Return the known racks by bookie id. ``hosts`` has the host of each requested id."""


class RackTable:
    """Racks by bookie id, by ``host:port`` or by host."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = dict(entries)
        # If a host has several ids, use the first.
        for name, rack in entries.items():
            host = _host_in(name)
            if host is not None:
                self._entries.setdefault(host, rack)

    def racks(self, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """Return the racks of the ids that are in the table by id or by host. The id counts more."""
        found = {}
        for bookie_id, host in hosts.items():
            rack = self._entries.get(bookie_id) or self._entries.get(host)
            if rack is not None:
                found[bookie_id] = rack
        return found


class RackZnode:
    """Racks from a znode in Pulsar's format. Blocking and thread-safe."""

    def __init__(self, zk: ZooKeeper, path: str) -> None:
        self._zk = zk
        self._path = path
        self._lock = threading.Lock()
        self._table = RackTable({})
        self._current = False
        #: Counts changes, so that content read before a change does not count as current after it.
        self._generation = 0
        zk.add_state_listener(self._on_state)

    def close(self) -> None:
        """Ignore later changes of the session. What is known stays in force."""
        self._zk.remove_state_listener(self._on_state)

    def racks(self, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """Return the racks in the znode, read again if it may have changed. On failure, those known before."""
        if not self._current:
            self._read()
        return self._table.racks(hosts)

    def _read(self) -> None:
        with self._lock:
            generation = self._generation
        try:
            found = self._zk.get(self._path, watch=self._changed)
            if found is None and self._zk.exists(self._path, watch=self._changed) is not None:
                # It was created just now.
                found = self._zk.get(self._path, watch=self._changed)
            entries = {} if found is None else parse_rack_mapping(found.data)
        except MetadataFormatError as error:
            _LOG.warning("znode %s is not used for racks: %s", self._path, error)
            entries = None
        except MetadataError as error:
            _LOG.warning("racks cannot be read from znode %s: %s", self._path, error)
            return
        with self._lock:
            if entries is not None:
                self._table = RackTable(entries)
            self._current = generation == self._generation

    def _changed(self, path: str) -> None:
        with self._lock:
            self._generation += 1
            self._current = False

    def _on_state(self, state: str) -> None:
        if state == LOST:
            self._changed(self._path)


class Racks:
    """The racks of bookies, from all configured sources."""

    def __init__(self, sources: Iterable[RackSource], address_of: AddressOf) -> None:
        self._sources = list(sources)
        self._address_of = address_of
        self._hosts: dict[str, str] = {}

    def of(self, bookies: Iterable[str]) -> dict[str, str]:
        """Return the rack of each bookie, :data:`DEFAULT_RACK` if no source knows it. Blocking."""
        racks = dict.fromkeys(bookies, DEFAULT_RACK)
        unknown = {bookie_id: self._host(bookie_id) for bookie_id in racks} if self._sources else {}
        for source in self._sources:
            found = source.racks(unknown)
            racks.update(found)
            unknown = {bookie_id: host for bookie_id, host in unknown.items() if bookie_id not in found}
        return racks

    def hosts(self, bookies: Iterable[str]) -> dict[str, str]:
        """Return the host of each bookie. Blocking. An id of the form ``host:port`` is believed, so that a client need
        not read the registrations of all bookies."""
        found = {}
        for bookie_id in bookies:
            host = _host_in(bookie_id)
            found[bookie_id] = self._host(bookie_id) if host is None else host
        return found

    def _host(self, bookie_id: str) -> str:
        try:
            host = self._address_of(bookie_id)[0]
        except (BookieUnavailableError, MetadataError):
            # A failed member of an ensemble. Use its last host, or the host in its id.
            return self._hosts.get(bookie_id) or bookie_id.rpartition(":")[0] or bookie_id
        if len(self._hosts) >= _MAX_HOSTS:
            self._hosts.clear()
        self._hosts[bookie_id] = host
        return host


def _host_in(name: str) -> str | None:
    """Return the host of a name of the form ``host:port``. None: it has another form."""
    host, colon, port = name.rpartition(":")
    return host if colon and port.isascii() and port.isdecimal() else None


def rack_sources(
    zk: ZooKeeper, config: ClientConfig, *, znode: str | None = None
) -> list[RackTable | RackZnode | TopologyScript]:
    """Return the sources in ``config``. ``znode`` replaces ``rackMappingZnode``."""
    sources: list[RackTable | RackZnode | TopologyScript] = []
    if config.bookie_racks:
        sources.append(RackTable(parse_rack_table(config.bookie_racks)))
    path = config.rack_mapping_znode if znode is None else znode
    if path:
        sources.append(RackZnode(zk, path))
    if config.network_topology_script:
        sources.append(TopologyScript(config.network_topology_script, config.network_topology_script_timeout_ms))
    return sources
