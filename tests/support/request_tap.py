"""Listens between a client and a bookie: notes each read request, over v2 and v3, and drops chosen ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from bk_spark.protocol.codes import FlagV2
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer, frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.wire_v2 import ReadRun

_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read of one entry as it was on the wire. ``fences``: it has the flag and the key."""

    ledger_id: int
    entry_id: int
    fences: bool


class RequestTap:
    """Accepts connections at ``address`` and forwards them to ``server``; a context manager.

    A read for which ``loses`` is true is noted and not forwarded.
    """

    def __init__(self, server: tuple[str, int], loses: Callable[[ReadRequest], bool]) -> None:
        #: In order of arrival.
        self.reads: list[ReadRequest] = []
        self._server = server
        self._loses = loses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._open: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> RequestTap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="request-tap", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                self._start(self._pass_requests, client, server)
                self._start(self._pass_answers, server, client)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        received = ReceiveBuffer()
        with contextlib.suppress(OSError):
            while count := client.recv_into(received.get_buffer()):
                for body in received.received(count) or ():
                    read = _read_in(bytes(body))
                    if read is not None:
                        self.reads.append(read)
                        if self._loses(read):
                            continue
                    server.sendall(frame(bytes(body)))
            server.shutdown(socket.SHUT_WR)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while answers := server.recv(_CHUNK_BYTES):
                client.sendall(answers)
            client.shutdown(socket.SHUT_WR)


def _read_in(body: bytes) -> ReadRequest | None:
    """The single read in a frame, if it is one."""
    if is_v3(memoryview(body)):
        request = wire_v3.parse_request(memoryview(body))
        if not request.HasField("readRequest"):
            return None
        read = request.readRequest
        fences = read.flag == pb.ReadRequest.FENCE_LEDGER and read.HasField("masterKey")
        return ReadRequest(read.ledgerId, read.entryId, fences)
    received = ReceiveBuffer()
    data = frame(body)
    received.get_buffer()[: len(data)] = data
    frames = received.received(len(data))
    assert frames is not None
    (parsed,) = wire_v2.parse_requests(frames)
    if not isinstance(parsed, ReadRun):
        return None
    fences = bool(parsed.flags & FlagV2.FENCING) and parsed.master_key is not None
    return ReadRequest(int(parsed.ledger_ids[0]), int(parsed.entry_ids[0]), fences)
