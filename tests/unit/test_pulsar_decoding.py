"""Topics that a Pulsar broker wrote, decoded: every message must be what Pulsar's Java client read."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.pulsar.choices import EncryptedPayloads
from bk_spark.protocol.pulsar.columns import COLUMNS
from bk_spark.protocol.pulsar.decoding import MessageDecoder
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position, TransactionScan
from tests.support.fixtures import golden

TOPICS: Final[dict[str, Any]] = golden("pulsar/topics")["topics"]
ALL: Final = frozenset(COLUMNS.names)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def unpacked(text: str) -> bytes:
    return base64.b64decode(text)


def ledgers_of(topic: str) -> Iterator[tuple[int, Payloads]]:
    """(ledger, its entries) of a topic, also those beyond the LAC that was read."""
    for one in TOPICS[topic]["ledgers"]:
        entries = [unpacked(entry) for entry in (*one["entries"], *one.get("entriesBeyondLac", ()))]
        yield one["ledger"], Payloads.of(entries) if entries else Payloads.of([b""]).part(0, 0)


def decoder_of(topic: str, **more: Any) -> MessageDecoder:
    name = TopicName.parse(f"golden/ns1/{topic}")
    settings = {"columns": ALL, "max_message_bytes": 64 * 1024 * 1024, "encrypted": EncryptedPayloads.RAW}
    return MessageDecoder(name, **(settings | more))


def milliseconds(time: datetime.datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // datetime.timedelta(milliseconds=1)


def scanned(topic: str) -> TransactionScan:
    scan = TransactionScan()
    for ledger_id, payloads in ledgers_of(topic):
        scan.add(ledger_id, 0, payloads)
    return scan


def rows_of(topic: str) -> list[dict[str, Any]]:
    """The rows that a reader may see: none at or after the first message of an undecided transaction."""
    scan = scanned(topic)
    decoder = decoder_of(topic, aborted=frozenset(scan.aborted))
    batches = [one for ledger_id, payloads in ledgers_of(topic) for one in decoder.decode(ledger_id, 0, payloads)]
    rows = pa.Table.from_batches(batches, COLUMNS).to_pylist()
    end = scan.first_undecided
    return [row for row in rows if end is None or Position(row["__ledgerId"], row["__entryId"]) < end]


@pytest.mark.parametrize("topic", [name for name, one in TOPICS.items() if "java" in one])
def test_every_message_is_what_java_read(topic: str) -> None:
    rows, java = rows_of(topic), TOPICS[topic]["java"]
    assert [(row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows] == [
        (one["ledger"], one["entry"], None if one["batchIndex"] < 0 else one["batchIndex"]) for one in java
    ]
    for row, one in zip(rows, java, strict=True):
        assert row["__messageId"] == unpacked(one["messageIdBytes"])
        assert row["__key"] == (unpacked(one["keyBytes"]) if "keyBytes" in one else None)
        assert row["value"] == (None if one["value"] is None else unpacked(one["value"]))
        assert dict(row["__messageProperties"]) == one["properties"]
        assert row["__producerName"] == one["producerName"]
        assert row["__sequenceId"] == one["sequenceId"]
        assert milliseconds(row["__publishTime"]) == one["publishTime"]
        assert milliseconds(row["__eventTime"]) == (one["eventTime"] or None)
        assert milliseconds(row["__brokerTime"]) == one.get("brokerPublishTime")
        assert row["__index"] == one.get("index")
        assert row["__orderingKey"] == (unpacked(one["orderingKey"]) if "orderingKey" in one else None)
        # One message was sent with deliverAfter(1, TimeUnit.HOURS). A reader is not told.
        delayed_ms = 3_600_000 if (topic, row["value"]) == ("plain", b"twice") else None
        deliver_at, published = milliseconds(row["__deliverAt"]), milliseconds(row["__publishTime"])
        assert (None if deliver_at is None or published is None else deliver_at - published) == delayed_ms
        encryption = row["__encryption"]
        assert (encryption is None) == ("encrypted" not in one)
        if encryption is not None:
            algorithm, keys, compression, size, messages = one["encrypted"]
            assert f"[{', '.join(dict(encryption['keys']))}]" == keys
            assert (encryption["algorithm"] or "null", encryption["compression"]) == (algorithm, compression)
            assert (encryption["uncompressedSize"], encryption["batchSize"] or -1) == (size, messages)
            assert {len(key) for key in dict(encryption["keys"]).values()} == {256}
            assert len(encryption["param"]) == 12
        assert row["__partition"] == (None if one["partition"] < 0 else one["partition"])
        version = one.get("schemaVersion")
        assert row["__schemaVersion"] == (None if version is None else int.from_bytes(unpacked(version)[:8], "big"))
        assert row["__topic"] == f"persistent://golden/ns1/{topic}"
