"""Repeats an action of a sequential machine while ZooKeeper does not answer."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, TypeVar

from bk_spark.protocol.errors import MetadataUnavailableError
from bk_spark.protocol.machine import StartTimer

_ATTEMPTS: Final = 5
_FIRST_PAUSE_MS: Final = 500

A = TypeVar("A")


def patient(action: A) -> Generator[A | StartTimer, Any, Any]:
    """Do ``action``, up to five times, with growing pauses. Raises the last error."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return (yield action)
        except MetadataUnavailableError:
            yield StartTimer("retry", _FIRST_PAUSE_MS * 2**attempt)
    return (yield action)
