"""What a machine must have for some tests."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def cannot_run(why: str) -> NoReturn:
    """End a test for which this machine lacks something: skipped, but failed in continuous integration, where a skip
    would hide that something is not tested any more."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
