"""``GENERATION``: which directories were in use together since a directory was last replaced after a loss.

A file in ``current`` of every journal, ledger and index directory, written when the bookie begins to replace lost ones.
All directories have the same; none has it if nothing was ever replaced. A lost directory that comes back later has
another one or none: what it holds is older than what the bookie has answered since.

Two lines of ASCII: the format's version, ``1``, and the generation, a UTC time and 64 random bits. Apache's bookie
reads only files whose names it knows (``IndexPersistenceMgr``, ``DefaultEntryLogger`` and ``Journal`` skip the others).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from datetime import UTC, datetime
from typing import Final

from bookie_server.identity.small_files import read_small_file
from bookie_server.storage.disk import files

#: The file's name in ``current``.
GENERATION_FILE: Final = "GENERATION"
_CONTENT: Final = re.compile(rb"1\n([0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{16})\n")
_IF_DAMAGED: Final = "and the directory was never replaced, copy the file from the bookie's other directories"


def new_generation() -> str:
    """Draw a generation that no directory has. Its time tells people which of two is newer."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(8)}"


def read_generation(directory: str) -> str | None:
    """Return the generation of a ``current`` directory; None if it has none. Raises CorruptFileError, OSError."""
    match = read_small_file(os.path.join(directory, GENERATION_FILE), _CONTENT, _IF_DAMAGED)
    return None if match is None else match[1].decode()


def write_generation(directory: str, generation: str | None) -> None:
    """Durably give a ``current`` directory this generation, or none. Raises OSError, SyncFailedError."""
    path = os.path.join(directory, GENERATION_FILE)
    if generation is not None:
        files.replace_file(path, f"1\n{generation}\n".encode())
        return
    with contextlib.suppress(FileNotFoundError):
        files.remove(path)
        files.sync_directory(directory)
