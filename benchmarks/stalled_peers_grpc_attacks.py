"""Bad peers of a bookie's gRPC port, for ``stalled_peers_attacks``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from bk_spark.bookie.connection.http2.call import CallError
from bk_spark.bookie.connection.http2.channel import Channel
from bk_spark.protocol.proto import bookie_pb2 as pb
from tests.support import http2_peer as http2
from tests.support.bookie import KEY, stored

if TYPE_CHECKING:
    from benchmarks.stalled_peers_attacks import Attacker

SLOW_CONNECTIONS: Final = 20
SLOW_CALLS: Final = 100
IDLE: Final = 10_000
_LIARS: Final = 10
#: Connections of those that are refused.
REFUSED: Final = 60
_ANNOUNCED_BYTES: Final = 1_000_000
_ANSWER_BYTES: Final = 1_000_000
_ADD: Final = "/bk_spark.v1.Bookie/Add"
#: Of a batch that does not add up.
_ENTRIES: Final = 64


def _channel(attacker: Attacker) -> Channel:
    """Calls over a connection of their own."""

    async def connect(protocol: asyncio.BufferedProtocol) -> None:
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=await attacker.connect())

    return Channel(connect, f"127.0.0.1:{attacker.port}", is_secure=False, max_message_bytes=_ANSWER_BYTES)


async def _send(connected: Any, data: bytes) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(connected, data)


async def slow_loris(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Begin many calls with a few bytes of a large message, and send another byte of each every second."""
    peers = [await attacker.connect() for _ in range(SLOW_CONNECTIONS)]
    streams = range(1, 2 * SLOW_CALLS, 2)
    for peer in peers:
        await _send(peer, http2.hello())

    async def stall(peer: Any) -> None:
        for stream in streams:
            beginning = http2.part_of_message(stream, _ANNOUNCED_BYTES, bytes(8))
            await _send(peer, http2.call(stream, _ADD) + beginning)
        while True:
            await asyncio.sleep(1)
            await _send(peer, b"".join(http2.frame(http2.DATA, 0, stream, b"\0") for stream in streams))

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.extend(asyncio.create_task(stall(peer)) for peer in peers)

    return begin


async def idle(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Connect, begin HTTP/2, and call nothing."""

    async def begin() -> None:
        for _ in range(IDLE):
            with contextlib.suppress(OSError):
                await _send(await attacker.connect(), http2.hello())

    return begin


async def wrong_batches(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Send batches whose lengths do not add up, as fast as they are answered."""
    entries = [stored(attacker.ledger_id, i, 1024) for i in range(_ENTRIES)]
    records = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)[:-1]
    batch = pb.AddBatch(ledger_id=attacker.ledger_id, master_key=KEY, count=_ENTRIES, records=records)
    message = batch.SerializeToString()

    async def lie() -> None:
        call = _channel(attacker).begin(_ADD)
        while True:
            await call.write(message)
            await call.read()

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.extend(asyncio.create_task(lie()) for _ in range(_LIARS))

    return begin


async def wrong_role(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Fence, add and fence by reads without the right to, again as soon as it is refused."""
    fence = pb.FenceRequest(ledger_id=attacker.ledger_id, master_key=KEY).SerializeToString()
    entry = stored(attacker.ledger_id, 1, 100)
    records = len(entry).to_bytes(4, "big") + entry
    batch = pb.AddBatch(ledger_id=attacker.ledger_id, master_key=KEY, count=1, records=records, recovery=True)
    read = pb.ReadRequest(ledger_id=attacker.ledger_id, first_entry_id=1, count=1, fence_key=KEY)
    streams = {_ADD: batch.SerializeToString(), "/bk_spark.v1.Bookie/Read": read.SerializeToString()}

    async def ask(method: str | None) -> None:
        channel = _channel(attacker)
        while method is None:
            with contextlib.suppress(CallError):
                await channel.ask("/bk_spark.v1.Bookie/Fence", fence)
        call = channel.begin(method)
        while True:
            await call.write(streams[method])
            await call.read()

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        kinds = [None, *streams] * (REFUSED // 3)
        tasks.extend(asyncio.create_task(ask(kind)) for kind in kinds)

    return begin


GRPC_ATTACKS: Final = {
    "grpc_slow_loris": slow_loris,
    "grpc_idle": idle,
    "grpc_wrong_batches": wrong_batches,
    "grpc_wrong_role": wrong_role,
}
