"""Reads the copies of a ledger's entries, one bookie after the other, over connections of their own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire.wire_v2 import read_requests

#: Requests under way at once.
_AT_ONCE: Final = 200
_TIMEOUT_S: Final = 60.0
#: Of an answer that has an entry with a digest of 4 bytes, before the payload: header, code, ledger, entry; ledger,
#: entry, last add confirmed, length; digest.
_BEFORE_PAYLOAD: Final = 4 + 4 + 8 + 8 + 32 + 4


@dataclass(frozen=True, slots=True)
class Missing:
    """A copy that its bookie does not have: it answered with ``code``."""

    ledger_id: int
    entry_id: int
    bookie_id: str
    code: Code


def check_copies(ledger_id: int, metadata: LedgerMetadata, payloads: Sequence[bytes]) -> tuple[int, list[Missing]]:
    """Read each of the first entries of a ledger (digest CRC32C) from each bookie of its write set.

    Returns
    -------
    tuple
        How many copies are there, and those that are missing. A copy with another payload is an error.
    """
    wanted: dict[str, list[int]] = {}
    for entry_id in range(len(payloads)):
        ensemble = metadata.segment_of(entry_id).ensemble
        for index in metadata.quorum.write_set(entry_id):
            wanted.setdefault(ensemble[index], []).append(entry_id)
    found, missing = 0, []
    for bookie_id, entry_ids in wanted.items():
        answers = _read(bookie_id, ledger_id, entry_ids)
        for entry_id in entry_ids:
            answer = answers[entry_id]
            code = Code(int.from_bytes(answer[4:8], "big", signed=True))
            if code is Code.OK:
                assert answer[_BEFORE_PAYLOAD:] == payloads[entry_id], (ledger_id, entry_id, bookie_id)
                found += 1
            else:
                missing.append(Missing(ledger_id, entry_id, bookie_id, code))
    return found, missing


def _read(bookie_id: str, ledger_id: int, entry_ids: Sequence[int]) -> dict[int, bytes]:
    """The answers of one bookie by entry."""
    host, _, port = bookie_id.rpartition(":")
    answers: dict[int, bytes] = {}
    with (
        socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection,
        connection.makefile("rb") as stream,
    ):
        for first in range(0, len(entry_ids), _AT_ONCE):
            some = entry_ids[first : first + _AT_ONCE]
            connection.sendall(read_requests(ledger_id, some))
            for _ in some:
                answer = stream.read(int.from_bytes(stream.read(4), "big"))
                answers[int.from_bytes(answer[16:24], "big")] = answer
    return answers
