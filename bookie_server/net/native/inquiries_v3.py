"""v3 requests that ask a bookie about a ledger or about itself. Rules: compatibility.md §1.8."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bk_spark.protocol.codes import LAST_ENTRY, Code
from bk_spark.protocol.wire.entry_availability import encode_availability
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bookie_server.bookie import Bookie
from bookie_server.net.native.answers_v3 import response, response_about, status
from bookie_server.net.native.long_polls import read_one
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

if TYPE_CHECKING:
    from bookie_server.net.native.connection import NativeConnection

_LOG: Final = logging.getLogger(__name__)
#: Room that an answer with a list of entries needs beside the list.
_LIST_OVERHEAD_BYTES: Final = 64


async def answer_read_lac(
    connection: NativeConnection, bookie: Bookie, txn_id: int, ledger_id: int, begun: float
) -> None:
    """Answer READ_LAC: the explicit LAC and the last entry, where there are such."""
    async with connection.answers.round(1):
        descriptor = bookie.descriptor(ledger_id)
        code, stored, packet = Code.NO_ENTRY if descriptor is None else Code.OK, None, None
        if isinstance(descriptor, LedgerDescriptor):
            packet = descriptor.explicit_lac
            code, stored = await read_one(bookie, ledger_id, LAST_ENTRY)
            if code is Code.NO_ENTRY and packet is not None:
                code = Code.OK  # Apache's answers an I/O error beside the LAC; clients want the LAC
        elif descriptor is not None:
            code = descriptor
        answer = response_about(txn_id, pb.READ_LAC, code, ledger_id)
        if packet is not None:
            answer.readLacResponse.lacBody = packet
        if stored is not None:
            answer.readLacResponse.lastEntryBody = bytes(stored)
        connection.answers.send(frame(answer.SerializeToString()))
    connection.observe_codes("read_lac", code, 1, begun)


async def answer_info(connection: NativeConnection, txn_id: int, requested: int, begun: float) -> None:
    """Answer GET_BOOKIE_INFO with what was last seen of the disks: asking one now may take for ever."""
    found = connection.server.disk_space()
    code = Code.OK if found is not None else Code.IO_ERROR
    free_bytes, total_bytes = found or (0, 0)
    answer = response(txn_id, pb.GET_BOOKIE_INFO, code)
    body = answer.getBookieInfoResponse
    body.status = status(code)
    if code is Code.OK and requested & pb.GetBookieInfoRequest.TOTAL_DISK_CAPACITY:
        body.totalDiskCapacity = total_bytes
    if code is Code.OK and requested & pb.GetBookieInfoRequest.FREE_DISK_SPACE:
        body.freeDiskSpace = free_bytes
    connection.answers.send(frame(answer.SerializeToString()))
    connection.observe_codes("info", code, 1, begun)


async def answer_list(connection: NativeConnection, bookie: Bookie, txn_id: int, ledger_id: int, begun: float) -> None:
    """Answer GET_LIST_OF_ENTRIES_OF_LEDGER."""
    slot = connection.server.list_slot
    await slot.acquire()
    # Goes on to its end where the connection is lost, and keeps the slot so long: memory is what it is for.
    listing = asyncio.get_running_loop().create_task(_list(bookie, ledger_id, connection.server.config.max_frame_bytes))
    listing.add_done_callback(lambda _: slot.release())
    code, data = await asyncio.shield(listing)
    async with connection.answers.round(len(data)):
        answer = response_about(txn_id, pb.GET_LIST_OF_ENTRIES_OF_LEDGER, code, ledger_id)
        if code is Code.OK:
            answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = data
        connection.answers.send(frame(answer.SerializeToString()))
    connection.observe_codes("list", code, 1, begun)


async def _list(bookie: Bookie, ledger_id: int, max_frame_bytes: int) -> tuple[Code, bytes]:
    """The list of entries. One that no frame can hold is an I/O error: Apache's bookie would send it, and its
    client would close the connection, with all else that is under way on it."""
    try:
        code, entry_ids = await bookie.list_entries(ledger_id)
        if code is not Code.OK:
            return code, b""
        data = await asyncio.get_running_loop().run_in_executor(None, encode_availability, entry_ids)
    except Exception:
        _LOG.exception("ledger %d: the list of its entries could not be made", ledger_id)
        return Code.IO_ERROR, b""
    if len(data) + _LIST_OVERHEAD_BYTES > max_frame_bytes:
        _LOG.error("ledger %d: the list of its entries, %d bytes, is larger than a frame", ledger_id, len(data))
        return Code.IO_ERROR, b""
    return Code.OK, data
