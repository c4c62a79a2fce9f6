"""Stands in for ``os`` in the storage's modules: does what is asked, but for syncs, and writes down what changes
files.

All threads of a storage go through one lock, so what is written down is the order in which it happened. A thread
can be held before one of its operations (:class:`Hold`), so that what other threads do meanwhile is part of a
workload and not left to chance. Operations can be made to fail (:class:`Fault`), and a process can be killed
between two of them (:meth:`Recorder.kill`).
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from bookie_server.storage.disk import files, removal
from tests.crash.operations import (
    Allocate,
    Create,
    FailedSync,
    Image,
    Link,
    MakeDirectory,
    Operation,
    Remove,
    Rename,
    Sync,
    SyncAll,
    SyncDirectory,
    Truncate,
    Write,
)

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Fault:
    """The first operation for which ``hits`` is true, after ``skip`` others, fails with ``error``; then
    ``count - 1`` more in a row. A write that lengthens its file leaves the first ``partial`` bytes behind."""

    hits: Callable[[Operation], bool]
    skip: int = 0
    count: int = 1
    error: int = errno.ENOSPC
    partial: int = 0
    happened: int = 0

    def strikes(self, operation: Operation) -> bool:
        if self.happened == self.count or not self.hits(operation):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.happened += 1
        return True


@dataclass(slots=True, eq=False)
class Hold:
    """A thread whose name begins with ``thread`` waits before its operation number ``skip`` from now on."""

    thread: str
    skip: int
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


class Recorder:
    """Records what happens below ``root``. ``log`` holds operations, and marks that the caller puts between them."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.base, self.numbers = _look(root)
        self.log: list[Any] = []
        self.fault: Fault | None = None
        self.hold: Hold | None = None
        self._lock = threading.RLock()
        self._killed = False
        self._kill_at = -1
        self._dead: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._files: dict[tuple[int, int], int] = {}
        #: Descriptors opened for direct writes.
        self._direct: set[int] = set()
        self._next_number = len(self.numbers)
        self._paths = {number: path for path, number in self.numbers.items()}
        for path, number in self.numbers.items():
            self._files[_identity(os.stat(os.path.join(self.root, path)))] = number

    # --- for the one who records ----------------------------------------------------------------------

    def mark(self, what: object) -> int:
        """Put ``what`` into the log; its index."""
        with self._lock:
            self.log.append(what)
            return len(self.log) - 1

    def operations(self) -> int:
        """How many things are in the log."""
        with self._lock:
            return len(self.log)

    def kill(self) -> None:
        """From now on every operation fails and does nothing: the process is gone, its files are as they are."""
        self._killed = True
        self.release()

    def kill_after(self, operations: int) -> None:
        """The same when so many more things are in the log."""
        self._kill_at = len(self.log) + operations

    def revive(self) -> None:
        """A new process begins. What threads of the old one still try fails."""
        self._dead.update(
            thread for thread in threading.enumerate() if thread is not threading.main_thread() and not _shared(thread)
        )
        self._killed = False
        self._kill_at = -1

    @property
    def killed(self) -> bool:
        return self._killed

    def release(self) -> None:
        hold, self.hold = self.hold, None
        if hold is not None:
            hold.released.set()

    def image(self) -> Image:
        """What the files hold now, as a running process sees them."""
        return _look(Path(self.root))[0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every module of the storage calls the recorder."""
        stand_in = _Os(self)
        with ExitStack() as stack:
            for module in _storage_modules():
                if vars(module).get("os") is os:
                    stack.enter_context(patch.object(module, "os", stand_in))
                if vars(module).get("time") is time:
                    stack.enter_context(patch.object(module, "time", _Time()))
            stack.enter_context(patch.object(files, "_LIBC", _Libc(self)))
            # Removed files lose their ends before the next operation, and the files here are small.
            stack.enter_context(patch.object(removal, "ThreadPoolExecutor", _AtOnce))
            stack.enter_context(patch.object(removal, "_STEP_BYTES", 256))
            yield

    # --- operations -----------------------------------------------------------------------------------

    def do(self, operation: Operation, action: Callable[[], Any]) -> Any:
        """Do and record; raises OSError where a fault strikes or the process was killed."""
        self._wait_if_held()
        return self._do_now(operation, action)

    def _do_now(self, operation: Operation, action: Callable[[], Any]) -> Any:
        with self._lock:
            if self._kill_at == len(self.log):
                self._killed = True
            if self._killed or threading.current_thread() in self._dead:
                raise OSError(errno.EIO, "the process was killed")
            if self.fault is not None and self.fault.strikes(operation):
                self._fail(self.fault, operation)
            result = action()
            self.log.append(operation)
            return result

    def _fail(self, fault: Fault, operation: Operation) -> None:
        if isinstance(operation, Sync):
            self.log.append(FailedSync(operation.file))
        raise OSError(fault.error, os.strerror(fault.error))

    def _wait_if_held(self) -> None:
        hold = self.hold
        if hold is None or not threading.current_thread().name.startswith(hold.thread):
            return
        if hold.skip:
            hold.skip -= 1
            return
        hold.reached.set()
        hold.released.wait(60)

    def file_of(self, fd: int) -> int | None:
        """Number of an open file; None for one outside of the recorded directory."""
        return self._files.get(_identity(os.fstat(fd)))

    def relative(self, path: str) -> str | None:
        """``path`` below the root; None for one that is not."""
        found = os.path.relpath(path, self.root)
        return None if found.startswith("..") else "" if found == "." else found

    def path_of(self, number: int) -> str:
        """The path under which a file was made."""
        return self._paths[number]

    def opened(self, path: str, flags: int, mode: int) -> int:
        """Open, or make, a file. Direct writes are made as others are, since the disk under test may be memory; whether
        they could be direct is checked."""
        fd = self._opened(path, flags & ~os.O_DIRECT, mode)
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            self._files.pop(_identity(os.fstat(fd)), None)  # it has no name, and perhaps the number of a removed file
        if flags & os.O_DIRECT:
            self._direct.add(fd)
        else:
            self._direct.discard(fd)
        return fd

    def _opened(self, path: str, flags: int, mode: int) -> int:
        relative = self.relative(path)
        if relative is None or not flags & (os.O_CREAT | os.O_TRUNC):
            if self._killed:
                raise OSError(errno.EIO, "the process was killed")
            return os.open(path, flags, mode)
        self._wait_if_held()
        with self._lock:
            fd: int
            there = os.path.exists(path)
            if there and not flags & os.O_EXCL:
                fd = os.open(path, flags & ~os.O_TRUNC, mode)
                if flags & os.O_TRUNC:
                    self._do_now(Truncate(self._files[_identity(os.fstat(fd))], 0), lambda: os.ftruncate(fd, 0))
                return fd
            if there:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            number = self._next_number
            fd = self._do_now(Create(relative, number), lambda: os.open(path, flags, mode))
            self._next_number += 1
            self._paths[number] = relative
            self._files[_identity(os.fstat(fd))] = number
            return fd

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        number = self.file_of(fd)
        if number is None:
            return os.pwritev(fd, list(buffers), offset)
        data = b"".join(buffers)
        if fd in self._direct:
            _check_direct(buffers, offset)
        operation = Write(number, offset, data)
        fault = self.fault
        try:
            written: int = self.do(operation, lambda: os.pwrite(fd, data, offset))
        except OSError:
            grows = os.fstat(fd).st_size < offset + len(data)
            if grows and fault is not None and fault.happened and fault.partial and not self._killed:
                part = data[: min(fault.partial, len(data) - 1)]
                with self._lock:
                    os.pwrite(fd, part, offset)
                    self.log.append(Write(number, offset, part))
            raise
        if written != len(data):
            raise AssertionError("a write on the disk under test was short")
        return written

    def write_down_truncate(self, fd: int, size_bytes: int) -> None:
        number = self.file_of(fd)
        assert number is not None
        self.do(Truncate(number, size_bytes), lambda: os.ftruncate(fd, size_bytes))

    def sync(self, fd: int) -> None:
        """Recorded only: the model says what is durable."""
        number = self.file_of(fd)
        if number is not None:
            self.do(Sync(number), lambda: None)
            return
        relative = self.relative(os.readlink(f"/proc/self/fd/{fd}"))
        if relative is not None:
            self.do(SyncDirectory(relative), lambda: None)

    def name(self, make: Callable[..., Operation], action: Callable[..., None], *paths: str) -> None:
        relative = [self.relative(path) for path in paths]
        self.do(make(*relative), lambda: action(*paths))

    def make_directories(self, path: str, exist_ok: bool) -> None:
        if os.path.isdir(path):
            if not exist_ok:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self.make_directories(parent, True)
        self.name(MakeDirectory, os.mkdir, path)


class _Os:
    """``os`` for the modules of the storage."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        if name in _CHANGING:
            raise AssertionError(f"the storage calls os.{name}, which is not recorded")
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        return self._recorder.opened(path, flags, mode)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self._recorder.write(fd, buffers, offset)

    def ftruncate(self, fd: int, size_bytes: int) -> None:
        self._recorder.write_down_truncate(fd, size_bytes)

    def posix_fallocate(self, fd: int, offset: int, size_bytes: int) -> None:
        number = self._recorder.file_of(fd)
        assert number is not None
        operation = Allocate(number, offset + size_bytes)
        self._recorder.do(operation, lambda: os.posix_fallocate(fd, offset, size_bytes))

    def fdatasync(self, fd: int) -> None:
        self._recorder.sync(fd)

    def fsync(self, fd: int) -> None:
        self._recorder.sync(fd)

    def replace(self, path: str, new_path: str) -> None:
        self._recorder.name(Rename, os.replace, path, new_path)

    def remove(self, path: str) -> None:
        self._recorder.name(Remove, os.remove, path)

    def link(self, path: str, new_path: str) -> None:
        self._recorder.name(Link, os.link, path, new_path)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        self._recorder.make_directories(path, exist_ok)


#: Functions of ``os`` that change files or names and that nobody has needed so far.
_CHANGING = frozenset(
    [
        "write",
        "pwrite",
        "writev",
        "truncate",
        "rename",
        "renames",
        "unlink",
        "rmdir",
        "removedirs",
        "mkdir",
        "symlink",
        "sendfile",
        "copy_file_range",
        "sync",
        "mknod",
        "mkfifo",
    ]
)


class _Time:
    """A clock that always says the same, since journals are named after it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        return 1_000_000.0


class _Libc:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def syncfs(self, fd: int) -> int:
        self._recorder.do(SyncAll(), lambda: None)
        return 0


class _AtOnce(Executor):
    """Runs what is submitted in the caller's thread."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **named))
        return future


def _storage_modules() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("bookie_server.storage.")]


def _check_direct(buffers: Sequence[Buffer], offset: int) -> None:
    """A disk takes whole blocks only, from memory that begins at one."""
    places = [offset, *(np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers), *map(len, buffers)]
    if any(place % files.BLOCK_BYTES for place in places):
        raise AssertionError(f"a direct write at {offset} is not of whole blocks: {places}")


def _shared(thread: threading.Thread) -> bool:
    """Threads of the event loop's own executor outlive the bookie."""
    return thread.name.startswith("asyncio_")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _look(root: Path) -> tuple[Image, dict[str, int]]:
    """What lies below ``root``, with numbers for its files."""
    directories: set[str] = {""}
    same: dict[tuple[int, int], list[str]] = {}
    for directory, below, names in os.walk(root):
        inside = os.path.relpath(directory, root)
        prefix = "" if inside == "." else inside
        directories.update(os.path.join(prefix, name) for name in below)
        for name in names:
            same.setdefault(_identity(os.stat(os.path.join(directory, name))), []).append(os.path.join(prefix, name))
    found = {min(paths): (root / min(paths)).read_bytes() for paths in same.values()}
    links = {path: min(paths) for paths in same.values() for path in paths if path != min(paths)}
    return Image(frozenset(directories), found, links), {path: number for number, path in enumerate(sorted(found))}


def materialise(image: Image, root: Path) -> None:
    """Make the files of ``image`` below ``root``, which must be empty."""
    for path in sorted(image.directories):
        os.makedirs(os.path.join(root, path), exist_ok=True)
    for path, content in image.files.items():
        with open(os.path.join(root, path), "wb") as file:
            file.write(content)
    for path, first in image.links.items():
        os.link(os.path.join(root, first), os.path.join(root, path))
