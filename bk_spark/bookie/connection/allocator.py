"""The memory allocator of a process that reads much: over gRPC, as a task of Spark, or as a bookie that serves gRPC.

Each answer of a bookie comes into a new piece of memory (over gRPC, into several). glibc gives freed pieces of this
size back to the system, which then has to clear new ones. That costs more than the copies do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Final

_MMAP_THRESHOLD: Final = (-3, 8 * 1024 * 1024)
_TRIM_THRESHOLD: Final = (-1, 32 * 1024 * 1024)
#: If one of these is set, the allocator stays as the user configured it.
_VARIABLES: Final = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@functools.cache
def keep_freed_memory() -> bool:
    """Let the process keep up to 32 MiB of freed memory for the next messages. Return whether it now does.

    It does not where the environment has settings of glibc's allocator, or the allocator is another.
    """
    if any(variable in os.environ for variable in _VARIABLES):
        return False
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        return bool(libc.mallopt(*_MMAP_THRESHOLD)) and bool(libc.mallopt(*_TRIM_THRESHOLD))
    return False
