"""Frames of recovery adds for entries as bookies store them. Layouts: wire_v2.py, wire_v3.py.

Replication copies entries with these. Digest, length and last add confirmed stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from bk_spark.protocol.codes import MASTER_KEY_BYTES, FlagV2, OpV2
from bk_spark.protocol.wire.framing import LENGTH_BYTES, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.add_frames_v3 import add_txn_id
from bk_spark.protocol.wire.v3.wire_v3 import request_header
from bk_spark.protocol.wire.wire_v2 import header_int

_U32: Final = struct.Struct(">I")
_PREFIX: Final = struct.Struct(f">II{MASTER_KEY_BYTES}s")
#: What a v2 frame has between its length and the stored entry.
_BETWEEN_BYTES: Final = _PREFIX.size - LENGTH_BYTES


def stored_adds_v2(key: bytes, count: int, records: memoryview) -> memoryview:
    """Return v2 ADD frames for ``count`` entries.

    Parameters
    ----------
    key
        The master key of the ledger.
    records
        ``u32 length, stored entry`` for each.
    """
    header = header_int(OpV2.ADD, FlagV2.RECOVERY_ADD)
    (size,) = _U32.unpack_from(records)
    stride = _U32.size + int(size)
    if len(records) == count * stride:
        rows = np.frombuffer(records, np.uint8).reshape(count, stride)
        if bool((rows[:, : _U32.size] == rows[0, : _U32.size]).all()):
            out = np.empty((count, _BETWEEN_BYTES + stride), np.uint8)
            prefix = _PREFIX.pack(_BETWEEN_BYTES + size, header, key)
            out[:, : _PREFIX.size] = np.frombuffer(prefix, np.uint8)
            out[:, _PREFIX.size :] = rows[:, _U32.size :]
            return out.reshape(-1).data
    parts: list[bytes | memoryview] = []
    for stored in cut_records(records):
        parts += _PREFIX.pack(_BETWEEN_BYTES + len(stored), header, key), stored
    return memoryview(b"".join(parts))


def stored_adds_v3(ledger_id: int, key: bytes, entry_ids: range, records: memoryview) -> memoryview:
    """Do the same as :func:`stored_adds_v2` over v3."""
    parts = []
    for entry_id, stored in zip(entry_ids, cut_records(records), strict=True):
        request = pb.Request(
            header=request_header(pb.ADD_ENTRY, add_txn_id(ledger_id, entry_id)),
            addRequest=pb.AddRequest(
                ledgerId=ledger_id,
                entryId=entry_id,
                masterKey=key,
                body=bytes(stored),
                flag=pb.AddRequest.RECOVERY_ADD,
            ),
        )
        parts.append(frame(request.SerializeToString()))
    return memoryview(b"".join(parts))


def cut_records(records: memoryview) -> Iterator[memoryview]:
    """Yield the entries of whole ``u32 length, stored entry`` records. An incomplete one at the end is left out."""
    at = 0
    while at + _U32.size <= len(records):
        end = at + _U32.size + int(_U32.unpack_from(records, at)[0])
        if end > len(records):
            return
        yield records[at + _U32.size : end]
        at = end
