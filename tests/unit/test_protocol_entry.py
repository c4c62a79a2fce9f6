"""Stored entries and LAC packets: golden bytes, both ways, and every way of being wrong."""

from __future__ import annotations

from typing import Any

import pytest

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry, pack_lac, verify_entry, verify_lac
from bk_spark.protocol.errors import DigestMismatchError
from tests.support.fixtures import golden

HEADER_HEX = "0000000000000005 0000000000000007 0000000000000006 0000000000000064"
ENTRY_HEX = {
    DigestType.CRC32: f"{HEADER_HEX} 00000000177e796d 68656c6c6f",
    DigestType.HMAC: f"{HEADER_HEX} 063b9f5733526932891ff7b10fbcca59600124cd 68656c6c6f",
    DigestType.CRC32C: f"{HEADER_HEX} a94560f6 68656c6c6f",
    DigestType.DUMMY: f"{HEADER_HEX} 68656c6c6f",
}
LAC_HEX = {
    DigestType.CRC32: "0000000000000005 0000000000000006 000000004f4fab2f",
    DigestType.HMAC: "0000000000000005 0000000000000006 df287064120100de088ac1e1594f7e0f2703f6cd",
    DigestType.CRC32C: "0000000000000005 0000000000000006 4e206979",
    DigestType.DUMMY: "0000000000000005 0000000000000006",
}
CHECKED = [digest_type for digest_type in DigestType if digest_type is not DigestType.DUMMY]


def digest_type_of(name: str) -> DigestType:
    return DigestType.HMAC if name == "MAC" else DigestType[name]


@pytest.mark.parametrize("digest_type", DigestType)
def test_golden_vectors(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"testPasswd")
    stored = bytes.fromhex(ENTRY_HEX[digest_type])
    assert pack_entry(5, 7, 6, 100, b"hello", digest) == stored
    entry = verify_entry(stored, 5, 7, digest_type, digest)
    assert (entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length) == (5, 7, 6, 100)
    assert entry.payload == b"hello"
    packet = bytes.fromhex(LAC_HEX[digest_type])
    assert pack_lac(5, 6, digest) == packet
    assert verify_lac(packet, 5, digest_type, digest) == 6


@pytest.mark.parametrize("captured", golden("entries")["entries"], ids=lambda one: f"{one['digest']}-{one['entryId']}")
def test_captured_entries(captured: dict[str, Any]) -> None:
    digest_type = digest_type_of(captured["digest"])
    digest = digest_function(digest_type, captured["password"].encode())
    payload, stored = bytes.fromhex(captured["payloadHex"]), bytes.fromhex(captured["entryHex"])
    ledger_id, entry_id = captured["ledgerId"], captured["entryId"]
    assert pack_entry(ledger_id, entry_id, captured["lac"], captured["length"], payload, digest) == stored
    entry = verify_entry(stored, ledger_id, entry_id, digest_type, digest)
    assert (entry.last_add_confirmed, entry.length, bytes(entry.payload)) == (
        captured["lac"],
        captured["length"],
        payload,
    )
    assert bytes.fromhex(captured["digestHex"]) == stored[32 : len(stored) - len(payload)]


def test_the_captured_master_key() -> None:
    assert golden("entries")["masterKeysSeen"] == [master_key(b"golden").hex()]


@pytest.mark.parametrize("digest_type", CHECKED)
def test_every_corrupt_byte_is_found(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"testPasswd")
    stored = pack_entry(5, 7, 6, 100, b"hello", digest)
    for position in range(len(stored)):
        for flip in (0x01, 0x80, 0xFF):
            corrupt = bytearray(stored)
            corrupt[position] ^= flip
            with pytest.raises(DigestMismatchError):
                verify_entry(corrupt, 5, 7, digest_type, digest)
            with pytest.raises(DigestMismatchError):
                verify_entry(corrupt, 5, None, digest_type, digest)


@pytest.mark.parametrize("digest_type", DigestType)
def test_entry_of_another_ledger_or_place(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"")
    stored = pack_entry(5, 7, 6, 100, b"hello", digest)
    with pytest.raises(DigestMismatchError, match="got ledger 5 entry 7"):
        verify_entry(stored, 6, 7, digest_type, digest)
    with pytest.raises(DigestMismatchError, match="got ledger 5 entry 7"):
        verify_entry(stored, 5, 8, digest_type, digest)
    assert verify_entry(stored, 5, None, digest_type, digest).entry_id == 7


@pytest.mark.parametrize("digest_type", DigestType)
def test_entry_cut_short(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"")
    empty = pack_entry(5, 7, 6, 0, b"", digest)
    assert verify_entry(empty, 5, 7, digest_type, digest).payload == b""
    for size in range(len(empty)):
        with pytest.raises(DigestMismatchError, match="shorter"):
            verify_entry(empty[:size], 5, 7, digest_type, digest)


def test_hmac_with_another_password() -> None:
    stored = pack_entry(5, 7, 6, 100, b"hello", digest_function(DigestType.HMAC, b"a"))
    with pytest.raises(DigestMismatchError):
        verify_entry(stored, 5, 7, DigestType.HMAC, digest_function(DigestType.HMAC, b"b"))


@pytest.mark.parametrize("digest_type", CHECKED)
def test_corrupt_lac_packets(digest_type: DigestType) -> None:
    digest = digest_function(digest_type, b"")
    packet = pack_lac(5, 6, digest)
    for position in range(len(packet)):
        corrupt = bytearray(packet)
        corrupt[position] ^= 1
        with pytest.raises(DigestMismatchError):
            verify_lac(corrupt, 5, digest_type, digest)
    for wrong in (packet[:-1], packet + b"\0", b""):
        with pytest.raises(DigestMismatchError):
            verify_lac(wrong, 5, digest_type, digest)
    with pytest.raises(DigestMismatchError):
        verify_lac(packet, 4, digest_type, digest)
