"""What runs as long as a ``with`` statement does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """Started at the beginning of a ``with`` statement, and stopped at its end, also when the start fails half-way."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @abstractmethod
    def _start(self) -> None:
        """Start it, and wait until it is of use."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop as much of it as was started, and leave nothing behind."""
