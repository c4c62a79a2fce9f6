"""The costly steps of TLS handshakes: who is next, and how many.

The answer to a client's first message needs the private key: a millisecond or more. A flood of them in the event loop
would make everybody wait, so a thread computes them, one at a time, with pauses. OpenSSL does not hold Python's lock
meanwhile. The newest and the oldest go in turn, as newcomers do.

Those whose addresses failed lately have a line of their own, with longer pauses. The others go first, so whoever floods
a bookie with handshakes that fail keeps only those of its own address waiting.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

from bk_spark.bookie.tls.transport import TlsTransport
from bookie_server.net.common.access.pauses import FailedLately, Spread

#: Pause after a step, besides the time that it took. The rest of a handshake takes half of it, in the loop. So a flood
#: leaves half of the time to requests.
_PAUSE_S: Final = 0.002
#: The same after a step for who failed lately. What fails costs three milliseconds in all.
_SUSPECTS_PAUSE_S: Final = 0.01


class Line:
    """Handshakes that wait for their step, with a pause of ``pause_s`` after each."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._waiting: OrderedDict[TlsTransport, None] = OrderedDict()
        self._newest_next = False
        self._pause: asyncio.TimerHandle | None = None

    def add(self, handshake: TlsTransport) -> None:
        """It waits. Ignored if it did already."""
        self._waiting[handshake] = None

    def remove(self, handshake: TlsTransport) -> None:
        """It waits no longer. Ignored if it did not."""
        self._waiting.pop(handshake, None)

    def next(self) -> TlsTransport | None:
        """Take out whose step is next. None: nobody waits, or there is a pause."""
        if not self._waiting or self._pause is not None:
            return None
        handshake, _ = self._waiting.popitem(last=self._newest_next)
        self._newest_next = not self._newest_next
        return handshake

    def begin_pause(self, step_s: float, over: Callable[[], None]) -> None:
        """A step has taken ``step_s``. Call ``over`` after the pause."""

        def end() -> None:
            self._pause = None
            over()

        self._pause = asyncio.get_running_loop().call_later(self._pause_s + step_s, end)

    def close(self) -> None:
        """Forget all."""
        self._waiting.clear()
        if self._pause is not None:
            self._pause.cancel()


class Handshakes:
    """Computes the steps. Belongs to the event loop."""

    def __init__(self) -> None:
        self._line, self._suspects = Line(_PAUSE_S), Line(_SUSPECTS_PAUSE_S)
        self._failed = FailedLately()
        self._pauses = Spread()
        self._thread: ThreadPoolExecutor | None = None
        self._running: asyncio.Future[float] | None = None

    def take(self, handshake: TlsTransport) -> None:
        """Call the ``step`` of ``handshake`` in a thread, then its ``stepped`` in the loop."""
        now_s = asyncio.get_running_loop().time()
        is_suspect = self._failed.includes(_address(handshake), now_s)
        (self._suspects if is_suspect else self._line).add(handshake)
        self._go_on()

    def leave(self, handshake: TlsTransport) -> None:
        """The connection has ended."""
        self._line.remove(handshake)
        self._suspects.remove(handshake)

    def failed(self, handshake: TlsTransport) -> float:
        """The handshake has failed. Return how long its peer waits until it is told, in seconds."""
        self._failed.note(_address(handshake), asyncio.get_running_loop().time())
        return self._pauses.failure_s()

    async def close(self) -> None:
        """End the thread."""
        self._line.close()
        self._suspects.close()
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _go_on(self) -> None:
        while self._running is None:
            for line in (self._line, self._suspects):
                handshake = line.next()
                if handshake is not None:
                    break
            else:
                return
            if _has_hung_up(handshake):
                handshake.abort()
            else:
                self._run(handshake, line)

    def _run(self, handshake: TlsTransport, line: Line) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="tls-handshake")
        self._running = asyncio.get_running_loop().run_in_executor(self._thread, _timed_step, handshake)

        def ran(done: asyncio.Future[float]) -> None:
            self._running = None
            line.begin_pause(done.result(), self._go_on)
            handshake.stepped()
            self._go_on()

        self._running.add_done_callback(ran)


def _timed_step(handshake: TlsTransport) -> float:
    """Return how long the step has taken, without the time in which other threads ran."""
    began = time.thread_time()
    handshake.step()
    return time.thread_time() - began


def _address(handshake: TlsTransport) -> str:
    return str((handshake.get_extra_info("peername") or ("?",))[0])


def _has_hung_up(handshake: TlsTransport) -> bool:
    """Whether the peer waits no longer."""
    looking = select.poll()
    looking.register(cast(socket.socket, handshake.get_extra_info("socket")), select.POLLRDHUP)
    return bool(looking.poll(0))
