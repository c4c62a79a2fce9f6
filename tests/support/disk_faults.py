"""Calls on chosen files that fail or wait: extends :class:`FailingOs`, which selects only by the name of the call."""

from __future__ import annotations

import errno
import os
from typing import Any

from tests.support.failing_os import Block, FailingOs


def path_of(file: int | str) -> str:
    """The path of the file that a call's first argument refers to."""
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


def fail_at(disk: FailingOs, name: str, part: str, error: int = errno.EIO) -> None:
    """Let ``os.name`` fail for files with ``part`` in their paths."""

    def call(file: int | str, *args: Any, **kwargs: Any) -> Any:
        if part in path_of(file):
            raise OSError(error, os.strerror(error))
        return getattr(os, name)(file, *args, **kwargs)

    disk.on(name, call)


def hold_at(disk: FailingOs, name: str, part: str) -> Block:
    """Block the next call of ``os.name`` for a file with ``part`` in its path until it is released."""
    block = Block()

    def call(file: int | str, *args: Any, **kwargs: Any) -> Any:
        if part in path_of(file):
            disk.heal(name)
            block.reached.set()
            assert block.released.wait(60)
            if block.error is not None:
                raise OSError(block.error, os.strerror(block.error))
        return getattr(os, name)(file, *args, **kwargs)

    disk.on(name, call)
    return block


def record_at(disk: FailingOs, *names: str) -> list[tuple[str, str]]:
    """(call, path) of each of these calls from now on."""
    calls: list[tuple[str, str]] = []

    def recorder(name: str) -> Any:
        def call(file: int | str, *args: Any, **kwargs: Any) -> Any:
            calls.append((name, path_of(file)))
            return getattr(os, name)(file, *args, **kwargs)

        return call

    for name in names:
        disk.on(name, recorder(name))
    return calls
