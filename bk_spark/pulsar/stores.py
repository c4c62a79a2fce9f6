"""Pulsar's metadata stores, as far as they are ZooKeeper.

A cluster has two, which are mostly one: the *local* store (``metadataStoreUrl``) with the lists of ledgers and the
schemas, and the *configuration* store (``configurationMetadataStoreUrl``) with partitioned topics and policies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import InvalidArgumentError, MetadataUnavailableError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import Znode

_ADDRESS: Final = re.compile(r"(?:metadata-store:)?(?:zk:)?(?://)?(?P<servers>[^/]+)(?P<chroot>/.*)?")
_OTHERS: Final = re.compile(r"(?:metadata-store:)?(?P<kind>etcd|oxia|rocksdb|memory|file)\b")
_DEFAULT_PORT: Final = 2181
_MAX_SESSIONS: Final = 3


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is: ZooKeeper's servers, and the path below which its znodes are (empty for the root)."""

    servers: str
    chroot: str

    @classmethod
    def parse(cls, text: str, what: str) -> StoreAddress:
        """Parse an address as in Pulsar's settings: ``zk:host:port,host:port/path``.

        Parameters
        ----------
        text
            The address.
        what
            The name of the setting, for errors.

        Raises
        ------
        InvalidArgumentError
            If it is not the address of a ZooKeeper.
        """
        text = text.strip()
        other = _OTHERS.match(text)
        if other is not None:
            raise InvalidArgumentError(
                f"{what}: {text!r} is a store of kind {other['kind']}; topics can be read only where Pulsar keeps its "
                "metadata in ZooKeeper (zk:host:port). Read this cluster through its brokers"
            )
        match = _ADDRESS.fullmatch(text)
        servers = [] if match is None else [_with_port(one) for one in re.split("[,;]", match["servers"])]
        if match is None or None in servers:
            raise InvalidArgumentError(f"{what}: {text!r} is not of the form zk:host:port,host:port/path")
        chroot = (match["chroot"] or "").rstrip("/")
        if "//" in chroot:
            raise InvalidArgumentError(f"{what}: {text!r} has an empty part in {chroot!r}")
        return cls(",".join(map(str, servers)), chroot)

    @classmethod
    def of_cluster(cls, uri: MetadataServiceUri) -> StoreAddress:
        """Return where the store is if Pulsar shares the ZooKeeper of its bookies: beside the root of the ledgers."""
        return cls(uri.servers, uri.root.rpartition("/")[0])

    def __str__(self) -> str:
        return f"zk:{self.servers}{self.chroot}"


@dataclass(frozen=True, slots=True)
class Store:
    """One store. Paths are Pulsar's, without the chroot. Methods raise MetadataUnavailableError."""

    zookeeper: ZooKeeper
    address: StoreAddress

    def get(self, path: str) -> Znode | None:
        """Return the content of a znode, or None."""
        return self.zookeeper.get(self.address.chroot + path)

    def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Return the content of each znode, or None, pipelined."""
        found = self.zookeeper.get_many([self.address.chroot + path for path in paths])
        return [found[self.address.chroot + path] for path in paths]

    def children(self, path: str) -> list[str] | None:
        """Return the names of a znode's children, or None if there is no such znode."""
        return self.zookeeper.children(self.address.chroot + path)

    def latest(self, paths: Sequence[str]) -> list[Znode | None]:
        """Like :meth:`get_many`, with every change that was acknowledged before the call."""
        zookeeper = self.zookeeper
        for _ in range(_MAX_SESSIONS):
            session = zookeeper.session_id
            zookeeper.sync(self.address.chroot or "/")
            found = self.get_many(paths)
            # The server of another session may be behind.
            if session and zookeeper.session_id == session:
                return found
        raise MetadataUnavailableError(f"sessions with {self.address} ended {_MAX_SESSIONS} times while it was read")


@dataclass(frozen=True, slots=True)
class Stores:
    """Both stores of a cluster."""

    local: Store
    configuration: Store


def _with_port(server: str) -> str | None:
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        return f"{server}:{_DEFAULT_PORT}" if server and not server.isspace() else None
    return server if host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536 else None
