"""What the machines of reading ask for, and what they are told (see :mod:`bk_spark.protocol.machine`).

An event carries what a server answered, as it came. Its meaning is the machines' matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from bk_spark.protocol.codes import Code
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire.answers_v2 import ReadAnswer

# --- actions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read ``entry_ids`` at the bookie, one request each: :class:`EntriesRead` or :class:`RequestFailed`."""

    request_id: int
    bookie_id: str
    entry_ids: range


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read ``entry_ids``, which follow each other, at the bookie by one request. The answer may have ``max_bytes``:
    :class:`BatchRead`, :class:`BatchRefused` or :class:`RequestFailed`."""

    request_id: int
    bookie_id: str
    entry_ids: range
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AskLac:
    """Send READ_LAC to the bookie: :class:`LacTold` or :class:`RequestFailed`."""

    request_id: Hashable
    bookie_id: str


@dataclass(frozen=True, slots=True)
class LongPoll:
    """Ask the bookie to wait up to ``wait_ms`` for a LAC above ``previous_lac``: :class:`PollAnswered` or
    :class:`RequestFailed`."""

    request_id: int
    bookie_id: str
    previous_lac: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """The bookie failed. Whoever chooses bookies should know."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class WatchMetadata:
    """Read the ledger's metadata: :class:`MetadataFound` or :class:`MetadataFailed`. Every later change is to be told,
    too: :class:`MetadataChanged`."""


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Read the LAC with ``metadata``: :class:`LacHeard`."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read the entries: :class:`EntriesGiven` as they are given to the caller, then :class:`RangeRead` or
    :class:`RangeFailed`."""

    first: int
    last: int


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntriesRead:
    """The answers to :class:`ReadEntries`, by entry id."""

    request_id: int
    answers: Mapping[int, ReadAnswer]


@dataclass(frozen=True, slots=True)
class BatchRead:
    """The answer to :class:`ReadBatch`. ``records`` holds ``u32 length, stored entry`` for each entry."""

    request_id: int
    code: Code
    records: memoryview


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The connection broke at a batch read, and it had never answered one before."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request got no answer: no connection, a broken one, or an answer that cannot be understood."""

    request_id: Hashable
    error: Exception


@dataclass(frozen=True, slots=True)
class LacTold:
    """The answer to :class:`AskLac`: a packet with the explicit LAC and the last entry, where there are such."""

    request_id: Hashable
    code: Code
    explicit_lac: bytes | None
    last_entry: bytes | None


@dataclass(frozen=True, slots=True)
class PollAnswered:
    """The answer to :class:`LongPoll`. ``max_lac`` is the highest LAC that the bookie claims, if it does."""

    request_id: int
    code: Code
    max_lac: int | None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata changed, or may have."""


@dataclass(frozen=True, slots=True)
class LacHeard:
    """The LAC, or None where too few bookies told it."""

    last_add_confirmed: int | None


@dataclass(frozen=True, slots=True)
class EntriesGiven:
    """The caller was given the next ``count`` entries. ``max_lac`` is the highest LAC in them."""

    count: int
    max_lac: int


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The caller was given the whole range."""


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """The rest of the range could not be read."""

    error: Exception


def reason_of_failure(error: Exception) -> str:
    """What is to be said of a bookie whose request failed; follows its name."""
    return getattr(error, "message", None) or repr(error)
