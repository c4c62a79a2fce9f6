"""Striping and coverage, against their definitions by brute force."""

from __future__ import annotations

import itertools

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Answer, Quorum, covered

QUORUMS = [
    Quorum(ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


@pytest.mark.parametrize("sizes", [(2, 3, 1), (3, 2, 3), (3, 3, 0), (0, 0, 0), (3, 0, 0), (-1, -1, -1)])
def test_impossible_quorums_are_refused_by_name(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        Quorum(*sizes)
    for name, value in zip(("ensembleSize", "writeQuorumSize", "ackQuorumSize"), sizes, strict=True):
        assert f"{name}={value}" in str(raised.value)


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_write_sets(quorum: Quorum) -> None:
    for entry_id in (*range(12), 2**31 - 1, 2**31, 2**31 + 1, 2**62 + 1):
        expected = [(entry_id + step) % quorum.ensemble_size for step in range(quorum.write_quorum_size)]
        assert list(quorum.write_set(entry_id)) == expected
        for index in range(quorum.ensemble_size):
            assert quorum.stores(index, entry_id) is (index in expected)
    assert quorum.striped is (quorum.ensemble_size > quorum.write_quorum_size)


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_absent_needed_is_the_least_number_that_leaves_no_ack_quorum(quorum: Quorum) -> None:
    least = next(
        absent
        for absent in range(quorum.write_quorum_size + 1)
        if quorum.write_quorum_size - absent < quorum.ack_quorum_size
    )
    assert quorum.absent_needed == least


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_covered_means_that_no_ack_quorum_is_left_unheard(quorum: Quorum) -> None:
    size = quorum.ensemble_size
    ack_quorums = {
        members
        for entry_id in range(size)
        for members in itertools.combinations(sorted(quorum.write_set(entry_id)), quorum.ack_quorum_size)
    }
    for answers in itertools.product(Answer, repeat=size):
        unheard = {index for index in range(size) if answers[index] in (Answer.UNHEARD, Answer.UNKNOWN)}
        assert covered(quorum, answers) is not any(unheard.issuperset(members) for members in ack_quorums)


def test_coverage_of_the_default_quorum() -> None:
    present, absent, unknown = Answer.PRESENT, Answer.ABSENT, Answer.UNKNOWN
    assert covered(Quorum(3, 3, 2), [present, absent, unknown])
    assert not covered(Quorum(3, 3, 2), [present, unknown, unknown])
    assert not covered(Quorum(3, 3, 2), [present, unknown, Answer.UNHEARD])
