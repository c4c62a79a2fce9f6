"""Each language writes, the other reads, recovers and deletes; both protocols, every digest, both kinds of bookies."""

from __future__ import annotations

import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.protocol.metadata.ledger_metadata import Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from tests.interop.java_client import ALL_OF_THREE
from tests.interop.java_side import JavaReader
from tests.interop.matrix import Sides
from tests.interop.our_side import DIGESTS
from tests.interop.payloads import Payloads
from tests.interop.sides import JAVA_V2, JAVA_V3, OURS_V2, OURS_V3, PARTIES, PASSWORD, Entries, Party, RefusedError

#: Each language with every digest.
RECOVERED = [
    (JAVA_V2, "CRC32"),
    (JAVA_V2, "MAC"),
    (JAVA_V3, "CRC32C"),
    (JAVA_V3, "DUMMY"),
    (OURS_V2, "CRC32C"),
    (OURS_V2, "DUMMY"),
    (OURS_V3, "CRC32"),
    (OURS_V3, "MAC"),
]
CUSTOM = {"application": b"bk_spark", "empty": b"", "bytes": bytes(range(256))}


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_closed_ledger(sides: Sides, writer: Party, digest: str) -> None:
    payloads = Payloads.varied(60)
    ledger = sides[writer].create(digest=digest, custom_metadata=CUSTOM)
    assert ledger.append(payloads) == 59
    assert ledger.last_add_confirmed == 59
    opened = sides.metadata(ledger.ledger_id)
    assert (opened.state, opened.last_entry_id, opened.length) == ("OPEN", -1, 0)
    assert ledger.close() == (59, payloads.total_bytes)

    closed = sides.assert_closed(ledger.ledger_id, payloads)
    assert (closed.digest, closed.quorums, closed.custom_metadata) == (digest, (3, 3, 2), CUSTOM)
    assert closed.segments == opened.segments
    assert sides.java(wire=2).read_in_batches(ledger.ledger_id) == Entries(60, payloads.fingerprint, 59)
    arrow = sides.ours().client().open_for_reading(ledger.ledger_id, PASSWORD.encode()).read_range(7, 58)
    assert arrow.to_pydict() == {"entry_id": list(range(7, 59)), "value": list(payloads)[7:59]}

    sides.of_other_language(writer).delete(ledger.ledger_id)
    for side in sides:
        with pytest.raises(RefusedError) as raised:
            side.read(ledger.ledger_id)
        assert raised.value.reason == "no such ledger"
        side.delete(ledger.ledger_id)


@pytest.mark.parametrize(("writer", "digest"), RECOVERED, ids=str)
def test_ledger_left_open(sides: Sides, writer: Party, digest: str) -> None:
    payloads = Payloads.varied(60)
    ledger = sides[writer].create(digest=digest, quorums=ALL_OF_THREE)
    ledger.append(payloads)
    recovered = sides.of_other_language(writer).recover(ledger.ledger_id)
    assert recovered == Entries(60, payloads.fingerprint, 59)
    with pytest.raises(RefusedError) as raised:
        ledger.append([b"too late"])
    assert raised.value.reason == "fenced"
    ledger.abandon()
    sides.assert_closed(ledger.ledger_id, payloads)


@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_empty_ledger_left_open(sides: Sides, writer: Party) -> None:
    ledger = sides[writer].create()
    assert sides.of_other_language(writer).recover(ledger.ledger_id).last_add_confirmed == -1
    sides.assert_closed(ledger.ledger_id, [])
    with pytest.raises(RefusedError) as raised:
        ledger.append([b"too late"])
    assert raised.value.reason == "fenced"
    ledger.abandon()


@pytest.mark.parametrize("wire", [2, 3])
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_open_ledger_is_read_to_its_last_add_confirmed(sides: Sides, writer: Party, wire: int) -> None:
    payloads = list(Payloads.varied(10))
    ledger = sides[writer].create()
    ledger.append_one_by_one(payloads)
    reader = sides.of_other_language(writer, wire).open(ledger.ledger_id)
    # Each entry carries the one before as confirmed.
    assert reader.last_add_confirmed == 8
    assert reader.read(0, 8) == payloads[:9]
    with pytest.raises(RefusedError) as raised:
        reader.read(0, 9)
    assert raised.value.reason == "entry is not confirmed"
    assert reader.read(9, 9, unconfirmed=True) == payloads[9:]
    assert reader.read(0, 9, unconfirmed=True) == payloads

    # The writer was not disturbed.
    assert ledger.append([b"one more"]) == 10
    if isinstance(reader, JavaReader):
        assert reader.try_read_last_add_confirmed() == 9
    assert reader.read_last_add_confirmed() == 9
    ledger.close()
    assert reader.tail(10) == [b"one more"]
    assert reader.last_add_confirmed == 10
    reader.close()
    sides.assert_closed(ledger.ledger_id, [*payloads, b"one more"])


@pytest.mark.parametrize("recoverer", PARTIES, ids=str)
def test_recovery_of_an_empty_last_segment(sides: Sides, recoverer: Party) -> None:
    """As a writer leaves a ledger that died between an ensemble change and the next entry."""
    payloads = Payloads.varied(20)
    ledger = sides[OURS_V2].create()
    ledger.append(payloads)
    ledger.abandon()
    store = LedgerStore(sides.ours().client().zookeeper, MetadataServiceUri.parse(sides.uri))
    stored = store.read_latest(ledger.ledger_id)
    first, *others = stored.metadata.last_segment.ensemble
    changed = stored.metadata.with_segment(Segment(20, (*others, first)))
    store.write(ledger.ledger_id, changed, stored.version)

    assert sides[recoverer].recover(ledger.ledger_id) == Entries(20, payloads.fingerprint, 19)
    # Java takes the length from what it finds in the last segment.
    length = 0 if recoverer.language == "java" else payloads.total_bytes
    closed = sides.assert_closed(ledger.ledger_id, payloads, length=length)
    assert [first_entry_id for first_entry_id, _ in closed.segments] == [0, 20]
