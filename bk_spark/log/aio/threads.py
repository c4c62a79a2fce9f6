"""Blocking calls from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import ParamSpec, TypeVar

from bk_spark.bookie.shielded import shielded

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call ``function`` in a thread and wait for its end, even if the caller is cancelled meanwhile: what it works with
    is not used by two threads."""
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await shielded(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        if not call.cancelled():
            call.exception()  # nobody else will ask for it
        raise


async def iterated(items: Generator[_T, None, None]) -> AsyncGenerator[_T, None]:
    """Run a generator in threads, one call after the other. Closing the result closes the generator."""
    try:
        while True:
            found = await in_thread(_next, items)
            if found is None:
                return
            yield found[0]
    finally:
        await in_thread(items.close)


def _next(items: Generator[_T, None, None]) -> tuple[_T] | None:
    for item in items:
        return (item,)
    return None
