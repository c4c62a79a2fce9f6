"""Reads many entries of one bookie over a plain connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.wire import wire_v2
from tests.support.bookie import Connection

_AT_ONCE: Final = 100


def read_entries(
    connection: Connection, ledger_id: int, entry_ids: Sequence[int]
) -> Iterator[tuple[int, bytes | Code]]:
    """Yield each entry as it is stored, or the error code. Answers come in any order."""
    for start in range(0, len(entry_ids), _AT_ONCE):
        part = entry_ids[start : start + _AT_ONCE]
        connection.send(wire_v2.read_requests(ledger_id, part))
        for _ in part:
            body = connection.body()
            code = Code.from_v2(int.from_bytes(body[4:8], "big", signed=True))
            yield int.from_bytes(body[16:24], "big", signed=True), bytes(body[24:]) if code is Code.OK else code
