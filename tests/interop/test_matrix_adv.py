"""Ledgers whose entries get ids from the caller: out of order, with gaps, recovered by the other language."""

from __future__ import annotations

import random

import pytest

from tests.interop.java_client import ALL_OF_THREE
from tests.interop.matrix import Sides, wait_for_entries
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import PARTIES, Entries, Party, RefusedError

COUNT = 60


@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_out_of_order(sides: Sides, writer: Party) -> None:
    payloads = list(Payloads.varied(COUNT))
    order = list(range(COUNT))
    random.Random(4).shuffle(order)
    ledger = sides[writer].create_adv()
    # In two calls: the first leaves entries that wait for lower ids.
    for ids, wait in ((order[: COUNT // 2], False), (order[COUNT // 2 :], True)):
        ledger.append(ids, [payloads[entry_id] for entry_id in ids], wait=wait)
    assert ledger.last_add_confirmed == COUNT - 1
    with pytest.raises(RefusedError) as raised:
        ledger.append([COUNT // 3], [b"again"])
    assert raised.value.reason == "duplicate entry"
    assert ledger.close() == (COUNT - 1, sum(map(len, payloads)))
    sides.assert_closed(ledger.ledger_id, payloads)


@pytest.mark.parametrize("recoverer", ["ours", "java"])
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_recovery_ends_before_a_gap(sides: Sides, writer: Party, recoverer: str) -> None:
    """Entries 0 to 19 are acknowledged. 22 to 24 wait for 20 and 21: Java's at the bookies, ours in the client."""
    payloads = list(Payloads.varied(20))
    ledger = sides[writer].create_adv(quorums=ALL_OF_THREE)
    ids = list(reversed(range(20)))
    ledger.append(ids, [payloads[entry_id] for entry_id in ids])
    beyond = [22, 24, 23]
    ledger.append(beyond, [b"beyond the gap"] * 3, wait=False)
    assert ledger.last_add_confirmed == 19
    if writer.language == "java":
        ((_, bookies),) = sides.metadata(ledger.ledger_id).segments
        wait_for_entries(bookies, ledger.ledger_id, beyond)

    recovered = sides[Party(recoverer, writer.wire)].recover(ledger.ledger_id)
    assert recovered == Entries(20, fingerprint(payloads), 19)
    with pytest.raises(RefusedError) as raised:
        ledger.append([20, 21], [b"too late"] * 2)
    assert raised.value.reason == "fenced"
    ledger.abandon()
    length = sum(map(len, payloads))
    if writer.language == "java":
        # Java's entries say how much was added before them, in whatever order. Our recovery asks the last entry, here
        # the first that was added; Java's the one with the highest id, of those that it cuts off.
        length = len(payloads[19]) if recoverer == "ours" else length + 2 * len(b"beyond the gap")
    sides.assert_closed(ledger.ledger_id, payloads, length=length)


@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_ledger_id_of_the_callers_choice(sides: Sides, writer: Party) -> None:
    ledger_id = random.Random(str(writer)).randrange(1 << 40, 1 << 62)
    payloads = list(Payloads.varied(10))
    ledger = sides[writer].create_adv(ledger_id=ledger_id)
    assert ledger.ledger_id == ledger_id
    ledger.append(range(10), payloads)
    ledger.close()
    sides.assert_closed(ledger_id, payloads)
    with pytest.raises(RefusedError) as raised:
        sides.of_other_language(writer).create_adv(ledger_id=ledger_id)
    assert raised.value.reason == "ledger exists"
    sides.of_other_language(writer).delete(ledger_id)
    with pytest.raises(RefusedError) as raised:
        sides[writer].read(ledger_id)
    assert raised.value.reason == "no such ledger"


@pytest.mark.parametrize("recoverer", ["ours", "java"])
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_g2_an_id_used_again_before_its_first_life_was_collected(sides: Sides, writer: Party, recoverer: str) -> None:
    """Bookies know a ledger by its id and password alone. A recovery takes entries of the first life, behind those of
    the second, for entries that a writer did not live to see acknowledged: on Apache's bookies as on ours. Apache's
    even keep the old entry 0, which their memory holds still, and lose the new one that they acknowledged."""
    ledger_id = random.Random(f"{writer} {recoverer} again").randrange(1 << 40, 1 << 62)
    old = [b"old%d" % entry_id for entry_id in range(10)]
    first = sides[writer].create_adv(ledger_id=ledger_id)
    first.append(range(10), old)
    first.close()
    sides[writer].delete(ledger_id)
    second = sides[writer].create_adv(ledger_id=ledger_id)
    second.append([0], [b"NEW0"])
    recovered = sides[Party(recoverer, writer.wire)].recover(ledger_id)
    second.abandon()
    expected = old if "apache" in sides.uri else [b"NEW0", *old[1:]]
    assert recovered == Entries(10, fingerprint(expected), 9)
