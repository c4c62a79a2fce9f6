"""The claim of a new ledger's id, event by event. Bookies are b1, b2, …"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import BookieUnavailableError, UnauthorizedError
from bk_spark.protocol.ledger.claiming import (
    PATIENCE_MS,
    ChooseLast,
    ClaimTimer,
    LedgerClaim,
    PasswordTold,
    TellPassword,
)
from bk_spark.protocol.machine import EndedBy, StartTimer, Succeeded, TimerFired
from bk_spark.protocol.quorum import Quorum

THREE = Quorum(3, 3, 2)
OVER = TimerFired(ClaimTimer.PATIENCE)


def claim(quorum: Quorum = THREE) -> LedgerClaim:
    names = [f"b{number}" for number in range(1, quorum.ensemble_size + 1)]
    made = LedgerClaim(7, quorum, names)
    assert made.take_actions() == [StartTimer(ClaimTimer.PATIENCE, PATIENCE_MS), *map(TellPassword, names)]
    return made


def told(made: LedgerClaim, answers: Mapping[str, Code | None]) -> LedgerClaim:
    for bookie_id, code in answers.items():
        made.handle(PasswordTold(bookie_id, code))
    return made


def error_of(made: LedgerClaim) -> Exception | None:
    return made.outcome.error if isinstance(made.outcome, EndedBy) else None


def test_all_answer() -> None:
    made = told(claim(), {"b1": Code.OK, "b2": Code.OK})
    assert made.outcome is None
    assert told(made, {"b3": Code.OK}).outcome == Succeeded(())
    assert made.take_actions() == []


def test_a_bookie_that_hangs_is_waited_for_until_the_patience_is_over() -> None:
    first = told(claim(), {"b1": Code.OK, "b2": Code.OK})
    assert first.outcome is None
    first.handle(OVER)
    assert first.outcome == Succeeded(("b3",))
    assert first.take_actions() == [ChooseLast("b3")]
    late = told(claim(), {"b1": Code.OK})
    late.handle(OVER)
    assert late.outcome is None
    assert told(late, {"b2": Code.OK}).outcome == Succeeded(("b3",))


@pytest.mark.parametrize("code", [Code.UNAUTHORIZED, Code.NO_LEDGER])
def test_one_bookie_that_knows_the_id_is_enough(code: Code) -> None:
    made = told(claim(), {"b1": Code.OK, "b2": code})
    assert isinstance(error_of(made), UnauthorizedError)
    assert code.name in str(error_of(made))
    # The writer has left.
    made.handle(OVER)
    assert isinstance(error_of(told(made, {"b3": Code.OK})), UnauthorizedError)


@pytest.mark.parametrize("code", [None, *sorted(set(Code) - {Code.OK, Code.UNAUTHORIZED, Code.NO_LEDGER})])
def test_what_is_no_clear_yes_is_unknown(code: Code | None) -> None:
    assert told(claim(), {"b1": Code.OK, "b2": code, "b3": Code.OK}).outcome == Succeeded(("b2",))
    made = told(claim(), {"b1": code, "b2": Code.OK, "b3": code})
    assert isinstance(error_of(made), BookieUnavailableError)
    assert "none of b1, b3: check that" in str(error_of(made))
    assert made.take_actions() == [ChooseLast("b1"), ChooseLast("b3")]


@pytest.mark.parametrize(
    "quorum", [Quorum(1, 1, 1), Quorum(3, 3, 1), Quorum(3, 3, 2), Quorum(4, 2, 2), Quorum(5, 3, 2)]
)
def test_the_bookies_that_took_the_password_suffice_for_a_recovery(quorum: Quorum) -> None:
    """Fewer than an ack quorum of each write set may be unknown: what these acknowledge, a recovery could not see."""
    for taken in itertools.product((True, False), repeat=quorum.ensemble_size):
        made = claim(quorum)
        told(made, {f"b{index + 1}": Code.OK if took else None for index, took in enumerate(taken)})
        unknown = [sum(not taken[index] for index in quorum.write_set(first)) for first in range(quorum.ensemble_size)]
        assert isinstance(made.outcome, Succeeded) == (max(unknown) < quorum.ack_quorum_size)
