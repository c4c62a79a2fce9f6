"""How many answers the kernel keeps for a peer, beyond those in flight.

Without a limit it would keep megabytes even for peers that never read them. With a low one each large answer needs
several calls and turns of the event loop, and a pause in between. So a peer begins with a low limit. Once it has read
answers that had to wait for it, it gets a higher one. The number of peers with the higher limit is bounded.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

LITTLE_BYTES: Final = 256 * 1024
MUCH_BYTES: Final = 1024 * 1024
#: Peers with the higher limit.
_MOST_READERS: Final = 64


class Socket(Protocol):
    """A socket, or what asyncio gives for one."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """As in ``socket.socket``."""


class KernelRoom:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._readers: set[Socket] = set()

    def begin(self, connected: Socket) -> None:
        """The connection is made."""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LITTLE_BYTES)

    def has_read(self, connected: Socket) -> bool:
        """The peer has read nearly all answers that had to wait for it. Return whether it has the higher limit."""
        if connected not in self._readers and len(self._readers) < _MOST_READERS:
            self._readers.add(connected)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MUCH_BYTES)
        return connected in self._readers

    def end(self, connected: Socket) -> None:
        """The connection is lost."""
        self._readers.discard(connected)
