"""The bookie as a process: start, serve, stop. Order of the start: compatibility facts §5.15."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
from typing import Final

from bk_spark.bookie.zookeeper import ZooKeeper
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError, MetadataError
from bk_spark.protocol.registration import native_service_info
from bookie_server.bookie import Bookie
from bookie_server.config import BookieConfig, load_config
from bookie_server.net.native import NativeServer
from bookie_server.registration import DirectoryLocks, Registration, check_cookies, current_directory
from bookie_server.storage.ledger_storage import LedgerStorage, StorageConfig

_LOG: Final = logging.getLogger(__name__)

EXIT_OK: Final = 0
EXIT_INVALID_CONFIG: Final = 1
EXIT_SERVER_ERROR: Final = 2
EXIT_ZOOKEEPER_REGISTRATION: Final = 4
EXIT_BOOKIE_ERROR: Final = 5

#: Threads of this process wait for each other's Python at most about this long; the default is 5 ms.
_SWITCH_INTERVAL_S: Final = 0.0005
_MALLOC_MMAP_THRESHOLD: Final = (-3, 128 * 1024)
_MALLOC_ARENA_MAX: Final = (-8, 2)


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
    locks = DirectoryLocks([config.journal_directory, config.ledger_directory])
    started = False
    try:
        zookeeper.start()
        locks.acquire()
        check_cookies(zookeeper, config)
        started = True
        return asyncio.run(_serve(config, listener, zookeeper))
    except MetadataError as error:
        return _refuse(EXIT_ZOOKEEPER_REGISTRATION, error)
    except (BookKeeperError, OSError) as error:
        return _refuse(EXIT_BOOKIE_ERROR, error)
    finally:
        zookeeper.close()
        locks.release(remove_made=not started)


async def _serve(config: BookieConfig, listener: socket.socket, zookeeper: ZooKeeper) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not stop.done():
            stop.set_result(code)

    def failed(error: Exception) -> None:
        _LOG.critical("storage failed, the bookie stops: %s", error)
        finish(EXIT_BOOKIE_ERROR)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, finish, EXIT_OK)

    ledger_directory = current_directory(config.ledger_directory)
    dirty = os.path.join(ledger_directory, "DIRTY")
    if os.path.exists(dirty):
        _LOG.warning("the last shutdown was not clean: replaying the journal")
    with open(dirty, "wb"):
        pass
    storage = LedgerStorage(_storage_config(config), failed)
    storage.start()
    bookie = Bookie(storage)
    server = NativeServer(
        bookie,
        ledger_directory=ledger_directory,
        max_frame_bytes=config.max_frame_bytes,
        max_batch_read_bytes=config.max_batch_read_bytes,
    )
    registration = Registration(
        zookeeper,
        config.metadata_service_uri.root,
        config.bookie_id,
        native_service_info(config.advertised_host, config.port),
        # The server forgets a session up to a tick after its timeout, and may have granted a longer one.
        wait_ms=2 * config.zk_timeout_ms,
    )
    try:
        await server.start(listener)
        await loop.run_in_executor(None, registration.start)
        _LOG.info("bookie %s serves on %s:%d", config.bookie_id, config.listen_host, config.port)
        code = await stop
        _LOG.info("bookie %s stops", config.bookie_id)
    finally:
        await loop.run_in_executor(None, registration.stop)
        await server.close()
        await storage.close()
        bookie.close()
    if code == EXIT_OK:
        with contextlib.suppress(FileNotFoundError):
            os.remove(dirty)
    return code


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


def _storage_config(config: BookieConfig) -> StorageConfig:
    return StorageConfig(
        journal_directory=current_directory(config.journal_directory),
        ledger_directory=current_directory(config.ledger_directory),
        journal_max_bytes=config.journal_max_bytes,
        journal_preallocate_bytes=config.journal_preallocate_bytes,
        journal_max_backups=config.journal_max_backups,
        journal_sync_data=config.journal_sync_data,
        log_size_limit_bytes=config.log_size_limit_bytes,
        index_cache_bytes=config.index_cache_bytes,
        handle_limit=config.handle_limit,
        flush_interval_ms=config.flush_interval_ms,
    )


def _tune_process() -> None:
    """Short waits between threads; freed batches go back to the system; as many files as are allowed."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(OSError, AttributeError):  # not glibc: its allocator needs no such care
        libc = ctypes.CDLL(None)
        for option, value in (_MALLOC_MMAP_THRESHOLD, _MALLOC_ARENA_MAX):
            libc.mallopt(option, value)


def _refuse(code: int, error: object) -> int:
    _LOG.critical("bookie not started: %s", error)
    return code
