"""Says how much was tried: ``tests/nightly`` sums it up."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzing import SEED, tried


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if tried:
        terminalreporter.write_line(f"{tried.total()} examples (seed {SEED})")
