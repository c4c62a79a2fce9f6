"""Whether the requests of one connection are obeyed, and for how long nothing is read after what was refused."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Protocol

from bk_spark.bookie.auth.providers import Peer
from bk_spark.protocol.wire.framing import Frames
from bookie_server.net.common.access.front_access import LOGIN_TIMEOUT_S, ConnectionAccess
from bookie_server.net.common.access.pauses import RefusalPauses
from bookie_server.net.native.answers import Answers
from bookie_server.net.native.gate import Gate
from bookie_server.net.native.shared import Shared


class Admitted(Protocol):
    """The connection."""

    def let_in(self, access: ConnectionAccess | None, *, is_v2: bool) -> None:
        """Obey requests from now on, as far as ``access`` says. ``is_v2``: the peer has sent a v2 frame."""

    def read_nothing_for(self, pause_s: float) -> None:
        """Do not read from the peer for a while."""

    def read_no_more(self) -> None:
        """Do not read from the peer any more."""

    def abort(self) -> None:
        """Close at once."""

    def hang_up(self) -> None:
        """Close after the last answer is sent."""


class Admission:
    """Belongs to the event loop.

    ``refuses``: nothing is obeyed, whoever the peer is.
    """

    def __init__(self, shared: Shared, connection: Admitted, *, refuses: bool) -> None:
        self._shared = shared
        # A connection that ends is freed at once, not by a later search for cycles.
        self._connection: Admitted = weakref.proxy(connection)
        self._refuses = refuses
        self._loop = asyncio.get_running_loop()
        #: Stands before the handlers, unless requests are obeyed.
        self.gate: Gate | None = None
        self._refusals: RefusalPauses | None = None
        #: Until when nothing is read after a refused request.
        self._paused_until_s = 0.0
        self._login_timeout: asyncio.TimerHandle | None = None

    def begin(self, peer: Peer, answers: Answers) -> None:
        """Decide as much as is known of a new peer."""
        if self._refuses:
            self.gate = self._new_gate(answers, None)
            return
        access = self._shared.access
        if access is None:
            return
        gate = self._new_gate(answers, access.begin(peer))
        if gate.is_open:
            self._let_in(gate)
            return
        self.gate = gate
        if gate.awaits_login:
            self._login_timeout = self._loop.call_later(LOGIN_TIMEOUT_S, self._login_took_too_long, gate)
        else:
            self._connection.read_nothing_for(self._shared.pauses.failure_s())

    def handle(self, gate: Gate, frames: Frames) -> Frames | None:
        """Let ``gate`` answer frames. Return the rest. If it is open then, the requests that follow are obeyed."""
        rest = gate.handle(frames)
        if gate.is_open:
            self._end_login()
            self.gate = None
            self._let_in(gate)
        return rest

    def refused(self) -> None:
        """A request was refused, because the peer has no right to it: read nothing for a while."""
        now_s = self._loop.time()
        if now_s < self._paused_until_s:
            return
        if self._refusals is None:
            self._refusals = RefusalPauses(self._shared.pauses)
        pause_s = self._refusals.next_s(now_s)
        self._paused_until_s = now_s + pause_s
        self._connection.read_nothing_for(pause_s)

    def end(self) -> None:
        """The connection is lost."""
        self._end_login()
        self.gate = None

    def _end_login(self) -> None:
        if self._login_timeout is not None:
            self._login_timeout.cancel()
            self._login_timeout = None

    def _new_gate(self, answers: Answers, access: ConnectionAccess | None) -> Gate:
        return Gate(answers, access, self.refused, self._end_failed_login)

    def _let_in(self, gate: Gate) -> None:
        self._connection.let_in(gate.access, is_v2=gate.is_v2)
        if gate.access is not None and not gate.access.rights:
            self._connection.read_nothing_for(self._shared.pauses.failure_s())

    def _login_took_too_long(self, gate: Gate) -> None:
        gate.give_up()
        self._connection.abort()

    def _end_failed_login(self, refuse: Callable[[], None]) -> None:
        def end() -> None:
            refuse()
            self._connection.hang_up()

        self._end_login()
        self._connection.read_no_more()
        self._login_timeout = self._loop.call_later(self._shared.pauses.failure_s(), end)
