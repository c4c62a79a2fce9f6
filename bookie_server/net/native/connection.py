"""One client's connection: receiving, sending, and every bound on what it holds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from bk_spark.protocol.arrays import Int32s
from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import Frames
from bookie_server.net.common.fair_slots import Share
from bookie_server.net.common.limits import REQUEST_BYTES
from bookie_server.net.common.read_queue import ReadQueue
from bookie_server.net.common.receiving import Receiving, check_not_empty, detached, part
from bookie_server.net.native.answers import Answers
from bookie_server.net.native.requests_v2 import RequestsV2
from bookie_server.net.native.requests_v3 import RequestsV3, are_v3
from bookie_server.storage.records import Records

if TYPE_CHECKING:
    from bookie_server.net.native.server import NativeServer

_LOG: Final = logging.getLogger(__name__)

PAUSED_BY_LOAD: Final = 1
PAUSED_BY_END: Final = 2
_PAUSED_BY_ADDS: Final = 4
_PAUSED_BY_READS: Final = 8
_PAUSED_BY_ANSWERS: Final = 16
_PAUSED_BY_FRAMES: Final = 32
#: Requests of the last receive are still to be handled.
_PAUSED_BY_TURN: Final = 64

#: Answers beyond those on their way that the kernel keeps for a peer. Without a limit it takes megabytes, which are
#: read for peers that never take them.
_KERNEL_KEEPS_BYTES: Final = 256 * 1024
#: Frames of a receive that are looked at again in a later turn.
_FRAMES_PER_TURN: Final = 512
#: Connections closed since they stall are told of once in so many.
_TELL_EVERY: Final = 100


class NativeConnection(asyncio.BufferedProtocol):
    """Belongs to the event loop. The first v2 frame makes it a v2 connection for good (compatibility.md §1.2)."""

    def __init__(self, server: NativeServer) -> None:
        self.server = server
        self.load = server.load
        self._config = server.config
        self._loop = asyncio.get_running_loop()
        self._receiving = Receiving(server.common_buffer)
        self._v2 = RequestsV2(self, server.bookie, server.config.max_batch_read_bytes)
        self._v3 = RequestsV3(self, server.bookie)
        self._is_v2 = False
        self._backlog: Frames | None = None
        self._has_large = False
        self.time_share = Share()
        self._transport: asyncio.Transport | None = None
        self._peer = "?"
        self._paused = 0
        self._pending_adds = 0
        self.answers = Answers(server.load, server.read_slots, server.config.answers_high_bytes)
        self.reads = ReadQueue(self)

    # --- asyncio's side ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.server.joins(self):
            self._transport.abort()
            return
        self.answers.begin(self._transport)
        if self._paused:
            self._transport.pause_reading()
        self._peer = str(self._transport.get_extra_info("peername"))
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # asyncio sets it only where the listener was made for TCP by number. Without it a small answer waits until
            # the peer has acknowledged the one before, which a peer that has nothing to send does after 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _KERNEL_KEEPS_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.answers.end()
        self.server.left(self)
        self._receiving.clear()
        self._backlog = None
        self.reads.cancel()
        # These know the connection. Without them it is freed at once, and not when cycles are looked for.
        del self._v2, self._v3

    def get_buffer(self, sizehint: int) -> memoryview:
        self.server.turns.receiving()
        return self._receiving.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._receiving.received(nbytes)
            if self._has_large or self._receiving.large_frame_bytes:
                self._note_large_frame()
            if frames is not None or self._has_large:
                self.server.active(self)
            if frames is not None:
                self._handle(frames)
            self._note_half_frame(is_new=frames is not None)
            self.server.turns.received(self)
            if self._has_large and not self.server.turns.may_go(self):
                self._wait_for_turn()
        except WireFormatError as error:
            self._close_bad(error)
        except Exception:
            self.close_failed()

    def pause_writing(self) -> None:
        self.answers.held_back()
        self.pause(_PAUSED_BY_ANSWERS)

    def resume_writing(self) -> None:
        self.answers.go_on()
        self.server.active(self)
        self.resume(_PAUSED_BY_ANSWERS)

    @property
    def may_answer_now(self) -> bool:
        """Whether a read may be answered at once: none before it waits, and the answers so far are few."""
        return not self.reads.busy and self.answers.may_send_now

    # --- adds --------------------------------------------------------------------------------------

    def adds_allowed(self, count: int) -> int:
        """How many of ``count`` adds may wait beside those that do; the rest is to be refused."""
        most = self._config.max_pending_adds
        allowed = count if not most else max(0, min(count, most - self._pending_adds))
        self.server.rejected_adds += count - allowed
        return allowed

    def add(
        self,
        records: Records,
        master_key: bytes,
        *,
        recovery: bool,
        high_priority: bool,
        answer: Callable[[Code | Int32s], None],
    ) -> None:
        """Let the bookie store ``records``; ``answer`` is called with its codes."""
        count, size_bytes, begun = len(records), len(records.data) + REQUEST_BYTES, self._loop.time()
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
            except Exception:  # it is called for one of many requests of a group: the others must not suffer
                self.close_failed()

        try:
            self.server.bookie.add(records, master_key, recovery=recovery, high_priority=high_priority, done=done)
        except Exception:
            done(Code.IO_ERROR)
            raise

    def observe_codes(self, kind: str, codes: Code | Int32s, count: int, begun: float) -> None:
        """Tell of ``count`` requests that came at ``begun`` and are answered now."""
        seconds = self._loop.time() - begun
        failed = int(np.count_nonzero(codes)) if not isinstance(codes, Code) else 0 if codes is Code.OK else count
        if failed < count:
            self.server.times.observe(kind, count - failed, seconds, True)
        if failed:
            self.server.times.observe(kind, failed, seconds, False)

    def write(self, kind: str, size_bytes: int, outcome: asyncio.Future[Code], answer: Callable[[Code], None]) -> None:
        """Call ``answer`` with the outcome of something of ``size_bytes`` that waits for a journal."""
        size_bytes += REQUEST_BYTES
        begun = self._loop.time()
        self.load.change_adds(0, size_bytes)

        def done(outcome: asyncio.Future[Code]) -> None:
            self.load.change_adds(0, -size_bytes)
            try:
                code = Code.IO_ERROR if outcome.cancelled() or outcome.exception() is not None else outcome.result()
                answer(code)
                self.observe_codes(kind, code, 1, begun)
            except Exception:
                self.close_failed()

        outcome.add_done_callback(done)

    def _change_adds(self, count: int, size_bytes: int) -> None:
        self._pending_adds += count
        self.load.change_adds(count, size_bytes)
        most = self._config.max_pending_adds
        if most and 2 * self._pending_adds > most:
            self.pause(_PAUSED_BY_ADDS)
        elif self._paused & _PAUSED_BY_ADDS and 4 * self._pending_adds <= most:
            self.resume(_PAUSED_BY_ADDS)

    # --- reads -------------------------------------------------------------------------------------

    def reads_changed(self) -> None:
        """Stop or resume reading by what waits in ``reads``."""
        if self.reads.too_many:
            self.pause(_PAUSED_BY_READS)
        elif self._paused & _PAUSED_BY_READS and self.reads.few:
            self.resume(_PAUSED_BY_READS)

    # --- reading from the socket or not ------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the bookie itself does not read from this peer."""
        return bool(self._paused)

    @property
    def busy(self) -> bool:
        """Whether the bookie is at work for this peer, or does not read from it; not where it waits for the peer."""
        waits_for_it = self.answers.all_taken and (self.paused or self.reads.busy)
        return self._pending_adds > 0 or waits_for_it

    def pause(self, reason: int) -> None:
        """Read no more requests until every reason is gone."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        before, self._paused = self._paused, self._paused & ~reason
        if self._transport is None or self._transport.is_closing():
            return
        if before and not self._paused:
            self._transport.resume_reading()
        elif self._paused == _PAUSED_BY_TURN and before != self._paused:
            self.server.turns.wait(self)

    def hold_frame(self) -> None:
        """Read no more of a large frame until there is room for it."""
        self.pause(_PAUSED_BY_FRAMES)

    def give_room(self, size_bytes: int) -> None:
        """Read the first ``size_bytes`` of a large frame."""
        self._receiving.give_room(size_bytes)
        self.resume(_PAUSED_BY_FRAMES)

    def abort_stalled(self) -> None:
        """Close at once, since others wait for what this one holds and does not use."""
        if self.server.stalled_peers % _TELL_EVERY == 0:
            _LOG.warning("connection from %s closed: it does not go on, and others wait", self._peer)
        self.server.stalled_peers += 1
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Close after what was sent."""
        self.answers.flush()
        if self._transport is not None:
            self._transport.close()

    # --- inside ------------------------------------------------------------------------------------

    def _note_half_frame(self, *, is_new: bool) -> None:
        """Tell what is kept of a frame that is not whole (``is_new``: another one than before), and of requests that
        wait for their turn."""
        half_frames, kept_bytes = self.server.half_frames, self._receiving.half_frame_bytes
        if self._backlog is not None:
            kept_bytes += len(self._backlog.data)
        if not kept_bytes and not self._has_large:
            half_frames.end(self)
        elif is_new:
            half_frames.begin(self, kept_bytes, self._loop.time())
        else:
            half_frames.grow(self, kept_bytes, self._loop.time())

    def _note_large_frame(self) -> None:
        """More of a large frame has come, or it is whole."""
        receiving, large_frames = self._receiving, self.server.large_frames
        self._has_large = receiving.large_frame_bytes > 0
        if self._has_large:
            now = self._loop.time()
            large_frames.progress(self, receiving.large_frame_has_bytes, receiving.large_frame_bytes, now)
        else:
            large_frames.end(self)

    def _handle(self, frames: Frames) -> None:
        rest = self._dispatch(frames) if self.server.turns.may_go(self) else frames
        if rest is not None:
            self._backlog = detached(rest)
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self.pause(_PAUSED_BY_TURN)
        self.server.turns.wait(self)

    def handle_backlog(self) -> None:
        """Go on with what came in the last receive, if nothing speaks against it; then receive again."""
        if self._paused != _PAUSED_BY_TURN:
            return
        if self._backlog is None:
            self.resume(_PAUSED_BY_TURN)
            return
        frames, self._backlog = self._backlog, None
        # To find out what they are costs as much as some of them, so not for all of the rest each time.
        later = None if len(frames) <= _FRAMES_PER_TURN else part(frames, _FRAMES_PER_TURN, len(frames))
        try:
            rest = self._dispatch(frames if later is None else part(frames, 0, _FRAMES_PER_TURN))
            if rest is not None or later is not None:
                self._backlog = part(frames, len(frames) - _count(rest) - _count(later), len(frames))
        except WireFormatError as error:
            self._close_bad(error)
        except Exception:
            self.close_failed()
        if self._backlog is not None:
            self.server.turns.wait(self)
            return
        self._note_half_frame(is_new=True)
        self.resume(_PAUSED_BY_TURN)

    def _dispatch(self, frames: Frames) -> Frames | None:
        """Hand frames to the handler of their protocol; those that it left for the next turn.

        Raises WireFormatError; what came before the bad frame is done.
        """
        check_not_empty(frames)
        v3 = are_v3(frames)
        at = 0
        if not self._is_v2:
            count = len(frames) if v3.all() else int(v3.argmin())
            if count:
                at = self._v3.handle(part(frames, 0, count))
            if at < count:
                return part(frames, at, len(frames))
            if at == len(frames):
                return None
            self._is_v2 = True
        end = at + int(v3[at:].argmax()) if v3[at:].any() else len(frames)
        if at < end:
            at += self._v2.handle(part(frames, at, end))
        if at < end:
            return part(frames, at, len(frames))
        if end < len(frames):
            raise WireFormatError("a v3 frame on a connection that speaks v2")
        return None

    def _close_bad(self, error: WireFormatError) -> None:
        _LOG.warning("connection from %s closed: %s", self._peer, error)
        self.abort()

    def close_failed(self) -> None:
        """Close because of the exception that is being handled, which nobody expected."""
        _LOG.exception("connection from %s closed: its request could not be handled", self._peer)
        self.abort()


def _count(frames: Frames | None) -> int:
    return 0 if frames is None else len(frames)
