"""v2 ADD frames for many entries at once. Layout: wire_v2.py and entry.py. (v3: add_frames_v3.py.)"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.codes import MASTER_KEY_BYTES, DigestType, FlagV2, OpV2
from bk_spark.protocol.entries.digest import Buffer, Bytes2D, digest_function, master_key
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.wire.framing import LENGTH_BYTES
from bk_spark.protocol.wire.wire_v2 import header_int

_PREFIX_DTYPE: Final = np.dtype(
    [
        ("frame", ">u4"),
        ("header", ">u4"),
        ("key", "u1", (MASTER_KEY_BYTES,)),
        ("ledger", ">i8"),
        ("entry", ">i8"),
        ("lac", ">i8"),
        ("length", ">i8"),
    ]
)
_PREFIX: Final = struct.Struct(f">II{MASTER_KEY_BYTES}sqqqq")
_PREFIX_BYTES: Final = _PREFIX.size
#: Up to this many entries, numpy's fixed costs exceed the work.
_FEW: Final = 24

#: Entries of at least this size are joined one by one. This costs less than another pass over them.
_LARGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class AddFrames:
    """Frames of consecutive entries, ready to send: frame ``i`` is ``data[offsets[i] : offsets[i + 1]]``.

    ``lengths[i]`` is the ledger's length (bytes of payload) up to and including entry ``i``.
    """

    first_entry_id: int
    data: memoryview
    offsets: Int64s
    lengths: Int64s

    def __len__(self) -> int:
        return len(self.lengths)

    def select(self, wanted: npt.NDArray[np.bool_]) -> list[memoryview]:
        """Return the wanted frames. Neighbours share one view."""
        if wanted.all():
            return [self.data]
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        return [
            self.data[int(self.offsets[first]) : int(self.offsets[last])]
            for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        ]


class Packager(Protocol):
    """Packs entries into frames of one wire protocol."""

    @property
    def overhead_bytes(self) -> int:
        """Bytes of a frame besides its payload, including the length prefix."""
        ...

    def package(
        self,
        first_entry_id: int,
        last_add_confirmed: int,
        length_before: int,
        payloads: Payloads | Sequence[Buffer],
    ) -> AddFrames:
        """Return frames for ``payloads`` as entries from ``first_entry_id`` on, all with one LAC."""
        ...


class PrefixPackager(ABC):
    """Frames that are a prefix of fixed size, the digest and the payload.

    ``prefix_dtype`` ends with the entry's header: fields ``ledger``, ``entry``, ``lac``, ``length``. The fields before
    it belong to the protocol: :meth:`_fill` fills them for many entries, and :meth:`_prefix` makes all bytes of one
    prefix. Holds the ledger's keys, which its repr does not show.
    """

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes, prefix_dtype: np.dtype[Any]) -> None:
        self._ledger_id = ledger_id
        self._digest_bytes = digest_type.digest_bytes
        self._digest = digest_function(digest_type, password)
        self._dtype = prefix_dtype
        self._prefix_bytes = prefix_dtype.itemsize

    @abstractmethod
    def _fill(self, prefix: npt.NDArray[np.void], frame_bytes: Int64s, entry_ids: Int64s) -> None:
        """Fill the fields before the entry's header. ``frame_bytes`` are sizes without the length prefix."""

    @abstractmethod
    def _prefix(self, frame_bytes: int, entry_id: int, last_add_confirmed: int, length: int) -> bytes:
        """Return the prefix of one frame. ``frame_bytes`` is its size without the length prefix."""

    @property
    def overhead_bytes(self) -> int:
        """See :attr:`Packager.overhead_bytes`: the prefix and the digest."""
        return self._prefix_bytes + self._digest_bytes

    def package(
        self,
        first_entry_id: int,
        last_add_confirmed: int,
        length_before: int,
        payloads: Payloads | Sequence[Buffer],
    ) -> AddFrames:
        """See :meth:`Packager.package`. Few entries are packed one by one, many all at once, with numpy."""
        if len(payloads) <= _FEW:
            return self._package_few(first_entry_id, last_add_confirmed, length_before, payloads)
        if isinstance(payloads, Payloads):
            sizes = payloads.sizes
        else:
            sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        count, size_bytes = len(sizes), int(sizes.sum())
        lengths = length_before + np.cumsum(sizes)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes + self.overhead_bytes, out=offsets[1:])

        prefix = np.empty(count, self._dtype)
        entry_ids = np.arange(first_entry_id, first_entry_id + count)
        self._fill(prefix, sizes + (self.overhead_bytes - LENGTH_BYTES), entry_ids)
        prefix["ledger"] = self._ledger_id
        prefix["entry"] = entry_ids
        prefix["lac"] = last_add_confirmed
        prefix["length"] = lengths
        heads = prefix.view(np.uint8).reshape(count, self._prefix_bytes)
        if count > 1 and size_bytes < count * _LARGE_BYTES and bool((sizes == sizes[0]).all()):
            joined = payloads if isinstance(payloads, Payloads) else Payloads.of(payloads)
            data = self._table(heads, joined, int(sizes[0]))
        else:
            data = self._joined(heads, list(payloads))
            Payloads.check_joined(data, int(offsets[-1]))
        return AddFrames(first_entry_id, data, offsets, lengths)

    def _package_few(
        self,
        first_entry_id: int,
        last_add_confirmed: int,
        length_before: int,
        payloads: Payloads | Sequence[Buffer],
    ) -> AddFrames:
        parts: list[Buffer] = []
        offsets, lengths = [0], []
        length = length_before
        for entry_id, payload in enumerate(payloads, first_entry_id):
            frame_bytes = self.overhead_bytes + len(payload)
            length += len(payload)
            prefix = self._prefix(frame_bytes - LENGTH_BYTES, entry_id, last_add_confirmed, length)
            parts += prefix, self._digest(prefix[-ENTRY_HEADER_BYTES:], payload), payload
            offsets.append(offsets[-1] + frame_bytes)
            lengths.append(length)
        data = memoryview(b"".join(parts))
        Payloads.check_joined(data, offsets[-1])
        return AddFrames(first_entry_id, data, np.array(offsets, np.int64), np.array(lengths, np.int64))

    def _table(self, heads: Bytes2D, payloads: Payloads, size: int) -> memoryview:
        """Return frames with payloads of one ``size``."""
        count, prefix_bytes, start = len(heads), self._prefix_bytes, int(payloads.offsets[0])
        out = np.empty((count, self.overhead_bytes + size), np.uint8)
        rows = np.frombuffer(payloads.data, np.uint8, count * size, start).reshape(count, size)
        out[:, self.overhead_bytes :] = rows
        if self._digest_bytes:
            # For now, the headers lie beside the payloads. The digests come between them.
            entries = out[:, self.overhead_bytes - ENTRY_HEADER_BYTES :]
            entries[:, :ENTRY_HEADER_BYTES] = heads[:, -ENTRY_HEADER_BYTES:]
            out[:, prefix_bytes : self.overhead_bytes] = self._digest.of_rows(entries)
        out[:, :prefix_bytes] = heads
        return out.reshape(-1).data

    def _joined(self, heads: Bytes2D, payloads: list[Buffer]) -> memoryview:
        """Return frames with payloads of any size."""
        digests = self._digest.many(heads[:, -ENTRY_HEADER_BYTES:], payloads)
        before = np.concatenate([heads, digests], axis=1).tobytes()
        step = self.overhead_bytes
        parts: list[Buffer] = [b""] * (2 * len(payloads))
        parts[::2] = [before[at : at + step] for at in range(0, len(before), step)]
        parts[1::2] = payloads
        return memoryview(b"".join(parts))


class EntryPackager(PrefixPackager):
    """Builds the v2 frames of one ledger's writer."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes, flags: FlagV2 = FlagV2.NONE) -> None:
        super().__init__(ledger_id, digest_type, password, _PREFIX_DTYPE)
        self._header = header_int(OpV2.ADD, flags)
        self._key_bytes = master_key(password)
        self._key = np.frombuffer(self._key_bytes, np.uint8)

    @staticmethod
    def overhead(digest_type: DigestType) -> int:
        """Return :attr:`overhead_bytes` for this digest."""
        return _PREFIX_BYTES + digest_type.digest_bytes

    def _prefix(self, frame_bytes: int, entry_id: int, last_add_confirmed: int, length: int) -> bytes:
        ids = (self._ledger_id, entry_id, last_add_confirmed, length)
        return _PREFIX.pack(frame_bytes, self._header, self._key_bytes, *ids)

    def _fill(self, prefix: npt.NDArray[np.void], frame_bytes: Int64s, entry_ids: Int64s) -> None:
        prefix["frame"] = frame_bytes
        prefix["header"] = self._header
        prefix["key"] = self._key
