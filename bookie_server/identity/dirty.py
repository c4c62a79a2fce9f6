"""``DIRTY``: whether the last shutdown was clean. Source: compatibility.md §5.14.

An empty file in ``current`` of every ledger directory, created at start and removed only by a clean shutdown.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Final

from bookie_server.storage import files

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "DIRTY"


def mark_dirty(directories: Sequence[str]) -> bool:
    """Mark all directories. Return whether one was marked already, which means that the last shutdown was not clean.

    A directory where no file can be created, such as a full one, is logged and skipped. Raises SyncFailedError.
    """
    unclean = False
    for directory in directories:
        try:
            os.close(files.create_file(os.path.join(directory, _NAME)))
            files.sync_directory(directory)
        except FileExistsError:
            unclean = True
        except files.SyncFailedError:
            raise
        except OSError as error:
            _LOG.warning(
                "an unclean shutdown cannot be detected in %s: cannot write %s: %s", directory, _NAME, error.strerror
            )
    return unclean


def clear_dirty(directories: Sequence[str]) -> None:
    """Durably remove the marks after everything was written. A remaining mark is logged: it costs a needless replay."""
    for directory in directories:
        try:
            with contextlib.suppress(FileNotFoundError):
                files.remove(os.path.join(directory, _NAME))
            files.sync_directory(directory)
        except OSError as error:
            _LOG.warning("%s stays in %s: %s", _NAME, directory, error.strerror)
