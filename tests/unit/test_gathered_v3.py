"""v3 adds that arrived one by one, as records for storage."""

from __future__ import annotations

import random

import pytest

from bk_spark.protocol.entries.entry import ENTRY_HEADER_BYTES
from bookie_server.net.native import gathered_v3
from bookie_server.net.native.gathered_v3 import GatheredAdds


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 20])
def test_records_do_not_depend_on_how_many_there_are(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One, few and many are gathered in different ways."""
    random_ = random.Random(count)
    adds = GatheredAdds(b"key", recovery=True, high_priority=False)
    ids = [tuple(random_.randrange(-(2**63), 2**63) for _ in range(3)) for _ in range(count)]
    bodies = [
        b"".join(number.to_bytes(8, "big", signed=True) for number in (*three, 0)) + random_.randbytes(size)
        for three, size in zip(ids, (0, *random_.choices(range(2000), k=count - 1)), strict=True)
    ]
    for number, body in enumerate(bodies):
        assert len(body) >= ENTRY_HEADER_BYTES
        adds.append(number, number + 1, number + 2, body)
    for few in (None, 1):
        if few is not None:
            monkeypatch.setattr(gathered_v3, "_FEW", few)
        gathered = adds.all()
        assert (gathered.master_key, gathered.recovery, gathered.high_priority) == (b"key", True, False)
        assert list(gathered.txn_ids) == list(range(count))
        records = gathered.records
        columns = records.ledger_ids, records.entry_ids, records.last_adds_confirmed
        assert [column.tolist() for column in columns] == [list(column) for column in zip(*ids, strict=True)]
        offsets = records.offsets.tolist()
        assert offsets[0] == 0
        assert offsets[-1] == len(records.data)
        for body, start, end in zip(bodies, offsets, offsets[1:], strict=False):
            assert records.data[start:end] == len(body).to_bytes(4, "big") + body
