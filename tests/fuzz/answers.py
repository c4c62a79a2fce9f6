"""What bookies send to a client, valid, with any ids and numbers: v2 and v3 answers, stored entries."""

from __future__ import annotations

from typing import Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.codes import Code, DigestType, OpV2
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT
from bk_spark.protocol.wire.wire_v2 import BatchRead
from tests.fuzz.damage import INT64
from tests.fuzz.messages import messages
from tests.support.bookie import PASSWORD
from tests.support.wire import captured

_CAPTURED: Final = {
    name: [one.data for one in captured(f"wire-{name}", name) if not one.request] for name in ("v2", "v3")
}
#: What the clients of these tests have asked for.
LEDGER: Final = 7
SMALL: Final = st.integers(0, 12)
_IDS: Final = st.integers(-2, 12) | INT64
DIGEST: Final = digest_function(DigestType.CRC32C, PASSWORD)


def stored_entry(entry_id: int, payload: bytes = b"x", ledger_id: int = LEDGER) -> bytes:
    return pack_entry(ledger_id, entry_id, entry_id - 1, len(payload), payload, DIGEST)


RECORDS: Final = st.builds(
    lambda first, sizes: b"".join(frame(stored_entry(first + i, bytes(n))) for i, n in enumerate(sizes)),
    SMALL,
    st.lists(st.integers(0, 30), max_size=8) | st.builds(lambda n: [5] * n, st.integers(4, 30)),
)
CODES: Final = st.sampled_from([int(code) for code in Code] + [55]) | st.just(0)


@st.composite
def _v2_answers(draw: st.DrawFn) -> bytes:
    ids = draw(st.lists(st.tuples(st.just(LEDGER) | INT64, _IDS), min_size=1, max_size=12))
    ledger_ids, entry_ids = (np.array(column, np.int64) for column in zip(*ids, strict=True))
    codes = np.array([draw(CODES) for _ in ids], np.int32)
    return wire_v2.add_answers(2, ledger_ids, entry_ids, codes, draw(st.sampled_from([OpV2.ADD, OpV2.READ])))


BATCHES: Final = st.builds(
    lambda request_id, code, records: (
        wire_v2.batch_read_answer(BatchRead(2, 0, None, LEDGER, 0, request_id, 1, 1), code, len(records)) + records
    ),
    st.integers(0, 3) | INT64,
    st.sampled_from(Code),
    RECORDS,
)
V2: Final = _v2_answers() | BATCHES | st.sampled_from(_CAPTURED["v2"])

_BODIES: Final = {
    pb.ADD_ENTRY: ("addResponse", pb.AddResponse),
    pb.READ_ENTRY: ("readResponse", pb.ReadResponse),
    pb.READ_LAC: ("readLacResponse", pb.ReadLacResponse),
    pb.GET_BOOKIE_INFO: ("getBookieInfoResponse", pb.GetBookieInfoResponse),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerResponse", pb.GetListOfEntriesOfLedgerResponse),
}
_TXNS: Final = st.integers(0, 12) | st.sampled_from([2**63, 2**64 - 1, ADD_TXN_BIT, ADD_TXN_BIT | 2**40 - 1])


def _usual(operation: pb.OperationType) -> SearchStrategy[pb.Response]:
    """Answers whose operation and body fit each other, with any numbers in them."""
    name, kind = _BODIES[operation]
    header = messages(pb.BKPacketHeader, version=st.just(pb.VERSION_THREE), operation=st.just(operation), txnId=_TXNS)
    status = st.just(pb.EOK) | st.sampled_from(pb.StatusCode.values())
    return st.builds(lambda h, s, body: pb.Response(header=h, status=s, **{name: body}), header, status, messages(kind))


V3: Final = st.builds(
    lambda answer, count: frame(answer.SerializeToString()) * count,
    st.one_of(messages(pb.Response), *[_usual(operation) for operation in (*_BODIES, pb.ADD_ENTRY, pb.ADD_ENTRY)]),
    st.sampled_from([1, 1, 30]),
) | st.sampled_from(_CAPTURED["v3"])
