"""Answers v3 requests about a ledger or the bookie itself. Rules: compatibility.md §1.8."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from bk_spark.bookie.shielded import shielded
from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.wire.entry_availability import encode_availability
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.answer_frames_v3 import response, response_about, status
from bookie_server.bookie import Bookie
from bookie_server.net.native.long_polls import read_one
from bookie_server.net.native.request_context import RequestContext
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

_LOG: Final = logging.getLogger(__name__)
#: Room in the answer for everything but the list of entries.
_LIST_OVERHEAD_BYTES: Final = 64


async def answer_read_lac(context: RequestContext, txn_id: int, ledger_id: int, begun: float) -> None:
    """Answer READ_LAC with the explicit LAC and the last entry, if there are any."""
    bookie = context.shared.bookie
    async with context.answers.round(1):
        descriptor = bookie.descriptor(ledger_id)
        code, stored, packet = Code.NO_ENTRY if descriptor is None else Code.OK, None, None
        if isinstance(descriptor, LedgerDescriptor):
            packet = descriptor.explicit_lac
            code, stored = await read_one(bookie, ledger_id, LAST_ENTRY)
            if code is Code.NO_ENTRY and packet is not None:
                code = Code.OK  # Apache's bookie answers the LAC and an I/O error; clients want the LAC
        elif descriptor is not None:
            code = descriptor
        answer = response_about(txn_id, pb.READ_LAC, code, ledger_id)
        if packet is not None:
            answer.readLacResponse.lacBody = packet
        if stored is not None:
            answer.readLacResponse.lastEntryBody = bytes(stored)
        context.answers.send(frame(answer.SerializeToString()))
    context.observe_codes("read_lac", code, 1, begun)


def answer_info(context: RequestContext, txn_id: int, requested: int, begun: float) -> None:
    """Answer GET_BOOKIE_INFO with the last known sizes of the disks: asking a disk now may block."""
    found = context.shared.disk_space()
    code = Code.OK if found is not None else Code.IO_ERROR
    free_bytes, total_bytes = found or (0, 0)
    answer = response(txn_id, pb.GET_BOOKIE_INFO, code)
    body = answer.getBookieInfoResponse
    body.status = status(code)
    if code is Code.OK and requested & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
        body.totalDiskCapacity = total_bytes
    if code is Code.OK and requested & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
        body.freeDiskSpace = free_bytes
    context.answers.send(frame(answer.SerializeToString()))
    context.observe_codes("info", code, 1, begun)


async def answer_list(context: RequestContext, txn_id: int, ledger_id: int, begun: float) -> None:
    """Answer GET_LIST_OF_ENTRIES_OF_LEDGER."""
    shared = context.shared
    slot = shared.list_slot
    await slot.acquire()
    # If the connection is lost, the listing continues and keeps the slot, because it still uses memory.
    listing = asyncio.get_running_loop().create_task(_list(shared.bookie, ledger_id, shared.config.max_frame_bytes))
    listing.add_done_callback(lambda _: slot.release())
    code, data = await shielded(listing)
    async with context.answers.round(len(data)):
        answer = response_about(txn_id, pb.GET_LIST_OF_ENTRIES_OF_LEDGER, code, ledger_id)
        if code is Code.OK:
            answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = data
        context.answers.send(frame(answer.SerializeToString()))
    context.observe_codes("list", code, 1, begun)


async def _list(bookie: Bookie, ledger_id: int, max_frame_bytes: int) -> tuple[Code, bytes]:
    """Return the encoded list of entries. A list that fits in no frame is an I/O error. Apache's bookie would send it,
    and its client would close the connection, with all other requests in flight on it."""
    try:
        code, entry_ids = await bookie.list_entries(ledger_id)
        if code is not Code.OK:
            return code, b""
        data = await asyncio.get_running_loop().run_in_executor(None, encode_availability, entry_ids)
    except Exception:
        _LOG.exception("ledger %d: the list of its entries cannot be made", ledger_id)
        return Code.IO_ERROR, b""
    if len(data) + _LIST_OVERHEAD_BYTES > max_frame_bytes:
        _LOG.error(
            "ledger %d: the list of its entries has %d bytes, more than fit in a frame (nettyMaxFrameSizeBytes)",
            ledger_id,
            len(data),
        )
        return Code.IO_ERROR, b""
    return Code.OK, data
