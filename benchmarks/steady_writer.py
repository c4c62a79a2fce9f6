"""A client that adds entries at a steady rate, in a process of its own.

A latency counts from when the add was due, so it includes waiting behind earlier ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum

_QUORUM: Final = Quorum(3, 3, 2)
PASSWORD: Final = b"benchmark"
_ROOT: Final = Path(__file__).resolve().parents[1]
_TRIES: Final = 100
_END_TIMEOUT_S: Final = 60.0


class SteadyWriter:
    """Adds ``per_s`` entries of ``size_bytes`` a second to a ledger that does not name ``avoided``. A context manager.

    Parameters
    ----------
    avoided
        A bookie that will be lost. A writer that it serves has to replace it, which is another figure.
    """

    def __init__(self, uri: str, avoided: str, per_s: float, size_bytes: int) -> None:
        command = [sys.executable, "-m", __name__, uri, avoided, str(per_s), str(size_bytes)]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError("the writer did not start")
        self._adds: list[tuple[float, float]] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> SteadyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def stop(self) -> None:
        """End the process and take its latencies. Raises if an add failed."""
        out, _ = self._process.communicate(timeout=_END_TIMEOUT_S)
        if self._process.returncode:
            raise RuntimeError("the writer failed")
        self._adds = json.loads(out)

    def latencies_ms(self, since_s: float, until_s: float) -> list[float]:
        """Return the latencies of adds that were due in this time (monotonic), after :meth:`stop`."""
        return [latency_ms for due_s, latency_ms in self._adds if since_s <= due_s < until_s]

    def acknowledged(self, since_s: float, until_s: float) -> int:
        """Return how many adds were acknowledged in this time (monotonic), after :meth:`stop`."""
        return sum(since_s <= due_s + latency_ms / 1000 < until_s for due_s, latency_ms in self._adds)


def _writer_without(client: BlockingClient, uri: str, avoided: str) -> BlockingWriter:
    ledgers = LedgerStore(client.zookeeper, MetadataServiceUri.parse(uri))
    for _ in range(_TRIES):
        writer = client.create(quorum=_QUORUM, password=PASSWORD)
        if avoided not in ledgers.read(writer.ledger_id).metadata.last_segment.ensemble:
            return writer
        writer.close()
        client.delete(writer.ledger_id)
    raise RuntimeError(f"no ensemble without {avoided} was chosen")


def _set_at_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main(arguments: Sequence[str]) -> None:
    uri, avoided, per_s, size_bytes = arguments[0], arguments[1], float(arguments[2]), int(arguments[3])
    payload = bytes(size_bytes)
    ended = threading.Event()
    threading.Thread(target=_set_at_end, args=(ended,), daemon=True).start()
    adds: list[tuple[float, float]] = []
    with BlockingClient(uri) as client:
        writer = _writer_without(client, uri, avoided)
        writer.append(payload)
        print("ready", flush=True)
        begun_s = time.monotonic()
        while not ended.is_set():
            due_s = begun_s + len(adds) / per_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            writer.append(payload)
            adds.append((due_s, 1000 * (time.monotonic() - due_s)))
        writer.close()
    print(json.dumps(adds))


if __name__ == "__main__":
    main(sys.argv[1:])
