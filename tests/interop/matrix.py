"""The four parties of the interop matrix in one cluster, and what must hold of a ledger whoever looks."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from bk_spark.protocol.codes import DigestType, OpV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.wire_v2 import header_int, read_requests
from tests.interop.java_client import JavaClient
from tests.interop.java_side import JavaSide
from tests.interop.our_side import OurSide
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import OURS_V3, PARTIES, PASSWORD, Entries, Metadata, Party, Side, Writer

_CREATE_ATTEMPTS: Final = 200
_TIMEOUT_S: Final = 60.0


class Sides:
    """The four parties in one cluster; a context manager."""

    def __init__(self, java: JavaClient, uri: str) -> None:
        self.uri = uri
        self._java = {party: JavaSide(java, uri, party) for party in PARTIES if party.language == "java"}
        self._ours = {party: OurSide(uri, party) for party in PARTIES if party.language == "ours"}

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *error: object) -> None:
        for side in self._ours.values():
            side.end()

    def __getitem__(self, party: Party) -> Side:
        return self._java[party] if party.language == "java" else self._ours[party]

    def __iter__(self) -> Iterator[Side]:
        yield from self._java.values()
        yield from self._ours.values()

    def java(self, wire: int = 3) -> JavaSide:
        return self._java[Party("java", wire)]

    def ours(self, wire: int = 2) -> OurSide:
        return self._ours[Party("ours", wire)]

    def of_other_language(self, party: Party, wire: int | None = None) -> Side:
        """The other language's client, over the same protocol unless told."""
        return self[Party(party.other_language, wire or party.wire)]

    def metadata(self, ledger_id: int) -> Metadata:
        """Ledger metadata, which both languages must read alike."""
        java, ours = self.java().metadata(ledger_id), self.ours().metadata(ledger_id)
        assert java == ours
        return ours

    def assert_closed(self, ledger_id: int, payloads: Iterable[bytes], *, length: int | None = None) -> Metadata:
        """The ledger is closed and every party reads just these payloads; its metadata.

        ``length`` where the metadata say something else than the bytes of the payloads.
        """
        expected = list(payloads)
        metadata = self.metadata(ledger_id)
        size_bytes = sum(map(len, expected)) if length is None else length
        found, due = (
            (metadata.state, metadata.last_entry_id, metadata.length),
            ("CLOSED", len(expected) - 1, size_bytes),
        )
        assert found == due, f"{found} is not {due}"
        for side in self:
            read = side.read(ledger_id)
            assert (read.count, read.last_add_confirmed) == (len(expected), len(expected) - 1), side.party
            assert read.fingerprint == fingerprint(expected), side.party
        return metadata


def create_on(side: Side, wanted: Callable[[set[str]], bool], **options: Any) -> tuple[Writer, tuple[str, ...]]:
    """A new ledger on bookies that are ``wanted``, and its ensemble. Clients choose bookies as they like: ledgers
    that are elsewhere are deleted again."""
    for _ in range(_CREATE_ATTEMPTS):
        ledger = side.create(**options)
        ((_, ensemble),) = side.metadata(ledger.ledger_id).segments
        if wanted(set(ensemble)):
            return ledger, ensemble
        ledger.close()
        side.delete(ledger.ledger_id)
    raise AssertionError(f"of {_CREATE_ATTEMPTS} ledgers none was on bookies that are wanted")


def store_on_one_bookie(
    bookie_id: str, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: bytes
) -> None:
    """Add an entry (digest CRC32C) to one bookie over v2, as a writer does that dies before it reached the others."""
    password = PASSWORD.encode()
    digest = digest_function(DigestType.CRC32C, password)
    entry = pack_entry(ledger_id, entry_id, last_add_confirmed, length, payload, digest)
    answer = answer_of(bookie_id, frame(header_int(OpV2.ADD).to_bytes(4, "big") + master_key(password) + entry))
    assert answer[4:8] == bytes(4), f"bookie {bookie_id} refused the entry: {answer.hex()}"


def wait_for_entries(bookie_ids: Iterable[str], ledger_id: int, entry_ids: Iterable[int]) -> None:
    """Until each of these bookies has each of these entries: for entries that are never acknowledged."""
    deadline = time.monotonic() + _TIMEOUT_S
    for bookie_id, entry_id in itertools.product(bookie_ids, list(entry_ids)):
        while answer_of(bookie_id, read_requests(ledger_id, [entry_id]))[4:8] != bytes(4):
            assert time.monotonic() < deadline, f"entry {entry_id} is not on bookie {bookie_id}"


def answer_of(bookie_id: str, request: bytes) -> bytes:
    """The answer to one frame of v2: header, code, ledger, entry, …"""
    host, _, port = bookie_id.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall(request)
        return stream.read(int.from_bytes(stream.read(4), "big"))


def unconfirmed_ledger(sides: Sides, count: int) -> tuple[int, Entries]:
    """An abandoned ledger of ``count`` entries of which none was ever confirmed, and what a recovery must find."""
    payloads = Payloads.of_size(count, 1024)
    ledger = sides[OURS_V3].create(deferred_sync=True)
    ledger.append(payloads)
    ledger.abandon()
    return ledger.ledger_id, Entries(count, payloads.fingerprint, count - 1)


def recovery_s(sides: Sides, party: Party, ledger_id: int, entries: Entries) -> float:
    """How long a party takes to recover a ledger and to read its ``entries``."""
    begun = time.perf_counter()
    recovered = sides[party].recover(ledger_id)
    took_s = time.perf_counter() - begun
    assert recovered == entries
    return took_s
