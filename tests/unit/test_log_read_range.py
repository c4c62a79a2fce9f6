"""The machine that reads a range of offsets: what it does when the log changes under it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import pytest

from bk_spark.log.core.readers.follow import Follow
from bk_spark.log.core.readers.read_range import ReadRange, readable_end_steps
from bk_spark.log.core.readers.reader_actions import (
    Arm,
    Armed,
    AskTailEnd,
    Checked,
    CheckListed,
    Delivered,
    Ended,
    ListTaken,
    LookAtTail,
    More,
    ReadSealed,
    ReadTail,
    TailEnd,
    TailSeen,
    TakeList,
)
from bk_spark.log.formats.segment import Segment
from bk_spark.protocol.errors import LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.machine import EndedBy, StepMachine, Succeeded

TAIL = Segment(7, 0, None, 10, 0, 0, 0)
NO_TAIL = TailSeen(None, False)
GONE = NoSuchLedgerError("model", ledger_id=7)


def play(steps: Generator[Any, Any, Any], *answers: tuple[Any, Any]) -> Any:
    """The machine's result. ``answers``: each expected action with its event, or an error."""
    machine = StepMachine(steps)
    for expected, event in answers:
        (action,) = machine.take_actions()
        assert action == expected
        if isinstance(event, Exception):
            machine.fail(event)
        else:
            machine.handle(event)
    if isinstance(machine.outcome, EndedBy):
        raise machine.outcome.error
    assert isinstance(machine.outcome, Succeeded), machine.take_actions()
    return machine.outcome.result


def planned(start: int, end: int, next_offset: int = 10) -> ReadRange:
    machine = ReadRange("flights", start, end)
    if end <= next_offset:
        play(machine.plan_steps(), (TakeList(), ListTaken(0, next_offset)), (CheckListed(start, end), Checked()))
    else:
        play(
            machine.plan_steps(),
            (TakeList(), ListTaken(0, next_offset)),
            (LookAtTail(), TailSeen(TAIL, False)),
            (AskTailEnd(TAIL), TailEnd(20)),
            (CheckListed(min(start, 10), 10), Checked()),
        )
    return machine


def test_sealed_entries_are_read_before_those_of_the_tail() -> None:
    play(
        planned(5, 15).read_steps(),
        (ReadSealed(5, 10), Delivered(8, 0)),
        (More(), Delivered(10, 0)),
        (More(), Ended()),
        (ReadTail(TAIL, 10, 15), Delivered(15, 0)),
        (More(), Ended()),
    )
    play(planned(12, 15).read_steps(), (ReadTail(TAIL, 12, 15), Ended()))
    play(planned(5, 10).read_steps(), (ReadSealed(5, 10), Ended()))


def test_entries_that_nobody_confirmed_are_refused() -> None:
    with pytest.raises(LogRangeGoneError, match=r"\[20, 21\) are not written yet, the log can be read up to 20"):
        play(
            ReadRange("flights", 5, 21).plan_steps(),
            (TakeList(), ListTaken(0, 10)),
            (LookAtTail(), TailSeen(TAIL, False)),
            (AskTailEnd(TAIL), TailEnd(20)),
        )


@pytest.mark.parametrize("how", ["sealed", "deleted"])
def test_a_tail_that_is_sealed_meanwhile_is_found_in_the_next_list(how: str) -> None:
    looked = [(LookAtTail(), NO_TAIL)]
    if how == "deleted":
        looked = [(LookAtTail(), TailSeen(TAIL, False)), (AskTailEnd(TAIL), GONE)]
    play(
        ReadRange("flights", 5, 15).plan_steps(),
        (TakeList(), ListTaken(0, 10)),
        *looked,
        (TakeList(), ListTaken(0, 20)),
        (CheckListed(5, 15), Checked()),
    )


def test_a_range_beyond_the_end_is_refused_once_the_list_is_unchanged() -> None:
    with pytest.raises(LogRangeGoneError):
        play(
            ReadRange("flights", 5, 15).plan_steps(),
            (TakeList(), ListTaken(0, 10)),
            (LookAtTail(), NO_TAIL),
            (TakeList(), ListTaken(0, 10)),
            (LookAtTail(), NO_TAIL),
            (CheckListed(5, 15), LogRangeGoneError("model")),
        )


def test_a_tail_whose_ledger_stays_gone_is_an_error() -> None:
    once = ((TakeList(), ListTaken(0, 10)), (LookAtTail(), TailSeen(TAIL, False)), (AskTailEnd(TAIL), GONE))
    with pytest.raises(NoSuchLedgerError, match="was deleted.* as of offset 9 .*give-up-tail, or write to a new log"):
        play(ReadRange("flights", 5, 15).plan_steps(), *once, *once)


@pytest.mark.parametrize("followed", [False, True])
def test_a_ledger_that_is_gone_was_truncated_or_is_lost(followed: bool) -> None:
    def read(first_offset: int) -> None:
        if followed:
            begin = [(Arm(), Armed(0)), (TakeList(), ListTaken(0, 10))]
            steps = Follow("flights", 5, None).steps()
        else:
            begin, steps = [], planned(5, 10).read_steps()
        play(
            steps,
            *begin,
            (ReadSealed(5, 10), Delivered(8, 0)),
            (More(), GONE),
            (TakeList(), ListTaken(first_offset, 10)),
        )

    with pytest.raises(LogRangeGoneError, match=r"\[8, 9\) were truncated while they were read"):
        read(9)
    with pytest.raises(NoSuchLedgerError):
        read(8)


def test_the_readable_end() -> None:
    assert play(readable_end_steps(10), (LookAtTail(), NO_TAIL)) == 10
    seen = (LookAtTail(), TailSeen(TAIL, False))
    assert play(readable_end_steps(10), seen, (AskTailEnd(TAIL), TailEnd(13))) == 13
    assert play(readable_end_steps(10), seen, (AskTailEnd(TAIL), GONE), (LookAtTail(), NO_TAIL)) == 10
    with pytest.raises(NoSuchLedgerError, match="was deleted.* as of offset 9 .*give-up-tail, or write to a new log"):
        play(readable_end_steps(10), seen, (AskTailEnd(TAIL), GONE), seen)
    other = TailSeen(dataclasses.replace(TAIL, ledger_id=8), False)
    with pytest.raises(NoSuchLedgerError) as raised:
        play(readable_end_steps(10), seen, (AskTailEnd(TAIL), GONE), (LookAtTail(), other))
    assert raised.value is GONE, "the log goes on in another ledger"
