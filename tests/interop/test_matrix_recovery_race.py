"""Both languages recover the same open ledgers at once while their writer closes them: one end, which all agree on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.interop.matrix import Sides, store_on_one_bookie
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import PARTIES, Entries, Party, RefusedError

LEDGERS = 4
COUNT = 30
TIMEOUT_S = 90


@pytest.mark.parametrize("closing", [False, True], ids=["left-open", "closing"])
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_one_end(sides: Sides, writer: Party, closing: bool) -> None:
    payloads = list(Payloads.varied(COUNT))
    tail = b"on one bookie only"
    ledgers = []
    for _ in range(LEDGERS):
        ledger = sides[writer].create()
        ledger.append(payloads)
        # As a writer leaves it that died in the middle of an add: recovery may find this entry, or not.
        metadata = sides.metadata(ledger.ledger_id)
        bookie_id = metadata.segments[0][1][ledger.ledger_id % 3]
        length = sum(map(len, payloads)) + len(tail)
        store_on_one_bookie(bookie_id, ledger.ledger_id, COUNT, COUNT - 1, length, tail)
        ledgers.append(ledger)

    with ThreadPoolExecutor(LEDGERS * (len(PARTIES) + 1)) as pool:
        recoveries = [[pool.submit(side.recover, ledger.ledger_id) for side in sides] for ledger in ledgers]
        closes = [pool.submit(ledger.close) for ledger in ledgers if closing]
        found = [{one.result(TIMEOUT_S) for one in of_ledger} for of_ledger in recoveries]
        refused = [one.exception(TIMEOUT_S) for one in closes]

    for number, ledger in enumerate(ledgers):
        (end,) = found[number]
        content = [*payloads, tail][: end.count]
        size_bytes = sum(map(len, content))
        assert COUNT <= end.count <= COUNT + 1
        assert end == Entries(len(content), fingerprint(content), len(content) - 1)
        # Java's recovery counts an entry that it saw and did not take.
        lengths = {size_bytes, size_bytes + len(tail) * (end.count == COUNT)}
        length = sides.metadata(ledger.ledger_id).length
        assert length in lengths
        metadata = sides.assert_closed(ledger.ledger_id, content, length=length)
        assert len(metadata.segments) == 1
        if not closing:
            ledger.abandon()
        elif refused[number] is None:
            assert closes[number].result() == (metadata.last_entry_id, length)
        else:
            # It was closed otherwise than this writer would have.
            assert isinstance(refused[number], RefusedError)
            assert str(refused[number]).startswith("fenced")
            assert (end.count, length) != (COUNT, sum(map(len, payloads)))
