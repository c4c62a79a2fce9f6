"""The bookie as a process: start, stop, exit codes. Source: compatibility.md §5.15.

Start order: port, ZooKeeper, directory locks, cookies, marks of limbo, ``DIRTY``, storage with replay; then, in the
event loop (service.py), disks, collector, native front end, registration, admin API.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import socket
import sys
from typing import Final

import numpy as np

from bk_spark.bookie.connection.client_tls import ClientTls
from bk_spark.bookie.connection.logins import Logins
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, MetadataError
from bookie_server.admin.access import AdminAccess
from bookie_server.admin.servers import CannotListenError
from bookie_server.config.config import BookieConfig
from bookie_server.disks.open_files import reserve_table
from bookie_server.identity.cookies import all_directories, current_directories
from bookie_server.identity.directory_locks import DirectoryLocks
from bookie_server.identity.foreign_index import require_own_index
from bookie_server.integrity.marking import check_identity
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.service import BookieService
from bookie_server.startup import configure_process
from bookie_server.stop_signals import StopRequestedError, ignore_signals, stop_on_signal

_LOG: Final = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_INVALID_CONFIG: Final = 1
EXIT_SERVER_ERROR: Final = 2
# Apache's 3 (ZooKeeper session expired) is not used: this bookie survives session expiry and registers again.
EXIT_ZOOKEEPER_REGISTRATION: Final = 4
EXIT_BOOKIE_ERROR: Final = 5

#: Maximum time, approximately, that threads of this process wait for the GIL; the default is 5 ms.
SWITCH_INTERVAL_S: Final = 0.0005
#: Thresholds of Python's cycle collector; the last two numbers are 10 by default. A full collection with many
#: connections stops the event loop for 60 ms. Closed connections leave no cycles, so full collections may be rare. With
#: the second number those of the middle generation take 0.3 ms instead of 0.9.
_COLLECT_AT: Final = (700, 3, 330)
#: Batches of a receive reuse memory; larger pieces are returned to the system at once.
_MALLOC_MMAP_THRESHOLD: Final = (-3, 2 * 1024 * 1024)
_MALLOC_TRIM_THRESHOLD: Final = (-1, 16 * 1024 * 1024)
_MALLOC_ARENA_MAX: Final = (-8, 2)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_from_conf(path: str) -> int:
    """Run a bookie with the configuration file at ``path`` until SIGTERM or SIGINT. Return the exit code.

    Logs to stderr. A failed start gives the reason in one line and leaves nothing behind.
    """
    try:
        config = configure_process(path)
        tls = TlsContexts(config, server_side=True) if config.tls_enabled else None
        _check_own_client(config)
        access = FrontAccess.of(config)
        zookeeper_access = ZooKeeperAccess(config)
        admin = AdminAccess(config)
    except InvalidArgumentError as error:
        return _refuse(EXIT_INVALID_CONFIG, error)
    _tune_process()
    try:
        listener = _bind(config)
    except OSError as error:
        return _refuse(EXIT_SERVER_ERROR, f"cannot listen on {config.listen_host}:{config.port}: {error.strerror}")
    with listener:
        return _run(config, listener, tls, access, zookeeper_access, admin)


def _check_own_client(config: BookieConfig) -> None:
    """Read the files that the bookie's own client will need. Raises InvalidArgumentError."""
    if config.auto_recovery_enabled or config.data_integrity_checking:
        client = config.client_config()
        Logins.of(client)
        if client.tls_enabled:
            ClientTls(client)


def _run(
    config: BookieConfig,
    listener: socket.socket,
    tls: TlsContexts | None,
    access: FrontAccess | None,
    zookeeper_access: ZooKeeperAccess,
    admin: AdminAccess,
) -> int:
    servers = config.metadata_service_uri.servers
    zookeeper = ZooKeeper(servers, session_timeout_ms=config.zk_timeout_ms, access=zookeeper_access)
    locks = DirectoryLocks(all_directories(config))
    checked = False
    try:
        # If this start is interrupted, the next one starts from the same state, as after ``kill -9``.
        with stop_on_signal(_SIGNALS):
            zookeeper.start()
            locks.acquire()
            require_own_index(current_directories(all_directories(config)))
            identity = check_identity(zookeeper, config)
            checked = True
            service = BookieService(config, zookeeper, identity, listener, tls, access, admin)
        with asyncio.Runner(loop_factory=service.new_event_loop) as runner:
            return runner.run(service.run(_SIGNALS))
    except StopRequestedError:
        _LOG.info("stopped before the bookie served")
        return EXIT_OK
    except MetadataError as error:
        return _refuse(EXIT_ZOOKEEPER_REGISTRATION, error)
    except (BookKeeperError, OSError) as error:
        return _refuse(EXIT_BOOKIE_ERROR, error)
    except CannotListenError as error:
        return _refuse(EXIT_SERVER_ERROR, error)
    except Exception as error:
        _LOG.exception("unexpected error")
        return _refuse(EXIT_SERVER_ERROR, f"{type(error).__name__}: {error}")
    finally:
        ignore_signals(_SIGNALS)
        zookeeper.close()
        locks.release(remove_made=not checked)


def _bind(config: BookieConfig) -> socket.socket:
    """Bind the port without listening, so that a busy port is found before anything else is touched."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.listen_host, config.port))
    except OSError:
        listener.close()
        raise
    return listener


def _tune_process() -> None:
    """Tune the process: short waits between threads, rare full collections, freed batches returned to the system, and
    room for the maximum number of open files."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    np.unique(np.zeros(1))  # its first call imports for 8 ms, which must not happen in the event loop
    gc.set_threshold(*_COLLECT_AT)
    gc.collect()
    gc.freeze()  # modules stay, so collections need not scan them
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reserve_table()
    with contextlib.suppress(OSError, AttributeError):  # not glibc: its allocator does not need this
        libc = ctypes.CDLL(None)
        for option, value in (_MALLOC_MMAP_THRESHOLD, _MALLOC_TRIM_THRESHOLD, _MALLOC_ARENA_MAX):
            libc.mallopt(option, value)


def _refuse(code: int, error: object) -> int:
    _LOG.critical("bookie not started: %s", error)
    return code
