"""The connections that have answers to send: in the next turn of the event loop, or before.

A group of the journal answers adds of many connections. They are sent as soon as the group is through. In the next turn
they would wait for all that comes there before them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from bookie_server.net.common.next_turn import NextTurn

_LOG: Final = logging.getLogger(__name__)


class Sender(Protocol):
    """The answers of a connection, as seen from here."""

    def flush(self) -> None:
        """Send them."""


class Outbox:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._senders: dict[Sender, None] = {}
        self._next = NextTurn(asyncio.get_running_loop(), self.flush)

    def wait(self, sender: Sender) -> None:
        """Let ``sender`` send soon."""
        self._senders[sender] = None
        self._next.ask()

    def flush(self) -> None:
        """Let all send that wait."""
        senders, self._senders = self._senders, {}
        for sender in senders:
            try:
                sender.flush()
            except Exception:  # of one connection; the others must not suffer
                _LOG.exception("answers could not be sent")
