"""A model of what a disk holds after a power cut.

What was written since a file's last sync may be there, in part, or not; so may a longer size without what was
written (it reads as zeros), and so may names made, changed and removed since the directory's last sync, whatever
was synced in the files. A rename happens at once or not at all. A sector of what was there before, and the first
sector of a file, hold the old bytes or the new; what lengthens a file can end after any eight bytes. That is as much
as POSIX leaves open and file systems do; bytes that nobody wrote do not come up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

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

SECTOR_BYTES: Final = 512
WORD_BYTES: Final = 8
FileChange = Write | Truncate | Allocate


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """In one directory: the name ``removed`` goes, the name ``added`` stands for ``node`` (a file's number, or a
    directory's path)."""

    removed: str | None
    added: str | None
    node: int | str


class Choice(Protocol):
    """Which of the pending changes a crash keeps. Asked in the same order each time."""

    def keeps_name(self, directory: str, change: NameChange, is_newest: bool) -> bool: ...

    def keeps(self, change: FileChange) -> bool: ...

    def parts(self, write: Write, old_size: int) -> Iterable[tuple[int, int]]:
        """What of a kept write's data is there: ranges from … to. ``old_size``: bytes of the file before it."""
        ...

    def keeps_size(self, change: FileChange) -> bool:
        """Whether a change that is not kept makes the file longer nevertheless."""
        ...


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    #: Changes on top of that, in order, which a crash may keep or not.
    pending: list[FileChange] = field(default_factory=list)
    #: How many of them a failed sync left behind: they stay pending whatever is synced later.
    doubtful: int = 0
    #: Those of them that were synced after that: a crash keeps them.
    kept: set[int] = field(default_factory=set)

    def sync(self) -> None:
        if self.doubtful:
            self.kept.update(range(self.doubtful, len(self.pending)))
        elif self.pending:
            self.durable = self.content()
            self.pending = []

    def fail_sync(self) -> None:
        self.doubtful = len(self.pending)

    def content(self) -> bytes:
        """As a running process sees it."""
        content = bytearray(self.durable)
        for change in self.pending:
            _apply(content, change)
        return bytes(content)


@dataclass(slots=True)
class _Directory:
    durable: dict[str, int | str] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def names(self) -> dict[str, int | str]:
        """As a running process sees them."""
        names = dict(self.durable)
        for change in self.pending:
            _apply_name(names, change)
        return names

    def sync(self) -> None:
        if self.pending:
            self.durable = self.names()
            self.pending = []


class Disk:
    """Begins as ``base``, all of it durable; files get the numbers that ``number`` gives their paths."""

    def __init__(self, base: Image, numbers: dict[str, int]) -> None:
        self._files: dict[int, _File] = {numbers[path]: _File(content) for path, content in base.files.items()}
        self._directories = {path: _Directory() for path in base.directories | {""}}
        for path in base.directories - {""}:
            self._directories[os.path.dirname(path)].durable[os.path.basename(path)] = path
        for path in (*base.files, *base.links):
            number = numbers[base.links.get(path, path)]
            self._directories[os.path.dirname(path)].durable[os.path.basename(path)] = number

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write() | Truncate() | Allocate():
                self._files[operation.file].pending.append(operation)
            case Sync():
                self._files[operation.file].sync()
            case FailedSync():
                self._files[operation.file].fail_sync()
            case Create():
                self._files[operation.file] = _File()
                self._name(operation.path, operation.file)
            case Link():
                self._name(operation.new_path, self._node(operation.path))
            case Rename():
                self._rename(operation.path, operation.new_path)
            case Remove():
                directory, name = os.path.split(operation.path)
                change = NameChange(name, None, self._node(operation.path))
                self._directories[directory].pending.append(change)
            case MakeDirectory():
                self._directories[operation.path] = _Directory()
                self._name(operation.path, operation.path)
            case SyncDirectory():
                self._directories[operation.path].sync()
            case SyncAll():
                for file in self._files.values():
                    file.sync()
                for listed in self._directories.values():
                    listed.sync()

    def content(self, path: str) -> bytes:
        """The content of a file as a running process sees it."""
        node = self._node(path)
        assert isinstance(node, int)
        return self._files[node].content()

    def image(self, choice: Choice) -> Image:
        """What is there after a crash that keeps what ``choice`` says."""
        directories = {""}
        paths: dict[int, list[str]] = {}
        todo = [""]
        while todo:
            path = todo.pop()
            directory = self._directories[path]
            listed = dict(directory.durable)
            for change in directory.pending:
                if choice.keeps_name(path, change, change is directory.pending[-1]):
                    _apply_name(listed, change)
            for name, node in listed.items():
                below = os.path.join(path, name)
                if isinstance(node, str):
                    directories.add(below)
                    todo.append(below)
                    continue
                paths.setdefault(node, []).append(below)
        found = {min(names): self._content(number, choice) for number, names in paths.items()}
        links = {path: min(names) for names in paths.values() for path in names if path != min(names)}
        return Image(frozenset(directories), found, links)

    def _content(self, number: int, choice: Choice) -> bytes:
        file = self._files[number]
        if not file.pending:
            return file.durable
        content = bytearray(file.durable)
        for index, change in enumerate(file.pending):
            if index in file.kept:
                _apply(content, change)
            elif choice.keeps(change):
                if isinstance(change, Write):
                    for first, end in choice.parts(change, len(content)):
                        _apply(content, Write(change.file, change.offset + first, change.data[first:end]))
                else:
                    _apply(content, change)
            elif not isinstance(change, Truncate) and choice.keeps_size(change):
                end = change.offset + len(change.data) if isinstance(change, Write) else change.size_bytes
                _apply(content, Allocate(change.file, end))
        return bytes(content)

    def _node(self, path: str) -> int | str:
        directory, name = os.path.split(path)
        return self._directories[directory].names()[name]

    def _name(self, path: str, node: int | str) -> None:
        directory, name = os.path.split(path)
        self._directories[directory].pending.append(NameChange(None, name, node))

    def _rename(self, path: str, new_path: str) -> None:
        directory, name = os.path.split(path)
        new_directory, new_name = os.path.split(new_path)
        if directory != new_directory:
            raise NotImplementedError(f"the model knows no rename between directories: {path} to {new_path}")
        self._directories[directory].pending.append(NameChange(name, new_name, self._node(path)))


def _apply(content: bytearray, change: FileChange) -> None:
    match change:
        case Write(_, offset, data):
            if data:
                if len(content) < offset:
                    content.extend(bytes(offset - len(content)))
                content[offset : offset + len(data)] = data
        case Truncate(_, size_bytes):
            del content[size_bytes:]
            content.extend(bytes(size_bytes - len(content)))
        case Allocate(_, size_bytes):
            content.extend(bytes(max(0, size_bytes - len(content))))


def _apply_name(names: dict[str, int | str], change: NameChange) -> None:
    if change.removed is not None and names.get(change.removed) == change.node:
        del names[change.removed]
    if change.added is not None:
        names[change.added] = change.node
