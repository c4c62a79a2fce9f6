"""The state of a local cluster in its directory: a lock, and the ports chosen at its first start.

``cluster.json`` (format version 1): ``{"format_version": 1, "root": ..., "layout": ...,
"zookeepers": [{"client_port", "quorum_port", "election_port"}, ...], "bookies": [{"port"}, ...]}``.
Ports are fixed because a bookie's port is part of its id, which ledger metadata and cookies contain.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bk_spark.protocol.errors import CorruptFileError, InvalidArgumentError, StorageError

LOOPBACK: Final = "127.0.0.1"

_FORMAT_VERSION: Final = 1
_STATE_NAME: Final = "cluster.json"
_LOCK_NAME: Final = "cluster.lock"
_TOKEN_NAME: Final = "admin-token"
#: After a parent was killed, its children hold the lock briefly until they die.
_LOCK_WAIT_MS: Final = 2_000
_POLL_S: Final = 0.05
#: Below the range from which Linux takes the local ports of outgoing connections, so that no
#: connection takes one of our ports while its server is down.
_FREE_PORTS: Final = range(20_000, 32_000)
_PORT_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class ZooKeeperPorts:
    """The ports of one ZooKeeper server. The last two connect the servers with each other."""

    client_port: int
    quorum_port: int
    election_port: int


@dataclass(frozen=True, slots=True)
class BookiePorts:
    """The ports of one bookie."""

    port: int


@dataclass(frozen=True, slots=True)
class LocalClusterState:
    """The persistent description of a local cluster."""

    root: str
    layout: str
    zookeepers: tuple[ZooKeeperPorts, ...]
    bookies: tuple[BookiePorts, ...]


class DirectoryLock:
    """An exclusive lock on a cluster's directory; processes that inherit ``fd`` hold it too."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises :class:`InvalidArgumentError` if a running cluster uses the directory."""
        path = directory / _LOCK_NAME
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire(directory)
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self.fd)
            raise

    def _acquire(self, directory: Path) -> None:
        deadline = time.monotonic() + _LOCK_WAIT_MS / 1000
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    owner = os.pread(self.fd, 20, 0).decode(errors="replace").strip() or "unknown"
                    raise InvalidArgumentError(
                        f"directory {directory} is in use by a running cluster (pid {owner}); "
                        "stop that one or use another directory"
                    ) from error
                time.sleep(_POLL_S)
            else:
                return

    def release(self) -> None:
        """Close this process's handle. Processes that inherited ``fd`` still hold the lock."""
        os.close(self.fd)


def load_state(directory: Path) -> LocalClusterState | None:
    """Load the state from ``directory``; None if there is none. Raises :class:`CorruptFileError`."""
    path = directory / _STATE_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptFileError(f"{path} cannot be read: {error}") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != _FORMAT_VERSION:
        raise CorruptFileError(f"{path} has format version {version!r}; this release knows {_FORMAT_VERSION} only")
    try:
        state = LocalClusterState(
            root=content["root"],
            layout=content["layout"],
            zookeepers=tuple(ZooKeeperPorts(**ports) for ports in content["zookeepers"]),
            bookies=tuple(BookiePorts(**ports) for ports in content["bookies"]),
        )
    except (KeyError, TypeError) as error:
        raise CorruptFileError(f"{path} lacks or misnames a field: {error}") from error
    if not state.zookeepers:
        raise CorruptFileError(f"{path} names no ZooKeeper server")
    for servers in asdict(state)["zookeepers"], asdict(state)["bookies"]:
        for port in (port for server in servers for port in server.values()):
            if not isinstance(port, int) or not 0 < port < 65536:
                raise CorruptFileError(f"{path} has the invalid port {port!r}")
    return state


def save_state(directory: Path, state: LocalClusterState) -> None:
    """Save the state atomically and durably."""
    path = directory / _STATE_NAME
    temporary = directory / (_STATE_NAME + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"format_version": _FORMAT_VERSION, **asdict(state)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def make_token(directory: Path) -> Path:
    """Return the file with the token of the admin APIs, which only its owner may read. It is made where missing."""
    path = directory / _TOKEN_NAME
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    return path


class PortChooser:
    """Chooses loopback ports that nothing listens on, each at most once."""

    def __init__(self, taken: set[int]) -> None:
        self._taken = set(taken)

    def choose(self, wanted: int = 0) -> int:
        """Return ``wanted``, or any free port for 0. Raises :class:`InvalidArgumentError`."""
        if wanted:
            if not 0 < wanted < 65536:
                raise InvalidArgumentError(f"port {wanted} is out of range; use 1 to 65535")
            if wanted in self._taken:
                raise InvalidArgumentError(f"port {wanted} is used twice in this cluster; choose other base ports")
            require_free_port(wanted, "the cluster")
            self._taken.add(wanted)
            return wanted
        for _ in range(_PORT_TRIES):
            port = random.choice(_FREE_PORTS)
            if port not in self._taken and port_is_free(port):
                self._taken.add(port)
                return port
        raise StorageError(f"found no free port from {_FREE_PORTS.start} to {_FREE_PORTS.stop - 1} on {LOOPBACK}")


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        # Same option as servers use: a connection in TIME_WAIT does not make a port busy, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def require_free_port(port: int, owner: str) -> None:
    """Raises :class:`InvalidArgumentError` if another process listens on ``port``."""
    if not port_is_free(port):
        raise InvalidArgumentError(
            f"port {port} on {LOOPBACK}, which {owner} needs, is in use by another process; "
            "stop that process, or choose other ports (an existing cluster keeps its own: use a new directory)"
        )
