"""What :class:`bk_spark.protocol.ledger.writer.LedgerWriter` asks of its driver."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send ``frames`` (ADD frames of this ledger, ``entries`` in number) to ``bookie_id``."""

    bookie_id: str
    frames: list[memoryview]
    entries: int


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Find a bookie for each ensemble index in ``failed``, none of ``exclude``. One of ``avoid`` (they failed
    this writer before) is better than none where ``needed``: the writer cannot go on without. Answer with
    ``on_bookies_chosen`` or ``on_no_bookies``; where that takes a second or so, call ``on_search_slow``."""

    failed: tuple[int, ...]
    exclude: frozenset[str]
    avoid: frozenset[str]
    needed: bool


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set the ledger's metadata; answer with ``on_metadata_written``, ``on_metadata_conflict``
    (found something else), or say why neither can be known."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every entry up to ``last_add_confirmed`` is durable and will be readable."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class Throttled:
    """``bookie_id`` has too many requests: wait a little, then call ``retry_refused``."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class ForceBookie:
    """Have ``bookie_id`` sync all it was sent of this ledger, over the very connection that carried the adds;
    answer with ``on_forced``, or ``fail`` where it did not."""

    bookie_id: str
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """It has ended. Entries beyond the last add confirmed may or may not survive."""

    error: BookKeeperError


Action = SendAdds | ChooseBookies | WriteMetadata | Acknowledge | Throttled | ForceBookie | Failed
