"""The file that the user of an offline command means: files are named by their ids in hexadecimal digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.offline.directories import BookieDirectories, DirectoryKind


@dataclass(frozen=True, slots=True)
class NumberedFiles:
    """One kind of numbered files.

    ``what`` and ``article`` name the kind in errors. ``last_id`` is the highest id that is possible. ``id_of`` and
    ``file_name`` translate between names and ids. ``option`` lists files of this kind with ``bkctl listfilesondisc``.
    """

    article: str
    what: str
    directories: DirectoryKind
    last_id: int
    id_of: Callable[[str], int | None]
    file_name: Callable[[int], str]
    option: str

    def find(self, bookie: BookieDirectories, name: str) -> list[str]:
        """Paths of the files: ``name`` is an id in decimal digits, a file name, or a path with a slash.

        Raises InvalidArgumentError if there is none.
        """
        if "/" in name:
            if not os.path.isfile(name):
                raise InvalidArgumentError(f"{self.what} {name} does not exist, or is not a file")
            return [name]
        wanted = self.file_name(self._id(name))
        directories = bookie.current(self.directories)
        paths = [path for directory in directories if os.path.lexists(path := os.path.join(directory, wanted))]
        if not paths:
            raise InvalidArgumentError(
                f"no {self.what} {wanted} in {', '.join(directories)}; bkctl listfilesondisc {self.option} lists all. "
                "File names are hexadecimal, ids on the command line are decimal"
            )
        return paths

    def _id(self, name: str) -> int:
        file_id = self.id_of(name)
        if file_id is not None:
            return file_id
        if name.isascii() and name.isdecimal() and int(name) <= self.last_id:
            return int(name)
        raise InvalidArgumentError(
            f"{name!r} is not {self.article} {self.what}: give its id as a decimal number (12), its file name "
            f"({self.file_name(12)}), or a path"
        )
