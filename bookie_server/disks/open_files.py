"""How the process's limit of open files is divided among its parts, so that none uses another's share."""

from __future__ import annotations

import fcntl
import os
import resource
from dataclasses import dataclass
from typing import Final

#: All other files: ZooKeeper, journals, the log and the index file being written, a compaction, locks, the admin API,
#: and connections that were accepted or closed in this turn of the event loop.
_OTHERS: Final = 128
#: A larger number brings no more speed.
_MOST_STORED: Final = 256
_LEAST_STORED: Final = 8
_MOST_CONNECTIONS: Final = 10_000
_LEAST_CONNECTIONS: Final = 16
#: More idle ones cost other clients time: gRPC accepts and greets as fast as they come.
_MOST_GRPC: Final = 4_000
#: Entries of the kernel's table of open files: all shares together, and a power of two, as the kernel's sizes are.
_TABLE_ENTRIES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The maximum number of open files of each kind."""

    index_files: int
    entry_logs: int
    connections: int


def share_open_files(limit: int | None = None) -> OpenFiles:
    """Divide ``limit`` files; by default the process's current soft limit."""
    if limit is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return OpenFiles(_MOST_STORED, _MOST_STORED, _MOST_CONNECTIONS)
    left = limit - _OTHERS
    stored = min(_MOST_STORED, max(_LEAST_STORED, left // 5))
    return OpenFiles(stored, stored, min(_MOST_CONNECTIONS, max(_LEAST_CONNECTIONS, left - 2 * stored)))


def share_connections(limit: int | None = None) -> tuple[int, int]:
    """Return how many connections of the native port and of gRPC there may be, if both are served."""
    if limit is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS, _MOST_GRPC
    shared = share_open_files(limit)
    both = max(shared.connections, limit - _OTHERS - shared.index_files - shared.entry_logs)
    of_grpc = min(_MOST_GRPC, max(both // 4, both - _MOST_CONNECTIONS))
    return min(_MOST_CONNECTIONS, both - of_grpc), of_grpc


def reserve_table() -> None:
    """Give the kernel's table of this process's open files its full size. Call this before threads start.

    The table doubles when it is full. In a process with threads the kernel then waits until no processor uses the old
    table: 5 to 20 ms for each of six doublings, in which the event loop could not go on from ``accept``.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    entries = _TABLE_ENTRIES if limit == resource.RLIM_INFINITY else min(limit, _TABLE_ENTRIES)
    with open(os.devnull, "rb") as any_file:
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, entries - 1))
