"""Our client as a :class:`tests.interop.sides.Side`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from bk_spark.bookie.blocking import BlockingAdvWriter, BlockingClient, BlockingReader, BlockingWriter
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.payloads import Payloads as Batch
from bk_spark.protocol.errors import (
    BookKeeperError,
    DuplicateEntryError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bk_spark.protocol.quorum import Quorum
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import PASSWORD, AdvWriter, Entries, Metadata, Party, Reader, RefusedError, Side, Writer

#: Digest types by the names of Apache's client API.
DIGESTS: Final = {
    "CRC32": DigestType.CRC32,
    "CRC32C": DigestType.CRC32C,
    "MAC": DigestType.HMAC,
    "DUMMY": DigestType.DUMMY,
}
_REASONS: Final[Mapping[type[BookKeeperError], str]] = {
    NoSuchEntryError: "entry is not confirmed",
    NoSuchLedgerError: "no such ledger",
    LedgerClosedError: "closed",
    LedgerExistsError: "ledger exists",
    DuplicateEntryError: "duplicate entry",
    LedgerFencedError: "fenced",
    UnauthorizedError: "unauthorized",
}


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BookKeeperError as error:
        if type(error) not in _REASONS:
            raise
        raise RefusedError(_REASONS[type(error)], str(error)) from error


@dataclass
class _OurWriter(Writer):
    _handle: BlockingWriter

    def __post_init__(self) -> None:
        self.ledger_id = self._handle.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def append(self, payloads: Payloads | Sequence[bytes]) -> int:
        with _refusals():
            last = self._handle.append_many(Batch.of(list(payloads)))
            self._handle.flush()
        return last

    def force(self) -> int:
        self._handle.force()
        return self._handle.last_add_confirmed

    def close(self) -> tuple[int, int]:
        with _refusals():
            closed = self._handle.close()
        return closed.last_entry_id, closed.length

    def abandon(self) -> None:
        self._handle.abandon()


@dataclass
class _OurAdvWriter(AdvWriter):
    _handle: BlockingAdvWriter

    def __post_init__(self) -> None:
        self.ledger_id = self._handle.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def append(self, entry_ids: Sequence[int], payloads: Sequence[bytes], *, wait: bool = True) -> None:
        with _refusals():
            self._handle.append_many(entry_ids, Batch.of(list(payloads)))
            if wait:
                self._handle.flush()

    def close(self) -> tuple[int, int]:
        with _refusals():
            closed = self._handle.close()
        return closed.last_entry_id, closed.length

    def abandon(self) -> None:
        self._handle.abandon()


@dataclass
class OurReader(Reader):
    _handle: BlockingReader

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    def read_last_add_confirmed(self) -> int:
        return self._handle.read_last_add_confirmed()

    def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        with _refusals():
            if not unconfirmed:
                return self._handle.read(first, last)
            with closing(self._handle.read_unconfirmed(first, last)) as blocks:
                return [bytes(payload) for block in blocks for payload in block.payloads]

    def tail(self, first: int, count: int | None = None) -> list[bytes]:
        found: list[bytes] = []
        with closing(self._handle.tail(first)) as blocks:
            for block in blocks:
                assert block.first_entry_id == first + len(found)
                found += [bytes(payload) for payload in block.payloads]
                if count is not None and len(found) >= count:
                    break
        return found

    def close(self) -> None:
        pass


@dataclass
class OurSide(Side):
    uri: str
    party: Party
    #: By explicit LAC interval; made when first used.
    _clients: dict[int, BlockingClient] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, explicit_lac_interval_ms: int = 0) -> BlockingClient:
        with self._lock:
            if explicit_lac_interval_ms not in self._clients:
                config = ClientConfig(
                    use_v2_wire_protocol=self.party.wire == 2, explicit_lac_interval_ms=explicit_lac_interval_ms
                )
                self._clients[explicit_lac_interval_ms] = BlockingClient(self.uri, config)
            return self._clients[explicit_lac_interval_ms]

    def end(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def create(
        self,
        *,
        quorums: tuple[int, int, int] = (3, 3, 2),
        digest: str = "CRC32C",
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        explicit_lac_interval_ms: int = 0,
    ) -> Writer:
        with _refusals():
            handle = self.client(explicit_lac_interval_ms).create(
                quorum=Quorum(*quorums),
                digest_type=DIGESTS[digest],
                password=PASSWORD.encode(),
                custom_metadata=custom_metadata,
                deferred_sync=deferred_sync,
            )
        return _OurWriter(handle)

    def create_adv(self, *, quorums: tuple[int, int, int] = (3, 3, 2), ledger_id: int | None = None) -> AdvWriter:
        with _refusals():
            handle = self.client().create_adv(quorum=Quorum(*quorums), password=PASSWORD.encode(), ledger_id=ledger_id)
        return _OurAdvWriter(handle)

    def open(self, ledger_id: int) -> OurReader:
        with _refusals():
            return OurReader(self.client().open_for_reading(ledger_id, PASSWORD.encode()))

    def read(self, ledger_id: int, *, recovery: bool = False) -> Entries:
        with _refusals():
            client = self.client()
            opened = client.recover_and_open if recovery else client.open_for_reading
            reader = opened(ledger_id, PASSWORD.encode())
            last = reader.last_add_confirmed
            payloads = reader.read(0, last) if last >= 0 else []
        return Entries(len(payloads), fingerprint(payloads), last)

    def metadata(self, ledger_id: int) -> Metadata:
        with _refusals():
            found = self.client().metadata(ledger_id)
        quorum = found.quorum
        (digest,) = (name for name, kind in DIGESTS.items() if kind is found.digest_type)
        return Metadata(
            found.state.name,
            (quorum.ensemble_size, quorum.write_quorum_size, quorum.ack_quorum_size),
            found.last_entry_id,
            found.length,
            digest,
            dict(found.custom_metadata),
            tuple((segment.first_entry_id, segment.ensemble) for segment in found.segments),
        )

    def delete(self, ledger_id: int) -> None:
        self.client().delete(ledger_id)
