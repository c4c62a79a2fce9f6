"""A writer in full flow loses its ledger to a recovery by the other language: nothing acknowledged is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain

import pytest

from tests.interop.matrix import Sides
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import PARTIES, Party, RefusedError, Writer

CHUNK_ENTRIES = 20
CHUNKS = 2_000
TIMEOUT_S = 60

#: How a writer that lost its ledger ends. Java's closes the handle at the first refusal, and the rest of the chunk, if
#: still being handed over, is told "closed". Where the refusal is of an entry that two bookies had taken already, it
#: counts as a failed bookie (``notifyWriteFailed`` in PendingAddOp), which the next add wants to replace: there is no
#: fourth one.
_ENDS = {"ours": ("fenced",), "java": ("fenced", "closed", "not enough bookies")}


def _chunk(number: int) -> Payloads:
    return Payloads.varied(CHUNK_ENTRIES, seed=number)


def _append_until_refused(ledger: Writer, under_way: threading.Event) -> tuple[int, str]:
    """How many chunks were acknowledged, and why it ended."""
    for number in range(CHUNKS):
        try:
            last = ledger.append(_chunk(number))
        except RefusedError as refused:
            return number, refused.reason
        finally:
            if number >= 2:
                under_way.set()
        assert last == (number + 1) * CHUNK_ENTRIES - 1
    raise AssertionError("the writer was never refused")


@pytest.mark.parametrize("recovery_wire", [2, 3])
@pytest.mark.parametrize("writer", PARTIES, ids=str)
def test_writer_fenced_in_flight(sides: Sides, writer: Party, recovery_wire: int) -> None:
    ledger = sides[writer].create()
    recoverer = sides.of_other_language(writer, recovery_wire)
    under_way = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(_append_until_refused, ledger, under_way)
        assert under_way.wait(TIMEOUT_S)
        recovered = recoverer.recover(ledger.ledger_id)
        acknowledged, reason = writing.result(TIMEOUT_S)
    assert reason in _ENDS[writer.language]
    assert acknowledged * CHUNK_ENTRIES <= recovered.count <= (acknowledged + 1) * CHUNK_ENTRIES
    assert recovered.last_add_confirmed == recovered.count - 1
    sent = list(chain.from_iterable(_chunk(number) for number in range(acknowledged + 1)))
    kept = sent[: recovered.count]
    assert recovered.fingerprint == fingerprint(kept)
    # Java's recovery counts up to the last entry that it saw, also if it did not take it.
    lengths = list(accumulate(map(len, sent)))[recovered.count - 1 :]
    length = sides.metadata(ledger.ledger_id).length
    assert length in (lengths if writer.language == "ours" else lengths[:1])
    closed = sides.assert_closed(ledger.ledger_id, kept, length=length)

    with pytest.raises(RefusedError) as raised:
        ledger.append([b"too late"])
    assert raised.value.reason in ("fenced", "closed")
    ledger.abandon()
    assert sides.metadata(ledger.ledger_id) == closed
