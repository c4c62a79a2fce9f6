"""Columns of fields where messages are laid out alike, and where they nearly are; ids of many messages as bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest

from bk_spark.protocol.pulsar.fields import FieldError, Fields, varint
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.messages.field_columns import FieldColumns
from bk_spark.protocol.pulsar.messages.layouts import layout_of
from bk_spark.protocol.pulsar.messages.message_id_columns import message_id_bytes
from bk_spark.protocol.pulsar.messages.words import PADDING_BYTES, Words

_NUMBERS: Final = (3, 8)
_SPAN: Final = 2
_REPEATED: Final = 4


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def columns_of(messages: Sequence[bytes]) -> FieldColumns:
    sizes = np.array([len(one) for one in messages], np.int64)
    ends = np.cumsum(sizes)
    words = Words(b"".join(messages) + bytes(PADDING_BYTES))
    return FieldColumns(words, ends - sizes, ends, numbers=_NUMBERS, spans=(_SPAN,), repeated=(_REPEATED,))


def check(messages: Sequence[bytes]) -> None:
    """The columns must have what a reader of one message finds, or mark what it calls malformed."""
    found = columns_of(messages)
    begins = np.cumsum([0, *map(len, messages)])
    data = b"".join(messages)
    repeated = found.repeated(_REPEATED)
    for index, message in enumerate(messages):
        try:
            fields = Fields(message)
            wanted = [fields.number(one) if one in fields else None for one in _NUMBERS]
            span, texts = fields.data(_SPAN), fields.all_data(_REPEATED)
        except FieldError:
            assert found.malformed[index]
            continue
        assert not found.malformed[index]
        for field, value in zip(_NUMBERS, wanted, strict=True):
            assert (int(found.number(field)[index]) if found.present(field)[index] else None) == value
        begin, size = int(found.span(_SPAN).begins[index]), int(found.span(_SPAN).sizes[index])
        assert (data[begin : begin + size] if found.present(_SPAN)[index] else None) == span
        own = np.flatnonzero(repeated.owners == index)
        places = zip(repeated.values.begins[own].tolist(), repeated.values.sizes[own].tolist(), strict=True)
        assert [data[at : at + size] for at, size in places] == texts
        assert all(begins[index] <= at <= begins[index + 1] for at in repeated.values.begins[own].tolist())


def test_messages_that_are_alike() -> None:
    check(
        [text(2, b"k%d" % (one % 10)) + number(3, 100) + number(6, 0) + number(8, 20_000 + one) for one in range(100)]
    )
    # Values of many bytes, the largest that one word has, and beyond: a field of the largest numbers is left to steps.
    for bits in (7, 8, 14, 49, 56, 57, 63, 64):
        check([number(8, (1 << bits) - 1 - one) + number(3, one) for one in range(9)])


def test_messages_that_are_nearly_alike() -> None:
    usual = text(2, b"key") + number(3, 100) + text(4, b"ab") + text(4, b"cd")
    others = [
        text(2, b"ke") + number(3, 1000) + text(4, b"ab") + text(4, b"cd"),  # of the same size
        text(2, b"key") + number(3, 100) + text(4, b"abc") + text(4, b"d"),
        text(2, b"key") + number(8, 100) + text(4, b"ab") + text(4, b"cd"),
        text(4, b"key") + number(3, 100) + text(2, b"ab") + text(4, b"cd"),
        text(2, b"key") + number(3, 100) + number(3, 7) + text(4, b"abcd"),
        text(2, b"key") + number(3, 100) + text(4, b"ab") + text(4, b"cd")[:-1],  # cut off
        text(2, b"key") + number(3, 100) + text(4, b"ab") + b"\x22\x03cd",  # longer than the message
        text(2, b"key") + number(3, 100) + text(4, b"ab") + b"\x23\x02cd",  # of a kind that is unknown
        text(2, b"key") + text(3, b"1") + text(4, b"a") + text(4, b"cd"),  # of a kind that is wrong
        b"",
    ]
    for other in others:
        # So few that the others are compared, and so many that none are.
        for place in (0, 1, 8, 15):
            messages = [usual] * 16
            messages[place] = other
            check(messages)
            messages = [other] * 4
            messages[place % 4] = usual
            check(messages)
    check([usual, *others] * 3)


def test_short_messages_at_the_end_of_the_buffer() -> None:
    # What comes first ends in a field that is farther away than all padding.
    check([text(4, bytes(100)) + number(3, 5), number(3, 1), number(3, 2)])


def test_fields_of_four_and_eight_bytes_are_passed_by() -> None:
    fixed = varint(5 << 3 | 1) + bytes(range(8)) + varint(6 << 3 | 5) + bytes(range(4))
    check([fixed + number(3, one) for one in range(5)])


def test_random_messages() -> None:
    chance = random.Random(20)
    for _ in range(200):
        shapes = [
            [(chance.choice((2, 3, 4, 6, 8)), chance.randrange(1, 4)) for _ in range(chance.randrange(1, 7))]
            for _ in range(3)
        ]
        usual = chance.choice((0.3, 0.95))
        messages = []
        for _ in range(chance.randrange(2, 30)):
            fields = [
                text(field, chance.randbytes(size))
                if field in (2, 4)
                else number(field, chance.randrange(1 << 7 * size))
                for field, size in (shapes[0] if chance.random() < usual else chance.choice(shapes))
            ]
            message = b"".join(fields)
            if chance.random() < 0.1:
                at = chance.randrange(len(message))
                message = message[:at] + chance.randbytes(1) + message[at + 1 :]
            messages.append(message)
        check(messages)


@pytest.mark.parametrize(
    "message", [bytes([8]), b"\x0a\x05abc", b"\x00\x01", b"\x0b\x01", number(1, 1 << 60), bytes(129)]
)
def test_messages_without_a_layout(message: bytes) -> None:
    assert layout_of(message, 0, len(message), {}) is None


@pytest.mark.parametrize("partition", [None, 0, 127, 128, 2_000_000_000])
def test_ids_of_messages(partition: int | None) -> None:
    chance = random.Random(partition)
    edges = [0, 1, 127, 128, 16_383, 16_384, (1 << 28) - 1, 1 << 28, (1 << 49) - 1]
    for largest in (edges, [*edges, 1 << 49, (1 << 63) - 1]):
        for only_batches in (True, False):
            ledgers = [chance.choice(largest) for _ in range(60)]
            entries = [chance.choice(largest) for _ in range(60)]
            sizes = [chance.choice((1, 127, 128, 20_000, 1_999_999)) for _ in range(60)]
            if not only_batches:
                sizes = [size if chance.random() < 0.5 else 0 for size in sizes]
            rows = sorted(chance.choices(range(60), k=200))
            indexes = [chance.randrange(sizes[one]) if sizes[one] else -1 for one in rows]
            expected = [
                MessageIdData(
                    ledgers[one], entries[one], -1 if partition is None else partition, index, sizes[one]
                ).to_bytes()
                for one, index in zip(rows, indexes, strict=True)
            ]
            columns = [np.array(one, np.int64) for one in (ledgers, entries, sizes, rows, indexes)]
            found = message_id_bytes(columns[0], columns[1], partition, *columns[2:])
            found.validate(full=True)
            assert found.to_pylist() == expected


def test_no_ids() -> None:
    none = np.zeros(0, np.int64)
    assert message_id_bytes(none, none, None, none, none, none).to_pylist() == []
