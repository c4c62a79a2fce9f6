"""Who has logged in over gRPC. No I/O.

A session belongs to one connection, which many callers behind a proxy may share. So a call needs both: the connection
of the login, and the session's token.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bookie_server.net.common.access.front_access import ConnectionAccess

_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A login that holds.

    Parameters
    ----------
    peer
        The connection: the peer's address and port.
    access
        What the peer may do.
    end
        Ends the call of the login.
    token
        What calls show.
    """

    peer: str
    access: ConnectionAccess
    end: Callable[[], None]
    token: bytes = field(repr=False, default_factory=lambda: secrets.token_bytes(_TOKEN_BYTES))


class Sessions:
    """At most ``most``. When there are too many, the connection with the most loses its oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        #: By connection, the oldest first.
        self._sessions: dict[str, list[Session]] = {}
        #: Sessions that had to go.
        self.evicted = 0

    def __len__(self) -> int:
        return self._count

    def begin(self, peer: str, access: ConnectionAccess, end: Callable[[], None]) -> Session:
        """Return the session of a login that has succeeded."""
        if self._count >= self._most:
            leaving = max(self._sessions.values(), key=len)[0]
            self.evicted += 1
            self.end(leaving)
            leaving.end()
        session = Session(peer, access, end)
        self._sessions.setdefault(peer, []).append(session)
        self._count += 1
        return session

    def find(self, peer: str, token: bytes) -> ConnectionAccess | None:
        """Return what a call may do. None: it has no session."""
        for session in self._sessions.get(peer, ()):
            if hmac.compare_digest(session.token, token):
                return session.access
        return None

    def end(self, session: Session) -> None:
        """The session is over. Safe to repeat."""
        of_peer = self._sessions.get(session.peer, [])
        if session in of_peer:
            of_peer.remove(session)
            self._count -= 1
            if not of_peer:
                del self._sessions[session.peer]
