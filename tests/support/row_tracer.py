"""A profiler that records which modules some bytes pass: a function got or returned something that holds them.

It looks into buffers, Arrow batches, collections, dataclasses, closures, and what coroutines and generators hold.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import CellType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bookie_server.storage.write_cache import CacheHalf

ROOT: Final = Path(__file__).parents[2]
#: The row.
MARK: Final = b"the row that walks from here to the entry log"
_DEPTH: Final = 5
_ITEMS: Final = 50


class RowTracer:
    """Give it to ``sys.setprofile`` and ``threading.setprofile``. Records while :attr:`records` is set."""

    def __init__(self) -> None:
        self.records = False
        self.modules: set[str] = set()
        #: Paths of our modules, by the names of their files.
        self._ours: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        if not self.records or event not in ("call", "return"):
            return
        module = self._module(frame.f_code.co_filename)
        if module is None or module in self.modules:
            return
        if event == "return":
            values: Iterable[object] = [value]
        else:
            given = list(frame.f_locals.items())
            values = [one for name, one in given if name != "self" or dataclasses.is_dataclass(one)]
        if any(_holds(one, _DEPTH) for one in values):
            self.modules.add(module)

    def _module(self, file: str) -> str | None:
        if file not in self._ours:
            path = Path(file)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("bk_spark", "bookie_server")
            self._ours[file] = path.relative_to(ROOT).as_posix() if inside else None
        return self._ours[file]


def _holds(one: Any, depth: int) -> bool:
    if isinstance(one, bytes | bytearray):
        return MARK in one
    if isinstance(one, memoryview):
        return MARK in bytes(one)
    if isinstance(one, np.ndarray):
        return MARK in one.tobytes()
    if isinstance(one, pa.RecordBatch):
        return any(_holds(column, 1) for column in one.columns)
    if isinstance(one, pa.Array):
        return any(buffer is not None and MARK in buffer.to_pybytes() for buffer in one.buffers())
    return depth > 0 and any(_holds(part, depth - 1) for part in _parts(one))


def _parts(one: Any) -> list[Any]:
    if isinstance(one, list | tuple | set | frozenset | deque):
        return list(one)[:_ITEMS]
    if isinstance(one, dict):
        return list(one.values())[:_ITEMS]
    if isinstance(one, FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
    if isinstance(one, functools.partial):
        return [*one.args]
    if isinstance(one, CoroutineType):
        return [value for name, value in inspect.getcoroutinelocals(one).items() if name != "self"]
    if isinstance(one, GeneratorType):
        return [value for name, value in inspect.getgeneratorlocals(one).items() if name != "self"]
    if isinstance(one, CacheHalf):
        return [*one._extents]
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return [getattr(one, field.name, None) for field in dataclasses.fields(one)]
    return []


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
