"""Payloads that Python and the Java harness make alike, so that a test need not carry them across.

Payload ``i`` of seed ``s`` is SHA-256 of the text ``s:i``, repeated and cut to its size. A fingerprint is SHA-256
over, for each payload in order, its length (4 bytes, big-endian) and its bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_BLOCK_BYTES = 32


@dataclass(frozen=True, slots=True)
class Payloads:
    """One payload for each of ``sizes`` (bytes, 0 allowed); iterating makes them."""

    sizes: tuple[int, ...]
    seed: int = 1

    @classmethod
    def of_size(cls, count: int, size_bytes: int, seed: int = 1) -> Payloads:
        return cls((size_bytes,) * count, seed)

    @classmethod
    def varied(cls, count: int, seed: int = 1) -> Payloads:
        """Sizes from 0 to some 2 KB, the empty payload among them."""
        return cls(tuple(index * 97 % 2003 for index in range(count)), seed)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[bytes]:
        for index, size in enumerate(self.sizes):
            block = hashlib.sha256(f"{self.seed}:{index}".encode()).digest()
            yield (block * (size // _BLOCK_BYTES + 1))[:size]

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self)

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "sizes": self.sizes}


def fingerprint(payloads: Iterable[bytes]) -> str:
    """Equal for two sequences of payloads only if count, bounds, order and bytes are."""
    digest = hashlib.sha256()
    for payload in payloads:
        digest.update(len(payload).to_bytes(4, "big"))
        digest.update(payload)
    return digest.hexdigest()
