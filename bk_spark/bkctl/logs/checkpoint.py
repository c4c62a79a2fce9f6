"""Reads the progress of a streaming query from its checkpoint directory.

Spark writes ``offsets/<batch>`` before a batch and ``commits/<batch>`` after it. An offsets file has lines of text: its
version, Spark's own metadata, and the offset of each source as JSON, or ``-``. In version 2 (Spark 4.1 and later, if
enabled) the source's name and a colon precede the offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyarrow import fs

from bk_spark.datasource.stream.offsets import Position, parse_offset
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError

_VERSIONS: Final = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``batch_id`` is the last finished batch. ``positions`` are those of logs at its end, by name, one for each of the
    query's sources that reads the log. ``planned_batch_id`` is the last batch that was started."""

    batch_id: int
    planned_batch_id: int
    positions: tuple[tuple[str, Position], ...]


def read_checkpoint(location: str) -> Checkpoint:
    """Read the checkpoint at ``location``, a path or a URI that Arrow supports (file, s3, gs, hdfs).

    Raises InvalidArgumentError if there is no checkpoint of this data source.
    """
    try:
        if "://" not in location and not location.startswith("file:"):
            location = str(Path(location).absolute())
        files, root = fs.FileSystem.from_uri(location)
        planned, committed = (_batches(files, f"{root}/{part}") for part in ("offsets", "commits"))
    except (OSError, ValueError) as error:
        # Includes pyarrow's own errors.
        raise InvalidArgumentError(f"--checkpoint: {location} cannot be read ({error})") from error
    if not planned:
        raise InvalidArgumentError(
            f"--checkpoint: {location} has no offsets: give the checkpointLocation of a streaming query that has begun "
            "a batch"
        )
    done = [batch for batch in planned if batch in committed]
    if not done:
        return Checkpoint(-1, max(planned), ())
    path = f"{root}/offsets/{max(done)}"
    with files.open_input_stream(path) as stream:
        positions = tuple(offsets_in(stream.read(), path))
    if not positions:
        raise InvalidArgumentError(f"--checkpoint: {path} has no offsets of a log: does the query read one?")
    return Checkpoint(max(done), max(planned), positions)


def _batches(files: fs.FileSystem, directory: str) -> set[int]:
    found = files.get_file_info(fs.FileSelector(directory, allow_not_found=True))
    # Other files are temporary files or checksums.
    return {int(info.base_name) for info in found if info.base_name.isascii() and info.base_name.isdecimal()}


def offsets_in(content: bytes, path: str) -> Iterator[tuple[str, Position]]:
    """Yield the positions in a file of offsets, by the names of their logs. Raises MetadataFormatError."""
    version, *lines = content.decode("utf-8", "replace").split("\n")
    if version not in _VERSIONS:
        raise MetadataFormatError(
            f"--checkpoint: {path} begins with {version[:20]!r}; this release knows {' and '.join(_VERSIONS)}"
        )
    for line in lines[1:]:
        offset = _offset(line)
        if offset is not None:
            for name, position in parse_offset(offset).positions.items():
                if isinstance(position.identity, str):
                    yield name, position


def _offset(line: str) -> object | None:
    """Parse the offset of a source. None if it is of another data source."""
    _, brace, rest = line.partition("{")
    try:
        offset: object = json.loads(brace + rest)
    except (ValueError, RecursionError):
        return None
    match offset:
        case {"v": _, "logs": _} | {"v": _, "ledger": _}:
            return offset
    return None
