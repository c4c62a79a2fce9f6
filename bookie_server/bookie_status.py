"""``BOOKIE_STATUS``: the mode that survives restarts. Source: compatibility.md §5.9.

One line in ``current`` of each ledger directory: ``1,READ_ONLY|READ_WRITE,<epoch ms>,<manual>``. The newest counts.
Bookies before 4.18 wrote three fields; a read-only mode written by one counts as requested by an operator.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from bookie_server.identity.registration import BookieMode
from bookie_server.storage.disk import files

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = "BOOKIE_STATUS"
_LAYOUT: Final = "1"
_MODES: Final = {"READ_ONLY": True, "READ_WRITE": False}
_MAX_BYTES: Final = 1024
#: Held while files are written: an operator's request and the registration may write a new mode at the same time.
_WRITING: Final = threading.Lock()


def write_status(directories: Sequence[str], mode: BookieMode) -> None:
    """Write ``mode`` to every directory; failures are logged. Any thread. Raises OSError if all of them fail."""
    with _WRITING:
        _write(directories, mode)


def _write(directories: Sequence[str], mode: BookieMode) -> None:
    word = "READ_ONLY" if mode.read_only else "READ_WRITE"
    line = f"{_LAYOUT},{word},{time.time_ns() // 1_000_000},{str(mode.manual).lower()}\n"
    written, failure = 0, None
    for directory in directories:
        path = os.path.join(directory, _NAME)
        try:
            files.replace_file(path, line.encode())
            written += 1
        except OSError as error:
            failure = error
            _LOG.warning("cannot save the mode: file=%s error=%s", path, error.strerror)
    if failure is not None and not written:
        raise failure


def read_status(directories: Sequence[str]) -> BookieMode | None:
    """The newest mode stored in ``directories``; None if none can be read."""
    newest_ms, newest = -1, None
    for directory in directories:
        path = os.path.join(directory, _NAME)
        try:
            with open(path, "rb") as file:
                content = file.read(_MAX_BYTES)
            at_ms, mode = _parse(content.decode())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            _LOG.warning("cannot read the saved mode: file=%s error=%s", path, error)
            continue
        if at_ms > newest_ms:
            newest_ms, newest = at_ms, mode
    return newest


def _parse(text: str) -> tuple[int, BookieMode]:
    """(epoch ms, mode). Raises ValueError."""
    fields = [field.strip() for field in text.partition("\n")[0].split(",")]
    if len(fields) not in (3, 4) or fields[0] != _LAYOUT or fields[1] not in _MODES:
        raise ValueError(f"{text!r} is not a status of layout {_LAYOUT}")
    read_only = _MODES[fields[1]]
    manual = len(fields) == 3 or fields[3].lower() == "true"
    return int(fields[2]), BookieMode(read_only, read_only and manual)
