"""Actions and events of the machines of reading (see :mod:`bk_spark.protocol.machine`).

An event carries a server's answer unchanged. The machines interpret it.
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
    """Read ``entry_ids`` at the bookie, one request each: :class:`EntriesRead` or :class:`RequestFailed`.

    ``again``: another bookie was asked for them before, and failed or is slow.
    """

    request_id: int
    bookie_id: str
    entry_ids: range
    again: bool = False


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read the consecutive ``entry_ids`` at the bookie by one request, with an answer of up to ``max_bytes``:
    :class:`BatchRead`, :class:`BatchRefused` or :class:`RequestFailed`.

    ``again``: another bookie was asked for them before, and failed or is slow.
    """

    request_id: int
    bookie_id: str
    entry_ids: range
    max_bytes: int
    again: bool = False


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
    """Report the failure of a bookie to the placement of new ledgers."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class WatchMetadata:
    """Read the ledger's metadata: :class:`MetadataFound` or :class:`MetadataFailed`. Also report every later change:
    :class:`MetadataChanged`."""


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Read the LAC with ``metadata``: :class:`LacHeard`."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read the entries: :class:`EntriesGiven` when the caller receives some, then :class:`RangeRead` or
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
    """The answer to :class:`ReadBatch`. ``records`` holds ``u32 length, stored entry`` for each entry. Nobody but the
    machine uses them afterwards."""

    request_id: int
    code: Code
    records: memoryview


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The connection broke at a batch read, and had never answered one before."""

    request_id: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request failed: no connection, a broken one, or an invalid answer."""

    request_id: Hashable
    error: Exception


@dataclass(frozen=True, slots=True)
class LacTold:
    """The answer to :class:`AskLac`: a packet with the explicit LAC and the last entry. Either may be missing."""

    request_id: Hashable
    code: Code
    explicit_lac: bytes | None
    last_entry: bytes | None


@dataclass(frozen=True, slots=True)
class PollAnswered:
    """The answer to :class:`LongPoll`. ``max_lac`` is the highest LAC that the bookie claims, if any."""

    request_id: int
    code: Code
    max_lac: int | None


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """The metadata changed, or may have."""


@dataclass(frozen=True, slots=True)
class LacHeard:
    """The LAC, or None if too few bookies answered."""

    last_add_confirmed: int | None


@dataclass(frozen=True, slots=True)
class EntriesGiven:
    """The caller received the next ``count`` entries. ``max_lac`` is the highest LAC in them."""

    count: int
    max_lac: int


@dataclass(frozen=True, slots=True)
class RangeRead:
    """The caller received the whole range."""


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """The rest of the range could not be read."""

    error: Exception


def reason_of_failure(error: Exception) -> str:
    """Return the reason of a failed request, to print after the bookie's name."""
    return getattr(error, "message", None) or repr(error)
