"""What a process that was forked in a nursery does first (nursery.py, ready_worker.py; Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

STANDARD_FDS: Final = 3


def take_over(asked: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Become what was asked for: in its ``directory``, with its ``environment`` and ``fds``, of which the first are the
    standard streams. All other descriptors are closed."""
    for number, fd in enumerate(fds[:STANDARD_FDS]):
        os.dup2(fd, number)
    kept = {*range(STANDARD_FDS), *fds[STANDARD_FDS:]}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in kept:
            with contextlib.suppress(OSError):  # it listed the directory
                os.close(fd)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
