"""The bookie as a process: start, stop, exit codes. Source: compatibility.md §5.15.

Order of the start: port, ZooKeeper, directory locks, cookies, ``DIRTY``, storage with replay; then, in the event loop
(service.py), disks, collector, native front end, registration, admin API.
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

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, MetadataError
from bookie_server.config.config import BookieConfig
from bookie_server.config.load import load_config
from bookie_server.identity.cookies import all_directories, check_cookies
from bookie_server.identity.directory_locks import DirectoryLocks
from bookie_server.service import BookieService, CannotListenError
from bookie_server.stop_signals import StopRequestedError, ignore_signals, stop_on_signal

_LOG: Final = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_INVALID_CONFIG: Final = 1
EXIT_SERVER_ERROR: Final = 2
# Apache's 3 (ZooKeeper session expired) is not used: this bookie survives session expiry and registers again.
EXIT_ZOOKEEPER_REGISTRATION: Final = 4
EXIT_BOOKIE_ERROR: Final = 5

#: Threads of this process wait for each other's Python at most about this long; the default is 5 ms.
_SWITCH_INTERVAL_S: Final = 0.0005
#: When Python looks for cycles of unused objects; the last number is 10 by default. To look through everything that
#: many connections hold stops the event loop for 60 ms. What ends leaves no cycles, so that may be seldom.
_COLLECT_AT: Final = (700, 10, 100)
#: Batches of a receive are made in memory that was used before; larger pieces go back to the system at once.
_MALLOC_MMAP_THRESHOLD: Final = (-3, 2 * 1024 * 1024)
_MALLOC_TRIM_THRESHOLD: Final = (-1, 16 * 1024 * 1024)
_MALLOC_ARENA_MAX: Final = (-8, 2)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_from_conf(path: str) -> int:
    """Run a bookie with the configuration file at ``path`` until SIGTERM or SIGINT; the exit code.

    Logs to stderr. A start that fails says why in one line and leaves nothing behind.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        config, warnings = load_config(path)
    except InvalidArgumentError as error:
        return _refuse(EXIT_INVALID_CONFIG, error)
    for warning in warnings:
        _LOG.warning("%s", warning)
    _tune_process()
    try:
        listener = _bind(config)
    except OSError as error:
        return _refuse(EXIT_SERVER_ERROR, f"cannot listen on {config.listen_host}:{config.port}: {error.strerror}")
    with listener:
        return _run(config, listener)


def _run(config: BookieConfig, listener: socket.socket) -> int:
    zookeeper = ZooKeeper(config.metadata_service_uri.servers, session_timeout_ms=config.zk_timeout_ms)
    locks = DirectoryLocks(all_directories(config))
    checked = False
    try:
        # As after ``kill -9``, the next start begins where this one did.
        with stop_on_signal(_SIGNALS):
            zookeeper.start()
            locks.acquire()
            identity = check_cookies(zookeeper, config)
            checked = True
            service = BookieService(config, zookeeper, identity, listener)
        return asyncio.run(service.run(_SIGNALS))
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
    """The port taken, not yet listening: a busy one is found before anything else is touched."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.listen_host, config.port))
    except OSError:
        listener.close()
        raise
    return listener


def _tune_process() -> None:
    """Short waits between threads; few collections of everything; freed batches go back to the system; as many files as
    are allowed."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_COLLECT_AT)
    gc.collect()
    gc.freeze()  # the modules stay: no collection need look through them
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(OSError, AttributeError):  # not glibc: its allocator needs no such care
        libc = ctypes.CDLL(None)
        for option, value in (_MALLOC_MMAP_THRESHOLD, _MALLOC_TRIM_THRESHOLD, _MALLOC_ARENA_MAX):
            libc.mallopt(option, value)


def _refuse(code: int, error: object) -> int:
    _LOG.critical("bookie not started: %s", error)
    return code
