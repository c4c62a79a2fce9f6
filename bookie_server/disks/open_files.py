"""How the files that the process may have open are shared among its parts, so that none takes another's."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

#: Whatever is not counted here: ZooKeeper, journals, the log and the index file being written, a compaction, locks,
#: the admin API, and connections that were accepted or closed in this turn of the event loop.
_OTHERS: Final = 128
#: More of them do not make it faster.
_MOST_STORED: Final = 256
_LEAST_STORED: Final = 8
_MOST_CONNECTIONS: Final = 10_000
_LEAST_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """How many of each kind may be open at a time."""

    index_files: int
    entry_logs: int
    connections: int


def share_open_files(limit: int | None = None) -> OpenFiles:
    """Shares of ``limit`` files; by default of the process's soft limit as it is now."""
    if limit is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return OpenFiles(_MOST_STORED, _MOST_STORED, _MOST_CONNECTIONS)
    left = limit - _OTHERS
    stored = min(_MOST_STORED, max(_LEAST_STORED, left // 5))
    return OpenFiles(stored, stored, min(_MOST_CONNECTIONS, max(_LEAST_CONNECTIONS, left - 2 * stored)))
