"""What the handlers of one connection's requests use: its answers, its waiting adds and reads, and what is shared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import Code
from bookie_server.net.common.access.front_access import ConnectionAccess
from bookie_server.net.common.access.rights import FENCE, WRITE
from bookie_server.net.common.fair_slots import Share
from bookie_server.net.common.limits import REQUEST_BYTES
from bookie_server.net.common.lost_connection import ignore_change, log_failure
from bookie_server.net.common.read_queue import ReadQueue
from bookie_server.net.common.turns import HALF_LIFE_S
from bookie_server.net.native.answers import Answers
from bookie_server.net.native.shared import Shared
from bookie_server.storage.records import Records


class RequestContext:
    """Belongs to the event loop.

    Parameters
    ----------
    shared
        What all connections share.
    adds_changed, reads_changed
        Called when the number of waiting adds or reads has changed.
    refused
        Called when a request is refused, because the peer has no right to it.
    failed
        Called while an unexpected exception is being handled. Closes the connection.
    """

    def __init__(
        self,
        shared: Shared,
        *,
        adds_changed: Callable[[], None],
        reads_changed: Callable[[], None],
        refused: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self.shared = shared
        high_bytes = shared.config.answers_high_bytes
        self.answers = Answers(shared.load, shared.read_slots, shared.slices, shared.outbox, high_bytes)
        self.reads = ReadQueue(shared.load, shared.config, self.answers.wait_taken, reads_changed, failed)
        self.pending_adds = 0
        #: What the peer may do. None: everything.
        self.access: ConnectionAccess | None = None
        #: The time the connection was served lately, in µs.
        self.time_share = Share(HALF_LIFE_S)
        self._loop = asyncio.get_running_loop()
        self._adds_changed, self._refused, self._failed = adds_changed, refused, failed

    def end(self) -> None:
        """The connection is lost. Adds that were accepted go on without it."""
        self.answers.end()
        self.reads.cancel()
        self.shared.fences.forget(self)
        # The callbacks know the connection. Without them it is freed at once, not by a later search for cycles.
        self._adds_changed, self._refused, self._failed = ignore_change, ignore_change, log_failure

    def may(self, needed: int) -> bool:
        """Whether the peer has the rights ``needed`` (rights.py). If not, its request must be refused: UNAUTHORIZED."""
        if self.access is None or self.access.may(needed):
            return True
        self._refused()
        return False

    @property
    def may_answer_now(self) -> bool:
        """Whether a read may be answered at once: no earlier one waits, and the answers so far are few."""
        return not self.reads.busy and self.answers.may_send_now

    def adds_allowed(self, count: int) -> int:
        """How many of ``count`` adds may wait beside those that do already. The others must be refused."""
        most = self.shared.config.max_pending_adds
        allowed = count if not most else max(0, min(count, most - self.pending_adds))
        self.shared.load.rejected_adds += count - allowed
        return allowed

    def add(
        self,
        records: Records,
        master_key: bytes,
        *,
        recovery: bool,
        high_priority: bool,
        begun: float,
        answer: Callable[[Code | Int32s], None],
    ) -> None:
        """Let the bookie store ``records``, which came at ``begun``. ``answer`` is called with its codes."""
        count, size_bytes = len(records), len(records.data) + REQUEST_BYTES
        if not self.may(FENCE if recovery else WRITE):
            answer(Code.UNAUTHORIZED)
            self.observe_codes("add", Code.UNAUTHORIZED, count, begun)
            return
        self._change_adds(count, size_bytes)
        waiting = True

        def done(codes: Code | Int32s) -> None:
            nonlocal waiting
            if not waiting:
                return
            waiting = False
            self._change_adds(-count, -size_bytes)
            try:
                answer(codes)
                self.observe_codes("add", codes, count, begun)
            except Exception:  # called for one of many requests of a group; the others must not suffer
                self._failed()

        try:
            self.shared.bookie.add(records, master_key, recovery=recovery, high_priority=high_priority, done=done)
        except Exception:
            done(Code.IO_ERROR)
            raise

    @contextmanager
    def charged(self) -> Iterator[None]:
        """For what is done later for requests of an earlier receive: it counts as time the connection was served, and
        an unexpected exception closes the connection."""
        since = time.thread_time()
        try:
            yield
        except Exception:
            self._failed()
        self.time_share.serve(int((time.thread_time() - since) * 1e6), self._loop.time())

    def write(self, kind: str, size_bytes: int, outcome: asyncio.Future[Code], answer: Callable[[Code], None]) -> None:
        """Call ``answer`` with the outcome of a request of ``size_bytes`` that waits for a journal."""
        load, size_bytes, begun = self.shared.load, size_bytes + REQUEST_BYTES, self._loop.time()
        load.change_adds(0, size_bytes)

        def done(outcome: asyncio.Future[Code]) -> None:
            load.change_adds(0, -size_bytes)
            try:
                code = Code.IO_ERROR if outcome.cancelled() or outcome.exception() is not None else outcome.result()
                answer(code)
                self.observe_codes(kind, code, 1, begun)
            except Exception:
                self._failed()

        outcome.add_done_callback(done)

    def observe_codes(self, kind: str, codes: Code | Int32s, count: int, begun: float) -> None:
        """Report ``count`` requests that arrived at ``begun`` and are answered now."""
        seconds, times = self._loop.time() - begun, self.shared.times
        failed = int(np.count_nonzero(codes)) if not isinstance(codes, Code) else 0 if codes is Code.OK else count
        if failed < count:
            times.observe(kind, count - failed, seconds, True)
        if failed:
            times.observe(kind, failed, seconds, False)

    def _change_adds(self, count: int, size_bytes: int) -> None:
        self.pending_adds += count
        self.shared.load.change_adds(count, size_bytes)
        self._adds_changed()
