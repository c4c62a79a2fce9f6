"""What the bounds of a decoder's call count."""

from __future__ import annotations

import gc

import pytest

from tests.fuzz.guard import LIMIT_BYTES, bounded


class _Left:
    """Allocates much when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        bytes(2 * LIMIT_BYTES)


def test_what_a_decoder_frees_again_counts() -> None:
    with pytest.raises(AssertionError, match="bytes allocated"), bounded():
        bytes(2 * LIMIT_BYTES)


def test_the_end_of_what_earlier_tests_left_does_not_count() -> None:
    _Left()
    with bounded():
        many: list[list[int]] = [[] for _ in range(10 * gc.get_threshold()[0])]
    assert gc.isenabled()
    del many
