"""Files of a bookie that last as long as one example."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

#: A chunk of a journal, or of an entry log, is read at a time.
CHUNKS_BYTES: Final = 8 * 1024 * 1024
#: Ids of ledgers and entries, some of them often.
ID: Final = st.integers(0, 5) | st.integers(0, 2**40 - 1)
#: Thousands of small files: in memory, if there is a place.
_FAST: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def file_with(name: str, content: bytes, size_bytes: int = 0) -> Iterator[Path]:
    """A file with this content and, behind it, a hole up to ``size_bytes``."""
    with tempfile.TemporaryDirectory(dir=_FAST, prefix="fuzz-") as directory:
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if size_bytes > len(content):
            os.truncate(path, size_bytes)
        yield path
