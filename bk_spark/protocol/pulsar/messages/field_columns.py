"""Fields of many protobuf messages at once, as columns. Source: protobuf's encoding.

All messages lie in one buffer. If most of them have the layout of the first one (``layouts``), those are read at once.
The others are read in steps. A step reads the next field of each message: its tag, and the number or length after the
tag, from eight bytes. It does so for all messages in a few operations of numpy. So there are as many steps as the
largest message has fields, and there is no object per message. The few messages with far more fields than the others
are finished one by one.

A malformed message is marked, never an error here: the caller knows whose it is. Unknown fields are skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bk_spark.protocol.arrays import Bools, Int64s
from bk_spark.protocol.pulsar.fields import FieldError, varint_at
from bk_spark.protocol.pulsar.messages.layouts import Layout, layout_of
from bk_spark.protocol.pulsar.messages.words import UInt64s, Words, end_of, varint_ends, varints, without_tops

#: After this many steps, at most this many messages that are left are finished one by one: a step costs about as much
#: as finishing that many.
_LONG_STEPS: Final = 16
_FEW_MESSAGES: Final = 64
#: Messages are compared with the first one if at most this fraction of them differs. The steps for the others cost
#: about the same, however few they are.
_OTHERS: Final = 8

#: Messages read together. Columns of this length stay in the processor's cache, and their memory is reused.
_BLOCK: Final = 4096
_NOTHING: Final = np.uint64(0)
_LOW: Final = np.uint64(0x7F)
_THREE: Final = np.uint64(3)
_KIND: Final = np.uint64(7)
#: Set in each byte of a number but its last.
_CONTINUES: Final = np.uint64(0x80)
#: By wire type: 0 numbers, 1 eight bytes, 2 bytes with their length, 5 four bytes. Groups, 3 and 4, are not Pulsar's.
_KNOWN_KINDS: Final = np.array([True, True, True, False, False, True, False, False])
_FIXED_SIZES: Final = np.array([0, 8, 0, 0, 0, 4, 0, 0])


@dataclass(frozen=True, slots=True)
class Spans:
    """Bytes in a buffer: where they begin, and how many."""

    begins: Int64s
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class Repeated:
    """Values of a repeated field of bytes, those of one message after those of the one before.

    Parameters
    ----------
    owners
        The index of each value's message, ascending.
    values
        Where the values are.
    """

    owners: Int64s
    values: Spans


class FieldColumns:
    """Chosen fields of many messages. The last value counts if a message repeats a field.

    Parameters
    ----------
    words
        The buffer.
    begins, ends
        Where the messages are: within the buffer and before its padding.
    numbers, spans, repeated
        Fields to keep: numbers, bytes, repeated bytes.
    """

    def __init__(
        self,
        words: Words,
        begins: Int64s,
        ends: Int64s,
        *,
        numbers: Sequence[int] = (),
        spans: Sequence[int] = (),
        repeated: Sequence[int] = (),
    ) -> None:
        count = len(begins)
        self.malformed: Bools = np.zeros(count, np.bool_)
        self._numbers = {field: np.zeros(count, np.uint64) for field in numbers}
        self._begins = {field: np.zeros(count, np.int64) for field in spans}
        self._sizes = {field: np.zeros(count, np.int64) for field in spans}
        self._present = {field: np.zeros(count, np.bool_) for field in (*numbers, *spans)}
        self._repeated: dict[int, list[tuple[Int64s, Int64s, Int64s]]] = {field: [] for field in repeated}
        self._kinds = dict.fromkeys(numbers, 0) | dict.fromkeys((*spans, *repeated), 2)
        self._read(words, begins, ends)

    def number(self, field: int) -> UInt64s:
        """The unsigned numbers of a field, 0 where it is absent."""
        return self._numbers[field]

    def signed(self, field: int) -> Int64s:
        """The numbers of a field with their sign, 0 where it is absent."""
        return self._numbers[field].view(np.int64)

    def present(self, field: int) -> Bools:
        """Which messages have the field."""
        return self._present[field]

    def span(self, field: int) -> Spans:
        """Where the bytes of a field are; of size 0 where it is absent."""
        return Spans(self._begins[field], self._sizes[field])

    def repeated(self, field: int) -> Repeated:
        """All values of a repeated field."""
        parts = self._repeated[field]
        if not parts:
            none = np.zeros(0, np.int64)
            return Repeated(none, Spans(none, none))
        if len(parts) > 1:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            order = np.argsort(columns[0], kind="stable")
            owners, begins, sizes = (column[order] for column in columns)
            parts[:] = [(owners, begins, sizes)]
        owners, begins, sizes = parts[0]
        return Repeated(owners, Spans(begins, sizes))

    def _read(self, words: Words, begins: Int64s, ends: Int64s) -> None:
        for first in range(0, len(begins), _BLOCK):
            which = first + np.flatnonzero(begins[first : first + _BLOCK] < ends[first : first + _BLOCK])
            self._read_block(words, which, begins[which], ends[which])

    def _read_block(self, words: Words, which: Int64s, at: Int64s, end: Int64s) -> None:
        layout = layout_of(words.data, int(at[0]), int(end[0]), self._kinds) if len(which) > 1 else None
        if layout is not None:
            alike = end - at == layout.size
            if _are_most(alike):
                alike[alike] = words.fit(layout, at if alike.all() else at[alike])
                if alike.all():
                    self._keep_alike(words, layout, which, at)
                    return
                if _are_most(alike):
                    self._keep_alike(words, layout, which[alike], at[alike])
                    which, at, end = which[~alike], at[~alike], end[~alike]
        self._read_steps(words, which, at, end)

    def _keep_alike(self, words: Words, layout: Layout, which: Int64s, at: Int64s) -> None:
        """Keep the fields of messages with one layout. They are sound, as the one that it was taken from."""
        sound = np.ones(len(which), np.bool_)
        for field in layout.fields:
            body_at = at + field.at
            if field.kind == 0:
                value = words.at(body_at) & np.uint64((1 << 8 * field.size) - 1)
                value = value if field.size == 1 else without_tops(value)
            else:
                value = np.full(len(which), field.size, np.uint64)
            self._keep(field.number, field.kind, which, value, body_at, sound)

    def _read_steps(self, words: Words, which: Int64s, at: Int64s, end: Int64s) -> None:
        step = 0
        while len(which):
            if step >= _LONG_STEPS and len(which) < _FEW_MESSAGES:
                for index, start, stop in zip(which.tolist(), at.tolist(), end.tolist(), strict=True):
                    self._read_one(words.data, index, start, stop)
                return
            at, sound = self._step(words, which, at, end)
            if not sound.all():
                self.malformed[which[~sound]] = True
            more = sound & (at < end)
            if not more.all():
                which, at, end = which[more], at[more], end[more]
            step += 1

    def _step(self, words: Words, which: Int64s, at: Int64s, end: Int64s) -> tuple[Int64s, Bools]:
        """Read one field of each message. Return where the next one begins, and which messages are sound so far."""
        word = words.at(at)
        one = int(word[0])
        size = 1 if not one & 0x80 else 2
        mask = (1 << 8 * size) - 1
        tag = one & 0x7F | (one & 0x7F00) >> 1 if size == 2 else one & 0x7F
        if (
            tag & 7 in (0, 2)
            and tag >= 8
            and not one & 0x8000 & mask
            and not ((word ^ word[0]) & np.uint64(mask)).any()
        ):
            # What one writer sends: all have the same field, a number or bytes.
            behind, kind = word >> np.uint64(8 * size), tag & 7
            if not (behind & _CONTINUES).any():
                value, body_at = behind & _LOW, at + (size + 1)
                sound = body_at <= end
            elif kind == 0 and tag >> 3 not in self._kinds:
                # Nobody wants the numbers, only where they end.
                value = behind
                body_at, sound = varint_ends(words, at + size, behind, 8 - size, end)
            else:
                value, body_at, sound = varints(words, at + size, behind, 8 - size, end)
            if kind == 0:
                self._keep(tag >> 3, 0, which, value, body_at, sound)
                return body_at, sound
            after = end_of(body_at, value, end, sound)
            self._keep(tag >> 3, 2, which, value, body_at, sound)
            return after, sound
        tags, value_at, sound = varints(words, at, word, 8, end)
        kinds, fields = (tags & _KIND).astype(np.int64), tags >> _THREE
        sound &= _KNOWN_KINDS[kinds] & (fields > 0)
        value, body_at, ended = varints(words, value_at, words.at(value_at), 8, end)
        fixed = _FIXED_SIZES[kinds] > 0
        if fixed.any():
            value[fixed], body_at[fixed], ended[fixed] = _FIXED_SIZES[kinds[fixed]], value_at[fixed], True
        sound &= ended
        after = np.where(kinds == 0, body_at, end_of(body_at, np.where(kinds == 0, _NOTHING, value), end, sound))
        for field in self._kinds:
            chosen = np.flatnonzero(fields == field)
            if len(chosen):
                right = kinds[chosen] == self._kinds[field]
                sound[chosen[~right]] = False
                chosen = chosen[right]
                self._keep(field, self._kinds[field], which[chosen], value[chosen], body_at[chosen], sound[chosen])
        return after, sound

    def _keep(self, field: int, kind: int, which: Int64s, value: UInt64s, body_at: Int64s, sound: Bools) -> None:
        """Keep the values of one field. Marks messages in ``sound`` whose field is of another kind."""
        kept = self._kinds.get(field)
        if kept is None:
            return
        if kept != kind:
            sound[:] = False
            return
        if not sound.all():
            which, value, body_at = which[sound], value[sound], body_at[sound]
        if field in self._repeated:
            self._repeated[field].append((which, body_at, value.view(np.int64)))
            return
        whole = len(which) == len(self.malformed)
        target: slice | Int64s = slice(None) if whole else which
        self._present[field][target] = True
        if kind == 0:
            self._numbers[field][target] = value
        else:
            self._begins[field][target] = body_at
            self._sizes[field][target] = value.view(np.int64)

    def _read_one(self, data: bytes | memoryview, index: int, at: int, end: int) -> None:
        """Read the rest of one message, field by field."""
        repeated = {field: (array("q"), array("q")) for field in self._repeated}
        try:
            while at < end:
                tag, at = varint_at(data, at, end)
                kind, field = tag & 7, tag >> 3
                value = int(_FIXED_SIZES[kind])
                if not value:
                    value, at = varint_at(data, at, end)
                if not _KNOWN_KINDS[kind] or not field or (kind and value > end - at):
                    raise FieldError(f"a field of kind {kind} at byte {at}")
                kept = self._kinds.get(field)
                if kept is not None:
                    if kept != kind:
                        raise FieldError(f"field {field} is of kind {kind}")
                    if field in repeated:
                        repeated[field][0].append(at)
                        repeated[field][1].append(value)
                    else:
                        self._keep_one(field, kind, index, value, at)
                at += value if kind else 0
        except FieldError:
            self.malformed[index] = True
        for field, (begins, sizes) in repeated.items():
            owners = np.full(len(begins), index)
            self._repeated[field].append((owners, np.array(begins, np.int64), np.array(sizes, np.int64)))

    def _keep_one(self, field: int, kind: int, index: int, value: int, at: int) -> None:
        self._present[field][index] = True
        if kind == 0:
            self._numbers[field][index] = value
        else:
            self._begins[field][index] = at
            self._sizes[field][index] = value


def _are_most(alike: Bools) -> bool:
    return (len(alike) - int(np.count_nonzero(alike))) * _OTHERS <= len(alike)
