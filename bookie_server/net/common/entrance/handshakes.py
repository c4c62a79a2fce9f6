"""The costly steps of TLS handshakes: who is next, and how many.

The answer to a client's first message needs the private key: a millisecond or more. A flood of them in the event loop
would make everybody wait, so a thread computes them, one at a time, with pauses. OpenSSL does not hold Python's lock
meanwhile. The newest and the oldest go in turn, as newcomers do.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from bk_spark.bookie.tls.transport import TlsTransport

#: Pause after a step, besides the time that it took. The rest of a handshake takes half of it, in the loop. So a flood
#: leaves half of the time to requests.
_PAUSE_S: Final = 0.002


class Line:
    """Handshakes that wait for their step."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[TlsTransport, None] = OrderedDict()
        self._newest_next = False

    def add(self, handshake: TlsTransport) -> None:
        """It waits. Ignored if it did already."""
        self._waiting[handshake] = None

    def remove(self, handshake: TlsTransport) -> None:
        """It waits no longer. Ignored if it did not."""
        self._waiting.pop(handshake, None)

    def next(self) -> TlsTransport | None:
        """Take out whose step is next."""
        if not self._waiting:
            return None
        handshake, _ = self._waiting.popitem(last=self._newest_next)
        self._newest_next = not self._newest_next
        return handshake


class Handshakes:
    """Computes the steps. Belongs to the event loop."""

    def __init__(self) -> None:
        self._line = Line()
        self._thread: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[float] | None = None
        self._pause: asyncio.TimerHandle | None = None

    def take(self, handshake: TlsTransport) -> None:
        """Call the ``step`` of ``handshake`` in a thread, then its ``stepped`` in the loop."""
        self._line.add(handshake)
        self._go_on()

    def leave(self, handshake: TlsTransport) -> None:
        """The connection has ended."""
        self._line.remove(handshake)

    async def close(self) -> None:
        """End the thread."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _go_on(self) -> None:
        while self._running is None and self._pause is None:
            handshake = self._line.next()
            if handshake is None:
                return
            if _has_hung_up(handshake):
                handshake.abort()
            else:
                self._run(handshake)

    def _run(self, handshake: TlsTransport) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls-handshake")
        loop = asyncio.get_running_loop()
        self._running = loop.run_in_executor(self._thread, _timed_step, handshake)

        def ran(done: asyncio.Future[float]) -> None:
            self._running = None
            self._pause = loop.call_later(_PAUSE_S + done.result(), self._paused)
            handshake.stepped()

        self._running.add_done_callback(ran)

    def _paused(self) -> None:
        self._pause = None
        self._go_on()


def _timed_step(handshake: TlsTransport) -> float:
    """Return how long the step has taken, without the time in which other threads ran."""
    began = time.thread_time()
    handshake.step()
    return time.thread_time() - began


def _has_hung_up(handshake: TlsTransport) -> bool:
    """Whether the peer waits no longer."""
    looking = select.poll()
    looking.register(cast(socket.socket, handshake.get_extra_info("socket")), select.POLLRDHUP)
    return bool(looking.poll(0))
