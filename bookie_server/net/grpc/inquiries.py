"""The methods with one request and one answer. Rules are those of v3 (docs/design/compatibility.md §1.8)."""

from __future__ import annotations

import asyncio
from typing import Final

from bk_spark.protocol.codes import LAST_ENTRY, NO_ENTRY, Code
from bk_spark.protocol.entries.entry import LAC_PACKET_HEADER
from bk_spark.protocol.proto import bookie_pb2 as pb
from bk_spark.protocol.wire.entry_availability import decode_availability, encode_availability
from bookie_server.net.common.fair_slots import HALF_LIFE_S, Share
from bookie_server.net.grpc.calls import Call, number
from bookie_server.net.native.long_polls import read_one
from bookie_server.storage.ledger_descriptors import LedgerDescriptor

#: Room in an answer for everything but the list of entries. A group takes at most this many bytes.
_GROUP_BYTES: Final = 36


async def tail(call: Call, request: pb.TailRequest) -> pb.TailAnswer:
    """Wait for the last add confirmed."""
    shared, previous = call.shared, request.previous_last_add_confirmed
    bookie, load, begun = shared.bookie, shared.load, asyncio.get_running_loop().time()
    descriptor = bookie.descriptor(request.ledger_id)
    code, lac, stored = Code.OK, NO_ENTRY, None
    if not isinstance(descriptor, LedgerDescriptor):
        code = Code.NO_LEDGER if descriptor is None else descriptor
    elif descriptor.limbo:
        code = Code.UNKNOWN_LEDGER_STATE
    elif load.polls >= shared.config.max_polls_in_total:
        code = Code.TOO_MANY_REQUESTS
    else:
        if request.timeout_ms and await bookie.known_lac(descriptor) <= previous:
            load.polls += 1
            try:
                wait_ms = min(request.timeout_ms, shared.config.max_poll_ms)
                await descriptor.wait_for_lac(previous, wait_ms)
            finally:
                load.polls -= 1
        lac = await bookie.known_lac(descriptor)
        if lac > previous >= NO_ENTRY:
            async with shared.read_slots.slot(Share(HALF_LIFE_S)) as slot:
                read_code, entry = await read_one(bookie, request.ledger_id, previous + 1)
                slot.bytes = 0 if entry is None else len(entry)
                stored = None if entry is None else bytes(entry)
            # With striping, other bookies may have the entry.
            code = Code.OK if read_code is Code.NO_ENTRY else read_code
    call.requests.observe_codes("long_poll", code, 1, begun)
    return pb.TailAnswer(code=number(code), last_add_confirmed=lac, entry=stored)


async def fence(call: Call, request: pb.FenceRequest) -> pb.FenceAnswer:
    """Fence a ledger."""
    begun = asyncio.get_running_loop().time()
    code = await call.shared.fences.fence(call.requests, request.ledger_id, request.master_key)
    call.requests.observe_codes("fence", code, 1, begun)
    return pb.FenceAnswer(code=number(code))


async def get_last_add_confirmed(call: Call, request: pb.GetLastAddConfirmedRequest) -> pb.GetLastAddConfirmedAnswer:
    """Return the explicit last add confirmed and the last entry, if there are any."""
    bookie, begun = call.shared.bookie, asyncio.get_running_loop().time()
    descriptor = bookie.descriptor(request.ledger_id)
    code, stored, packet = Code.NO_LEDGER, None, None
    if isinstance(descriptor, LedgerDescriptor):
        packet = descriptor.explicit_lac
        async with call.shared.read_slots.slot(Share(HALF_LIFE_S)) as slot:
            code, entry = await read_one(bookie, request.ledger_id, LAST_ENTRY)
            slot.bytes = 0 if entry is None else len(entry)
            stored = None if entry is None else bytes(entry)
        if code is Code.NO_ENTRY and packet is not None:
            code = Code.OK
    elif descriptor is not None:
        code = descriptor
    call.requests.observe_codes("read_lac", code, 1, begun)
    return pb.GetLastAddConfirmedAnswer(code=number(code), explicit_packet=packet, last_entry=stored)


async def set_last_add_confirmed(call: Call, request: pb.SetLastAddConfirmedRequest) -> pb.SetLastAddConfirmedAnswer:
    """Store an explicit last add confirmed."""
    packet = request.packet
    if len(packet) < LAC_PACKET_HEADER.size or LAC_PACKET_HEADER.unpack_from(packet)[0] != request.ledger_id:
        return pb.SetLastAddConfirmedAnswer(code=pb.CODE_BAD_REQUEST)
    begun = asyncio.get_running_loop().time()
    code = await call.shared.bookie.write_lac(packet, request.master_key)
    call.requests.observe_codes("write_lac", code, 1, begun)
    return pb.SetLastAddConfirmedAnswer(code=number(code))


async def force(call: Call, request: pb.ForceRequest) -> pb.ForceAnswer:
    """Wait until the ledger's entries are durable."""
    begun = asyncio.get_running_loop().time()
    code = await call.shared.bookie.force(request.ledger_id)
    call.requests.observe_codes("force", code, 1, begun)
    return pb.ForceAnswer(code=number(code))


async def list_entries(call: Call, request: pb.ListEntriesRequest) -> pb.ListEntriesAnswer:
    """Return the ledger's entries in groups. Lists may be long, so one is made at a time."""
    shared, begun = call.shared, asyncio.get_running_loop().time()
    async with shared.list_slot:
        code, entry_ids = await shared.bookie.list_entries(request.ledger_id)
        answer = pb.ListEntriesAnswer(code=number(code))
        if code is Code.OK:
            encoded = await asyncio.to_thread(encode_availability, entry_ids)
            groups = decode_availability(encoded)
            if len(groups.sizes) * _GROUP_BYTES > shared.config.max_frame_bytes:
                code = Code.IO_ERROR
                answer = pb.ListEntriesAnswer(code=number(code))
            else:
                answer.groups.extend(
                    pb.ListEntriesAnswer.Group(first_start=first, last_start=last, size=size, period=period)
                    for first, last, size, period in zip(
                        groups.first_starts.tolist(),
                        groups.last_starts.tolist(),
                        groups.sizes.tolist(),
                        groups.periods.tolist(),
                        strict=True,
                    )
                )
    call.requests.observe_codes("list", code, 1, begun)
    return answer


async def get_info(call: Call, request: pb.GetInfoRequest) -> pb.GetInfoAnswer:
    """Return the last known sizes of the disks."""
    found = call.shared.disk_space()
    code = Code.OK if found is not None else Code.IO_ERROR
    free_bytes, total_bytes = found or (0, 0)
    return pb.GetInfoAnswer(code=number(code), total_disk_bytes=total_bytes, free_disk_bytes=free_bytes)
