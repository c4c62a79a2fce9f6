"""Work for the next turn of the event loop, which is asked for by many and done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class NextTurn:
    """Calls ``work`` in the next turn of ``loop`` if somebody asked for it."""

    __slots__ = ("_comes", "_loop", "_work")

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        self._loop = loop
        self._work = work
        self._comes = False

    def ask(self) -> None:
        """Let it come. Once, however often it is asked for."""
        if not self._comes:
            self._comes = True
            self._loop.call_soon(self._come)

    def _come(self) -> None:
        self._comes = False
        self._work()
