"""Failing disks: a stand-in for ``os`` in ``storage/disk/files.py`` that makes the real calls, except chosen ones."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bookie_server.storage.disk import files

Reaction = Callable[..., Any]


class FailingOs:
    """``os`` with reactions of a test's choice. ``calls`` holds the names of calls that change or sync files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reactions: dict[str, Reaction] = {}
        self.calls: list[str] = []
        monkeypatch.setattr(files, "os", self)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in _WATCHED:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            reaction = self._reactions.get(name)
            return real(*args, **kwargs) if reaction is None else reaction(*args, **kwargs)

        return call

    def on(self, name: str, reaction: Reaction) -> None:
        """Call ``reaction`` instead of ``os.name``."""
        self._reactions[name] = reaction

    def fail(self, name: str, error: int = errno.ENOSPC, times: int = 1 << 30) -> None:
        """Let the next ``times`` calls of ``os.name`` fail."""
        left = times

        def fail(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if not left:
                return getattr(os, name)(*args, **kwargs)
            left -= 1
            raise OSError(error, os.strerror(error))

        self.on(name, fail)

    def fill_disk(self, room_bytes: int = 0, error: int = errno.ENOSPC) -> None:
        """Let writes take ``room_bytes`` more, then fail; allocations fail at once."""
        left = room_bytes

        def write(fd: int, buffers: list[Any], offset: int) -> int:
            nonlocal left
            if not left:
                raise OSError(error, os.strerror(error))
            taken = b"".join(buffers)[:left]
            left -= len(taken)
            through_cache = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)  # a part is no direct write
            try:
                return os.pwrite(through_cache, taken, offset)
            finally:
                os.close(through_cache)

        self.on("pwritev", write)
        self.fail("posix_fallocate", error)

    def block(self, name: str) -> Block:
        """Block the next call of ``os.name`` until it is released; later calls are normal."""
        block = Block()

        def wait(*args: Any, **kwargs: Any) -> Any:
            self.heal(name)
            block.reached.set()
            assert block.released.wait(60)
            if block.error is not None:
                raise OSError(block.error, os.strerror(block.error))
            return getattr(os, name)(*args, **kwargs)

        self.on(name, wait)
        return block

    def heal(self, *names: str) -> None:
        """Make these calls (none named: all) normal again."""
        for name in names or list(self._reactions):
            self._reactions.pop(name, None)


class Block:
    """A blocked call."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self.error: int | None = None

    def release(self, error: int | None = None) -> None:
        """Let the call continue, or fail."""
        self.error = error
        self.released.set()


_WATCHED = {
    "open", "pwritev", "ftruncate", "posix_fallocate", "fdatasync", "fsync", "replace", "remove", "link", "makedirs",
}  # fmt: skip
