"""``python -m benchmarks.stalled_peers_attacks NAME PORT LEDGER SOURCE SECONDS DIRECTORY``: one bad peer of a bookie on
this machine, with the address ``SOURCE``. ``DIRECTORY`` has the files of the attack.

Prints ``ready`` when set up, waits for a line on stdin, and attacks. Ends after ``SECONDS`` or when stdin closes.
Connects only to 127.0.0.1, in fixed numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.stalled_peers_grpc_attacks import GRPC_ATTACKS
from bk_spark.protocol.auth.digest_md5 import DigestMd5Client
from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.auth_frames import SASL, AuthMessage, auth_answer_of, auth_request
from bk_spark.protocol.wire.start_tls import start_tls_request
from bk_spark.protocol.wire.v3 import wire_v3
from tests.support.bookie import KEY, add_frame
from tests.support.certificates import identity, write_pem

#: A last add confirmed that is never reached.
_NEVER: Final = 1 << 40
_FIRST_UNKNOWN_LEDGER: Final = 1 << 33
STALLED_FRAMES: Final = 10
NEVER_READING: Final = 300
IDLE: Final = 10_000
POLLS: Final = 20_000
FENCES: Final = 100_000
#: Connections at a time that are made again and again.
NEWCOMERS: Final = 100
STALLED_HANDSHAKES: Final = 1000
#: The bookie's answer to START_TLS.
_GRANTED_BYTES: Final = 17
_POLLS_PER_CONNECTION: Final = 1000
_FENCES_PER_CONNECTION: Final = 5000
#: Of Linux; Python 3.11 has no name for it.
_IP_BIND_ADDRESS_NO_PORT: Final = 24
#: Entries of a megabyte that each peer requests and does not receive.
_ASKED: Final = 40


class Attacker:
    def __init__(self, port: int, ledger_id: int, source: str, stack: contextlib.ExitStack, directory: Path) -> None:
        self.port = port
        self.source = source
        self.ledger_id = ledger_id
        self.stack = stack
        self.directory = directory

    async def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """Connect, and keep the socket until the end."""
        return self.stack.enter_context(await self._connected(receive_bytes))

    async def _connected(self, receive_bytes: int | None = None) -> socket.socket:
        with contextlib.ExitStack() as failing:
            connected = failing.enter_context(socket.socket())
            connected.setblocking(False)
            # The kernel chooses the port when it knows both addresses, so all have room.
            connected.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            connected.bind((self.source, 0))
            if receive_bytes is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.port))
            failing.pop_all()
        return connected

    async def open(self, **tls: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection with streams. ``tls``: what asyncio takes for a handshake at once."""
        return await asyncio.open_connection(sock=await self._connected(), **tls)


async def send(connected: socket.socket, data: bytes, patience_s: float = 5.0) -> None:
    """Send as much as the bookie accepts."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(patience_s):
            await asyncio.get_running_loop().sock_sendall(connected, data)


async def large_frames(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Announce frames of the largest size, and send eight bytes."""
    peers = [await attacker.connect() for _ in range(STALLED_FRAMES)]
    beginning = add_frame(attacker.ledger_id, 0, size=5_200_000)[:8]
    return lambda: asyncio.gather(*(send(peer, beginning) for peer in peers))


async def nearly_whole(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Send frames of the largest size without the last byte."""
    peers = [await attacker.connect() for _ in range(STALLED_FRAMES)]
    data = add_frame(attacker.ledger_id, 0, size=5_200_000)[:-1]
    return lambda: asyncio.gather(*(send(peer, data, 60) for peer in peers))


async def never_reading(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Request megabytes, and read nothing."""
    peers = [await attacker.connect(receive_bytes=4096) for _ in range(NEVER_READING)]
    data = wire_v2.read_requests(attacker.ledger_id, [0]) * _ASKED
    return lambda: asyncio.gather(*(send(peer, data) for peer in peers))


async def idle(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Connect, and do nothing."""

    async def begin() -> None:
        for _ in range(IDLE):
            with contextlib.suppress(OSError):
                await attacker.connect()

    return begin


async def long_polls(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Long-poll for a last add confirmed that never comes, on the ledger that others write to."""
    for _ in range(POLLS // _POLLS_PER_CONNECTION):
        peer = await attacker.connect()
        polls = (
            wire_v3.long_poll_request(i, attacker.ledger_id, _NEVER, 600_000) for i in range(_POLLS_PER_CONNECTION)
        )
        await send(peer, b"".join(polls))
    await asyncio.sleep(2)

    async def begin() -> None:
        """Do nothing: all peers wait already."""

    return begin


async def fencing_reads(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Fence unknown ledgers, as fast as responses arrive."""
    count = FENCES // _FENCES_PER_CONNECTION
    peers = [await attacker.connect() for _ in range(count)]

    def frames(number: int) -> bytes:
        first = _FIRST_UNKNOWN_LEDGER + number * _FENCES_PER_CONNECTION
        return b"".join(
            wire_v2.read_requests(first + i, [0], FlagV2.FENCING, KEY) for i in range(_FENCES_PER_CONNECTION)
        )

    async def fence(data: bytes, peer: socket.socket) -> None:
        sending = asyncio.ensure_future(send(peer, data, 60))
        with contextlib.suppress(OSError):
            while await asyncio.get_running_loop().sock_recv(peer, 1 << 16):
                pass
        await sending

    async def begin() -> None:
        for data, peer in requests:
            tasks.append(asyncio.create_task(fence(data, peer)))

    requests = [(frames(number), peer) for number, peer in enumerate(peers)]
    tasks: list[asyncio.Task[None]] = []
    return begin


async def handshakes(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Make TLS connections and close them, one after the other."""
    return _again_and_again(_handshake(attacker, _client_context()))


async def failed_handshakes(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Begin handshakes that fail: bytes in clear, no START_TLS, no certificate, one of a stranger, a bookie's
    certificate that is refused."""
    directory = Path(attacker.stack.enter_context(tempfile.TemporaryDirectory()))
    keys = write_pem(directory, identity("stranger"))
    stranger, refusing = _client_context(), _client_context()
    stranger.load_cert_chain(keys["tlsCertificatePath"], keys["tlsKeyStore"])
    refusing.verify_mode = ssl.CERT_REQUIRED

    async def in_clear() -> None:
        reader, writer = await attacker.open()
        try:
            writer.write(start_tls_request() + wire_v2.read_requests(attacker.ledger_id, [1]))
            await reader.read()
        finally:
            writer.transport.abort()

    async def without_start_tls() -> None:
        _, writer = await attacker.open(ssl=_client_context(), server_hostname="elsewhere")
        writer.transport.abort()

    contexts = _client_context(), stranger, refusing
    kinds = [in_clear, without_start_tls, *(_handshake(attacker, each, reads=True) for each in contexts)]
    return _again_and_again(*kinds)


async def stalled_handshakes(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Ask for TLS, send a part of the handshake or nothing, and wait. Who is closed comes again."""
    # A client's first message, of which the second half is missing.
    half = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)

    async def stall(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await attacker.open()
                try:
                    writer.write(start_tls_request())
                    await reader.readexactly(_GRANTED_BYTES)
                    if number % 2:
                        writer.write(half)
                    await reader.read()
                except asyncio.IncompleteReadError:
                    pass
                finally:
                    writer.transport.abort()

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.extend(asyncio.create_task(stall(number)) for number in range(STALLED_HANDSHAKES))

    return begin


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _handshake(attacker: Attacker, context: ssl.SSLContext, *, reads: bool = False) -> Callable[[], Awaitable[None]]:
    """A connection that becomes TLS. ``reads``: wait for the bookie to close it."""

    async def once() -> None:
        async with _secured(attacker, context) as (reader, _):
            if reads:
                await reader.read()

    return once


@contextlib.asynccontextmanager
async def _secured(
    attacker: Attacker, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await attacker.open()
    try:
        writer.write(start_tls_request())
        await reader.readexactly(_GRANTED_BYTES)
        await writer.start_tls(context, server_hostname="elsewhere")
        yield reader, writer
    finally:
        writer.transport.abort()


async def wrong_logins(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Log in with a wrong password, one after the other."""

    async def once() -> None:
        reader, writer = await attacker.open()
        try:
            writer.write(auth_request(AuthMessage(SASL, b""), v2=True))
            challenge = auth_answer_of(await _frame(reader), v2=True)
            assert challenge is not None
            response = DigestMd5Client("bookkeeper", "guess", "cnonce").respond(challenge.payload)
            writer.write(auth_request(AuthMessage(SASL, response), v2=True))
            await reader.read()
        finally:
            writer.transport.abort()

    return _again_and_again(once)


async def wrong_role(attacker: Attacker) -> Callable[[], Awaitable[object]]:
    """Ask, with a certificate whose role may do nothing. Half of the connections ask once and come again, the others
    ask again as soon as they are refused."""
    context = _client_context()
    context.load_cert_chain(attacker.directory / "cert.pem", attacker.directory / "key.pem")
    asked = wire_v2.read_requests(attacker.ledger_id, [1]) + add_frame(attacker.ledger_id, 1, size=100)

    async def ask(times: int) -> None:
        async with _secured(attacker, context) as (reader, writer):
            for _ in range(times):
                writer.write(asked)
                for _ in range(2):
                    assert int.from_bytes((await _frame(reader))[4:8], "big") == Code.UNAUTHORIZED

    return _again_and_again(lambda: ask(1), lambda: ask(1 << 40))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def _again_and_again(*kinds: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[object]]:
    async def repeat(once: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await once()

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.extend(asyncio.create_task(repeat(kinds[number % len(kinds)])) for number in range(NEWCOMERS))

    return begin


ATTACKS: Final[dict[str, Callable[[Attacker], Awaitable[Callable[[], Awaitable[object]]]]]] = {
    "large_frames": large_frames,
    "nearly_whole": nearly_whole,
    "never_reading": never_reading,
    "idle": idle,
    "long_polls": long_polls,
    "fencing_reads": fencing_reads,
    "handshakes": handshakes,
    "failed_handshakes": failed_handshakes,
    "stalled_handshakes": stalled_handshakes,
    "wrong_logins": wrong_logins,
    "wrong_role": wrong_role,
    **GRPC_ATTACKS,
}


async def _attack(name: str, port: int, ledger_id: int, source: str, seconds: float, directory: str) -> None:
    with contextlib.ExitStack() as stack, contextlib.suppress(TimeoutError):
        begin = await ATTACKS[name](Attacker(port, ledger_id, source, stack, Path(directory)))
        print("ready", flush=True)
        wait_for_line = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if not await wait_for_line:
            return
        async with asyncio.timeout(seconds):
            await begin()
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def main() -> None:
    name, port, ledger_id, source, seconds, directory = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_attack(name, int(port), int(ledger_id), source, float(seconds), directory))


if __name__ == "__main__":
    main()
