"""v2 ADD frames for many entries at once. Layout: wire_v2.py and entry.py. (v3: add_frames_v3.py.)"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.codes import MASTER_KEY_BYTES, DigestType, FlagV2, OpV2
from bk_spark.protocol.digest import digest_function, master_key
from bk_spark.protocol.entry import ENTRY_HEADER_BYTES
from bk_spark.protocol.framing import LENGTH_BYTES
from bk_spark.protocol.payloads import Payloads
from bk_spark.protocol.wire_v2 import header_int

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
_PREFIX_BYTES: Final = _PREFIX_DTYPE.itemsize

Int64s = npt.NDArray[np.int64]


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
        """The wanted frames, neighbours in one view."""
        if wanted.all():
            return [self.data]
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        return [
            self.data[int(self.offsets[first]) : int(self.offsets[last])]
            for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        ]


class Packager(Protocol):
    """Makes entries into frames of one wire protocol."""

    @property
    def overhead_bytes(self) -> int:
        """Bytes that a frame has beyond its payload, length prefix included."""
        ...

    def package(
        self, first_entry_id: int, last_add_confirmed: int, length_before: int, payloads: Payloads
    ) -> AddFrames:
        """Frames for ``payloads`` as entries ``first_entry_id`` and following, all with one LAC."""
        ...


class PrefixPackager(ABC):
    """Frames that are a prefix of fixed size, the digest and the payload.

    ``prefix_dtype`` ends with the entry's header: fields ``ledger``, ``entry``, ``lac``, ``length``. What comes
    before is the protocol's, and filled by :meth:`_fill`. Holds the ledger's keys; has no repr of them.
    """

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes, prefix_dtype: np.dtype[Any]) -> None:
        self._ledger_id = ledger_id
        self._digest_bytes = digest_type.digest_bytes
        self._digest = digest_function(digest_type, password)
        self._dtype = prefix_dtype
        self._prefix_bytes = prefix_dtype.itemsize

    @abstractmethod
    def _fill(self, prefix: npt.NDArray[np.void], frame_bytes: Int64s, entry_ids: Int64s) -> None:
        """Fill what comes before the entry's header; ``frame_bytes`` are sizes without the length prefix."""

    @property
    def overhead_bytes(self) -> int:
        return self._prefix_bytes + self._digest_bytes

    def package(
        self, first_entry_id: int, last_add_confirmed: int, length_before: int, payloads: Payloads
    ) -> AddFrames:
        count, prefix_bytes = len(payloads), self._prefix_bytes
        sizes = payloads.sizes
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

        out = np.empty(int(offsets[-1]), np.uint8)
        view = out.data
        size = int(sizes[0])
        if count > 1 and size == int(sizes.min()) == int(sizes.max()):
            table = out.reshape(count, size + self.overhead_bytes)
            table[:, :prefix_bytes] = prefix.view(np.uint8).reshape(count, prefix_bytes)
            start = int(payloads.offsets[0])
            table[:, self.overhead_bytes :] = np.frombuffer(payloads.data, np.uint8, count * size, start).reshape(
                count, size
            )
        else:
            prefixes = prefix.view(np.uint8).data
            at = 0
            for offset, payload in zip(offsets.tolist(), payloads, strict=False):
                view[offset : offset + prefix_bytes] = prefixes[at : at + prefix_bytes]
                view[offset + self.overhead_bytes : offset + self.overhead_bytes + len(payload)] = payload
                at += prefix_bytes
        self._put_digests(out, prefix, offsets)
        return AddFrames(first_entry_id, view, offsets, lengths)

    def _put_digests(self, out: npt.NDArray[np.uint8], prefix: npt.NDArray[np.void], offsets: Int64s) -> None:
        if not self._digest_bytes:
            return
        headers = prefix.view(np.uint8).reshape(len(prefix), -1)[:, -ENTRY_HEADER_BYTES:]
        starts = offsets[:-1] + self.overhead_bytes
        data, bounds = out.data, zip(starts.tolist(), offsets[1:].tolist(), strict=True)
        digests = self._digest.many(headers, [data[start:end] for start, end in bounds])
        out[starts[:, None] + np.arange(-self._digest_bytes, 0)] = digests


class EntryPackager(PrefixPackager):
    """Builds the v2 frames of one ledger's writer."""

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes, flags: FlagV2 = FlagV2.NONE) -> None:
        super().__init__(ledger_id, digest_type, password, _PREFIX_DTYPE)
        self._header = header_int(OpV2.ADD, flags)
        self._key = np.frombuffer(master_key(password), np.uint8)

    @staticmethod
    def overhead(digest_type: DigestType) -> int:
        """:attr:`overhead_bytes` with this digest."""
        return _PREFIX_BYTES + digest_type.digest_bytes

    def _fill(self, prefix: npt.NDArray[np.void], frame_bytes: Int64s, entry_ids: Int64s) -> None:
        prefix["frame"] = frame_bytes
        prefix["header"] = self._header
        prefix["key"] = self._key
