"""Copies and fingerprints of any part of the world.

Both work by structure: state machines need not support them, and a new field is included automatically. Immutable
values are shared between copies. Two fingerprints are equal if everything that can decide a part's next action is
equal; of errors only the class counts.
"""

from __future__ import annotations

import enum
import operator
from collections import deque
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

import numpy as np

from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, encode

_ATOMS = (int, float, str, bytes, bool, type(None), enum.Enum, range, memoryview, BaseException, type)
_SHARED = (*_ATOMS, frozenset, FunctionType, BuiltinFunctionType, np.dtype)


def clone(value: Any) -> Any:
    """A copy that can be changed without changing ``value``."""
    return _clone(value, {})


def _clone(value: Any, done: dict[int, Any]) -> Any:
    if isinstance(value, _SHARED):
        return value
    known = done.get(id(value))
    if known is not None:
        return known
    if isinstance(value, np.ndarray):
        # A read-only array never changes.
        copy: Any = value.copy() if value.flags.writeable else value
    elif isinstance(value, list | deque):
        copy = type(value)(_clone(item, done) for item in value)
    elif isinstance(value, tuple):
        items = [_clone(item, done) for item in value]
        copy = value if all(map(operator.is_, items, value)) else tuple(items)
    elif isinstance(value, dict):
        copy = {key: _clone(item, done) for key, item in value.items()}
    elif isinstance(value, set):
        copy = set(value)
    elif is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
        copy = value
    else:
        copy = done[id(value)] = object.__new__(type(value))
        for name, item in _attributes(value):
            object.__setattr__(copy, name, _clone(item, done))
    done[id(value)] = copy
    return copy


def fingerprint(value: Any) -> Hashable:
    """Equal for parts that will behave the same."""
    if isinstance(value, LedgerMetadata):
        return _of_metadata(value)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, BaseException):
        return cast(Hashable, type(value))
    if isinstance(value, tuple | list | deque):
        return (len(value), *map(fingerprint, value))
    if isinstance(value, dict):
        return frozenset((key, fingerprint(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return frozenset(map(fingerprint, value))
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, (*_ATOMS, FunctionType, BuiltinFunctionType, np.dtype)):
        return cast(Hashable, value)
    return (type(value), *(fingerprint(item) for _, item in _attributes(value)))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return sorted(vars(value).items())


_METADATA: dict[int, tuple[LedgerMetadata, Hashable]] = {}


def _of_metadata(value: LedgerMetadata) -> Hashable:
    known = _METADATA.get(id(value))
    if known is None:
        # Kept, so that no other object gets its ``id``.
        known = _METADATA[id(value)] = (value, encode(value))
    return known[1]
