"""Chunked messages: large ones that a producer cut into several entries. Source: docs/design/pulsar.md §2.5.

Chunks of one message have its uuid, and ids from 0 on. They may lie among other messages and other chunks, and in
several ledgers. The rules are those of Pulsar's consumer: id 0 starts anew, an id that was there is a duplicate, and a
gap ends the message without a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.pulsar.transactions import Position

#: Ids of messages that are over, the newest of which are remembered: a late duplicate must not look like a new message.
_REMEMBERED: Final = 10_000
#: What an open message costs beside its chunks, and the longest id of one. Ids are a producer's name and a number.
_OPEN_COST_BYTES: Final = 1024
_MAX_UUID_BYTES: Final = 4096
#: All open messages together may have this many times the bytes of the largest one allowed.
_OPEN_TIMES: Final = 4


class ChunksMissing(Exception):  # noqa: N818 (a signal, not an error)
    """Entries have chunks of messages whose first chunks the decoder has not seen.

    Parameters
    ----------
    uuids
        The ids of these messages.
    """

    def __init__(self, uuids: frozenset[bytes]) -> None:
        super().__init__(f"{len(uuids)} chunked messages began before these entries")
        self.uuids = uuids


class ChunkError(Exception):
    """Chunks do not fit together. Callers raise an error that names the entry."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk.

    Parameters
    ----------
    position
        Its entry.
    uuid
        The id of its message.
    chunk_id, chunk_count
        Its number, and how many the message has.
    total_bytes
        The size of all chunks together, 0 if its producer does not say.
    """

    position: Position
    uuid: bytes
    chunk_id: int
    chunk_count: int
    total_bytes: int


class _OpenMessage:
    """A message of which chunks are there, and others are not."""

    def __init__(self, first: Position) -> None:
        self.first = first
        self.parts: list[bytes] = []
        self.size_bytes = 0


class ChunkAssembly:
    """Joins chunks into messages.

    Parameters
    ----------
    max_message_bytes
        The most bytes of one message, as its chunks are stored.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._open: dict[bytes, _OpenMessage] = {}
        self._open_bytes = 0
        self._over: dict[bytes, None] = {}

    def missing(self, chunks: list[Chunk]) -> frozenset[bytes]:
        """Return the ids of messages in ``chunks``, ascending, whose beginning is unknown."""
        begun: set[bytes] = set()
        missing: set[bytes] = set()
        for chunk in chunks:
            if chunk.chunk_id == 0:
                begun.add(chunk.uuid)
            elif chunk.uuid not in begun and chunk.uuid not in self._open and chunk.uuid not in self._over:
                missing.add(chunk.uuid)
        return frozenset(missing)

    def leave_out(self, uuids: frozenset[bytes]) -> None:
        """Drop the chunks of these messages, until a first chunk comes again."""
        for uuid in uuids:
            self._end(uuid)

    def add(self, chunk: Chunk, part: bytes) -> tuple[Position, bytes] | None:
        """Take the next chunk.

        Parameters
        ----------
        chunk, part
            The chunk, and its payload.

        Returns
        -------
        tuple or None
            Where the message begins, and its payload, if this was its last chunk.

        Raises
        ------
        ChunkError
            If the message is larger than it may be, or its chunks do not have the size that it announces.
        """
        if len(chunk.uuid) > _MAX_UUID_BYTES:
            raise ChunkError(f"a chunked message with an id of {len(chunk.uuid)} bytes")
        if chunk.chunk_id == 0:
            self._end(chunk.uuid)
            del self._over[chunk.uuid]
            self._open[chunk.uuid] = _OpenMessage(chunk.position)
            self._open_bytes += _OPEN_COST_BYTES
        message = self._open.get(chunk.uuid)
        if message is None or chunk.chunk_id < len(message.parts):
            return None
        if chunk.chunk_id > len(message.parts):
            self._end(chunk.uuid)
            return None
        self._check_room(chunk, message.size_bytes + len(part))
        message.parts.append(part)
        message.size_bytes += len(part)
        self._open_bytes += len(part)
        if chunk.chunk_id < chunk.chunk_count - 1:
            return None
        self._end(chunk.uuid)
        if chunk.total_bytes not in (0, message.size_bytes):
            raise ChunkError(f"chunks of {message.size_bytes} bytes, where {chunk.total_bytes} are announced")
        return message.first, b"".join(message.parts)

    def _check_room(self, chunk: Chunk, size_bytes: int) -> None:
        limit = self._max_message_bytes
        if max(size_bytes, chunk.total_bytes) > limit:
            raise ChunkError(
                f"a chunked message of {max(size_bytes, chunk.total_bytes)} bytes, at most {limit} are allowed"
            )
        if self._open_bytes + size_bytes > _OPEN_TIMES * limit:
            raise ChunkError(
                f"{len(self._open)} chunked messages are open, with {self._open_bytes} bytes; at most "
                f"{_OPEN_TIMES} times {limit} are allowed"
            )

    def _end(self, uuid: bytes) -> None:
        """End a message, whether it is whole or not."""
        message = self._open.pop(uuid, None)
        if message is not None:
            self._open_bytes -= message.size_bytes + _OPEN_COST_BYTES
        self._over.pop(uuid, None)
        self._over[uuid] = None
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]
