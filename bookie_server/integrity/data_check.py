"""The machine that checks all ledgers in limbo: a few at a time, and again after growing pauses. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bookie_server.integrity.limbo_check import LimboResult, NothingToCheck, NotWhole, Whole

_FIRST_PAUSE_MS: Final = 5_000
_LONGEST_PAUSE_MS: Final = 300_000


@dataclass(frozen=True, slots=True)
class CheckLedger:
    """Check this ledger: :class:`LedgerChecked`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class LedgerChecked:
    """The answer to :class:`CheckLedger`."""

    ledger_id: int
    result: LimboResult


@dataclass(slots=True)
class DataCheckProgress:
    """How far the check has come.

    Parameters
    ----------
    ledgers
        Ledgers that were in limbo when it began.
    left
        Those that still are.
    recovered
        Ledgers that were recovered because of the check.
    entries, size_bytes
        What was copied from other bookies for ledgers that are whole now.
    problems
        Why ledgers could not be made whole, by ledger. They are tried again.
    """

    ledgers: int
    left: int
    recovered: int = 0
    entries: int = 0
    size_bytes: int = 0
    problems: dict[int, str] = field(default_factory=dict)


class DataCheck:
    """Checks ``ledger_ids``, ``at_once`` at a time. It ends when each of them is whole, or gone."""

    def __init__(self, ledger_ids: Iterable[int], at_once: int) -> None:
        self.outcome: Succeeded[DataCheckProgress] | EndedBy | None = None
        self._waiting = deque(ledger_ids)
        self._at_once = at_once
        self._running = 0
        self._attempts: dict[int, int] = {}
        self.progress = DataCheckProgress(len(self._waiting), len(self._waiting))
        self._actions: list[CheckLedger | StartTimer] = []
        self._go_on()

    def take_actions(self) -> list[CheckLedger | StartTimer]:
        """The ledgers to check now, and the pauses before others are tried again."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: LedgerChecked | TimerFired) -> None:
        """Take a ledger's result, or the end of its pause, and begin the next one."""
        match event:
            case LedgerChecked(ledger_id, result):
                self._running -= 1
                self._on_checked(ledger_id, result)
            case TimerFired(int(ledger_id)):
                self._waiting.append(ledger_id)
        self._go_on()

    def fail(self, error: Exception) -> None:
        """End with this error. Ledgers that were not checked stay in limbo."""
        self.outcome = EndedBy(error)

    def _on_checked(self, ledger_id: int, result: LimboResult) -> None:
        progress = self.progress
        match result:
            case NotWhole(reason):
                progress.problems[ledger_id] = reason
                attempts = self._attempts[ledger_id] = self._attempts.get(ledger_id, 0) + 1
                pause_ms = min(_FIRST_PAUSE_MS * 2 ** min(attempts - 1, 16), _LONGEST_PAUSE_MS)
                self._actions.append(StartTimer(ledger_id, pause_ms))
                return
            case Whole(recovered, entries, size_bytes):
                progress.recovered += recovered
                progress.entries += entries
                progress.size_bytes += size_bytes
            case NothingToCheck():
                pass
        progress.problems.pop(ledger_id, None)
        progress.left -= 1

    def _go_on(self) -> None:
        while self._waiting and self._running < self._at_once:
            self._running += 1
            self._actions.append(CheckLedger(self._waiting.popleft()))
        if not self.progress.left:
            self.outcome = Succeeded(self.progress)
