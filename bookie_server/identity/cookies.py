"""Checking that a bookie's directories, its id and the cluster belong together. Source: compatibility.md §3.5.

The same cookie is stored in ZooKeeper (``<R>/cookies/<bookie id>``) and as ``current/VERSION`` in every journal, ledger
and index directory. A bookie that lost a directory would answer "absent" for entries it had acknowledged, so it does
not start. It does not start either if the cookie in ZooKeeper was lost as well.

With an operator's word (``dataIntegrityStampMissingCookies``) it starts without lost directories. These are first
stamped with ``VERSION.unchecked``, then all ledgers are marked (``integrity/marking.py``), and only then is that file
renamed. Until then every start begins again, and no other bookie, of any release, starts on the directories. Before
the ledgers are marked, all directories get a new ``GENERATION`` (``generation.py``). If a lost directory comes back
later, its generation differs, and the start is refused.

A first start stamps the directories and then creates the cookie in ZooKeeper. If it is interrupted in between, it can
be repeated as long as the directories hold only their stamps. Adding storage uses the same order. If ZooKeeper's reply
to the cookie's create or change is lost, the same is sent again, and what is stored then decides.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from bk_spark.bookie.metadata.proven_changes import ATTEMPTS
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import (
    CookieMismatchError,
    MetadataConflictError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata.cookie import Cookie, encode_directories
from bk_spark.protocol.metadata.znodes import Znode
from bookie_server.config.config import BookieConfig
from bookie_server.identity.cluster_identity import ClusterIdentity
from bookie_server.identity.generation import GENERATION_FILE, new_generation, read_generation, write_generation
from bookie_server.storage.disk import files

_LOG: Final = logging.getLogger(__name__)
_VERSION_FILE: Final = "VERSION"
#: The stamp of a directory that takes the place of a lost one, until ledgers are marked.
_UNCHECKED_FILE: Final = _VERSION_FILE + ".unchecked"
#: Files that an interrupted first start, expansion or replacement leaves in a directory.
_STAMP_FILES: Final = {name + end for name in (_VERSION_FILE, _UNCHECKED_FILE, GENERATION_FILE) for end in ("", ".tmp")}

#: Makes a start without these directories safe. Called with the cluster, and the directories as configured.
PrepareLoss = Callable[[ClusterIdentity, Sequence[str]], None]


def check_cookies(
    zookeeper: ZooKeeper, config: BookieConfig, prepare_loss: PrepareLoss | None = None
) -> ClusterIdentity:
    """Check that the directories and the bookie id belong together; stamp them if both are new. Return the cluster
    identity to accept from now on.

    Parameters
    ----------
    prepare_loss
        Called if directories were lost, before they are stamped anew. None: refuse lost directories.

    Raises
    ------
    CookieMismatchError
        Naming every field that differs, or a replaced directory that came back. Nothing was written.
    CorruptFileError
        If the generation of a directory cannot be understood.
    MetadataError
        If the cluster is not initialised.
    OSError
    """
    check = _Check(zookeeper, config)
    check.compare()
    if check.node is not None:
        lost = check.lost_directories()
        if lost and prepare_loss is None:
            raise check.refuse(lost)
        check.require_empty_additions()
        if lost and prepare_loss is not None:
            check.begin_replacement(lost)
            prepare_loss(check.identity(), lost)
            check.end_replacement(lost)
        check.require_one_generation()
        if config.allow_storage_expansion:
            check.expand()
    else:
        check.require_new()
        check.create()
    return check.identity()


def current_directory(directory: str) -> str:
    """The subdirectory that holds the files of a configured directory."""
    return os.path.join(directory, "current")


def current_directories(directories: Sequence[str]) -> list[str]:
    """The subdirectories of several configured directories, in their order."""
    return [current_directory(directory) for directory in directories]


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
        #: Those of them whose replacement has begun.
        self._unchecked: list[str] = []
        #: What all directories have, once that is checked.
        self._generation: str | None = None
        if self.node is not None:
            self._found[f"znode {self._path}"] = Cookie.decode(self.node.data, f"znode {self._path}")
        for directory in self._directories:
            path = os.path.join(current_directory(directory), _VERSION_FILE)
            cookie = _read_stamp(path)
            if cookie is not None:
                self._found[path] = cookie
                continue
            self._unstamped.append(directory)
            path = os.path.join(current_directory(directory), _UNCHECKED_FILE)
            cookie = _read_stamp(path)
            if cookie is not None:
                self._found[path] = cookie
                self._unchecked.append(directory)

    def compare(self) -> None:
        for source, cookie in self._found.items():
            _require_equal(self._expected, cookie, source, expanding=self._config.allow_storage_expansion)
            if cookie.instance_id is not None and self._expected.instance_id is None:
                raise CookieMismatchError(
                    f"{source} belongs to the cluster {cookie.instance_id}, but {self._root}/INSTANCEID is missing: "
                    "correct metadataServiceUri, or restore that znode"
                )

    def lost_directories(self) -> list[str]:
        """The cookie is in ZooKeeper, so every directory should have its stamp; new ones need none if storage may be
        expanded."""
        lost = self._unstamped
        if self._config.allow_storage_expansion:
            # An interrupted expansion: stamps may already name a new directory that ZooKeeper does not know.
            known = self._found[f"znode {self._path}"].storage_directories() | {*self._config.journal_directories}
            lost = [directory for directory in lost if directory in known]
        return lost

    def refuse(self, lost: Sequence[str]) -> CookieMismatchError:
        """Return the error for lost directories."""
        return CookieMismatchError(
            f"bookie {self._config.bookie_id} has a cookie in ZooKeeper ({self._path}), but there is no "
            f"current/VERSION in {' and in '.join(lost)}: what was there is lost, or was replaced. "
            "Restore it. If it is lost for good, start the bookie with dataIntegrityChecking=true and "
            "dataIntegrityStampMissingCookies=true: it copies what it lost from other bookies. "
            "Or re-replicate the bookie's ledgers, delete that znode, and start it again"
        )

    def require_empty_additions(self) -> None:
        self._require_empty([each for each in self._unstamped if each not in self._unchecked], "to be added")

    def begin_replacement(self, lost: Sequence[str]) -> None:
        """Stamp lost directories as unchecked. Raises CookieMismatchError if this cannot be done now."""
        source = f"znode {self._path}"
        _require_equal(self._expected, self._found[source], source)
        config = self._config
        indexes = [each for each in config.index_directories if each not in lost]
        if indexes and all(each in lost for each in config.ledger_directories):
            raise CookieMismatchError(
                f"all ledger directories were lost, so the index files in {' and '.join(indexes)} lead nowhere, and "
                "new entry logs would get the ids of lost ones: move the content of these directories away, too"
            )
        self._read_generations()
        self._stamp([each for each in lost if each not in self._unchecked], _UNCHECKED_FILE)
        # An earlier start may have ended here, so they may differ. Nothing that they hold counts: all is marked next.
        generation = new_generation()
        for directory in self._directories:
            write_generation(current_directory(directory), generation)

    def require_one_generation(self) -> None:
        """Refuse a lost directory that came back after it was replaced. The bookie went on without it, so the
        directory lacks the marks and entries since. Raises CookieMismatchError, CorruptFileError."""
        found = self._read_generations()
        if len(found) > 1:
            have = "; ".join(
                f"{' and '.join(directories)}: {generation or 'none'}"
                for generation, directories in sorted(found.items(), key=lambda item: item[0] or "")
            )
            raise CookieMismatchError(
                f"the directories of bookie {self._config.bookie_id} were not in use together: their generations "
                f"({GENERATION_FILE}, the oldest first) differ: {have}. A directory that was replaced after a loss is "
                "back, and what it holds is too old. Mount the disk that replaced it. If there is none, move the "
                "content of the directories with the older generations away, and start the bookie with "
                "dataIntegrityChecking=true and dataIntegrityStampMissingCookies=true"
            )
        (self._generation,) = found or (None,)

    def _read_generations(self) -> dict[str | None, list[str]]:
        """The stamped directories by their generation. Raises CorruptFileError, also for an unknown version."""
        found: dict[str | None, list[str]] = {}
        for directory in self._directories:
            if directory not in self._unstamped:
                found.setdefault(read_generation(current_directory(directory)), []).append(directory)
        return found

    def end_replacement(self, lost: Sequence[str]) -> None:
        """Give lost directories their final stamp. Their ledgers are marked, so no lost entry is called absent."""
        for directory in lost:
            current = current_directory(directory)
            path = os.path.join(current, _VERSION_FILE)
            files.rename(os.path.join(current, _UNCHECKED_FILE), path)
            files.sync_directory(current)
            self._found[path] = self._expected
        self._unstamped = [each for each in self._unstamped if each not in lost]
        _LOG.info("stamped directories=%s bookie=%s after a loss", ",".join(lost), self._config.bookie_id)

    def require_new(self) -> None:
        """No cookie is in ZooKeeper, so the directories may hold only what a first start leaves."""
        stamped = [directory for directory in self._directories if directory not in self._unstamped]
        used = [directory for directory in stamped if not _holds_stamp_only(directory)]
        if used:
            lost = f"; there is no current/VERSION in {' and in '.join(self._unstamped)}" if self._unstamped else ""
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
        # Also those that have their stamp: they may be left from a replacement, with a generation.
        self._stamp(self._directories)
        self._until_answered(self._create_znode, "created")
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
        self._until_answered(functools.partial(self._change_znode, node.version), "changed")
        _LOG.info("storage expanded: bookie=%s directories=%s", self._config.bookie_id, ",".join(self._directories))

    def _until_answered(self, send: Callable[[], None], done: str) -> None:
        """Call ``send`` until ZooKeeper's reply arrives. Raises MetadataUnavailableError."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(OutcomeUnknownError):
                return send()
        raise MetadataUnavailableError(f"{self._path} could not be {done}: each reply of ZooKeeper was lost. Retry.")

    def _create_znode(self) -> None:
        try:
            self._zookeeper.create(self._path, self._expected.encode(), make_parents=True)
        except NodeExistsError:
            # Another process created it, or this one did and the reply was lost.
            node = self._zookeeper.get_latest(self._path)
            source = f"znode {self._path}"
            _require_equal(self._expected, Cookie.decode(node.data if node else b"", source), source)

    def _change_znode(self, version: int) -> None:
        content = self._expected.encode()
        try:
            self._zookeeper.set(self._path, content, version)
        except MetadataConflictError as error:
            # Another process changed it, or this one did and the reply was lost.
            found = self._zookeeper.get_latest(self._path)
            if found is None or found.data != content:
                raise CookieMismatchError(
                    f"{self._path} was changed by another process meanwhile. Start again"
                ) from error

    def _stamp(self, directories: Sequence[str], name: str = _VERSION_FILE) -> None:
        for directory in directories:
            current = current_directory(directory)
            files.make_directory(current)
            if name == _VERSION_FILE:
                # First, since a stamped directory must have it.
                write_generation(current, self._generation)
            files.replace_file(os.path.join(current, name), self._expected.encode())
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
