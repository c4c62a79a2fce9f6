"""Checking that a metadata store belongs to this bookie's cluster. No I/O.

Two znodes identify the cluster: ``INSTANCEID``, drawn when a cluster is created, and the bookie's own cookie. If a root
was deleted and recreated, or the host name leads to another ensemble, the instance differs and the cookie is missing.
A cookie of an old release may name no instance. Then the bookie keeps to the instance it found at start, and the cookie
decides: only this bookie creates it, and only while its directories are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bk_spark.protocol.errors import MetadataFormatError, MetadataUnavailableError
from bk_spark.protocol.metadata.cookie import Cookie
from bk_spark.protocol.metadata.znodes import Znode


class ForeignClusterError(MetadataUnavailableError):
    """The metadata store is not that of the bookie's cluster. Its answers about ledgers do not count."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """``cookie`` is the bookie's. ``instance_id`` is the only one that it accepts. None: the cluster must have none."""

    root: str
    cookie: Cookie
    instance_id: str | None

    @property
    def bookie_id(self) -> str:
        """The id in the bookie's cookie."""
        return self.cookie.bookie_id

    @property
    def instance_path(self) -> str:
        """The znode with the cluster's instance id."""
        return f"{self.root}/INSTANCEID"

    @property
    def cookie_path(self) -> str:
        """The znode with the bookie's cookie."""
        return f"{self.root}/cookies/{self.bookie_id}"

    @property
    def paths(self) -> list[str]:
        """The znodes that identify the cluster."""
        return [self.instance_path, self.cookie_path]

    def check(self, found: Mapping[str, Znode | None]) -> None:
        """Check the znodes ``found`` at :attr:`paths`. Raises ForeignClusterError."""
        instance = found[self.instance_path]
        there = None if instance is None else instance.data.decode(errors="replace")
        if there != self.instance_id:
            raise self._foreign(f"{self.instance_path} is {there!r}, not {self.instance_id!r}")
        cookie = found[self.cookie_path]
        if cookie is None:
            raise self._foreign(f"its cookie {self.cookie_path} is missing")
        try:
            differences = self.cookie.differences(Cookie.decode(cookie.data, f"znode {self.cookie_path}"))
        except MetadataFormatError as error:
            raise self._foreign(str(error)) from error
        if differences:
            raise self._foreign(f"{self.cookie_path} differs (own / found): {'; '.join(differences)}")

    def _foreign(self, why: str) -> ForeignClusterError:
        return ForeignClusterError(
            f"not the cluster of bookie {self.bookie_id}: {why}. Nothing is collected, no ledger leaves limbo, and the "
            "bookie does not register until ZooKeeper has its cluster again. Check metadataServiceUri and where its "
            "hosts lead. If the znodes were deleted, restore ZooKeeper from a backup"
        )
