"""Reads several sources at once, each in a thread, and returns their batches in order. Memory is bounded.

The source whose batches are due may always have one batch waiting, so that its thread never waits for sources that have
read ahead. All others wait while the batches that nobody has taken yet exceed a number of bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

#: A batch that waits, and the bytes that it holds on to.
Costly: TypeAlias = tuple[pa.RecordBatch, int]
Source: TypeAlias = Callable[[], Generator[Costly, None, None]]

#: What a batch costs beside its bytes.
_BATCH_BYTES: Final = 1024


@dataclass(slots=True)
class _Begun:
    """The batches of a source that nobody has taken yet."""

    waiting: deque[Costly] = field(default_factory=deque)
    ended: bool = False
    error: BaseException | None = None


class OrderedReads:
    """Reads ``sources`` with at most ``threads`` threads. One reading: call :meth:`batches` once."""

    def __init__(self, sources: Sequence[Source], *, threads: int, buffer_bytes: int) -> None:
        self._sources = sources
        self._buffer_bytes = buffer_bytes
        #: Guards the fields below. Notified at each change.
        self._changed = threading.Condition()
        self._begun: dict[int, _Begun] = {}
        self._next = 0
        #: The source whose batches are due.
        self._due = 0
        self._bytes = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._serve, name="bk-scan", daemon=True) for _ in range(min(threads, len(sources)))
        ]

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield all batches, those of the first source first. Raises the error of a source in its place. Closing the
        generator ends the threads, each when its source has given the next batch."""
        try:
            for thread in self._threads:
                thread.start()
            for number in range(len(self._sources)):
                while (batch := self._take(number)) is not None:
                    yield batch
        finally:
            self._stop()

    def _take(self, number: int) -> pa.RecordBatch | None:
        with self._changed:
            if self._due != number:
                self._due = number
                self._changed.notify_all()
            while (begun := self._begun.get(number)) is None or not (begun.waiting or begun.ended):
                self._changed.wait()
            if begun.waiting:
                batch, cost = begun.waiting.popleft()
                self._bytes -= cost
                self._changed.notify_all()
                return batch
            del self._begun[number]
            if begun.error is not None:
                raise begun.error
            return None

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._begun.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._stopped or self._next == len(self._sources):
                    return
                number, self._next = self._next, self._next + 1
                begun = self._begun[number] = _Begun()
            error = self._read(number, begun)
            with self._changed:
                begun.ended, begun.error = True, error
                self._changed.notify_all()

    def _read(self, number: int, begun: _Begun) -> BaseException | None:
        try:
            with closing(self._sources[number]()) as batches:
                for batch, size_bytes in batches:
                    if not self._put(number, begun, (batch, size_bytes + _BATCH_BYTES)):
                        break
        except BaseException as error:  # the reader raises it in its place
            return error
        return None

    def _put(self, number: int, begun: _Begun, item: Costly) -> bool:
        """Wait for room, and keep a batch. Returns False if the reading has ended."""
        with self._changed:
            while not self._stopped and not self._has_room(number, begun, item[1]):
                self._changed.wait()
            if self._stopped:
                return False
            begun.waiting.append(item)
            self._bytes += item[1]
            self._changed.notify_all()
            return True

    def _has_room(self, number: int, begun: _Begun, cost: int) -> bool:
        return self._bytes + cost <= self._buffer_bytes or (number == self._due and not begun.waiting)
