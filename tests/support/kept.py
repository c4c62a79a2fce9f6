"""What an object keeps in its own collections, for tests that memory is bounded. It names none of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def kept(owner: object, kind: type[T]) -> list[T]:
    """The items of this class in the collections that are attributes of ``owner``: of mappings, the values."""
    collections = {id(each): each for each in vars(owner).values() if isinstance(each, Mapping | list | set | deque)}
    return [
        item
        for each in collections.values()
        for item in list(each.values() if isinstance(each, Mapping) else each)
        if isinstance(item, kind)
    ]
