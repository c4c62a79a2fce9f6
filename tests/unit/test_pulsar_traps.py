"""Traps of Pulsar's formats, each by name: what a decoder gets wrong if it only looks at common messages."""

from __future__ import annotations

import base64
from typing import Any, Final

import pyarrow as pa
import pytest

from bk_spark.protocol.errors import InvalidArgumentError, MessageEncryptedError, MessageFormatError
from bk_spark.protocol.pulsar import decoding
from bk_spark.protocol.pulsar.choices import EncryptedPayloads
from bk_spark.protocol.pulsar.chunks import ChunksMissing
from bk_spark.protocol.pulsar.columns import COLUMNS
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.compaction import originals
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionId, TransactionMet, TransactionScan
from tests.support.fixtures import golden
from tests.support.pulsar_entries import batch, chunks, compressed, entry, message, metadata, properties, single
from tests.unit.test_pulsar_decoding import TOPICS, decoder_of, rows_of, scanned, unpacked

_ALL: Final = frozenset(COLUMNS.names)
_TOPIC: Final = TopicName.parse("persistent://a/b/c")
_SYNTHETIC: Final = {name: base64.b64decode(text) for name, text in golden("pulsar/synthetic").items()}


def decoder(**more: Any) -> MessageDecoder:
    return MessageDecoder(_TOPIC, **({"columns": _ALL, "max_message_bytes": 1 << 20} | more))


def rows(*entries: bytes, **more: Any) -> list[dict[str, Any]]:
    batches = list(decoder(**more).decode(5, 0, entries))
    return pa.Table.from_batches(batches, batches[0].schema).to_pylist() if batches else []


def values(*entries: bytes, **more: Any) -> list[bytes | None]:
    return [row["value"] for row in rows(*entries, **more)]


def test_1_the_key_of_a_batch_is_not_that_of_its_messages() -> None:
    found = rows(batch([single(b"a", {2: b"k"}), single(b"b")], {6: b"k", 4: properties([("p", "q")])}))
    assert [row["__key"] for row in found] == [b"k", None]
    assert [row["__messageProperties"] for row in found] == [[], []]


def test_2_one_message_may_be_a_batch() -> None:
    (row,) = rows(_SYNTHETIC["batch of one"])
    assert (row["value"], row["__key"], row["__batchIndex"], row["__sequenceId"]) == (b"one", b"k", 0, 7)


def test_3_zlib_has_no_end() -> None:
    payload = b"a value that compresses well " * 20
    data = entry(metadata({8: 2, 9: len(payload)}), compressed(2, payload))
    assert values(data) == [payload]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_4_compression_may_differ_from_entry_to_entry_and_nulls_lie_in_batches(codec: int) -> None:
    packed = batch([single(b"x" * 50), single(b"", {9: 1}), single(b"")], codec=codec)
    plain, empty = entry(metadata(), b"plain"), entry(metadata({9: 0}))
    found = rows(plain, packed, empty, packed, plain)
    three = [b"x" * 50, None, b""]
    assert [row["value"] for row in found] == [b"plain", *three, b"", *three, b"plain"]
    assert [row["__producerName"] for row in found] == ["producer"] * 9


def test_5_the_broker_may_begin_to_add_metadata_anywhere() -> None:
    one = message({1: 1_795_350_000_000, 2: 41})
    found = rows(entry(metadata(), b"a"), batch([single(b"b"), single(b"c")], broker=one), entry(metadata(), b"d"))
    assert [row["__index"] for row in found] == [None, 40, 41, None]
    assert [row["__brokerTime"] is None for row in found] == [True, False, False, True]
    # Without time, or without index.
    found = rows(entry(metadata(), b"a", broker=message({2: 0})), entry(metadata(), b"b", broker=message({1: 1})))
    assert [(row["__index"], row["__brokerTime"] is None) for row in found] == [(0, True), (None, False)]


def test_7_chunks_of_several_producers_lie_among_each_other_and_in_several_ledgers() -> None:
    first, second = chunks(b"0123456789", b"p-1", 3), chunks(b"abcdef", b"q-1", 2)
    one = decoder()
    assert not list(one.decode(5, 0, [first[0], second[0], first[1]]))
    found = [
        row for part in one.decode(9, 0, [second[1], entry(metadata(), b"x"), first[2]]) for row in part.to_pylist()
    ]
    assert [row["value"] for row in found] == [b"abcdef", b"x", b"0123456789"]
    assert [(row["__ledgerId"], row["__entryId"]) for row in found] == [(9, 0), (9, 1), (9, 2)]
    assert bytes.fromhex("3a060805100130 00".replace(" ", "")) in found[0]["__messageId"]


def test_7_chunked_messages_without_end_make_no_rows() -> None:
    assert values(*chunks(b"0123456789", b"u", 3)[:2]) == []


def test_chunks_that_come_twice_count_once_and_a_gap_ends_the_message() -> None:
    one, two, three = chunks(b"0123456789", b"u", 3)
    assert values(one, one, two, two, three, three) == [b"0123456789"]
    assert values(one, two, one, two, three) == [b"0123456789"]
    assert values(one, three, two, three) == []
    assert values(one, three, *chunks(b"again!", b"u", 2)) == [b"again!"]


def test_the_beginning_of_a_chunked_message_is_asked_for() -> None:
    parts = chunks(b"0123456789", b"u", 3)
    one = decoder()
    with pytest.raises(ChunksMissing) as raised:
        one.decode(5, 7, [entry(metadata(), b"a"), parts[2]])
    assert raised.value.uuids == {b"u"}
    one.recall(5, 3, [parts[0], entry(metadata(), b"no row"), parts[1]])
    (found,) = one.decode(5, 7, [entry(metadata(), b"a"), parts[2]])
    assert found.column("value").to_pylist() == [b"a", b"0123456789"]
    # What is nowhere is left out, and the decoder goes on.
    other = decoder()
    other.leave_out(frozenset({b"u"}))
    (found,) = other.decode(5, 7, [entry(metadata(), b"a"), parts[2]])
    assert found.column("value").to_pylist() == [b"a"]


def test_chunked_messages_are_compressed_before_they_are_cut() -> None:
    payload = b"a value that compresses well " * 50
    packed = compressed(1, payload)
    assert values(*chunks(packed, b"u", 3, {8: 1, 9: len(payload)})) == [payload]


def test_chunked_messages_are_bounded_each_and_together() -> None:
    with pytest.raises(MessageFormatError, match="2000000 bytes, at most 1048576"):
        values(*chunks(b"0123456789", b"u", 2, {28: 2_000_000}))
    with pytest.raises(MessageFormatError, match="chunks of 10 bytes, where 11 are announced"):
        values(*chunks(b"0123456789", b"u", 2, {28: 11}))
    with pytest.raises(MessageFormatError, match="an id of 5000 bytes"):
        values(*chunks(b"0123456789", b"u" * 5000, 2))
    large = [chunks(bytes(1000), str(n).encode(), 2)[0] for n in range(10)]
    with pytest.raises(MessageFormatError, match=r"chunked messages are open.* 4 times 1000"):
        values(*large, max_message_bytes=1000)


@pytest.mark.parametrize("name", [name for name in _SYNTHETIC if name.startswith("marker")])
def test_8_markers_make_no_rows(name: str) -> None:
    assert values(entry(metadata(), b"a"), _SYNTHETIC[name]) == [b"a"]
    assert values(_SYNTHETIC[name]) == []


def test_8_markers_of_transactions_are_no_messages_of_transactions() -> None:
    marker = entry({1: b"pulsar.txn.marker", 2: 2**64 - 1, 3: 1, 20: 21, 22: 1, 23: 1})
    assert values(marker, aborted=None) == []


def test_9_nothing_at_or_after_an_undecided_transaction_is_final() -> None:
    scan = scanned("txn-open")
    assert scan.first_undecided == Position(76, 1)
    assert len(rows_of("txn-open")) == 1
    assert scanned("txn").first_undecided is None
    assert len(scanned("txn").aborted) == 1


def test_a_transaction_is_told_before_anything_changes() -> None:
    one = decoder()
    part = entry(metadata({22: 1, 23: 2}), b"in")
    with pytest.raises(TransactionMet) as raised:
        one.decode(5, 3, [entry(metadata(), b"out"), part])
    assert (raised.value.ledger_id, raised.value.entry_id) == (5, 4)
    assert values(part, aborted=frozenset()) == [b"in"]
    assert values(part, aborted=frozenset({TransactionId(2, 1)})) == []
    assert values(part, aborted=frozenset({TransactionId(1, 2)})) == [b"in"]


def test_a_scan_knows_committed_aborted_and_undecided_transactions() -> None:
    def of(number: int, marker: int | None = None) -> bytes:
        return entry(metadata({22: number, 23: 0, **({} if marker is None else {20: marker})}))

    scan = TransactionScan()
    scan.add(5, 0, [of(1), entry(metadata()), of(2), of(1), of(3), of(2, 22), of(1, 21)])
    scan.add(6, 0, [of(7, 22)])
    assert scan.first_undecided == Position(5, 4)
    assert scan.aborted == {TransactionId(0, 2): (Position(5, 2), Position(5, 2))}
    scan.add(7, 0, [of(3, 22)])
    assert scan.first_undecided is None
    scan.forget(Position(5, 3))
    assert set(scan.aborted) == {TransactionId(0, 3)}


def test_10_keys_in_base64_and_odd_ones() -> None:
    found = [
        {6: b"AP8H", 17: 1},
        {6: b"AP8H", 17: 0},
        {6: b""},
        {6: b"k", 30: 1},
        {6: b"no base64", 17: 1},
        {6: b"YQ==", 17: 1},
    ]
    singles = [
        single(b"", {2: b"AP8H", 6: 1}),
        single(b"", {2: b""}),
        single(b"", {10: 1, 2: b"k"}),
        single(b"", {2: b"YWI=", 6: 1}),
    ]
    keys = [row["__key"] for row in rows(*(entry(metadata(one)) for one in found), batch(singles))]
    assert keys == [b"\x00\xff\x07", b"AP8H", b"", None, b"no base64", b"a", b"\x00\xff\x07", b"", None, b"ab"]


def test_14_ids_of_64_bits_are_wrapped() -> None:
    found = rows(entry(metadata({2: 2**64 - 1})), batch([single(b"", {8: 2**63}), single(b"")], {2: 2**64 - 2}))
    assert [row["__sequenceId"] for row in found] == [-1, -(2**63), -2]


def test_15_unknown_fields_are_skipped() -> None:
    more = {200: 1, 201: b"x" * 200, 5: b"elsewhere", 7: [b"a", b"b"], 32: b"\xff\0"}
    assert values(entry(metadata(more), b"a"), batch([single(b"b", {99: 7, 98: b"y"})], more)) == [b"a", b"b"]
    fixed = message(metadata()) + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4)
    assert values(len(fixed).to_bytes(4, "big") + fixed + b"c") == [b"c"]


@pytest.mark.parametrize(
    ("name", "value"), [("no checksum", b"plain"), ("replicated", b"v"), ("external schema id", b"v")]
)
def test_entries_of_other_clients(name: str, value: bytes) -> None:
    assert values(_SYNTHETIC[name]) == [value]


def test_a_null_key_is_null() -> None:
    assert [row["__key"] for row in rows(_SYNTHETIC["null key"])] == [None]


def test_messages_that_were_compacted_out_leave_holes() -> None:
    found = rows(batch([single(b"a"), single(b"", {4: 1}), single(b"c")], broker=message({2: 9})))
    assert [(row["value"], row["__batchIndex"], row["__index"]) for row in found] == [(b"a", 0, 7), (b"c", 2, 9)]


def test_the_compacted_view_is_what_java_read() -> None:
    topic = TOPICS["compacted-2"]
    one = decoder_of("compacted-2", aborted=frozenset())
    ledgers, ids, entries = originals(107, 0, [unpacked(text) for text in topic["compacted"]["entries"]])
    found = [row for part in one.decode_at(ledgers, ids, entries) for row in part.to_pylist()]
    horizon = tuple(topic["compactionHorizon"])
    found += [row for row in rows_of("compacted-2") if (row["__ledgerId"], row["__entryId"]) > horizon]
    assert [(row["__messageId"], row["value"]) for row in found] == [
        (unpacked(row["messageIdBytes"]), unpacked(row["value"])) for row in topic["compactedJava"]
    ]


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x09", bytes(8), b"\0\0\0\x04\x08\x01\x10\x01\0\0\0\x09", b"\xff" * 9])
def test_other_entries_than_those_of_a_compacted_ledger_are_refused(data: bytes) -> None:
    with pytest.raises(MessageFormatError, match=r"ledger 7, entry 4"):
        originals(7, 3, [b"\0\0\0\x04\x08\x01\x10\x01\0\0\0\x01x", data])


def test_encrypted_messages_fail_are_skipped_or_handed_over() -> None:
    cipher = entry(metadata({11: 3, 8: 3, 9: 66, 13: [message({1: b"k", 2: b"d"})], 6: b"key"}), b"cipher text")
    plain = entry(metadata(), b"plain")
    with pytest.raises(MessageEncryptedError, match=r"encrypted: set option pulsarEncrypted .*\(ledger 5, entry 1\)"):
        values(plain, cipher)
    assert values(plain, cipher, plain, encrypted=EncryptedPayloads.SKIP) == [b"plain", b"plain"]
    found = rows(plain, cipher, encrypted=EncryptedPayloads.RAW)
    assert [(row["value"], row["__key"], row["__batchIndex"]) for row in found] == [
        (b"plain", None, None), (b"cipher text", b"key", None)
    ]  # fmt: skip


def test_what_encrypted_messages_say_of_it_is_told_for_each_entry() -> None:
    names = [message({1: name, 2: key}) for name, key in ((b"a", b"old"), (b"b", b"two"), (b"a", b"new"))]
    more = {14: b"AES", 15: b"iv", 8: 3, 9: 66, 11: 3}
    encrypted = [entry(metadata({13: names, **more}), b"c1"), entry(metadata({13: message({1: b"z"}), 8: 9}), b"c2")]
    # The entry that is decompressed has all of them moved.
    packed = batch([single(b"plain" * 9)] * 2, codec=3)
    found = rows(packed, encrypted[0], entry(metadata(), b"x"), encrypted[1], encrypted=EncryptedPayloads.RAW)
    first = {"keys": [("a", b"new"), ("b", b"two")], "param": b"iv", "algorithm": "AES"}
    told = [row["__encryption"] for row in found]
    assert [one and {**one, "keys": sorted(one["keys"])} for one in told] == [
        None,
        None,
        {**first, "compression": "ZSTD", "uncompressedSize": 66, "batchSize": 3},
        None,
        {
            "keys": [("z", None)], "param": None, "algorithm": None,
            "compression": None, "uncompressedSize": 0, "batchSize": None,
        },
    ]  # fmt: skip
    with pytest.raises(MessageFormatError, match=r"a key that is not a protobuf message.*\(ledger 5, entry 1\)"):
        rows(packed, entry(metadata({13: b"\xff"}), b"c"), encrypted=EncryptedPayloads.RAW)
    values_alone = values(
        entry(metadata({13: b"\xff"}), b"c"), encrypted=EncryptedPayloads.RAW, columns=frozenset({"value"})
    )
    assert values_alone == [b"c"]


def test_ordering_keys_of_a_batch_are_those_of_its_messages() -> None:
    found = rows(
        entry(metadata({18: b"\x00"})),
        batch([single(b"a", {7: b"\xff"}), single(b"b"), single(b"c", {7: b""})], {18: b"\xff"}),
        entry(metadata()),
    )
    assert [row["__orderingKey"] for row in found] == [b"\x00", b"\xff", None, b"", None]


def test_times_of_delivery_are_the_entrys() -> None:
    found = rows(entry(metadata({19: 5_000})), batch([single(b"a")] * 2, {19: 0}), entry(metadata({19: 2**64 - 1})))
    assert [None if row["__deliverAt"] is None else row["__deliverAt"].timestamp() for row in found] == [
        5.0,
        0.0,
        0.0,
        None,
    ]


def test_times_of_zero_are_null_in_events_and_those_that_do_not_fit_everywhere() -> None:
    found = rows(
        entry(metadata({12: 0})), entry(metadata({12: 2**63, 3: 2**64 - 1})), batch([single(b"", {5: 0})], {12: 5})
    )
    assert [row["__eventTime"] for row in found] == [None, None, None]
    assert found[1]["__publishTime"] is None
    (row,) = rows(batch([single(b"")], {12: 5}))
    assert row["__eventTime"].microsecond == 5000


def test_the_last_of_equal_properties_counts() -> None:
    pairs = properties([("a", "1"), ("b", "2"), ("a", "3"), ("", "")])
    found = rows(entry(metadata({4: pairs})), entry(metadata()), batch([single(b"", {1: pairs[:2]}), single(b"")]))
    assert [sorted(row["__messageProperties"]) for row in found] == [
        [("", ""), ("a", "3"), ("b", "2")], [], [("a", "1"), ("b", "2")], []
    ]  # fmt: skip


def test_text_that_is_no_utf8_does_not_hide_a_message() -> None:
    (row,) = rows(entry({**metadata(), 1: b"p\xff", 4: [message({1: b"\xfe", 2: b"v"})]}))
    assert row["__producerName"] == "p\ufffd"
    assert row["__messageProperties"] == [("\ufffd", "v")]


@pytest.mark.parametrize("version", [bytes(7) + b"\x05", bytes(7) + b"\x05" + b"more"])
def test_the_first_eight_bytes_of_a_schema_version_count(version: bytes) -> None:
    assert rows(entry(metadata({16: version})))[0]["__schemaVersion"] == 5


def test_a_schema_version_of_other_bytes_is_none() -> None:
    assert rows(entry(metadata({16: b"12"})))[0]["__schemaVersion"] is None


_GOOD: Final = [single(b"a" * 10), single(b"b" * 10)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (batch(_GOOD, {11: 3}), "message 2 of 3"),
        (batch(_GOOD, {11: 1}), "bytes are left after its 1 messages"),
        (batch(_GOOD, {11: 6}), "6 messages in 32 bytes"),
        (batch(_GOOD, {11: 2**31}), "2147483648 messages in"),
        (batch(_GOOD, {11: 2**64 - 1}), "-1 messages"),
        (batch(_GOOD, {11: 0}), "0 messages in"),
        (batch([_GOOD[0], b"\xff\xff\xff\xff" + bytes(20)]), "4294967295 bytes of metadata"),
        (batch([_GOOD[0], b"\0\0\0\x03\x40\x01\x18" + bytes(20)]), "has no end|has no size"),
        (batch([_GOOD[0], b"\0\0\0\x02\x40\x01" + bytes(20)]), "has no size"),
        (batch([_GOOD[0], b"\0\0\0\x09\x18\0"]), "9 bytes of metadata, 2 are left"),
        (batch([_GOOD[0], single(b"b" * 10)[:-1]]), "value of 10 bytes, 9 are left"),
        (batch([_GOOD[0], b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01"]), "value of"),
        (entry(metadata({8: 9, 9: 5}), b"hello"), "compression 9 is unknown"),
        (entry(metadata({8: 1, 9: 2**40}), b"hello"), "at most 1048576 are allowed"),
        (entry(metadata({8: 3, 9: 100}), b"hello"), "data that ZSTD cannot decompress to 100 bytes"),
        (entry(metadata({8: 1, 9: 6}), compressed(1, b"hello")), "LZ4 gives fewer than the 6"),
        (entry(metadata({8: 1, 9: 4}), compressed(1, b"hello")), "data that LZ4 cannot decompress to 4 bytes"),
        (entry(metadata({8: 4, 9: 6}), compressed(4, b"hello")), "SNAPPY gives 5 bytes, 6"),
        (entry(metadata({8: 2, 9: 4}), compressed(2, b"hello")), "ZLIB gives 5 bytes or more, 4"),
        (entry(metadata({8: 2, 9: 6}), compressed(2, b"hello")), "ZLIB gives 5 bytes or more, 6"),
        (b"", "no metadata"),
        (b"\x0e\x01\0\0", "no metadata"),
        (b"\x0e\x02\0\0\0\xff1234", "broker metadata that is longer"),
        (b"\0\0\xff\0" + message(metadata()), "longer than the entry"),
        (b"\0\0\0\x04\x0a\x7fab", "not a protobuf message"),
        (entry(metadata(), broker=b"\x08"), "broker metadata that is not a protobuf message"),
        (entry(metadata({4: [b"\x0a\x7f"]})), "a property that is not a protobuf message"),
    ],
)
def test_a_corrupt_entry_is_one_error_that_names_it(data: bytes, why: str) -> None:
    with pytest.raises(MessageFormatError, match=why) as raised:
        rows(entry(metadata(), b"good"), data, entry(metadata(), b"good"))
    assert (raised.value.ledger_id, raised.value.entry_id) == (5, 1)
    assert str(raised.value).endswith("(ledger 5, entry 1)")


def test_sizes_of_values_that_a_message_repeats_are_read_as_protobuf_does() -> None:
    """The last one counts, which the first look at a batch does not see."""
    head = message({3: 99}) + message({8: 1, 3: 4})
    odd = len(head).to_bytes(4, "big") + head + b"four"
    assert values(batch([odd, single(b"next"), odd])) == [b"four", b"next", b"four"]


def test_messages_with_far_more_fields_than_others_are_read_to_their_end() -> None:
    """The few that are left after some steps are finished one by one."""
    pairs = properties([(str(number), "v") for number in range(300)])
    many = entry({**metadata(), 99: [b""] * 5000, 4: pairs, 6: b"key"}, b"many")
    found = rows(entry(metadata(), b"few"), many, entry(metadata({6: b"k"}), b"few"), batch([single(b"", {1: pairs})]))
    assert [row["__key"] for row in found] == [None, b"key", b"k", None]
    assert [len(row["__messageProperties"]) for row in found] == [0, 300, 0, 300]
    assert dict(found[1]["__messageProperties"])["299"] == "v"


def test_checksums_of_producers_are_checked_if_asked_for() -> None:
    good, old = entry(metadata(), b"good"), _SYNTHETIC["no checksum"]
    bad = good[:-1] + b"x"
    assert values(good, old, check_crc=True) == [b"good", b"plain"]
    assert values(good, bad) == [b"good", b"goox"]
    with pytest.raises(MessageFormatError, match=r"wrong checksum.*entry 2"):
        values(good, old, bad, check_crc=True)
    for topic in ("plain", "indexed"):
        one = decoder_of(topic, check_crc=True)
        for ledger in TOPICS[topic]["ledgers"]:
            list(one.decode(ledger["ledger"], 0, [unpacked(text) for text in ledger["entries"]]))


def test_without_columns_there_are_rows() -> None:
    """``count(*)`` asks for none."""
    batches = list(decoder(columns=frozenset()).decode(5, 0, [batch(_GOOD), entry(metadata())]))
    assert sum(one.num_rows for one in batches) == 3
    assert batches[0].num_columns == 0


@pytest.mark.parametrize("size", [0, 2**31])
def test_a_limit_of_messages_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(InvalidArgumentError, match="bytes, not"):
        decoder(max_message_bytes=size)


def test_batches_of_rows_are_bounded_whatever_is_compressed_or_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "BATCH_BYTES", 100_000)
    packed = batch([single(bytes(1000)) for _ in range(60)], codec=3)
    assert len(packed) < 1000
    found = list(decoder().decode(5, 0, [packed] * 10))
    assert [one.num_rows for one in found] == [60] * 10
    # A long name of a producer, once in its entry, and in each row.
    named = batch([single(b"") for _ in range(60)], {1: b"p" * 10_000})
    assert max(one.nbytes for one in decoder().decode(5, 0, [named])) < 200_000
    assert sum(one.num_rows for one in decoder().decode(5, 0, [named])) == 60
    assert sum(one.num_rows for one in decoder(columns=frozenset({"value"})).decode(5, 0, [named])) == 60
