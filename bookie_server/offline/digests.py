"""The digest of stored entries. A bookie does not know the type of its entries' digests: it is found by trying."""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import Buffer, DigestFunction, digest_function
from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES

#: Checksums that need no password. That one fits by chance: once in 2³² entries.
_CHECKSUMS: Final = (DigestType.CRC32C, DigestType.CRC32)


class DigestFinder:
    """Finds digests. HMAC needs the ledger's ``password``; None: HMAC is not tried. DUMMY, no digest, is not found."""

    def __init__(self, password: bytes | None = None) -> None:
        self._functions: dict[DigestType, DigestFunction] = {each: digest_function(each, b"") for each in _CHECKSUMS}
        if password is not None:
            self._functions[DigestType.HMAC] = digest_function(DigestType.HMAC, password)

    def find(self, entry: Buffer) -> DigestType | None:
        """The type of the entry's digest; None if no known digest is right."""
        return next((each for each in self._functions if self.is_right(entry, each)), None)

    def is_right(self, entry: Buffer, digest_type: DigestType) -> bool:
        """Whether the entry has a right digest of this type."""
        view = memoryview(entry)
        payload_at = ENTRY_HEADER_BYTES + digest_type.digest_bytes
        if len(view) < payload_at:
            return False
        digest = self._functions[digest_type](view[:ENTRY_HEADER_BYTES], view[payload_at:])
        return digest == view[ENTRY_HEADER_BYTES:payload_at]


def payload_of(entry: memoryview, digest_type: DigestType | None) -> memoryview:
    """The entry's payload. If the digest is unknown: everything behind the header, with the digest, if there is one."""
    return entry[ENTRY_HEADER_BYTES + (0 if digest_type is None else digest_type.digest_bytes) :]
