"""The machine that asks bookies for a ledger's last add confirmed (LAC). Source: docs/design/compatibility.md §4.7.

All bookies of the last segment are asked at once. The machine ends as soon as no write quorum can still reach its ack
quorum among those that gave no definite answer. A bookie that hangs delays nothing. The result is the highest LAC
heard. It is at least what the segment proves: a segment begins right after the last confirmed entry of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.codes import NO_ENTRY, Code
from bk_spark.protocol.entries.entry import verify_entry, verify_lac
from bk_spark.protocol.errors import AWAY_REMEDY, DigestMismatchError, EntryUnknownError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.ledger.reading.read_actions import AskLac, LacTold, RequestFailed, reason_of_failure
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, covered
from bk_spark.protocol.wire.code_errors import reason_of

NO_ANSWER: Final = "did not answer in time"
_TIMEOUT: Final = "LAC"


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """One bookie's answer about a ledger's LAC.

    ``lac`` is proven by a right digest. It counts whatever ``answer`` is: Apache's bookie answers "I/O error" together
    with the explicit LAC if it holds no entry of the ledger. ``reason`` says why an answer is UNKNOWN.
    """

    answer: Answer
    lac: int = NO_ENTRY
    reason: str = ""


def understand(ledger: LedgerKey, told: LacTold) -> LacAnswer:
    """Interpret an answer to READ_LAC. A LAC counts only with a right digest. A wrong digest makes it UNKNOWN."""
    lac, wrong = NO_ENTRY, ""
    if told.explicit_lac is not None:
        try:
            lac = verify_lac(told.explicit_lac, ledger.ledger_id, ledger.digest_type, ledger.digest)
        except DigestMismatchError as error:
            wrong = f"explicit LAC: {error.message}"
    if told.code is Code.OK and told.last_entry is not None:
        try:
            last = verify_entry(told.last_entry, ledger.ledger_id, None, ledger.digest_type, ledger.digest)
            lac = max(lac, last.last_add_confirmed)
        except DigestMismatchError as error:
            wrong = f"last entry: {error.message}"
    if wrong:
        return LacAnswer(Answer.UNKNOWN, lac, wrong)
    if told.code is Code.OK:
        return LacAnswer(Answer.PRESENT, lac)
    if told.code in (Code.NO_ENTRY, Code.NO_LEDGER):
        return LacAnswer(Answer.ABSENT, lac)
    return LacAnswer(Answer.UNKNOWN, lac, reason_of(told.code))


class LacRead:
    """One reading of the LAC.

    Parameters
    ----------
    ledger, metadata
        The ledger and its current metadata.
    timeout_ms
        A bookie that has not answered after this long counts as UNKNOWN.

    The result is the LAC. The error is EntryUnknownError if too few bookies answered. A bookie's id is its request id.
    """

    def __init__(self, ledger: LedgerKey, metadata: LedgerMetadata, *, timeout_ms: int) -> None:
        self.outcome: Succeeded[int] | EndedBy | None = None
        self._ledger = ledger
        self._quorum = metadata.quorum
        self._lac = metadata.last_segment.first_entry_id - 1
        bookies = metadata.last_segment.ensemble
        self._answers = dict.fromkeys(bookies, LacAnswer(Answer.UNHEARD))
        self._actions: list[AskLac | StartTimer] = [AskLac(bookie, bookie) for bookie in bookies]
        self._actions.append(StartTimer(_TIMEOUT, timeout_ms))

    def take_actions(self) -> list[AskLac | StartTimer]:
        """Return the questions to bookies and the timer. All come with the first call."""
        actions, self._actions = self._actions, []
        return actions

    def handle(self, event: LacTold | RequestFailed | TimerFired) -> None:
        """Handle an event. Only the first answer of a bookie counts, and none counts after the end."""
        match event:
            case LacTold(str(bookie_id)):
                self._hear(bookie_id, understand(self._ledger, event))
            case RequestFailed(str(bookie_id), error):
                self._hear(bookie_id, LacAnswer(Answer.UNKNOWN, reason=reason_of_failure(error)))
            case TimerFired():
                for bookie_id in self._answers:
                    self._hear(bookie_id, LacAnswer(Answer.UNKNOWN, reason=NO_ANSWER))

    def fail(self, error: Exception) -> None:
        """End without a LAC. Ignored after the end."""
        if self.outcome is None:
            self.outcome = EndedBy(error)

    def _hear(self, bookie_id: str, answer: LacAnswer) -> None:
        if self.outcome is not None or self._answers[bookie_id].answer is not Answer.UNHEARD:
            return
        self._answers[bookie_id] = answer
        self._lac = max(self._lac, answer.lac)
        answers = [said.answer for said in self._answers.values()]
        if covered(self._quorum, answers):
            self.outcome = Succeeded(self._lac)
        elif Answer.UNHEARD not in answers:
            silent = "; ".join(
                f"{bookie} {said.reason}" for bookie, said in self._answers.items() if said.answer is Answer.UNKNOWN
            )
            self.outcome = EndedBy(
                EntryUnknownError(
                    f"too few bookies reported the last add confirmed: {silent}; {AWAY_REMEDY}",
                    ledger_id=self._ledger.ledger_id,
                )
            )
