"""Ledgers on one bookie for tests of its directories: what was written, and whether a bookie still has all of it."""

from __future__ import annotations

import itertools
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.add_frames import EntryPackager
from bookie_server.local import LOOPBACK, LocalBookie

PASSWORD = b"shelf"
#: How many directories of journals and of ledgers.
DIRECTORIES: Final = {"one": (1, 1), "several": (2, 3)}
#: Many small log files and journals, all of which stay.
_SETTINGS: Final = {
    "journalPreAllocSizeMB": "1",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "1000",
    "logSizeLimit": str(256 << 10),
    "flushInterval": "100",
    # So that no bookie loses its session because the machine is busy.
    "zkTimeout": "30000",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    # Apache's tools open ledgers with this.
    "passwd": PASSWORD.decode(),
}
_ALONE = Quorum(1, 1, 1)
_EXPLICIT_LAC_INTERVAL_MS = 50
#: After the first entries were acknowledged.
_KILLED_AFTER_S: Final = 0.1
#: For the explicit LAC to reach the bookie.
_LAC_WAIT_MS = 60_000
_ANSWER_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Volume:
    """One ledger: its entries are lines of text, so that a tool that prints them prints each as one line."""

    ledger_id: int
    payloads: tuple[bytes, ...]
    fenced: bool = False
    #: Never closed: readers know its end by the explicit LAC alone.
    explicit_lac: bool = False
    #: Its bookie was killed while it was written: these are the entries that were acknowledged, there may be more.
    broken_off: bool = False


def bookie_settings(directory: Path, journals: int, ledgers: int) -> dict[str, str]:
    """Configuration of a bookie with so many directories, all below ``directory``."""
    names = {"journalDirectories": ("journal", journals), "ledgerDirectories": ("ledgers", ledgers)}
    lists = {key: ",".join(str(directory / f"{name}{n}") for n in range(count)) for key, (name, count) in names.items()}
    return {**_SETTINGS, **lists}


def line(ledger_id: int, entry_id: int, size: int = 0) -> bytes:
    """Payload of an entry: at least ``size`` bytes, and no other entry's."""
    return f"entry {entry_id} of ledger {ledger_id} ".encode().ljust(size, b".")


class Shelf:
    """Writes ledgers to the only bookie of a cluster, and checks them. A context manager."""

    def __init__(self, metadata_service_uri: str) -> None:
        self.volumes: list[Volume] = []
        self._uri = metadata_service_uri

    def fill(self, rounds: int = 1) -> None:
        """Ledgers that are closed, fenced and open, with entries small, large and none, written in turn."""
        with BlockingClient(self._uri) as client:
            writers = [client.create(quorum=_ALONE, password=PASSWORD) for _ in range(5)]
            payloads: list[list[bytes]] = [[] for _ in writers]
            for _ in range(rounds):
                # The last stays empty.
                for writer, mine, size, count in zip(
                    writers, payloads, (0, 700, 40_000, 3_000), (150, 60, 8, 9), strict=False
                ):
                    ids = range(len(mine), len(mine) + count)
                    more = [line(writer.ledger_id, entry_id, size) for entry_id in ids]
                    writer.append_many(more)
                    writer.flush()
                    mine.extend(more)
            *closed, fenced, empty = writers
            for writer in (*closed, empty):
                writer.close()
            client.recover_and_open(fenced.ledger_id, PASSWORD)
            self.volumes += [
                Volume(writer.ledger_id, tuple(mine), fenced=writer is fenced)
                for writer, mine in zip(writers, payloads, strict=True)
            ]
        self._write_open()

    def _write_open(self) -> None:
        """All entries at once, so that none of them tells of another: only the explicit LAC does."""
        config = ClientConfig(use_v2_wire_protocol=False, explicit_lac_interval_ms=_EXPLICIT_LAC_INTERVAL_MS)
        with BlockingClient(self._uri, config) as client:
            writer = client.create(quorum=_ALONE, password=PASSWORD)
            payloads = [line(writer.ledger_id, entry_id) for entry_id in range(20)]
            writer.append_many(payloads)
            writer.flush()
            found = 0
            for block in client.open_for_reading(writer.ledger_id, PASSWORD).tail(0, max_wait_ms=_LAC_WAIT_MS):
                found += len(block)
                if found == len(payloads):
                    break
            assert found == len(payloads), "the bookie did not learn the explicit LAC"
            # Apache's bookie shows an explicit LAC before it is durable; the journal of a ledger is in order.
            writer.force()
            self.volumes.append(Volume(writer.ledger_id, tuple(payloads), explicit_lac=True))

    def fill_and_kill(self, bookie: LocalBookie) -> None:
        """A ledger whose bookie is killed while adds are under way."""
        acknowledged = -1
        with BlockingClient(self._uri) as client:
            writer = client.create(quorum=_ALONE, password=PASSWORD)
            killer = threading.Timer(_KILLED_AFTER_S, bookie.kill)
            try:
                for first in itertools.count(0, 20):
                    ids = range(first, first + 20)
                    writer.append_many([line(writer.ledger_id, entry_id, entry_id % 1000) for entry_id in ids])
                    acknowledged = writer.flush()
                    if first == 0:
                        killer.start()
            except BookKeeperError:
                acknowledged = max(acknowledged, writer.last_add_confirmed)
            finally:
                killer.join()
        payloads = [line(writer.ledger_id, entry_id, entry_id % 1000) for entry_id in range(acknowledged + 1)]
        assert payloads
        self.volumes.append(Volume(writer.ledger_id, tuple(payloads), broken_off=True))

    def check(self, port: int, *, explicit_lacs: bool = True) -> None:
        """Raises where the bookie, which listens on ``port``, lacks an entry, a fence or, with ``explicit_lacs``, an
        explicit LAC."""
        for wire in (2, 3):
            with BlockingClient(self._uri, ClientConfig(use_v2_wire_protocol=wire == 2)) as client:
                for volume in self.volumes:
                    if volume.broken_off:
                        found = _acknowledged(client, volume)
                        assert found == list(volume.payloads), f"ledger {volume.ledger_id}"
                        continue
                    reader = client.open_for_reading(volume.ledger_id, PASSWORD)
                    last = len(volume.payloads) - 1
                    closed = reader.metadata.state is LedgerState.CLOSED
                    assert closed is not volume.explicit_lac
                    if volume.explicit_lac and (wire == 2 or not explicit_lacs):
                        # Over v2 an open ledger's end is not known.
                        found = [p for block in reader.read_unconfirmed(0, last) for p in block.payloads]
                    else:
                        known = reader.read_last_add_confirmed()
                        assert known == last, f"{volume.ledger_id} ends at {known}, not {last}"
                        found = reader.read(0, last) if volume.payloads else []
                    assert [bytes(p) for p in found] == list(volume.payloads), f"ledger {volume.ledger_id}"
        for volume in self.volumes:
            if volume.fenced:
                assert _late_add(port, volume) is Code.FENCED


def _acknowledged(client: BlockingClient, volume: Volume) -> list[bytes]:
    """What was acknowledged of a ledger whose bookie was killed while it was written."""
    last = len(volume.payloads) - 1
    try:
        return [bytes(p) for p in client.recover_and_open(volume.ledger_id, PASSWORD).read(0, last)]
    except EntryUnknownError:
        # A kill may cut a write within an entry that nobody was told of. Apache's replay takes the zeros behind the cut
        # for the rest of it, and with one copy no recovery can tell what it was.
        reader = client.open_for_reading(volume.ledger_id, PASSWORD)
        return [bytes(p) for block in reader.read_unconfirmed(0, last) for p in block.payloads]


def _late_add(port: int, volume: Volume) -> Code:
    """What the bookie says to a writer that does not know that its ledger was recovered."""
    next_id = len(volume.payloads)
    packager = EntryPackager(volume.ledger_id, DigestType.CRC32C, PASSWORD)
    with socket.create_connection((LOOPBACK, port), timeout=_ANSWER_TIMEOUT_S) as connection:
        connection.sendall(packager.package(next_id, next_id - 1, 0, Payloads.of([b"too late"])).data)
        answer = np.frombuffer(connection.recv(wire_v2.ANSWER_DTYPE.itemsize, socket.MSG_WAITALL), wire_v2.ANSWER_DTYPE)
    return Code(int(answer["rc"][0]))
