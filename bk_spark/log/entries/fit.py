"""Columns of an entry as another version of the schema, or a reader, wants them. Pure.

Fields of structs are found by name. What the entry lacks is null. A type may be wider than that of the entry, or
narrower: then every value must fit, since a number that changes unnoticed is worse than an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from bk_spark.log.formats.schema_merge import EXACT, Names


@dataclass(frozen=True, slots=True)
class ColumnLookup:
    """How a reader's columns are found in entries. Small and picklable.

    Parameters
    ----------
    names
        How names are compared. The columns of entries always have the names of the log's columns, so that a reader
        whose schema has these very names needs no other comparison, however Spark compares names.
    own
        Columns of logs that are called as those of the connector, such as ``timestamp``, by log. Each is found by the
        connector's name. The log's name of it may differ by case.
    """

    names: Names = EXACT
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def for_session(self, names: Names) -> ColumnLookup:
        """Return the lookup for a session that compares names so: where case matters, own columns whose names differ
        by case are other columns than the connector's."""
        if not names.case_sensitive or not self.own:
            return self
        own = {log: {one: known for one, known in found.items() if one == known} for log, found in self.own.items()}
        return ColumnLookup(self.names, own)


def position_in(fields: Iterable[str], name: str, names: Names) -> int | None:
    """Return the position of ``name`` among ``fields``, or None. An exact match takes precedence."""
    other = None
    for position, one in enumerate(fields):
        if one == name:
            return position
        if other is None and names.key(one) == names.key(name):
            other = position
    return other


def fitted(array: pa.Array, wanted: pa.DataType, names: Names) -> pa.Array:
    """Return ``array`` as type ``wanted``. Raises pa.ArrowException if a value does not fit, or no value can."""
    own = array.type
    if own == wanted:
        return array
    if pa.types.is_null(own):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(own) and pa.types.is_struct(wanted):
        return _fitted_struct(array, wanted, names)
    if pa.types.is_map(own) and pa.types.is_map(wanted):
        pairs = pa.StructArray.from_arrays(
            [fitted(array.keys, wanted.key_type, names), fitted(array.items, wanted.item_type, names)],
            fields=[wanted.key_field, wanted.item_field],
        )
        return _with_child(array, wanted, pairs)
    if pa.types.is_list(own) and pa.types.is_list(wanted):
        return _with_child(array, wanted, fitted(array.values, wanted.value_type, names))
    found = array.cast(wanted)
    if pa.types.is_floating(own) and pa.types.is_floating(wanted) and wanted.bit_width < own.bit_width:
        _check_same(array, found)
    return found


def _fitted_struct(array: pa.Array, wanted: pa.DataType, names: Names) -> pa.Array:
    own = [one.name for one in array.type]
    children = []
    for one in wanted:
        position = position_in(own, one.name, names)
        if position is None:
            children.append(pa.nulls(len(array), one.type))
        else:
            children.append(fitted(array.field(position), one.type, names))
    if not children:
        return array.cast(wanted)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)


def _with_child(array: pa.Array, wanted: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or a map with the same places in another child."""
    return pa.Array.from_buffers(
        wanted, len(array), array.buffers()[:2], array.null_count, array.offset, children=[child]
    )


def _check_same(array: pa.Array, found: pa.Array) -> None:
    """Raise pa.ArrowInvalid for a float that a narrower type rounds. Arrow's cast does not report it."""
    differs = pc.and_(pc.not_equal(found.cast(array.type), array), pc.invert(pc.is_nan(array)))
    if pc.any(differs).as_py():
        value = array[pc.index(differs, True).as_py()].as_py()
        raise pa.ArrowInvalid(f"{value!r} is not exact as {found.type}")
