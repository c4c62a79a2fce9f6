"""A bookie as a real process with its own configuration, and a blocking connection to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import ReceiveBuffer, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from tests.support.nursery import ForkedBookie
from tests.support.registrations import forget

_REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 60.0
PASSWORD = b"test"
KEY = master_key(PASSWORD)
_DIGEST = digest_function(DigestType.CRC32C, PASSWORD)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BookieProcess:
    """``python -m bookie_server start`` on ``directory``. Each start writes its configuration."""

    def __init__(self, directory: Path, metadata_service_uri: str, **settings: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.settings = {
            "metadataServiceUri": metadata_service_uri,
            "bookiePort": str(self.port),
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "journalDirectories": str(directory / "journal"),
            "ledgerDirectories": str(directory / "ledgers"),
            "journalPreAllocSizeMB": "1",
            "zkTimeout": "3000",
            **settings,
        }
        #: What it runs: ``start``, or ``autorecovery`` without a bookie.
        self.command = "start"
        #: The ``ulimit -n`` of the process, if limited.
        self.open_files: int | None = None
        #: The checkout whose code runs.
        self.tree = _REPOSITORY
        #: Whether it shares pages with the process from which it is forked. It starts sooner, and then copies each page
        #: that it changes, so it must not where latencies are measured.
        self.forked = True
        #: The longest file it may write, if limited.
        self.file_bytes: int | None = None
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> BookieProcess:
        """Start, and wait until it serves."""
        self.launch()
        if not self.wait_line("serves on"):
            self.stop()
            raise AssertionError("the bookie did not start:\n" + "\n".join(self.lines))
        return self

    def launch(self) -> None:
        """Start without waiting."""
        self.directory.mkdir(parents=True, exist_ok=True)
        conf = self.directory / "bk_server.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        self.lines, self._ended = [], False
        limits = {"-n": self.open_files, "-f": None if self.file_bytes is None else self.file_bytes // 512}
        asked = "".join(f"ulimit {option} {value}; " for option, value in limits.items() if value is not None)
        limited = ["sh", "-c", f'{asked}exec "$@"', "sh"] if asked else []
        start = ForkedBookie if self.forked and not asked and self.tree == _REPOSITORY else subprocess.Popen
        self._process = start(
            [*limited, sys.executable, "-m", "bookie_server", self.command, "--conf", str(conf)],
            cwd=self.tree,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._drain = threading.Thread(target=self._read_lines, daemon=True)
        self._drain.start()

    def wait_line(self, text: str) -> bool:
        """Wait for a line with ``text`` in the log; False if the process ends without one."""

        def seen() -> bool:
            return any(text in line for line in self.lines)

        with self._changed:
            assert self._changed.wait_for(lambda: seen() or self._ended, START_TIMEOUT_S), f"no {text!r} in time"
            return seen()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self.wait()

    def crash(self) -> None:
        """kill -9, and the session with ZooKeeper has ended: the next start need not wait for that."""
        self.kill()
        forget(self.settings["metadataServiceUri"], [self.id])

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        assert self._process is not None
        assert self._drain is not None
        code = self._process.wait(START_TIMEOUT_S)
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code

    def end(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self.wait()

    def resident_mib(self) -> float:
        """The process's peak resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def connect(self) -> Connection:
        return Connection(self.port)

    def _read_lines(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Connection:
    """A blocking connection that speaks v2 and v3."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._receive = ReceiveBuffer()
        self._bodies: list[memoryview] = []
        self._txn_id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def body(self) -> memoryview:
        """The next frame's body. Raises ConnectionError if the bookie closed."""
        while not self._bodies:
            count = self.socket.recv_into(self._receive.get_buffer())
            if count == 0:
                raise ConnectionError("closed by the bookie")
            frames = self._receive.received(count)
            if frames is not None:
                self._bodies += frames
        return self._bodies.pop(0)

    def closed_by_peer(self) -> bool:
        """Wait for the bookie to close (True), or to answer something (False)."""
        try:
            self.body()
        except ConnectionError:
            return True
        return False

    def add(self, ledger_id: int, entry_ids: Iterable[int], *, flags: int = 0, key: bytes = KEY) -> list[Code]:
        """Add entries (see :func:`stored`) with v2, all at once; return the codes in order of the entries."""
        ids = list(entry_ids)
        self.send(b"".join(add_frame(ledger_id, entry_id, flags=flags, key=key) for entry_id in ids))
        codes = {}
        for _ in ids:
            answer = np.frombuffer(frame(bytes(self.body())), wire_v2.ANSWER_DTYPE)[0]
            assert int(answer["ledger"]) == ledger_id
            codes[int(answer["entry"])] = Code(int(answer["rc"]))
        return [codes[entry_id] for entry_id in ids]

    def read(self, ledger_id: int, entry_id: int, *, fence_key: bytes | None = None) -> bytes | Code:
        """Read one entry with v2: the stored entry, or the error code."""
        flags = FlagV2.FENCING if fence_key is not None else FlagV2.NONE
        self.send(wire_v2.read_requests(ledger_id, [entry_id], flags, fence_key))
        body = self.body()
        code = Code.from_v2(int.from_bytes(body[4:8], "big", signed=True))
        assert int.from_bytes(body[16:24], "big", signed=True) == entry_id
        return bytes(body[24:]) if code is Code.OK else code

    def fence(self, ledger_id: int, key: bytes = KEY) -> bytes | Code:
        return self.read(ledger_id, LAST_ENTRY, fence_key=key)

    def call(self, request: pb.Request) -> pb.Response:
        """Send one v3 request, whose header is filled in; return the answer."""
        self._txn_id += 1
        request.header.txnId = self._txn_id
        if not request.header.HasField("version"):
            request.header.version = pb.VERSION_THREE
        self.send(frame(request.SerializeToString()))
        response = wire_v3.parse_response(self.body())
        assert response.header.txnId == self._txn_id
        assert response.header.operation == request.header.operation
        assert response.header.version == pb.VERSION_THREE
        return response


def stored(ledger_id: int, entry_id: int, size: int | None = None) -> bytes:
    """The stored entry that tests write. Its payload is derived from its ids."""
    seed = b"%d/%d " % (ledger_id, entry_id)
    length = size if size is not None else 20 + (ledger_id * 31 + entry_id * 7) % 1500
    payload = (seed * (length // len(seed) + 1))[:length]
    return pack_entry(ledger_id, entry_id, entry_id - 1, length, payload, _DIGEST)


def add_frame(ledger_id: int, entry_id: int, *, flags: int = 0, key: bytes = KEY, size: int | None = None) -> bytes:
    header = wire_v2.header_int(wire_v2.OpV2.ADD, flags).to_bytes(4, "big")
    return frame(header + key + stored(ledger_id, entry_id, size))
