"""What all connections of the native front end share: the bookie, and everything that is bounded over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from bk_spark.protocol.wire.framing import CommonBuffer
from bookie_server.bookie import Bookie
from bookie_server.net.common.access.front_access import FrontAccess
from bookie_server.net.common.access.pauses import Spread
from bookie_server.net.common.fair_slots import FairSlots
from bookie_server.net.common.half_frames import HalfFrames
from bookie_server.net.common.kernel_room import KernelRoom
from bookie_server.net.common.large_frames import LargeFrames
from bookie_server.net.common.limits import NetConfig, RequestTimes
from bookie_server.net.common.load import Load
from bookie_server.net.common.sparing_log import SparingLog
from bookie_server.net.common.turns import Turns
from bookie_server.net.native.answers import Answers
from bookie_server.net.native.fences import Fences
from bookie_server.net.native.outbox import Outbox
from bookie_server.net.native.recovery_adds import RecoveryAdds
from bookie_server.net.native.slices import Slices


class HeldBack(Protocol):
    """A connection whose peer does not read its answers, as seen from here."""

    answers: Answers

    def abort_stalled(self) -> None:
        """Close at once, because others wait for what it holds."""


class Shared:
    """Belongs to the event loop. The parameters are those of NativeServer."""

    def __init__(
        self,
        bookie: Bookie,
        config: NetConfig,
        load: Load,
        times: RequestTimes,
        disk_space: Callable[[], tuple[int, int] | None],
        access: FrontAccess | None = None,
    ) -> None:
        self.bookie = bookie
        self.config = config
        self.load = load
        self.times = times
        self.disk_space = disk_space
        self.access = access
        self.turns = Turns()
        self.read_slots = FairSlots(config.read_slots)
        self.slices = Slices()
        self.outbox = Outbox()
        self.pauses = Spread()
        self.fences = Fences(bookie)
        self.recovery_adds = RecoveryAdds()
        self.kernel_room = KernelRoom()
        #: Lists of entries may be long, so one is made at a time.
        self.list_slot = asyncio.Semaphore(1)
        self.common_buffer = CommonBuffer(config.max_frame_bytes)
        #: About peers that send bytes that are not a valid frame.
        self.log = SparingLog()
        self.large_frames = LargeFrames(config.max_large_frames_bytes, config.stalled_frame_timeout_ms / 1000)
        self.half_frames = HalfFrames(config.max_half_frames_bytes, config.frame_timeout_ms / 1000)
        #: Connections whose peers do not read their answers now.
        self.held_back: dict[HeldBack, None] = {}
        #: Connections that were closed because others waited for what they held.
        self.stalled_peers = 0
