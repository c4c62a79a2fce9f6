"""Verifies entries as bookies return them, and keeps them as they are stored."""

from __future__ import annotations

import struct
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES, LAC_PACKET_HEADER, verify_records, verify_stored
from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import BatchRead, EntriesRead
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.replication.actions import StoredEntries
from bk_spark.protocol.wire.code_errors import AbsentError, check_read
from bk_spark.protocol.wire.stored_adds import cut_records

_U32: Final = struct.Struct(">I")


def key_of(ledger_id: int, metadata: LedgerMetadata) -> LedgerKey | None:
    """Return the key to verify entries with. None for a ledger whose metadata have no password."""
    if metadata.digest_type is None or metadata.password is None:
        return None
    return LedgerKey(ledger_id, metadata.digest_type, digest_function(metadata.digest_type, metadata.password))


def right_entries(
    ledger_id: int, key: LedgerKey | None, entry_ids: range, answer: EntriesRead | BatchRead
) -> StoredEntries:
    """Return the first entries of an answer that are right, at least one.

    ``entry_ids`` are those that were asked for. Without a ``key`` only ledger and entry ids are checked. Raises
    AbsentError, DigestMismatchError, or the error of the bookie's code, about the first entry.
    """
    if isinstance(answer, BatchRead):
        check_read(answer.code)
        if key is None:
            return _by_header(ledger_id, entry_ids, list(cut_records(answer.records)))
        block = verify_records(answer.records, ledger_id, entry_ids[0], key.digest_type, key.digest)
        count = min(len(block), len(entry_ids))
        overhead = _U32.size + ENTRY_HEADER_BYTES + key.digest_type.digest_bytes
        size_bytes = block.payloads.part(0, count).size_bytes + count * overhead
        return StoredEntries(entry_ids[:count], answer.records[:size_bytes])
    stored: list[memoryview] = []
    for entry_id in entry_ids:
        found = answer.answers[entry_id]
        if found.code is not Code.OK:
            if stored:
                break
            check_read(found.code)
        stored.append(found.stored)
    if key is None:
        return _by_header(ledger_id, entry_ids, stored)
    block = verify_stored(stored, ledger_id, entry_ids[0], key.digest_type, key.digest, entry_ids.step)
    return StoredEntries(entry_ids[: len(block)], _joined(stored[: len(block)]))


def _by_header(ledger_id: int, entry_ids: range, stored: list[memoryview]) -> StoredEntries:
    good = 0
    for entry_id, one in zip(entry_ids, stored, strict=False):
        if len(one) < ENTRY_HEADER_BYTES or LAC_PACKET_HEADER.unpack_from(one) != (ledger_id, entry_id):
            break
        good += 1
    if not good:
        raise DigestMismatchError("asked for this entry, got another", ledger_id=ledger_id, entry_id=entry_ids[0])
    return StoredEntries(entry_ids[:good], _joined(stored[:good]))


def _joined(stored: list[memoryview]) -> memoryview:
    parts: list[bytes | memoryview] = [b""] * (2 * len(stored))
    parts[::2] = [_U32.pack(len(one)) for one in stored]
    parts[1::2] = stored
    return memoryview(b"".join(parts))


def reason_of_answer(error: Exception) -> str:
    """Return why an answer was not right, to print after the bookie's name."""
    if isinstance(error, AbsentError):
        return "does not have it"
    return error.message if isinstance(error, BookKeeperError) else repr(error)
