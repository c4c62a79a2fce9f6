"""Result codes, operation codes and limits of Apache BookKeeper's wire protocols.

Source: compatibility.md §1.1, §1.3, §1.5, §8.1 (BookieProtocol.java, BookkeeperProtocol.proto).
"""

from __future__ import annotations

import enum
from typing import Final

#: Default of ``nettyMaxFrameSizeBytes`` on both sides; includes the 4 length bytes.
DEFAULT_MAX_FRAME_BYTES: Final = 5 * 1024 * 1024

V2: Final = 2
MASTER_KEY_BYTES: Final = 20
#: The entry id of a request for the last entry, and so for the LAC.
LAST_ENTRY: Final = -1
#: "No entry": the LAC of an empty ledger.
NO_ENTRY: Final = -1


class Code(enum.IntEnum):
    """Result codes with their v2 numbers. ``v3`` is the number in protobuf's StatusCode."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107

    @property
    def v3(self) -> int:
        """The number in a v3 answer."""
        return _V3_OF_CODE[self]

    @property
    def v2(self) -> int:
        """The code in a v2 answer.

        Java's v2 client has no mapping for 107 and drops the connection, so a limbo ledger is reported as an I/O error
        (compatibility.md §1.5).
        """
        return int(Code.IO_ERROR if self is Code.UNKNOWN_LEDGER_STATE else self)

    @classmethod
    def from_v3(cls, status: int) -> Code:
        """Return the code for a number of protobuf's ``StatusCode``. An unknown number counts as BAD_REQUEST."""
        return _CODE_OF_V3.get(status, Code.BAD_REQUEST)

    @classmethod
    def from_v2(cls, code: int) -> Code:
        """Return the code of a v2 answer. An unknown number counts as BAD_REQUEST."""
        return _CODE_OF_V2.get(code) or Code.BAD_REQUEST if code else _OK


_OK: Final = Code.OK
_CODE_OF_V2: Final = {int(code): code for code in Code}
_V3_OF_CODE: Final = {
    Code.OK: 0,
    Code.NO_LEDGER: 402,
    Code.NO_ENTRY: 403,
    Code.BAD_REQUEST: 404,
    Code.IO_ERROR: 501,
    Code.UNAUTHORIZED: 502,
    Code.BAD_VERSION: 503,
    Code.FENCED: 504,
    Code.READ_ONLY: 505,
    Code.TOO_MANY_REQUESTS: 506,
    Code.UNKNOWN_LEDGER_STATE: 507,
}
_CODE_OF_V3: Final = {status: code for code, status in _V3_OF_CODE.items()}


class OpV2(enum.IntEnum):
    """Operations of the v2 protocol, by their opcode in the header."""

    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class FlagV2(enum.IntFlag):
    """Flags in the header of a v2 request. FENCING belongs to reads, RECOVERY_ADD to adds, HIGH_PRIORITY to both."""

    NONE = 0
    FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4


class DigestType(enum.Enum):
    """The checksum of each entry of a ledger. The value is its number in ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4

    @property
    def digest_bytes(self) -> int:
        """The size of a checksum in bytes."""
        return _DIGEST_BYTES[self]


_DIGEST_BYTES: Final = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}
