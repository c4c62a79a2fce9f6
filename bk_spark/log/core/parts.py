"""Long sequences in parts: only so many znodes go into one reading or one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def in_parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """``items``, ``size`` of them at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
