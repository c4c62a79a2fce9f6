"""Rules broken on purpose. What finds violations must find these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from unittest.mock import patch

from bk_spark.protocol.codes import FlagV2
from bk_spark.protocol.ledger import recovery
from bk_spark.protocol.ledger.recovery import LedgerRecovery, RecoveryState
from bk_spark.protocol.quorum import Answer, Quorum
from tests.simulation.events import Effect
from tests.simulation.recoverers import RecoveryActor
from tests.simulation.servers import ModelBookie


class ReadsDoNotFence(RecoveryActor):
    """Issue 2614: only the reading of the last entry fences."""

    def rule_read_flags(self) -> FlagV2:
        return FlagV2.NONE


class UnknownIsAbsent(RecoveryActor):
    """A bookie that does not answer counts as one that has nothing."""

    def rule_no_answer(self) -> Answer:
        return Answer.ABSENT


class WritesBackTheNewestLac(RecoveryActor):
    """What a recovery wrote back itself counts as confirmed."""

    def rule_write_back_lac(self, found_at_start: int) -> int | None:
        return None


class _NoFloor(LedgerRecovery):
    def _begin_reading(self) -> None:
        self.state = RecoveryState.READING
        self._next = self._asked = self._lac + 1
        self._written_back = self._lac
        self._ask_ahead()


class RecoversFromTheBeginning(RecoveryActor):
    """Issue 2615: the last segment's beginning is no floor under the LAC that was heard."""

    machine_class = _NoFloor


def let_any_ack_quorum_decide(stack: ExitStack) -> None:
    """While ``stack`` is open any Qa answers, wherever they stand, are enough: to take a ledger for fenced, and an
    entry for absent. (With fencing reads the first alone would do no harm: these cover what the fences missed.)"""

    def any_ack_quorum(quorum: Quorum, answers: Sequence[Answer]) -> bool:
        definite = sum(answer in (Answer.PRESENT, Answer.ABSENT) for answer in answers)
        return definite >= quorum.ack_quorum_size

    stack.enter_context(patch.object(recovery, "covered", any_ack_quorum))
    stack.enter_context(patch.object(Quorum, "absent_needed", property(lambda quorum: quorum.ack_quorum_size)))


def let_forces_go_over_any_connection(stack: ExitStack) -> None:
    """While ``stack`` is open a crash between adds with deferred sync and a force goes unnoticed."""
    crash = ModelBookie._crash

    def unnoticed(bookie: ModelBookie) -> list[Effect]:
        effects = crash(bookie)
        bookie.broken = frozenset()
        return effects

    stack.enter_context(patch.object(ModelBookie, "_crash", unnoticed))
