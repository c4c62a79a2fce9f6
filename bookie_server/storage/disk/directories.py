"""The ledger and index directories, and which of them may get new files."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class LedgerDirectories:
    """Configured ``current`` directories. Thread-safe.

    The disk monitor takes a directory out of use when it is too full (:meth:`set_writable`). So does a failed write
    (:meth:`note_failed`), until the monitor puts the directory back.
    """

    def __init__(self, paths: Sequence[str], index_paths: Sequence[str] | None = None) -> None:
        self.paths = tuple(paths)
        self.index_paths = tuple(index_paths or paths)
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._failed: set[str] = set()

    def writable(self) -> list[str]:
        """Ledger directories for new entry logs, in the configured order."""
        with self._lock:
            return [path for path in self.paths if path not in self._reasons]

    def for_flushes(self) -> list[str]:
        """Ledger directories for flushes. If none is writable: all without a failed write since the disk monitor's last
        check. The entries were acknowledged, and a directory counts as full long before it is."""
        with self._lock:
            good = [path for path in self.paths if path not in self._reasons]
            return good or [path for path in self.paths if path not in self._failed]

    def writable_index(self) -> list[str]:
        """Directories for new index files. All of them if none has room: an index file is small, and its entries were
        acknowledged."""
        with self._lock:
            good = [path for path in self.index_paths if path not in self._reasons]
        return good or list(self.index_paths)

    def set_writable(self, path: str, writable: bool, reason: str) -> None:
        """Take ``path`` out of use for ``reason``, or put it back."""
        with self._lock:
            self._failed.discard(path)
            if writable:
                self._reasons.pop(path, None)
            else:
                self._reasons[path] = reason

    def note_failed(self, path: str, error: OSError) -> None:
        """Take ``path`` out of use after a failed write."""
        with self._lock:
            self._failed.add(path)
            self._reasons[path] = f"a write failed: {error.strerror or error}"

    def failures(self) -> dict[str, str]:
        """The reason for each directory that is out of use."""
        with self._lock:
            return dict(self._reasons)
