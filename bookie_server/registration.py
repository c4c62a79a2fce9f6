"""A bookie's identity in ZooKeeper and on its disks: cookies and the registration znode.

Source: compatibility facts §3.4, §3.5. Under the ledgers root ``<R>``:

``<R>/cookies/<bookie id>``      the cookie, the same text as ``current/VERSION`` in every directory
``<R>/available/<bookie id>``    ephemeral: the bookie is up, and where
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from bk_spark.bookie.zookeeper import CONNECTED, ZooKeeper
from bk_spark.protocol.cookie import Cookie, encode_directories
from bk_spark.protocol.errors import (
    BookKeeperError,
    CookieMismatchError,
    MetadataError,
    NodeExistsError,
    OutcomeUnknownError,
    StorageError,
)
from bk_spark.protocol.registration import BookieServiceInfo
from bookie_server.config import BookieConfig
from bookie_server.storage.files import replace_file

_LOG: Final = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 1.0
_VERSION_FILE: Final = "VERSION"


def check_cookies(zookeeper: ZooKeeper, config: BookieConfig) -> None:
    """Make sure that the directories and the bookie id belong together; stamp them where both are new.

    Raises CookieMismatchError (naming every field that differs, with nothing written), MetadataError where the
    cluster is not initialised.
    """
    root = config.metadata_service_uri.root
    expected = _expected_cookie(zookeeper, config)
    path = f"{root}/cookies/{config.bookie_id}"
    node = zookeeper.get(path)
    if node is not None:
        _compare(expected, Cookie.decode(node.data, f"znode {path}"), f"znode {path}")
    directories = list(dict.fromkeys((config.journal_directory, config.ledger_directory)))
    unstamped = [directory for directory in directories if not _check_directory(directory, expected)]
    if node is not None:
        if unstamped:
            raise CookieMismatchError(
                f"bookie {config.bookie_id} has a cookie in ZooKeeper ({path}), but {' and '.join(unstamped)} has no "
                "current/VERSION: the directory was lost or replaced. Bring it back; or re-replicate the bookie's "
                "ledgers, delete that znode, and start it anew"
            )
        return
    if not unstamped and not all(_holds_version_only(directory) for directory in directories):
        raise CookieMismatchError(
            f"{' and '.join(directories)} were stamped for bookie {config.bookie_id}, but its cookie {path} is not in "
            "ZooKeeper: another cluster, or the bookie was removed from it. Empty the directories to start anew"
        )
    for directory in unstamped:
        current = current_directory(directory)
        if os.path.isdir(current) and os.listdir(current):
            raise CookieMismatchError(
                f"{directory} holds files but no current/VERSION, and bookie {config.bookie_id} is new: give it an "
                "empty directory"
            )
    for directory in unstamped:
        os.makedirs(current_directory(directory), exist_ok=True)
        replace_file(os.path.join(current_directory(directory), _VERSION_FILE), expected.encode())
    with contextlib.suppress(NodeExistsError):
        zookeeper.create(path, expected.encode(), make_parents=True)
        _LOG.info("stamped %s for bookie %s", ", ".join(directories), config.bookie_id)
        return
    _compare(expected, Cookie.decode(_content(zookeeper, path), f"znode {path}"), f"znode {path}")


def current_directory(directory: str) -> str:
    """Where the files of a configured directory are."""
    return os.path.join(directory, "current")


def _holds_version_only(directory: str) -> bool:
    """Whether the directory was stamped and never used: a first start that ended before the cookie was made."""
    return os.listdir(current_directory(directory)) == [_VERSION_FILE]


def _expected_cookie(zookeeper: ZooKeeper, config: BookieConfig) -> Cookie:
    root = config.metadata_service_uri.root
    instance = zookeeper.get(f"{root}/INSTANCEID")
    if instance is None and zookeeper.get(f"{root}/LAYOUT") is None:
        raise MetadataError(
            f"no BookKeeper cluster is initialised at {config.metadata_service_uri}: {root}/LAYOUT and INSTANCEID are "
            "missing; initialise it, or correct metadataServiceUri"
        )
    return Cookie(
        config.bookie_id,
        config.journal_directory,
        encode_directories([config.ledger_directory]),
        instance.data.decode() if instance is not None else None,
    )


def _check_directory(directory: str, expected: Cookie) -> bool:
    """Whether ``directory`` is stamped; raises CookieMismatchError where it is for somebody else."""
    path = os.path.join(current_directory(directory), _VERSION_FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return False
    _compare(expected, Cookie.decode(content, path), path)
    return True


def _compare(expected: Cookie, found: Cookie, source: str) -> None:
    differences = expected.differences(found)
    if differences:
        raise CookieMismatchError(
            f"{source} belongs to another bookie or configuration (configured / found): {'; '.join(differences)}"
        )


def _content(zookeeper: ZooKeeper, path: str) -> bytes:
    node = zookeeper.get(path)
    return node.data if node is not None else b""


class Registration:
    """Keeps ``<R>/available/<bookie id>`` there, over lost sessions too, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, zookeeper: ZooKeeper, root: str, bookie_id: str, info: BookieServiceInfo, *, wait_ms: int
    ) -> None:
        self._zookeeper = zookeeper
        self._path = f"{root}/available/{bookie_id}"
        self._readonly_path = f"{root}/available/readonly"
        self._content = info.encode()
        self._wait_s = wait_ms / 1000
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="registration", daemon=True)

    def start(self) -> None:
        """Register; waits for the znode of an earlier session of this bookie to go. Blocking.

        Raises MetadataError where it does not go, or ZooKeeper cannot be reached.
        """
        self._zookeeper.ensure_path(self._readonly_path)
        self._register()
        self._zookeeper.add_state_listener(self._on_state)
        self._thread.start()

    def stop(self) -> None:
        """Take the znode away. Blocking; never raises."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(BookKeeperError):
            node = self._zookeeper.exists(self._path)
            if node is not None and node.owner_session == self._zookeeper.session_id:
                self._zookeeper.delete(self._path)

    def _register(self) -> None:
        gone = threading.Event()
        try:
            self._zookeeper.create(self._path, self._content, ephemeral=True)
            _LOG.info("registered as %s", self._path)
            return
        except (NodeExistsError, OutcomeUnknownError):
            node = self._zookeeper.exists(self._path, watch=lambda _: gone.set())
        if node is not None and node.owner_session == self._zookeeper.session_id:
            return
        if node is not None:
            _LOG.info("%s is held by session 0x%x; waiting for it to end", self._path, node.owner_session)
            if not gone.wait(self._wait_s):
                raise MetadataError(
                    f"{self._path} is held by another session (0x{node.owner_session:x}) and did not go within "
                    f"{self._wait_s:g} s: another bookie with this id is running, or choose another bookieId"
                )
        try:
            self._zookeeper.create(self._path, self._content, ephemeral=True)
        except NodeExistsError as error:
            raise MetadataError(f"{self._path} was taken by another bookie with this id") from error
        _LOG.info("registered as %s", self._path)

    def _on_state(self, state: str) -> None:
        if state == CONNECTED:
            self._wake.set()

    def _keep(self) -> None:
        """After each reconnection, see to it that the znode is there: the session may be a new one."""
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._register()
            except BookKeeperError as error:
                _LOG.warning("cannot register yet, trying again: %s", error)
                threading.Timer(_RETRY_SECONDS, self._wake.set).start()


class DirectoryLocks:
    """Holds the directories against a second process, with locks that end with this process."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = list(dict.fromkeys(os.path.realpath(directory) for directory in directories))
        self._fds: list[int] = []
        self._made: list[str] = []

    def acquire(self) -> None:
        """Make missing directories and lock all. Raises StorageError naming the one in use, or that cannot be made."""
        import fcntl

        for directory in self._directories:
            try:
                self._make(directory)
                fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise StorageError(f"cannot use directory {directory}: {error.strerror}") from error
            self._fds.append(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(f"directory {directory} is in use by another bookie process") from error

    def release(self, *, remove_made: bool = False) -> None:
        """Give the locks back; with ``remove_made`` also remove directories made here, as far as they are empty."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if remove_made:
            for directory in reversed(self._made):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)

    def _make(self, directory: str) -> None:
        missing = []
        at = directory
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for at in reversed(missing):
            os.mkdir(at)
            self._made.append(at)
