"""v3 ADD frames for many entries at once. Source of the messages: compatibility.md §1.7, §1.8, §8.1.

Frames of one writer differ only in sizes and entry ids. These are varints padded to a fixed size (varints.py), so the
layout before the payload is the same in every frame:

====================================== ====================================================================
bytes                                  what
====================================== ====================================================================
4                                      frame length
``0A`` size                            ``Request.header``
``08 03 10 02 18`` txnId (9)           version three, ADD_ENTRY, transaction id
``20 64``                              priority 100, for recovery only
``AA 06`` size (4)                     ``Request.addRequest``
``08`` ledger (9) ``10`` entry (9)     ids, for the answer; the bookie stores by the ids in the stored entry
``1A 14`` key (20)                     master key
``28 01``                              ``writeFlags``: DEFERRED_SYNC, if asked for
``A0 06 01``                           ``flag``: RECOVERY_ADD, for recovery only
``22`` size (4)                        ``body``: the stored entry follows, see entry.py
====================================== ====================================================================

Protobuf accepts fields in any order. The body comes last here, so a frame is a prefix of fixed size and the stored
entry. Answers to adds are matched by ledger and entry id.

Transaction ids of adds have bit 62 set. Other requests count from 1, so they never collide. Below bit 62 come 22 bits
of the ledger id and 40 bits of the entry id (all set: the id is too large). These usually suffice for the rare answer
that names neither id.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import MASTER_KEY_BYTES, DigestType, FlagV2
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.wire.add_frames import PrefixPackager
from bk_spark.protocol.wire.framing import LENGTH_BYTES
from bk_spark.protocol.wire.v3.varints import INT64_BYTES, SIZE_BYTES, padded, put_padded
from bk_spark.protocol.wire.v3.wire_v3 import DEFERRED_SYNC, HIGH_PRIORITY

#: Transaction ids of adds have this bit. Those of other requests never do.
ADD_TXN_BIT: Final = 1 << 62
_ENTRY_BITS: Final = 40
_ENTRY_MASK: Final = (1 << _ENTRY_BITS) - 1
_LEDGER_MASK: Final = (1 << 22) - 1
_TXN_AT: Final = 2 + 5
_HEADER_FIELDS: Final = b"\x08\x03\x10\x02\x18"


def is_txn_of(txn_id: int, ledger_id: int) -> bool:
    """Return whether the transaction id of an add may belong to ``ledger_id``."""
    return txn_id >> _ENTRY_BITS & _LEDGER_MASK == ledger_id & _LEDGER_MASK


def txn_entry_id(txn_id: int) -> int | None:
    """Return the entry id in the transaction id of an add. None for ids of 2⁴⁰ - 1 and more, which do not fit."""
    entry_id = txn_id & _ENTRY_MASK
    return None if entry_id == _ENTRY_MASK else entry_id


def add_txn_id(ledger_id: int, entry_id: int) -> int:
    """Return the transaction id of an add."""
    return ADD_TXN_BIT | (ledger_id & _LEDGER_MASK) << _ENTRY_BITS | min(entry_id, _ENTRY_MASK)


class EntryPackagerV3(PrefixPackager):
    """Builds the v3 frames of one ledger's writer.

    ``flags`` are those of v2: RECOVERY_ADD, HIGH_PRIORITY. With ``deferred_sync`` bookies acknowledge before they sync
    the entries. Entry ids go up to 2⁶³ - 1, and frames must be below 256 MiB.
    """

    def __init__(
        self,
        ledger_id: int,
        digest_type: DigestType,
        password: bytes,
        flags: FlagV2 = FlagV2.NONE,
        *,
        deferred_sync: bool = False,
    ) -> None:
        self._txn_bits = add_txn_id(ledger_id, 0)
        header = _HEADER_FIELDS + bytes(INT64_BYTES)
        if flags & FlagV2.HIGH_PRIORITY:
            header += bytes((0x20, HIGH_PRIORITY))
        add = b"\x08" + padded(ledger_id, INT64_BYTES) + b"\x10" + bytes(INT64_BYTES)
        add += bytes((0x1A, MASTER_KEY_BYTES)) + master_key(password)
        if deferred_sync:
            add += bytes((0x28, DEFERRED_SYNC))
        if flags & FlagV2.RECOVERY_ADD:
            add += b"\xa0\x06\x01"
        add += b"\x22" + bytes(SIZE_BYTES)
        message = bytes((0x0A, len(header))) + header + b"\xaa\x06" + bytes(SIZE_BYTES)
        self._message = np.frombuffer(message + add, np.uint8)
        #: Positions of the varints in the message, and the start of the part that each size counts.
        self._add_size_at = len(message) - SIZE_BYTES
        self._add_at = len(message)
        self._entry_id_at = len(message) + 1 + INT64_BYTES + 1
        self._body_size_at = len(self._message) - SIZE_BYTES
        #: What stands in each message before, between and after the varints.
        constant = message + add
        entry_id_ends = self._entry_id_at + INT64_BYTES
        self._constants = (
            constant[:_TXN_AT],
            constant[_TXN_AT + INT64_BYTES : self._add_size_at],
            constant[self._add_at : self._entry_id_at],
            constant[entry_id_ends : self._body_size_at],
        )
        #: The last frame's size, and the varints of sizes in it. Entries often have the size of the one before.
        self._sizes = 0, b"", b""
        start, middle, ids, rest = map(len, self._constants)
        self._struct = struct.Struct(
            f">I{start}s{INT64_BYTES}s{middle}s{SIZE_BYTES}s{ids}s{INT64_BYTES}s{rest}s{SIZE_BYTES}sqqqq"
        )
        super().__init__(
            ledger_id,
            digest_type,
            password,
            np.dtype(
                [
                    ("frame", ">u4"),
                    ("message", "u1", (len(self._message),)),
                    ("ledger", ">i8"),
                    ("entry", ">i8"),
                    ("lac", ">i8"),
                    ("length", ">i8"),
                ]
            ),
        )
        assert self._prefix_bytes == LENGTH_BYTES + len(self._message) + ENTRY_HEADER_BYTES

    def _fill(self, prefix: npt.NDArray[np.void], frame_bytes: Int64s, entry_ids: Int64s) -> None:
        prefix["frame"] = frame_bytes
        message = prefix["message"]
        message[:] = self._message
        put_padded(message[:, _TXN_AT : _TXN_AT + INT64_BYTES], np.minimum(entry_ids, _ENTRY_MASK) | self._txn_bits)
        put_padded(message[:, self._add_size_at : self._add_at], frame_bytes - self._add_at)
        put_padded(message[:, self._entry_id_at : self._entry_id_at + INT64_BYTES], entry_ids)
        put_padded(message[:, self._body_size_at :], frame_bytes - len(self._message))

    def _prefix(self, frame_bytes: int, entry_id: int, last_add_confirmed: int, length: int) -> bytes:
        start, middle, ids, rest = self._constants
        if frame_bytes != self._sizes[0]:
            add, body = frame_bytes - self._add_at, frame_bytes - len(self._message)
            self._sizes = frame_bytes, padded(add, SIZE_BYTES), padded(body, SIZE_BYTES)
        _, add_size, body_size = self._sizes
        return self._struct.pack(
            frame_bytes,
            start,
            padded(min(entry_id, _ENTRY_MASK) | self._txn_bits, INT64_BYTES),
            middle,
            add_size,
            ids,
            padded(entry_id, INT64_BYTES),
            rest,
            body_size,
            self._ledger_id,
            entry_id,
            last_add_confirmed,
            length,
        )
