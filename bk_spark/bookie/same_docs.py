"""Shares one docstring between a coroutine and its blocking method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])


def documented_as(original: object) -> Callable[[_F], _F]:
    """Give a method the docstring of another.

    Parameters
    ----------
    original
        The method, or property, with the docstring.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(method: _F) -> _F:
        method.__doc__ = original.__doc__
        return method

    return decorate
