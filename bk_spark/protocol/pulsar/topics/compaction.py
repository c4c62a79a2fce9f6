"""Entries of a compacted ledger. Source: docs/design/pulsar.md §3.4.

Each has the original entry with its position: u32 n, n bytes ``MessageIdData``, u32 m, m bytes of the original entry.
In rebuilt batches the messages that were removed are marked as compacted out, so they make no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import InvalidArgumentError, MessageFormatError
from bk_spark.protocol.pulsar.message_ids import MessageIdData

_SIZE_BYTES: Final = 4


def originals(
    ledger_id: int, first_entry_id: int, payloads: Payloads | Sequence[Buffer]
) -> tuple[Int64s, Int64s, list[memoryview]]:
    """Return the original entries, for ``MessageDecoder.decode_at``.

    Parameters
    ----------
    ledger_id, first_entry_id
        Where the entries are in the compacted ledger.
    payloads
        These entries, consecutive.

    Returns
    -------
    tuple
        Ledger and entry of each original in its topic, and the originals.

    Raises
    ------
    MessageFormatError
        If an entry is not one of a compacted ledger.
    """
    positions, entries = [], []
    for entry_id, payload in enumerate(payloads, first_entry_id):
        data = memoryview(payload)
        try:
            at = _SIZE_BYTES + _size(data, 0)
            begin = at + _SIZE_BYTES
            end = begin + _size(data, at)
            if end != len(data):
                raise ValueError(f"{len(data)} bytes, where {end} are announced")
            found = MessageIdData.parse(bytes(data[_SIZE_BYTES:at]))
        except (ValueError, InvalidArgumentError) as error:
            raise MessageFormatError(
                f"an entry that does not belong in a compacted ledger: {error}", ledger_id=ledger_id, entry_id=entry_id
            ) from error
        positions.append((found.ledger_id, found.entry_id))
        entries.append(data[begin:])
    ids = np.array(positions, np.int64).reshape(-1, 2)
    return ids[:, 0].copy(), ids[:, 1].copy(), entries


def _size(data: memoryview, at: int) -> int:
    if at + _SIZE_BYTES > len(data):
        raise ValueError(f"it ends at byte {len(data)}")
    return int.from_bytes(data[at : at + _SIZE_BYTES], "big")
