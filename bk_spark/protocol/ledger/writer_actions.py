"""Actions and events of :class:`bk_spark.protocol.ledger.writer.LedgerWriter`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.claiming import ChooseLast
from bk_spark.protocol.ledger.metadata_calls import MetadataAction, MetadataEvent
from bk_spark.protocol.machine import StartTimer, StopTimer, TimerFired

#: The default of Apache's maxNumEnsembleChanges.
UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of one writer. The defaults are those of :class:`bk_spark.bookie.config.ClientConfig`."""

    #: The number of entries that the slowest bookie may owe, and the bytes of frames not answered by all bookies.
    max_unanswered_entries: int = 8_000
    max_pending_bytes: int = 16 * 1024 * 1024
    #: A bookie that owes adds and takes none for this long has failed.
    add_timeout_ms: int = 5_000
    #: An entry without its ack quorum for this long ends the writer. None: never.
    add_quorum_timeout_ms: int | None = None
    max_ensemble_changes: int = UNLIMITED
    #: A last add confirmed that no add has carried for this long is sent by WRITE_LAC. 0: never.
    explicit_lac_interval_ms: int = 0


# --- actions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectBookie:
    """Connect to ``bookie_id``. A failure is :class:`BookieFailed`. Adds sent meanwhile wait."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class SendAdds:
    """Send ``frames`` (ADD frames of this ledger, ``entries`` in number) to ``bookie_id``. The answers are
    :class:`AddsAnswered`, or :class:`BookieFailed` if there is no connection or it breaks."""

    bookie_id: str
    frames: list[memoryview]
    entries: int


@dataclass(frozen=True, slots=True)
class LeaveBookie:
    """Stop listening to ``bookie_id``, which has failed, and choose it last for other ledgers."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class ChooseBookies:
    """Find a bookie for each ensemble index in ``failed``, not in ``exclude``.

    Bookies in ``avoid`` failed this writer before. Take one only if ``needed``: then the writer cannot continue without
    it. The answer is :class:`BookiesChosen` or :class:`NoBookies`. :mod:`bk_spark.protocol.ledger.replacement` is the
    search.
    """

    failed: tuple[int, ...]
    exclude: frozenset[str]
    avoid: frozenset[str]
    needed: bool


@dataclass(frozen=True, slots=True)
class ForceBookie:
    """Make ``bookie_id`` sync all adds of this ledger. Use the same connection that carried the adds. The answer is
    :class:`BookieForced`. An error goes to ``fail``."""

    bookie_id: str
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Send the last add confirmed to ``bookie_id``. The answer is :class:`LacAnswered`."""

    bookie_id: str
    last_add_confirmed: int


WriterAction = (
    ConnectBookie
    | SendAdds
    | LeaveBookie
    | ChooseBookies
    | ForceBookie
    | WriteLac
    | ChooseLast
    | MetadataAction
    | StartTimer
    | StopTimer
)


# --- events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddsAnswered:
    """One bookie's answers to adds, for any entries, in any order. ``codes`` are those of v2."""

    bookie_id: str
    entry_ids: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BookieFailed:
    """The connection to the bookie broke or could not be made."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class BookiesChosen:
    """New bookies for some or all of the failed indexes, at least one."""

    replacements: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class NoBookies:
    """No failed bookie can be replaced. ``error`` says why."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """Bookies came or went in the cluster."""


@dataclass(frozen=True, slots=True)
class BookieForced:
    """The bookie has synced all adds sent before :class:`ForceBookie` of ``last_entry_id``."""

    bookie_id: str
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class LacAnswered:
    """Whether one bookie took the last add confirmed."""

    last_add_confirmed: int
    taken: bool


class WriterTimer(enum.Enum):
    """Names of timers. Refused adds have :class:`SendRefused`."""

    #: Time to check which bookies took nothing since the last check.
    PROGRESS = "progress"
    SLOW_SEARCH = "slow search"
    SEARCH_AGAIN = "search again"
    EXPLICIT_LAC = "explicit LAC"
    #: Entries wait for bookies that have never answered.
    FIRST_ANSWERS = "first answers"


@dataclass(frozen=True, slots=True)
class SendRefused:
    """Name of the timer after which adds that the busy ``bookie_id`` refused are sent again."""

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
