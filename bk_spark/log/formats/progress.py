"""How far a streaming query has read: ``<root>/+readers/<uuid>``, ephemeral, message ``Progress``.

It is for display. A query's true position is in its checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from bk_spark.log.formats.proto import log_formats_pb2 as pb
from bk_spark.log.formats.znodes import log_id_of, parse
from bk_spark.protocol.errors import MetadataFormatError

PROGRESS_VERSION: Final = 1
#: Positions in one znode.
MAX_POSITIONS: Final = 200
_MAX_BYTES: Final = 128 * 1024
_MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogProgress:
    """One log of a query: everything below ``read_to`` was read in finished batches, and ``end`` was seen."""

    log: str
    log_id: str
    read_to: int
    end: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a query says. ``host`` and ``process_id`` are those of its driver. ``others``: logs without a position."""

    host: str
    process_id: int
    began_time_ms: int
    positions: tuple[LogProgress, ...]
    others: int = 0


def encode_progress(progress: Progress) -> bytes:
    """Encode the znode's content. The caller keeps ``positions`` within MAX_POSITIONS."""
    message = pb.Progress(
        format_version=PROGRESS_VERSION,
        host=progress.host,
        process_id=progress.process_id,
        began_time_ms=progress.began_time_ms,
        others=progress.others,
    )
    for one in progress.positions:
        message.positions.add(log=one.log, log_id=UUID(one.log_id).bytes, read_to=one.read_to, end=one.end)
    return message.SerializeToString()


def decode_progress(data: bytes, path: str) -> Progress:
    """Raises MetadataFormatError."""
    message = parse(pb.Progress(), data, path, "progress of a reader", PROGRESS_VERSION, _MAX_BYTES)
    positions = []
    for one in message.positions[:MAX_POSITIONS]:
        if max(one.read_to, one.end) > _MAX_INT64:
            raise MetadataFormatError(f"progress of a reader {path} is damaged: an offset is too large")
        positions.append(LogProgress(one.log, log_id_of(one.log_id, path), one.read_to, one.end))
    left_out = len(message.positions) - len(positions)
    return Progress(
        message.host, message.process_id, message.began_time_ms, tuple(positions), message.others + left_out
    )
