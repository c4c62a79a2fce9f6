"""Deferred sync and force: the last add confirmed moves by force alone, for readers of the other language too."""

from __future__ import annotations

import pytest

from tests.interop.java_client import ALL_OF_THREE
from tests.interop.matrix import Sides
from tests.interop.payloads import Payloads
from tests.interop.sides import JAVA_V2, JAVA_V3, OURS_V2, OURS_V3, Entries, Party, RefusedError

#: Deferred sync goes over v3: our client uses it for these writers in any case, Apache's v2 client cannot.
WRITERS = [JAVA_V3, OURS_V2, OURS_V3]
writers = pytest.mark.parametrize("writer", WRITERS, ids=str)


@writers
def test_last_add_confirmed_moves_by_force_alone(sides: Sides, writer: Party) -> None:
    payloads = list(Payloads.varied(30))
    ledger = sides[writer].create(deferred_sync=True)
    assert ledger.force() == -1
    reader = sides.of_other_language(writer, wire=3).open(ledger.ledger_id)
    ledger.append_one_by_one(payloads[:10])
    assert ledger.last_add_confirmed == -1
    assert reader.read_last_add_confirmed() == -1
    assert reader.read(0, 9, unconfirmed=True) == payloads[:10]
    assert ledger.force() == 9
    # Readers learn of it from the next entry.
    ledger.append_one_by_one(payloads[10:20])
    assert ledger.last_add_confirmed == 9
    assert reader.read_last_add_confirmed() == 9
    assert reader.read(0, 9) == payloads[:10]
    assert ledger.force() == 19
    assert ledger.close() == (19, sum(map(len, payloads[:20])))
    assert reader.tail(10) == payloads[10:20]
    assert reader.last_add_confirmed == 19
    reader.close()
    sides.assert_closed(ledger.ledger_id, payloads[:20])


@writers
def test_recovery_finds_what_was_never_forced(sides: Sides, writer: Party) -> None:
    payloads = Payloads.varied(20)
    ledger = sides[writer].create(deferred_sync=True, quorums=ALL_OF_THREE)
    ledger.append(payloads)
    recovered = sides.of_other_language(writer, wire=3).recover(ledger.ledger_id)
    assert recovered == Entries(20, payloads.fingerprint, 19)
    sides.assert_closed(ledger.ledger_id, payloads)
    with pytest.raises(RefusedError) as raised:
        ledger.append([b"too late"])
    assert raised.value.reason == "fenced"
    ledger.abandon()


def test_v2_of_java_cannot(sides: Sides) -> None:
    ledger = sides[JAVA_V2].create(deferred_sync=True)
    with pytest.raises(RefusedError) as raised:
        ledger.append([b"never sent"])
    # The append says so itself, or that the ledger was closed upon it.
    assert raised.value.reason in ("not possible", "closed")
    ledger.abandon()
    sides.ours().recover(ledger.ledger_id)
    sides.assert_closed(ledger.ledger_id, [])
