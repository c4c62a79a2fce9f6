"""What a storage does to files, in order, as the recorder writes it down and the model of the disk replays it.

Paths are relative to the recorded directory, "" is that directory itself. Files have numbers of their own, since
their names change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Image:
    """Directories, the content of files by path, and to which of these files other names are linked."""

    directories: frozenset[str]
    files: Mapping[str, bytes]
    links: Mapping[str, str]

    def key(self) -> int:
        """The same for images with the same content."""
        return hash((self.directories, tuple(sorted(self.files.items())), tuple(sorted(self.links.items()))))


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes

    def __str__(self) -> str:
        return f"write file {self.file}, {len(self.data)} bytes at {self.offset}"


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size_bytes: int

    def __str__(self) -> str:
        return f"truncate file {self.file} to {self.size_bytes}"


@dataclass(frozen=True, slots=True)
class Allocate:
    """The file is at least so long; what is new in it reads as zeros."""

    file: int
    size_bytes: int

    def __str__(self) -> str:
        return f"allocate file {self.file} up to {self.size_bytes}"


@dataclass(frozen=True, slots=True)
class Sync:
    file: int

    def __str__(self) -> str:
        return f"sync file {self.file}"


@dataclass(frozen=True, slots=True)
class FailedSync:
    """What was written before may or may not be on the disk, and no later sync changes that."""

    file: int

    def __str__(self) -> str:
        return f"sync file {self.file}: fails"


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    file: int

    def __str__(self) -> str:
        return f"create file {self.file}: {self.path}"


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    new_path: str

    def __str__(self) -> str:
        return f"link {self.path} to {self.new_path}"


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    new_path: str

    def __str__(self) -> str:
        return f"rename {self.path} to {self.new_path}"


@dataclass(frozen=True, slots=True)
class Remove:
    path: str

    def __str__(self) -> str:
        return f"remove {self.path}"


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str

    def __str__(self) -> str:
        return f"make directory {self.path}"


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    path: str

    def __str__(self) -> str:
        return f"sync directory {self.path or '.'}"


@dataclass(frozen=True, slots=True)
class SyncAll:
    def __str__(self) -> str:
        return "sync the file system"


Operation = (
    Write
    | Truncate
    | Allocate
    | Sync
    | FailedSync
    | Create
    | Link
    | Rename
    | Remove
    | MakeDirectory
    | SyncDirectory
    | SyncAll
)
