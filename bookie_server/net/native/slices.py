"""Large answers to peers of which nobody knows yet whether they read, handed to their sockets a little in each turn.

What the kernel does not take of an answer is copied into fresh memory: half a millisecond for a megabyte, in which all
others wait. If hundreds of peers ask for large answers at the same moment, each turn of the event loop would have one.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from bookie_server.net.common.next_turn import NextTurn

#: Bytes handed over at a time.
SLICE_BYTES: Final = 128 * 1024
#: Slices in one turn of the event loop, all connections.
_PER_TURN: Final = 2


class Sender(Protocol):
    """The answers of a connection, as seen from here."""

    def send_slice(self) -> bool:
        """Hand over the next slice. Return whether there are more."""


class Slices:
    """The connections with answers that are handed over in slices. They take turns. Belongs to the event loop."""

    def __init__(self) -> None:
        self._senders: dict[Sender, None] = {}
        self._next = NextTurn(asyncio.get_running_loop(), self._turn)

    def wait(self, sender: Sender) -> None:
        """Let ``sender`` go on when its turn comes."""
        self._senders[sender] = None
        self._next.ask()

    def forget(self, sender: Sender) -> None:
        """It has no more slices."""
        self._senders.pop(sender, None)

    def _turn(self) -> None:
        for _ in range(min(_PER_TURN, len(self._senders))):
            sender = next(iter(self._senders))
            del self._senders[sender]
            if sender.send_slice():
                self._senders[sender] = None
        if self._senders:
            self._next.ask()
