"""Splits long sequences into parts, because one read or transaction can hold only a limited number of znodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def in_parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Yield ``items`` in parts of ``size``."""
    return (items[start : start + size] for start in range(0, len(items), size))
