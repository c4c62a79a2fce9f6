"""The directories of ledgers and indexes, and which of them take new files."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class LedgerDirectories:
    """Configured ``current`` directories. Thread-safe.

    The disk monitor says which are too full (:meth:`set_writable`); a failed write takes a directory out until
    it says so again (:meth:`note_failed`).
    """

    def __init__(self, paths: Sequence[str], index_paths: Sequence[str] | None = None) -> None:
        self.paths = tuple(paths)
        self.index_paths = tuple(index_paths or paths)
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._failed: set[str] = set()

    def writable(self) -> list[str]:
        """Ledger directories in which new entry logs may be made, as configured."""
        with self._lock:
            return [path for path in self.paths if path not in self._reasons]

    def for_flushes(self) -> list[str]:
        """The same for flushes: where none is writable, all in which no write failed since the disk monitor looked.
        What is to be written has been acknowledged, and a directory is called full long before it is."""
        with self._lock:
            good = [path for path in self.paths if path not in self._reasons]
            return good or [path for path in self.paths if path not in self._failed]

    def writable_index(self) -> list[str]:
        """Directories in which index files of new ledgers may be made; all of them where none has room: an index file
        is small, and what is to be written has been acknowledged."""
        with self._lock:
            good = [path for path in self.index_paths if path not in self._reasons]
        return good or list(self.index_paths)

    def set_writable(self, path: str, writable: bool, reason: str) -> None:
        """Take ``path`` out for ``reason``, or back."""
        with self._lock:
            self._failed.discard(path)
            if writable:
                self._reasons.pop(path, None)
            else:
                self._reasons[path] = reason

    def note_failed(self, path: str, error: OSError) -> None:
        """A write in ``path`` failed."""
        with self._lock:
            self._failed.add(path)
            self._reasons[path] = f"a write failed: {error.strerror or error}"

    def failures(self) -> dict[str, str]:
        """Why each directory that is taken out is."""
        with self._lock:
            return dict(self._reasons)
