"""The protocols of one connection: which handler gets its frames."""

from __future__ import annotations

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.framing import Frames, are_v3, is_v3
from bookie_server.net.native.request_context import RequestContext
from bookie_server.net.native.requests_v2 import RequestsV2
from bookie_server.net.native.requests_v3 import RequestsV3


class Protocols:
    """After its first v2 frame a connection speaks only v2 (compatibility.md §1.2)."""

    def __init__(self, requests: RequestContext) -> None:
        self._v2 = RequestsV2(requests)
        self._v3 = RequestsV3(requests)
        #: Whether the peer has sent a v2 frame.
        self.is_v2 = False

    def handle(self, frames: Frames) -> Frames | None:
        """Give frames to the handler of their protocol. Return those that it left for the next turn.

        Raises WireFormatError after the frames before the bad one are handled.
        """
        if len(frames) == 1:
            return self._handle_one(frames)
        v3 = are_v3(frames)
        at = 0
        if not self.is_v2:
            count = len(frames) if v3.all() else int(v3.argmin())
            if count:
                at = self._v3.handle(frames.part(0, count))
            if at < count:
                return frames.part(at, len(frames))
            if at == len(frames):
                return None
            self.is_v2 = True
        end = at + int(v3[at:].argmax()) if v3[at:].any() else len(frames)
        if at < end:
            at += self._v2.handle(frames.part(at, end))
        if at < end:
            return frames.part(at, len(frames))
        if end < len(frames):
            raise _not_v2()
        return None

    def _handle_one(self, frames: Frames) -> Frames | None:
        """Do what :meth:`handle` does for one frame, from a client that waits for each answer. To look at it with
        numpy would take longer than the request."""
        start = int(frames.starts[0])
        if is_v3(frames.data[start : start + frames.shortest_bytes]):
            if self.is_v2:
                raise _not_v2()
            handled = self._v3.handle(frames)
        else:
            self.is_v2 = True
            handled = self._v2.handle(frames)
        return None if handled else frames


def _not_v2() -> WireFormatError:
    return WireFormatError("a v3 frame on a connection that speaks v2")
