"""Long polls: reads that wait until the last add confirmed exceeds ``previousLAC``. Rules: compatibility.md §1.8.

=================================== ==========================================================================
case                                answer
=================================== ==========================================================================
LAC known here above previousLAC    at once: entry previousLAC + 1 if it is here, else no entry; ``maxLAC``
not above, with ``timeOut``         the same once it is, or nothing new after the timeout
fenced while waiting                at once, nothing new
fenced before                       waits
not above, no ``timeOut``           at once, nothing new
unknown ledger                      NO_LEDGER
ledger in limbo                     UNKNOWN_LEDGER_STATE: its LAC is not known
without ENTRY_PIGGYBACK             waits the same way, then a plain read of ``entryId``
=================================== ==========================================================================
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.answer_frames_v3 import response, status
from bookie_server.bookie import Bookie
from bookie_server.net.native.request_context import RequestContext
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

#: The size asked for one entry, which is read whole whatever its size.
_ONE_ENTRY_BYTES: Final = 1


@dataclass(frozen=True, slots=True)
class LongPoll:
    """The part of the request that is kept while it waits."""

    txn_id: int
    ledger_id: int
    entry_id: int
    previous_lac: int
    timeout_ms: int
    piggyback: bool

    @classmethod
    def of(cls, request: pb.Request, max_timeout_ms: int) -> LongPoll:
        """The long poll in a READ_ENTRY request. It waits ``max_timeout_ms`` at most."""
        read = request.readRequest
        return cls(
            request.header.txnId,
            read.ledgerId,
            read.entryId,
            read.previousLAC,
            min(read.timeOut, max_timeout_ms),
            read.HasField("flag") and read.flag == pb.ReadRequest.ENTRY_PIGGYBACK,
        )

    @property
    def is_valid(self) -> bool:
        """Whether the request may be answered. With ENTRY_PIGGYBACK the entry id must be -1."""
        return not self.piggyback or self.entry_id == LAST_ENTRY


async def answer_long_poll(context: RequestContext, poll: LongPoll, begun: float) -> None:
    """Wait, then send the answer."""
    bookie = context.shared.bookie
    descriptor = bookie.descriptor(poll.ledger_id)
    if not isinstance(descriptor, LedgerDescriptor):
        _send(context, poll, begun, Code.NO_LEDGER if descriptor is None else descriptor, poll.entry_id)
        return
    if descriptor.limbo:
        _send(context, poll, begun, Code.UNKNOWN_LEDGER_STATE, poll.entry_id)
        return
    waited = False
    if poll.timeout_ms > 0 and await bookie.known_lac(descriptor) <= poll.previous_lac:
        waited = await descriptor.wait_for_lac(poll.previous_lac, poll.timeout_ms)
    async with context.answers.round(_ONE_ENTRY_BYTES):
        lac = await bookie.known_lac(descriptor)
        if not poll.piggyback:
            code, stored = await read_one(bookie, poll.ledger_id, poll.entry_id)
            _send(context, poll, begun, code, poll.entry_id, stored, lac if stored is not None else None)
        elif lac <= poll.previous_lac:
            _send(context, poll, begun, Code.OK, NO_ENTRY, None, lac)
        else:
            updated_ms = int(time.time() * 1000) if waited else None
            code, stored = await read_one(bookie, poll.ledger_id, poll.previous_lac + 1)
            if stored is not None:
                _send(context, poll, begun, code, poll.previous_lac + 1, stored, lac, updated_ms)
            else:  # with striping, other bookies may have the entry
                code = Code.OK if code is Code.NO_ENTRY else code
                _send(context, poll, begun, code, NO_ENTRY, None, lac, updated_ms)


async def read_one(bookie: Bookie, ledger_id: int, entry_id: int) -> tuple[Code, Buffer | None]:
    """Return one entry (-1: the last), or the error code."""
    part = await bookie.read(np.array([ledger_id], np.int64), np.array([entry_id], np.int64), _ONE_ENTRY_BYTES)
    code = Code(int(part.codes[0]))
    return code, part.entries.entry(0) if code is Code.OK and part.entries is not None else None


def _send(
    context: RequestContext,
    poll: LongPoll,
    begun: float,
    code: Code,
    entry_id: int,
    stored: Buffer | None = None,
    max_lac: int | None = None,
    updated_ms: int | None = None,
) -> None:
    answer = response(poll.txn_id, pb.READ_ENTRY, code)
    body = answer.readResponse
    body.status, body.ledgerId, body.entryId = status(code), poll.ledger_id, entry_id
    if stored is not None:
        body.body = bytes(stored)
    if max_lac is not None:
        body.maxLAC = max_lac
    if updated_ms is not None:
        body.lacUpdateTimestamp = updated_ms
    context.answers.send(frame(answer.SerializeToString()))
    context.observe_codes("long_poll", code, 1, begun)
