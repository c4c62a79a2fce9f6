"""Clients shared by all that runs in one process.

Spark builds readers and writers many times, in several kinds of process, and ends those without running
exit handlers: a client kept here must never be needed for correctness.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.store import LogStore

_LOCK: Final = threading.Lock()
_CLIENTS: dict[tuple[int, str], BlockingClient] = {}


def client_of(metadata_service_uri: str) -> BlockingClient:
    """The process's client of a cluster, connected at first use. Raises MetadataUnavailableError."""
    # A forked child shares no threads with its parent: the process id makes it connect anew.
    key = (os.getpid(), metadata_service_uri)
    with _LOCK:
        client = _CLIENTS.get(key)
        if client is None:
            client = _CLIENTS[key] = BlockingClient(metadata_service_uri)
        return client


def logs_of(metadata_service_uri: str, log_root: str) -> LogStore:
    """The logs of a cluster."""
    return LogStore(client_of(metadata_service_uri).zookeeper, log_root)
