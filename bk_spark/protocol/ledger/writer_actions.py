"""Actions and events of :class:`bk_spark.protocol.ledger.writer.LedgerWriter`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.metadata_calls import MetadataAction, MetadataEvent
from bk_spark.protocol.machine import StartTimer, StopTimer, TimerFired

#: As Apache's maxNumEnsembleChanges has it.
UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of one writer. The defaults are those of :class:`bk_spark.bookie.config.ClientConfig`."""

    #: Entries that the slowest bookie of the ensemble may owe, and bytes of frames that some bookie may owe.
    max_unanswered_entries: int = 8_000
    max_pending_bytes: int = 16 * 1024 * 1024
    #: A bookie that owes adds and takes none for so long has failed.
    add_timeout_ms: int = 5_000
    #: An entry without its ack quorum for so long ends the writer. None: never.
    add_quorum_timeout_ms: int | None = None
    max_ensemble_changes: int = UNLIMITED
    #: A last add confirmed that no add has carried for so long is told by WRITE_LAC. 0: never.
    explicit_lac_interval_ms: int = 0


# --- actions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectBookie:
    """Connect to ``bookie_id``. :class:`BookieFailed` where that fails. What is sent meanwhile waits."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send ``frames`` (ADD frames of this ledger, ``entries`` in number) to ``bookie_id``. The answers are
    :class:`AddsAnswered`, or :class:`BookieFailed` where there is no connection or it breaks."""

    bookie_id: str
    frames: list[memoryview]
    entries: int


@dataclass(frozen=True, slots=True)
class LeaveBookie:
    """``bookie_id`` has failed. Listen to it no longer, and choose it last for other ledgers."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Find a bookie for each ensemble index in ``failed``, none of ``exclude``. One of ``avoid`` (they failed
    this writer before) is better than none where ``needed``: the writer cannot go on without. The answer is
    :class:`BookiesChosen` or :class:`NoBookies`. :mod:`bk_spark.protocol.ledger.replacement` says how to search."""

    failed: tuple[int, ...]
    exclude: frozenset[str]
    avoid: frozenset[str]
    needed: bool


@dataclass(frozen=True, slots=True)
class ForceBookie:
    """Have ``bookie_id`` sync all it was sent of this ledger, over the very connection that carried the adds.
    The answer is :class:`BookieForced`. An error goes to ``fail``."""

    bookie_id: str
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Tell ``bookie_id`` the last add confirmed. The answer is :class:`LacAnswered`."""

    bookie_id: str
    last_add_confirmed: int


WriterAction = (
    ConnectBookie
    | SendAdds
    | LeaveBookie
    | ChooseBookies
    | ForceBookie
    | WriteLac
    | MetadataAction
    | StartTimer
    | StopTimer
)


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddsAnswered:
    """Answers of one bookie, of any entries, in any order. ``codes`` are those of v2."""

    bookie_id: str
    entry_ids: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BookieFailed:
    """The bookie is away: its connection broke or could not be made."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class BookiesChosen:
    """A new bookie for some or all of the failed indexes, at least one."""

    replacements: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class NoBookies:
    """No bookie can take the place of any that failed. ``error`` says why."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """Bookies came or went in the cluster."""


@dataclass(frozen=True, slots=True)
class BookieForced:
    """The bookie has synced all it was sent before :class:`ForceBookie` of ``last_entry_id``."""

    bookie_id: str
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """Whether one bookie took the last add confirmed."""

    last_add_confirmed: int
    taken: bool


class WriterTimer(enum.Enum):
    """Names of timers. Refused adds have :class:`SendRefused`."""

    #: Time to see which bookies took nothing since.
    PROGRESS = "progress"
    SLOW_SEARCH = "slow search"
    SEARCH_AGAIN = "search again"
    EXPLICIT_LAC = "explicit LAC"


@dataclass(frozen=True, slots=True)
class SendRefused:
    """Name of the timer after which ``bookie_id`` gets again what it refused for being busy."""

    bookie_id: str


WriterEvent = (
    AddsAnswered
    | BookieFailed
    | BookiesChosen
    | NoBookies
    | BookiesChanged
    | BookieForced
    | LacAnswered
    | MetadataEvent
    | TimerFired
)
