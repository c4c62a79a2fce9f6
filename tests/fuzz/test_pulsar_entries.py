"""Entries of Pulsar's topics: the decoder of many at once agrees with a plain one, or both refuse."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.errors import MessageFormatError
from bk_spark.protocol.pulsar.choices import EncryptedPayloads
from bk_spark.protocol.pulsar.chunks import ChunksMissing
from bk_spark.protocol.pulsar.columns import COLUMNS, TIME
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import TransactionScan
from tests.fuzz.damage import EDGES, hostile
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.support.pulsar_entries import NOW, batch, chunks, compressed, entry, message, metadata, properties, single
from tests.support.pulsar_plain import PlainDecoder, PlainError

_TOPIC: Final = TopicName.parse("persistent://a/b/c-partition-3")
_ALL: Final = frozenset(COLUMNS.names)
_MAX_MESSAGE_BYTES: Final = 256 * 1024
_NUMBER: Final = st.sampled_from([edge & 2**64 - 1 for edge in (*EDGES, -2)]) | st.integers(0, 2**64 - 1)
_KEY: Final = st.sampled_from(
    [b"", b"k", b"YWJj", b"YQ==", b"YWI=", b"Y===", b"=YQ=", "ü".encode(), b"\xff\xff\xff\xff"]
)
_PAIRS: Final = st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=3)), max_size=4).map(properties)
_FLAG: Final = st.sampled_from([0, 1, 1])
_CODEC: Final = st.sampled_from([0, 0, 1, 2, 3, 4])
_VALUE: Final = st.binary(max_size=20) | st.sampled_from([b"x" * 127, b"x" * 128, b"x" * 300])


def _some(fields: dict[int, SearchStrategy[Any]]) -> SearchStrategy[dict[int, Any]]:
    """Some of these fields, in any order."""
    return st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=5).flatmap(
        lambda chosen: st.fixed_dictionaries({number: fields[number] for number in chosen})
    )


_METADATA: Final = _some(
    {
        1: st.binary(max_size=5),
        2: _NUMBER,
        3: st.just(NOW) | _NUMBER,
        4: _PAIRS,
        6: _KEY,
        9: _NUMBER,
        12: _NUMBER,
        16: st.sampled_from([bytes(8), b"\xff" * 8, b"1", bytes(9)]),
        17: _FLAG,
        18: _KEY,
        19: _NUMBER,
        25: _FLAG,
        30: _FLAG,
        99: _NUMBER,
    }
)
_SINGLE: Final = _some(
    {1: _PAIRS, 2: _KEY, 4: _FLAG, 5: _NUMBER, 6: _FLAG, 7: _KEY, 8: _NUMBER, 9: _FLAG, 10: _FLAG, 77: _KEY}
)
_BROKER: Final = st.none() | _some({1: st.just(NOW) | _NUMBER, 2: _NUMBER}).map(message)
_BATCHED: Final = st.lists(st.builds(single, _VALUE, _SINGLE), max_size=5).flatmap(
    # Of one size, and of many.
    lambda messages: st.sampled_from([messages, messages[:1] * 20, messages * 3])
)
_ONE: Final = st.builds(
    lambda value, fields, codec, checksum, broker: entry(
        {**metadata(fields), **({8: codec, 9: len(value)} if codec else {})},
        compressed(codec, value),
        checksum=checksum,
        broker=broker,
    ),
    *(_VALUE, _METADATA, _CODEC, st.booleans(), _BROKER),
)
_BATCH: Final = st.builds(
    lambda messages, fields, codec: batch(messages, {**{k: v for k, v in fields.items() if k != 9}}, codec=codec),
    *(_BATCHED, _METADATA, _CODEC),
)
# Of one size for each id: chunks of one message that contradict each other are refused.
_CHUNK: Final = st.builds(
    lambda uuid, which: chunks(b"012345678", uuid, 3)[which], st.sampled_from([b"u", b"v"]), st.integers(0, 2)
)
_ENCRYPTED: Final = st.builds(
    lambda value, keys, fields: entry(metadata({13: list(map(message, keys)), **fields}), value),
    _VALUE,
    st.lists(_some({1: st.sampled_from([b"a", b"b", b"\xff"]), 2: _KEY, 3: _PAIRS}), min_size=1, max_size=3),
    _some({8: _NUMBER, 9: _NUMBER, 11: _NUMBER, 14: _KEY, 15: _KEY, 18: _KEY}),
)
_MARKER: Final = st.sampled_from([entry(metadata({20: kind, 22: 2**64 - 1, 23: 1})) for kind in (10, 21, 22)])
_VALID: Final = st.one_of(_ONE, _BATCH, _BATCH, _CHUNK, _ENCRYPTED, _MARKER)


def _decoder(**more: Any) -> MessageDecoder:
    settings = {"columns": _ALL, "encrypted": EncryptedPayloads.RAW, "aborted": frozenset()}
    return MessageDecoder(_TOPIC, **({"max_message_bytes": _MAX_MESSAGE_BYTES} | settings | more))


def _rows(decoder: MessageDecoder, entries: list[bytes]) -> list[dict[str, Any]]:
    while True:
        try:
            batches = list(decoder.decode(5, 0, entries))
            break
        except ChunksMissing as missing:
            decoder.leave_out(missing.uuids)
    for one in batches:
        one.validate(full=True)
    # Times are compared as numbers: Python cannot show the year 40000.
    plain = pa.schema([pa.field(field.name, pa.int64() if field.type == TIME else field.type) for field in COLUMNS])
    columns = [
        column.cast(field.type) for column, field in zip(pa.Table.from_batches(batches, COLUMNS), plain, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=plain).to_pylist()


def _unordered(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose maps are dictionaries."""
    encryption = row["__encryption"]
    if encryption is not None:
        encryption = {**encryption, "keys": dict(encryption["keys"])}
    return {**row, "__messageProperties": dict(row["__messageProperties"]), "__encryption": encryption}


@fuzz(150, entries=st.lists(st.one_of(_VALID, hostile(_VALID)), min_size=1, max_size=6))
def test_many_entries_are_decoded_as_one_by_one(entries: list[bytes]) -> None:
    found = outcome(
        lambda: _rows(_decoder(), entries), MessageFormatError, names="ledger 5", limit_bytes=8 * 1024 * 1024
    )
    try:
        expected = PlainDecoder(_TOPIC, _MAX_MESSAGE_BYTES).rows(5, 0, entries)
    except PlainError:
        assert isinstance(found, Refused)
        return
    assert not isinstance(found, Refused), found.error
    assert len(found) == len(expected)
    for row, one in zip(found, expected, strict=True):
        assert _unordered(row) == _unordered(one)


@fuzz(40, entries=st.lists(_VALID, min_size=1, max_size=6), columns=st.sets(st.sampled_from(COLUMNS.names)))
def test_a_column_is_the_same_whatever_others_are_decoded(entries: list[bytes], columns: set[str]) -> None:
    expected = _rows(_decoder(), entries)
    batches = []
    decoder = _decoder(columns=frozenset(columns))
    try:
        batches = list(decoder.decode(5, 0, entries))
    except ChunksMissing as missing:
        decoder.leave_out(missing.uuids)
        batches = list(decoder.decode(5, 0, entries))
    assert sum(one.num_rows for one in batches) == len(expected)
    for one in batches:
        assert set(one.schema.names) == columns


@fuzz(80, entries=st.lists(hostile(_VALID), min_size=1, max_size=6))
def test_scans_of_transactions(entries: list[bytes]) -> None:
    outcome(lambda: TransactionScan().add(5, 0, entries), MessageFormatError, names="ledger 5")


# Arrow imports pandas with the first array, which no decoder is to blame for.
_rows(_decoder(), [batch([single(b"")])])
