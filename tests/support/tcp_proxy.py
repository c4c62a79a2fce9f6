"""A TCP proxy that misbehaves on demand: it slows, stalls, swallows, resets, and refuses connections.

It runs in its own thread, so that the client under test may block. Everything can be switched while connections are
open, from any thread; a switch has taken effect when the call returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

_CHUNK_BYTES: Final = 64 * 1024
_BACKLOG: Final = 128
#: More than a queue of length 0 holds (one).
_PLUGS: Final = 4
#: A switch takes microseconds; this only bounds a broken test.
_SWITCH_TIMEOUT_S: Final = 60.0
#: Closing with this linger option sends a reset, and discards unsent bytes.
_RESET: Final = struct.pack("ii", 1, 0)


class Connects(enum.Enum):
    """What happens to new connections."""

    PASS = "they are let in, and a connection to the server is made for them"
    REFUSE = "connection refused"
    SWALLOW = "no answer at all: the connect hangs"


@dataclass(frozen=True, slots=True)
class Link:
    """How bytes flow in one direction.

    ``stalled``: they wait, and arrive when the link is good again. ``swallowing``: they vanish; a connection that lost
    bytes is reset when the link changes. ``bytes_per_s``: 0 for no limit. ``delay_ms``: added to each piece.
    """

    stalled: bool = False
    swallowing: bool = False
    bytes_per_s: int = 0
    delay_ms: int = 0


GOOD: Final = Link()
STALLED: Final = Link(stalled=True)
SWALLOWING: Final = Link(swallowing=True)


class TcpProxy:
    """Accepts connections at ``address`` and forwards them to ``server``; a context manager.

    ``listen`` is the address to listen on; port 0 for any free one.
    """

    def __init__(self, server: tuple[str, int], listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._server = server
        self._to_server = self._to_client = GOOD
        self._connects = Connects.PASS
        self._pairs: set[_Pair] = set()
        self._plugs: list[socket.socket] = []
        self._changed = asyncio.Event()
        self._listener: socket.socket | None = _listen(listen)
        self.address: tuple[str, int] = self._listener.getsockname()
        #: Number of connections ever forwarded.
        self.accepted = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {server[1]}", daemon=True)
        self._thread.start()
        self._run(self._begin())

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def set(
        self, *, to_server: Link = GOOD, to_client: Link = GOOD, connects: Connects = Connects.PASS, cut: bool = False
    ) -> None:
        """Behave like this from now on; with ``cut`` also reset all open connections."""

        async def switch() -> None:
            self._to_server, self._to_client = to_server, to_client
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            if connects is not self._connects:
                self._connects = connects
                self._admit()
            await self._reset(all_of_them=cut)

        self._run(switch())

    def lead_to(self, server: tuple[str, int]) -> None:
        """Forward to another server from now on, like a host name that leads elsewhere; open connections are reset."""
        self._server = server
        self.cut()

    def cut(self) -> None:
        """Reset all open connections, and change nothing else."""
        self._run(self._reset(all_of_them=True))

    def heal(self) -> None:
        """Forward everything; connections that lost bytes are reset."""
        self.set()

    @property
    def open_connections(self) -> int:
        return len(self._pairs)

    def close(self) -> None:
        """Reset open connections and end the thread. Safe to repeat."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SWITCH_TIMEOUT_S)
        self._loop.close()

    def link(self, *, to_server: bool) -> tuple[Link, asyncio.Event]:
        """How bytes flow now, and the event of the next change. Call it in the proxy's loop."""
        return self._to_server if to_server else self._to_client, self._changed

    # --- in the proxy's thread ---

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_SWITCH_TIMEOUT_S)

    async def _begin(self) -> None:
        self._admit()

    def _admit(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
        for plug in self._plugs:
            plug.close()
        self._plugs.clear()
        if self._connects is Connects.REFUSE:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            return
        if self._listener is None:
            self._listener = _listen(self.address)
        if self._connects is Connects.SWALLOW:
            self._plug(self._listener)
        else:
            self._listener.listen(_BACKLOG)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _reset(self, *, all_of_them: bool) -> None:
        tasks = [pair.task for pair in self._pairs if pair.task is not None and (all_of_them or pair.torn)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self) -> None:
        self._connects = Connects.REFUSE
        self._admit()
        await self._reset(all_of_them=True)

    def _plug(self, listener: socket.socket) -> None:
        """Fill the listener's queue: the kernel then drops connection requests, like a dead host."""
        listener.listen(0)
        for _ in range(_PLUGS):
            plug = socket.socket()
            plug.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                plug.connect(self.address)
            self._plugs.append(plug)

    def _accept(self, listener: socket.socket) -> None:
        # Not sock_accept() in a task: a task cancelled at the wrong moment loses the socket.
        try:
            client, _ = listener.accept()
        except OSError:
            return  # gone again
        pair = _Pair(self, client, self._loop)
        self._pairs.add(pair)
        pair.task = self._loop.create_task(pair.run(self._server))
        # Not in the task itself: a task cancelled before its first turn would not get there.
        pair.task.add_done_callback(functools.partial(self._ended, pair))

    def _ended(self, pair: _Pair, _: asyncio.Task[None]) -> None:
        self._pairs.discard(pair)
        pair.close()


class _Pair:
    """A client's connection, and the connection to the server that belongs to it."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._proxy = proxy
        self._loop = loop
        self._client = client
        self._upstream = socket.socket()
        for one in (client, self._upstream):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: Bytes of this connection were swallowed.
        self.torn = False
        self._ended = False
        self.task: asyncio.Task[None] | None = None

    async def run(self, server: tuple[str, int]) -> None:
        try:
            await self._loop.sock_connect(self._upstream, server)
            self._proxy.accepted += 1
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(self._client, self._upstream, to_server=True))
                pumps.create_task(self._pump(self._upstream, self._client, to_server=False))
            self._ended = True
        except (OSError, ExceptionGroup):
            pass  # one side reset or refused: the other is reset as well

    def close(self) -> None:
        """Close both with a reset, unless both sides had reached their end."""
        for one in (self._client, self._upstream):
            if not self._ended:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.close()

    async def _pump(self, source: socket.socket, target: socket.socket, *, to_server: bool) -> None:
        while True:
            link, changed = self._proxy.link(to_server=to_server)
            if link.stalled:
                await changed.wait()
                continue
            size = _CHUNK_BYTES if not link.bytes_per_s else max(1, min(_CHUNK_BYTES, link.bytes_per_s // 20))
            data = await self._loop.sock_recv(source, size)
            while True:
                link, changed = self._proxy.link(to_server=to_server)
                if link.stalled:
                    await changed.wait()
                    continue
                wait_s = link.delay_ms / 1000 + (len(data) / link.bytes_per_s if link.bytes_per_s else 0.0)
                if not wait_s:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), wait_s)
                    continue
                link, _ = self._proxy.link(to_server=to_server)
                break
            if link.swallowing:
                self.torn = True
                if not data:
                    await changed.wait()
                continue
            if not data:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(target, data)


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
