"""Objects that the product makes for itself, for tests that look at their public sides."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def instances(monkeypatch: pytest.MonkeyPatch, kind: type[T]) -> list[T]:
    """The objects of this class that are made from now on."""
    made: list[T] = []
    begin = kind.__init__

    def noted(one: T, *arguments: Any, **named: Any) -> None:
        made.append(one)
        begin(one, *arguments, **named)

    monkeypatch.setattr(kind, "__init__", noted)
    return made
