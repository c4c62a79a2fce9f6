"""Cuts bytes into frames, and loads the frames captured between Apache's client and bookies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bk_spark.protocol.wire.framing import Frames, ReceiveBuffer
from tests.support.fixtures import golden


@dataclass(frozen=True)
class Captured:
    """One captured frame with its length prefix. ``scene`` says what the client was doing."""

    scene: str
    number: int
    request: bool
    data: bytes
    says: dict[str, Any]

    @property
    def body(self) -> bytes:
        return self.data[4:]

    def __str__(self) -> str:
        return f"{self.scene}-{self.number}-{self.says['op']}"


def captured(name: str, protocol: str) -> list[Captured]:
    """Frames of ``wire-v2`` or ``wire-v3`` that speak ``protocol`` ("v2" or "v3"), without truncated ones."""
    return [
        Captured(scene["scene"], number, frame["dir"] == ">", bytes.fromhex(frame["frame"]), frame["says"])
        for scene in golden(name)
        for number, frame in enumerate(scene["frames"])
        if frame["says"]["protocol"] == protocol and "..." not in frame["frame"]
    ]


def frames(stream: bytes | Iterable[bytes]) -> Frames:
    """The frames of a stream of complete frames, received at once."""
    data = stream if isinstance(stream, bytes) else b"".join(stream)
    buffer = ReceiveBuffer(chunk_bytes=max(len(data), 4) + 1)
    buffer.get_buffer()[: len(data)] = data
    received = buffer.received(len(data))
    assert received is not None
    assert buffer.pending_bytes == 0
    return received
