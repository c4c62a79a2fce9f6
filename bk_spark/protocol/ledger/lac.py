"""Asking a ledger's bookies for its last add confirmed (LAC), without I/O. Source: compatibility.md §4.7.

All bookies of the last segment are asked at once. The result is there as soon as no write quorum can
still reach its ack quorum among those that gave no definite answer; a bookie that hangs delays nothing.
It is the highest LAC heard, and never below what the segment itself proves: a segment begins right after
the entry that was the last confirmed one when it was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.codes import NO_ENTRY
from bk_spark.protocol.errors import AWAY_REMEDY, BookKeeperError, EntryUnknownError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Answer, covered


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """What one bookie says of a ledger's LAC.

    ``lac`` is what it could prove (by a right digest), and counts whatever ``answer`` is: Apache's bookie
    says "I/O error" beside the explicit LAC of a ledger of which it holds no entry. A wrong digest is
    UNKNOWN. ``reason`` says why an answer is UNKNOWN.
    """

    answer: Answer
    lac: int = NO_ENTRY
    reason: str = ""


class LacRead:
    """One reading of the LAC. Ask every bookie of :attr:`bookie_ids`, tell :meth:`on_answer`, until
    :attr:`result` or :attr:`error` is there."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.bookie_ids = metadata.last_segment.ensemble
        self.result: int | None = None
        self.error: BookKeeperError | None = None
        self._quorum = metadata.quorum
        self._lac = metadata.last_segment.first_entry_id - 1
        self._answers = dict.fromkeys(self.bookie_ids, LacAnswer(Answer.UNHEARD))

    @property
    def over(self) -> bool:
        return self.result is not None or self.error is not None

    def on_answer(self, bookie_id: str, answer: LacAnswer) -> None:
        """The first answer of a bookie counts; none does once the reading is over."""
        if self.over or self._answers[bookie_id].answer is not Answer.UNHEARD:
            return
        self._answers[bookie_id] = answer
        self._lac = max(self._lac, answer.lac)
        answers = [self._answers[bookie].answer for bookie in self.bookie_ids]
        if covered(self._quorum, answers):
            self.result = self._lac
        elif Answer.UNHEARD not in answers:
            silent = "; ".join(
                f"{bookie} {said.reason}" for bookie, said in self._answers.items() if said.answer is Answer.UNKNOWN
            )
            self.error = EntryUnknownError(
                f"too few bookies told the last add confirmed: {silent}; {AWAY_REMEDY}", ledger_id=self.ledger_id
            )
