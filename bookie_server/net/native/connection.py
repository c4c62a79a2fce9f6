"""One client's connection: when the bookie reads from it, and in which slices its requests are handled."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final, Protocol, cast

import numpy as np

from bk_spark.bookie.auth.providers import Peer
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import LENGTH_BYTES, Frames, Receiving
from bookie_server.net.common.access.front_access import ConnectionAccess
from bookie_server.net.common.kernel_room import Socket
from bookie_server.net.native.admission import Admission
from bookie_server.net.native.protocols import Protocols
from bookie_server.net.native.request_context import RequestContext
from bookie_server.net.native.shared import Shared

_LOG: Final = logging.getLogger(__name__)

PAUSED_BY_LOAD: Final = 1
_PAUSED_BY_END: Final = 2
_PAUSED_BY_ADDS: Final = 4
_PAUSED_BY_READS: Final = 8
_PAUSED_BY_ANSWERS: Final = 16
_PAUSED_BY_FRAMES: Final = 32
#: Some requests of the last receive are not handled yet.
_PAUSED_BY_TURN: Final = 64
#: The peer asks for what it may not.
_PAUSED_BY_REFUSAL: Final = 128

#: Frames of a receive that are parsed in a later turn: at most, at least, and for each that was handled of the slice
#: before. Parsing costs as much as handling, and of fencing reads few are handled at a time.
_FRAMES_PER_TURN: Final = 512
_LEAST_FRAMES_PER_TURN: Final = 16
_PARSED_PER_HANDLED: Final = 2
#: One in so many connections that were closed because they stalled is logged.
_TELL_EVERY: Final = 100


class Owner(Protocol):
    """The server, as its connections see it."""

    def joins(self, connection: NativeConnection) -> bool:
        """Whether the connection, whose transport now exists, was not given up meanwhile."""

    def active(self, connection: NativeConnection) -> None:
        """The connection is in use."""

    def left(self, connection: NativeConnection) -> None:
        """The connection is lost."""


class NativeConnection(asyncio.BufferedProtocol):
    """Belongs to the event loop."""

    def __init__(self, shared: Shared, owner: Owner, *, refuses: bool = False) -> None:
        self._shared = shared
        self._owner = owner
        self._config = shared.config
        self._loop = asyncio.get_running_loop()
        self._receiving = Receiving(shared.common_buffer)
        self._admission = Admission(shared, self, refuses=refuses)
        self._requests = RequestContext(
            shared,
            adds_changed=self._adds_changed,
            reads_changed=self._reads_changed,
            refused=self._admission.refused,
            failed=self._close_failed,
        )
        self.answers = self._requests.answers
        self._protocols = Protocols(self._requests)
        self._backlog: Frames | None = None
        self._frames_per_turn = _FRAMES_PER_TURN
        self._has_large = False
        self.time_share = self._requests.time_share
        self._transport: asyncio.Transport | None = None
        self._socket: Socket | None = None
        self._peer = "?"
        self._paused = 0
        self._is_made = False
        #: Whether a whole frame has come.
        self._has_spoken = False
        #: The frame of the login that came in clear, before the handshake.
        self.early_login = b""
        #: The handshake, while it is under way.
        self.joining: asyncio.Task[None] | None = None
        #: The client's certificate (DER). None: there is no TLS, or no certificate was asked for.
        self.peer_certificate: bytes | None = None

    @property
    def is_made(self) -> bool:
        """Whether there is, or was, a transport."""
        return self._is_made

    # --- asyncio's side ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the server has given the connection up. With TLS, this comes after the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._is_made = True
        if not self._owner.joins(self):
            self._transport.abort()
            return
        self.answers.begin(self._transport)
        if self._paused:
            self._transport.pause_reading()
        self._peer = str(self._transport.get_extra_info("peername"))
        tls = self._transport.get_extra_info("ssl_object")
        self.peer_certificate = None if tls is None else tls.getpeercert(binary_form=True)
        connected = self._socket = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # asyncio sets it only if the listener was created with the number of TCP. Without it, a small answer waits
            # for the peer to acknowledge the previous one, and a peer with nothing to send delays that by 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._shared.kernel_room.begin(connected)
        self._admission.begin(Peer(self._peer, self.peer_certificate), self.answers)
        if self.early_login and self._admission.gate is not None:
            size = len(self.early_login) - LENGTH_BYTES
            self._handle(Frames(memoryview(self.early_login), np.array([LENGTH_BYTES]), np.array([size])))
        if connected is not None and tls is None:
            self._receive_first(connected.fileno())

    def _receive_first(self, fd: int) -> None:
        """Receive what made this a connection. asyncio would do so one turn of the event loop later."""
        if self._paused:
            return
        try:
            size = os.readv(fd, [self.get_buffer(-1)])
        except OSError:  # asyncio finds out
            return
        if size:
            self.buffer_updated(size)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back everything that the connection holds."""
        self._transport = None
        if self._socket is not None:
            self._shared.kernel_room.end(self._socket)
        self._admission.end()
        self._requests.end()
        self._shared.held_back.pop(self, None)
        self._shared.half_frames.end(self)
        self._shared.large_frames.end(self)
        self._owner.left(self)
        self._receiving.clear()
        self._backlog = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong. The size that asyncio suggests does not matter."""
        return self._shared.turns.receiving(self._receiving.get_buffer())

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what has arrived. Bytes that are not a valid frame close the connection."""
        try:
            frames = self._receiving.received(nbytes)
            if self._has_large or self._receiving.large_frame_bytes:
                self._note_large_frame()
            if (frames is not None or self._has_large) and self._admission.gate is None:
                self._owner.active(self)
            if frames is not None:
                self._has_spoken = True
                self._handle(frames)
            self._note_half_frame(is_new=frames is not None)
            self._shared.turns.received(self)
            if self._has_large and not self._shared.turns.may_go(self):
                self._wait_for_turn()
        except WireFormatError as error:
            self._close_bad(error)
        except Exception:
            self._close_failed()

    def pause_writing(self) -> None:
        """The peer does not read its answers: read none of its requests until it does."""
        self.answers.held_back()
        self._shared.held_back[self] = None
        self.pause(_PAUSED_BY_ANSWERS)

    def resume_writing(self) -> None:
        """The peer has read answers, so its requests are read again."""
        self.answers.go_on()
        self._shared.held_back.pop(self, None)
        if self._socket is not None and self._shared.kernel_room.has_read(self._socket):
            self.answers.has_read()
        self._owner.active(self)
        self.resume(_PAUSED_BY_ANSWERS)

    # --- waiting requests --------------------------------------------------------------------------

    def _adds_changed(self) -> None:
        """Stop or resume reading by the number of waiting adds."""
        most, pending = self._config.max_pending_adds, self._requests.pending_adds
        if most and 2 * pending > most:
            self.pause(_PAUSED_BY_ADDS)
        elif self._paused & _PAUSED_BY_ADDS and 4 * pending <= most:
            self.resume(_PAUSED_BY_ADDS)

    def _reads_changed(self) -> None:
        """Stop or resume reading by the waiting reads."""
        reads = self._requests.reads
        if reads.too_many:
            self.pause(_PAUSED_BY_READS)
        elif self._paused & _PAUSED_BY_READS and reads.few:
            self.resume(_PAUSED_BY_READS)

    # --- reading from the socket or not ------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the bookie does not read from this peer now."""
        return bool(self._paused)

    @property
    def busy(self) -> bool:
        """Whether the peer waits for the bookie, and not the bookie for the peer."""
        waits_for_it = self.answers.all_taken and (self.paused or self._requests.reads.busy)
        return self._requests.pending_adds > 0 or waits_for_it

    def pause(self, reason: int) -> None:
        """Stop reading requests until every reason is gone."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause."""
        before, self._paused = self._paused, self._paused & ~reason
        if self._transport is None or self._transport.is_closing():
            return
        if before and not self._paused:
            self._transport.resume_reading()
        elif self._paused == _PAUSED_BY_TURN and before != self._paused:
            self._shared.turns.wait(self)

    def read_nothing_for(self, pause_s: float) -> None:
        """Do not read from the peer for a while."""
        self.pause(_PAUSED_BY_REFUSAL)
        self._loop.call_later(pause_s, self.resume, _PAUSED_BY_REFUSAL)

    def read_no_more(self) -> None:
        """Do not read from the peer any more."""
        self.pause(_PAUSED_BY_END)

    def let_in(self, access: ConnectionAccess | None, *, is_v2: bool) -> None:
        """Obey requests from now on, as far as ``access`` says. ``is_v2``: the peer has sent a v2 frame."""
        self._requests.access = access
        self._protocols.is_v2 = is_v2

    def hold_frame(self) -> None:
        """Stop reading a large frame until there is room for it."""
        self.pause(_PAUSED_BY_FRAMES)

    def give_room(self, size_bytes: int) -> None:
        """Read the first ``size_bytes`` of a large frame."""
        self._receiving.give_room(size_bytes)
        self.resume(_PAUSED_BY_FRAMES)

    def abort_stalled(self) -> None:
        """Close at once, because others wait for what this connection holds and does not use."""
        if self._shared.stalled_peers % _TELL_EVERY == 0:
            _LOG.warning("connection from %s closed: it has stalled, and others wait for its memory", self._peer)
        self._shared.stalled_peers += 1
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self.joining is not None:
            self.joining.cancel()

    def hang_up(self) -> None:
        """Close after the last answer is sent."""
        self.answers.finish()
        if self._transport is not None:
            self._transport.close()
        else:
            self.abort()

    # --- inside ------------------------------------------------------------------------------------

    def _note_half_frame(self, *, is_new: bool) -> None:
        """Note how many bytes are kept of an incomplete frame, and of requests that wait for their turn. ``is_new``: it
        is another frame than before."""
        half_frames, kept_bytes = self._shared.half_frames, self._receiving.half_frame_bytes
        if self._backlog is not None:
            kept_bytes += len(self._backlog.data)
        if not kept_bytes and not self._has_large:
            half_frames.end(self)
        elif is_new:
            half_frames.begin(self, kept_bytes, self._loop.time())
        else:
            half_frames.grow(self, kept_bytes, self._loop.time())

    def _note_large_frame(self) -> None:
        """More of a large frame has arrived, or it is complete."""
        receiving, large_frames = self._receiving, self._shared.large_frames
        self._has_large = receiving.large_frame_bytes > 0
        if self._has_large:
            now = self._loop.time()
            large_frames.progress(self, receiving.large_frame_has_bytes, receiving.large_frame_bytes, now)
        else:
            large_frames.end(self)

    def _handle(self, frames: Frames) -> None:
        rest = self._answer(frames) if self._shared.turns.may_go(self) else frames
        if rest is not None:
            self._backlog = rest.detached()
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self.pause(_PAUSED_BY_TURN)
        self._shared.turns.wait(self)

    def handle_backlog(self) -> None:
        """Handle more requests of the last receive, unless the connection is paused. Then receive again."""
        if self._paused != _PAUSED_BY_TURN:
            return
        if self._backlog is None:
            self.resume(_PAUSED_BY_TURN)
            return
        frames, self._backlog = self._backlog, None
        # Parsing all remaining frames each time would cost as much as handling some of them.
        part = frames.part(0, self._frames_per_turn)
        try:
            handled = len(part) - _count(self._answer(part))
            if handled < len(frames):
                self._backlog = frames.part(handled, len(frames))
            self._frames_per_turn = min(_FRAMES_PER_TURN, max(_LEAST_FRAMES_PER_TURN, _PARSED_PER_HANDLED * handled))
        except WireFormatError as error:
            self._close_bad(error)
        except Exception:
            self._close_failed()
        if self._backlog is not None:
            self._shared.turns.wait(self)
            return
        self._note_half_frame(is_new=True)
        self.resume(_PAUSED_BY_TURN)

    def _answer(self, frames: Frames) -> Frames | None:
        """Do what :meth:`_dispatch` does, and send what can be answered at once. In the next turn of the event loop it
        would have to wait for all that comes there before it."""
        self.answers.gather()
        try:
            return self._dispatch(frames)
        finally:
            self.answers.flush()

    def _dispatch(self, frames: Frames) -> Frames | None:
        """Give frames to the handler of their protocol. Return those that it left for the next turn.

        Raises WireFormatError after the frames before the bad one are handled.
        """
        frames.check_bodies()
        gate = self._admission.gate
        if gate is None:
            return self._protocols.handle(frames)
        rest = self._admission.handle(gate, frames)
        if self._admission.gate is None:
            self._owner.active(self)
        return rest

    def _close_bad(self, error: WireFormatError) -> None:
        self._shared.log.tell("connection from %s closed: %s", self._peer, error)
        if self._has_spoken:
            self.abort()
        else:  # whoever speaks something else, and comes again and again, costs little then
            self._receiving.clear()
            self.read_no_more()
            self._loop.call_later(self._shared.pauses.failure_s(), self.abort)

    def _close_failed(self) -> None:
        """Close because of the unexpected exception that is being handled."""
        _LOG.exception("connection from %s closed: unexpected error in a request", self._peer)
        self.abort()


def _count(frames: Frames | None) -> int:
    return 0 if frames is None else len(frames)
