"""The machine by which a writer makes the id of a new ledger its own, before the first entry.

Whoever may write to bookies may have used the id with another password. Such a bookie refuses the ledger's entries, and
the fencing of a recovery. Each bookie of the ensemble is told the ledger's password. Rules:

* If a bookie says that the id was used, the ledger is of no use.
* A bookie that says nothing may refuse the ledger later: unknown is not "not used". A recovery goes on without the
  bookies that refuse it if the others suffice (:func:`bk_spark.protocol.quorum.covered`). So the same number must have
  taken the password. Then nothing that the silent ones may know can keep the ledger open.
* Once these have, the others get :data:`PATIENCE_MS`, so that one bookie that hangs costs this and no more. The result
  names those that were silent. Readers cannot tell what such a bookie may hold from the ledger's entries, unless the
  digest has a key.
* If too few have, the ledger is of no use.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError, BookKeeperError, UnauthorizedError
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.quorum import Answer, Quorum, covered
from bk_spark.protocol.wire.code_errors import error_of

#: How long to wait for further answers. They come after a sync of the bookie's journal.
PATIENCE_MS: Final = 250
#: Answers of a bookie that refuses the ledger. The second one: the ledger was fenced, and removed.
_USED_BEFORE: Final = (Code.UNAUTHORIZED, Code.NO_LEDGER)


def is_used_before(code: Code | None) -> bool:
    """Return whether a bookie that answers the ledger's password so will refuse its entries: it knows another
    password, or removed a fenced ledger with that id."""
    return code in _USED_BEFORE


class ClaimTimer(enum.Enum):
    """Names of timers."""

    PATIENCE = "patience"


@dataclass(frozen=True, slots=True)
class TellPassword:
    """Tell a bookie the ledger's password. The answer is :class:`PasswordTold`."""

    bookie_id: str


@dataclass(frozen=True, slots=True)
class PasswordTold:
    """The bookie's answer. None: none came within the timeout of adds, or it cannot be reached."""

    bookie_id: str
    code: Code | None


@dataclass(frozen=True, slots=True)
class ChooseLast:
    """The bookie said nothing: choose it last for other ledgers."""

    bookie_id: str


ClaimAction = TellPassword | ChooseLast | StartTimer
ClaimEvent = PasswordTold | TimerFired


class LedgerClaim:
    """Claims one ledger. A machine (:mod:`bk_spark.protocol.machine`).

    The result names the bookies that have not taken the password. Ends with UnauthorizedError if the id was used
    before, and with BookieUnavailableError if too few bookies answer.
    """

    def __init__(self, ledger_id: int, quorum: Quorum, ensemble: Sequence[str]) -> None:
        self.outcome: Succeeded[tuple[str, ...]] | EndedBy | None = None
        self._ledger_id = ledger_id
        self._quorum = quorum
        self._answers = dict.fromkeys(ensemble, Answer.UNHEARD)
        self._is_patient = True
        self._actions: list[ClaimAction] = [
            StartTimer(ClaimTimer.PATIENCE, PATIENCE_MS),
            *(TellPassword(bookie_id) for bookie_id in ensemble),
        ]

    @property
    def silent(self) -> tuple[str, ...]:
        """The bookies that have not taken the password."""
        return tuple(bookie_id for bookie_id, answer in self._answers.items() if answer is not Answer.PRESENT)

    def take_actions(self) -> list[ClaimAction]:
        """Return the requests, once."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: ClaimEvent) -> None:
        """Take an answer, or the end of the patience. Ignored after the end."""
        if self.outcome is not None:
            return
        if isinstance(event, TimerFired):
            self._is_patient = False
        elif is_used_before(event.code):
            self.fail(self._used_before(event.bookie_id, event.code))
            return
        else:
            self._answers[event.bookie_id] = Answer.PRESENT if event.code is Code.OK else Answer.UNKNOWN
        answers = list(self._answers.values())
        is_covered = covered(self._quorum, answers)
        if Answer.UNHEARD in answers and (self._is_patient or not is_covered):
            return
        self._actions += map(ChooseLast, self.silent)
        if is_covered:
            self.outcome = Succeeded(self.silent)
        else:
            self.fail(
                BookieUnavailableError(
                    f"claim: too few bookies of the new ledger answer, none of {', '.join(self.silent)}: check that "
                    "they are running and reachable from here (bkctl doctor tries each of them)",
                    ledger_id=self._ledger_id,
                )
            )

    def fail(self, error: Exception) -> None:
        """End without a result. Ignored after the end."""
        self.outcome = self.outcome or EndedBy(error)

    def _used_before(self, bookie_id: str, code: Code | None) -> BookKeeperError:
        if code is Code.UNAUTHORIZED:
            return error_of(code, "claim", ledger_id=self._ledger_id, bookie_id=bookie_id, with_key=True)
        return UnauthorizedError(
            "claim: the bookie answered NO_LEDGER: it had a ledger with this id, which somebody fenced",
            ledger_id=self._ledger_id,
            bookie_id=bookie_id,
            code=Code.NO_LEDGER.name,
        )
