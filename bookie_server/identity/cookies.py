"""Checking that a bookie's directories, its id and the cluster belong together. Source: compatibility.md §3.5.

The same cookie is stored in ZooKeeper (``<R>/cookies/<bookie id>``) and as ``current/VERSION`` in every journal, ledger
and index directory. A bookie that lost a directory would answer "absent" for entries it had acknowledged, so it does
not start. It does not start either if the cookie in ZooKeeper was lost as well.

A first start stamps the directories and then creates the cookie in ZooKeeper. If it is interrupted in between, it can
be repeated as long as the directories hold only their stamps. Adding storage uses the same order.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    CookieMismatchError,
    MetadataConflictError,
    MetadataError,
    MetadataFormatError,
    NodeExistsError,
)
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.znodes import Znode
from bookie_server.config.config import BookieConfig
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.storage import files

_LOG: Final = logging.getLogger(__name__)
_VERSION_FILE: Final = "VERSION"
#: Files that an interrupted first start leaves in a directory.
_STAMP_FILES: Final = {_VERSION_FILE, _VERSION_FILE + ".tmp"}


def check_cookies(zookeeper: ZooKeeper, config: BookieConfig) -> ClusterIdentity:
    """Check that the directories and the bookie id belong together; stamp them if both are new. Return the cluster
    identity to accept from now on.

    Raises CookieMismatchError (naming every field that differs, with nothing written), MetadataError if the cluster is
    not initialised, OSError.
    """
    check = _Check(zookeeper, config)
    check.compare()
    if check.node is not None:
        check.require_stamps()
        if config.allow_storage_expansion:
            check.expand()
    else:
        check.require_new()
        check.create()
    return check.identity()


def current_directory(directory: str) -> str:
    """The subdirectory that holds the files of a configured directory."""
    return os.path.join(directory, "current")


def all_directories(config: BookieConfig) -> list[str]:
    """Every directory of the bookie, once."""
    return list(dict.fromkeys((*config.journal_directories, *config.ledger_directories, *config.index_directories)))


class _Check:
    """The expected cookie, and the cookies found in ZooKeeper and in the directories."""

    def __init__(self, zookeeper: ZooKeeper, config: BookieConfig) -> None:
        self._zookeeper = zookeeper
        self._config = config
        self._expected = _expected_cookie(zookeeper, config)
        self._directories = all_directories(config)
        self._root = config.metadata_service_uri.root
        self._path = f"{self._root}/cookies/{config.bookie_id}"
        self.node: Znode | None = zookeeper.get(self._path)
        #: Cookies found, by their place.
        self._found: dict[str, Cookie] = {}
        self._unstamped: list[str] = []
        if self.node is not None:
            self._found[f"znode {self._path}"] = Cookie.decode(self.node.data, f"znode {self._path}")
        for directory in self._directories:
            path = os.path.join(current_directory(directory), _VERSION_FILE)
            cookie = _read_stamp(path)
            if cookie is None:
                self._unstamped.append(directory)
            else:
                self._found[path] = cookie

    def compare(self) -> None:
        for source, cookie in self._found.items():
            _require_equal(self._expected, cookie, source, expanding=self._config.allow_storage_expansion)
            if cookie.instance_id is not None and self._expected.instance_id is None:
                raise CookieMismatchError(
                    f"{source} belongs to the cluster {cookie.instance_id}, but {self._root}/INSTANCEID is missing: "
                    "correct metadataServiceUri, or restore that znode"
                )

    def require_stamps(self) -> None:
        """The cookie is in ZooKeeper, so every directory needs its stamp; new ones only if storage may be expanded."""
        lost = self._unstamped
        if self._config.allow_storage_expansion:
            # An interrupted expansion: stamps may already name a new directory that ZooKeeper does not know.
            known = self._found[f"znode {self._path}"].storage_directories() | {*self._config.journal_directories}
            lost = [directory for directory in lost if directory in known]
        if lost:
            raise CookieMismatchError(
                f"bookie {self._config.bookie_id} has a cookie in ZooKeeper ({self._path}), but {' and '.join(lost)} "
                "has no current/VERSION: the directory was lost or replaced. Restore it; or re-replicate the "
                "bookie's ledgers, delete that znode, and start it again"
            )
        self._require_empty(self._unstamped, "to be added")

    def require_new(self) -> None:
        """No cookie is in ZooKeeper, so the directories may hold only what a first start leaves."""
        stamped = [directory for directory in self._directories if directory not in self._unstamped]
        used = [directory for directory in stamped if not _holds_stamp_only(directory)]
        if used:
            lost = f"; {' and '.join(self._unstamped)} has no current/VERSION" if self._unstamped else ""
            raise CookieMismatchError(
                f"{' and '.join(used)} was stamped for bookie {self._config.bookie_id} and used, but its cookie "
                f"{self._path} is not in ZooKeeper: this is another cluster, the cluster was created again, or the "
                f"bookie was removed from it{lost}. Correct metadataServiceUri, or restore ZooKeeper from a backup. If "
                "other bookies have copies of all its ledgers, give it new directories, and keep these until the "
                "ledgers are checked"
            )
        self._require_empty(self._unstamped, f"of the new bookie {self._config.bookie_id}")

    def identity(self) -> ClusterIdentity:
        """The cluster to accept. If no cookie names its instance, the current one."""
        named = [cookie.instance_id for cookie in self._found.values() if cookie.instance_id is not None]
        return ClusterIdentity(self._root, self._expected, named[0] if named else self._expected.instance_id)

    def create(self) -> None:
        self._stamp(self._unstamped)
        try:
            self._zookeeper.create(self._path, self._expected.encode(), make_parents=True)
        except NodeExistsError:
            # Another process created it, or this one did and the reply was lost.
            node = self._zookeeper.get(self._path)
            source = f"znode {self._path}"
            _require_equal(self._expected, Cookie.decode(node.data if node else b"", source), source)
        _LOG.info("stamped directories=%s bookie=%s", ",".join(self._directories), self._config.bookie_id)

    def expand(self) -> None:
        """Update the cookie in ZooKeeper and every stamp to the configured directories."""
        old = [
            directory
            for directory in self._directories
            if (cookie := self._found.get(os.path.join(current_directory(directory), _VERSION_FILE))) is None
            or self._expected.differences(cookie)
        ]
        self._stamp(old)
        node = self.node
        if node is None or not self._expected.differences(self._found[f"znode {self._path}"]):
            return
        try:
            self._zookeeper.set(self._path, self._expected.encode(), node.version)
        except MetadataConflictError as error:
            raise CookieMismatchError(f"{self._path} was changed by another process meanwhile. Start again") from error
        _LOG.info("storage expanded: bookie=%s directories=%s", self._config.bookie_id, ",".join(self._directories))

    def _stamp(self, directories: Sequence[str]) -> None:
        for directory in directories:
            current = current_directory(directory)
            files.make_directory(current)
            files.replace_file(os.path.join(current, _VERSION_FILE), self._expected.encode())
            files.sync_directory(directory)

    def _require_empty(self, directories: Sequence[str], what: str) -> None:
        for directory in directories:
            if not _holds_stamp_only(directory):
                raise CookieMismatchError(
                    f"{directory} holds files but no readable current/VERSION, and it is a directory {what}: restore "
                    "current/VERSION (the bookie's other directories hold the same file), or configure an empty "
                    "directory"
                )


def _expected_cookie(zookeeper: ZooKeeper, config: BookieConfig) -> Cookie:
    root = config.metadata_service_uri.root
    instance = zookeeper.get(f"{root}/INSTANCEID")
    if instance is None and zookeeper.get(f"{root}/LAYOUT") is None:
        raise MetadataError(
            f"no BookKeeper cluster is initialised at {config.metadata_service_uri}: {root}/LAYOUT and INSTANCEID are "
            "missing; initialise it, or correct metadataServiceUri"
        )
    separate = config.index_directories != config.ledger_directories
    return Cookie(
        config.bookie_id,
        ",".join(config.journal_directories),
        encode_directories(config.ledger_directories),
        instance.data.decode() if instance is not None else None,
        encode_directories(config.index_directories) if separate else None,
    )


def _read_stamp(path: str) -> Cookie | None:
    """Read the stamp of a directory; None if there is none. An unreadable one counts as none if nothing else is in the
    directory; otherwise raises CookieMismatchError."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    try:
        return Cookie.decode(content, path)
    except MetadataFormatError as error:
        if _holds_stamp_only(os.path.dirname(os.path.dirname(path))):
            return None
        raise CookieMismatchError(
            f"{error}; the bookie's other directories hold the same file: if they belong together, copy it from there"
        ) from error


def _holds_stamp_only(directory: str) -> bool:
    """Whether nothing but the stamp was ever written to the directory."""
    try:
        return set(os.listdir(current_directory(directory))) <= _STAMP_FILES
    except FileNotFoundError:
        return True


def _require_equal(expected: Cookie, found: Cookie, source: str, *, expanding: bool = False) -> None:
    differences = expected.differences(found, expanding=expanding)
    if not differences:
        return
    advice = ""
    if any(difference.startswith("instanceId") for difference in differences):
        advice = (
            ". This is another cluster, or the cluster was created again: correct metadataServiceUri, or restore "
            "ZooKeeper from a backup"
        )
    raise CookieMismatchError(
        f"{source} belongs to another bookie or configuration (configured / found): {'; '.join(differences)}{advice}"
    )
