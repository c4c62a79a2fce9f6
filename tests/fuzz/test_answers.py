"""What bookies send to a client: v2 and v3 answers, lists of entries, stored entries, and connections that wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.bookie.connection.base import LedgerConnection
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, Code, DigestType, OpV2
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry, pack_lac, verify_entry, verify_lac, verify_records
from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError, WireFormatError
from bk_spark.protocol.wire import answers_v2, answers_v3, wire_v2, wire_v3
from bk_spark.protocol.wire.add_frames_v3 import ADD_TXN_BIT
from bk_spark.protocol.wire.answers_v2 import AddAnswers
from bk_spark.protocol.wire.entry_availability import EntryAvailability, decode_availability, encode_availability
from bk_spark.protocol.wire.framing import Frames, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.stored_adds import cut_records
from bk_spark.protocol.wire.wire_v2 import BatchRead
from tests.fuzz.damage import EDGES, INT64, hostile, parts_of, pieces
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import LIMIT_BYTES, Refused, bounded, outcome
from tests.fuzz.messages import messages
from tests.fuzz.transport import Transport
from tests.support.bookie import PASSWORD
from tests.support.wire import captured, frames

_CAPTURED: Final = {
    name: [one.data for one in captured(f"wire-{name}", name) if not one.request] for name in ("v2", "v3")
}
#: What the clients of these tests have asked for.
LEDGER: Final = 7
_SMALL: Final = st.integers(0, 12)
_IDS: Final = st.integers(-2, 12) | INT64
_DIGEST: Final = digest_function(DigestType.CRC32C, PASSWORD)


def _stored(entry_id: int, payload: bytes = b"x", ledger_id: int = LEDGER) -> bytes:
    return pack_entry(ledger_id, entry_id, entry_id - 1, len(payload), payload, _DIGEST)


_RECORDS: Final = st.builds(
    lambda first, sizes: b"".join(frame(_stored(first + i, bytes(n))) for i, n in enumerate(sizes)),
    _SMALL,
    st.lists(st.integers(0, 30), max_size=8) | st.builds(lambda n: [5] * n, st.integers(4, 30)),
)
_CODES: Final = st.sampled_from([int(code) for code in Code] + [55]) | st.just(0)


@st.composite
def _v2_answers(draw: st.DrawFn) -> bytes:
    ids = draw(st.lists(st.tuples(st.just(LEDGER) | INT64, _IDS), min_size=1, max_size=12))
    ledger_ids, entry_ids = (np.array(column, np.int64) for column in zip(*ids, strict=True))
    codes = np.array([draw(_CODES) for _ in ids], np.int32)
    return wire_v2.add_answers(2, ledger_ids, entry_ids, codes, draw(st.sampled_from([OpV2.ADD, OpV2.READ])))


_BATCHES: Final = st.builds(
    lambda request_id, code, records: (
        wire_v2.batch_read_answer(BatchRead(2, 0, None, LEDGER, 0, request_id, 1, 1), code, len(records)) + records
    ),
    st.integers(0, 3) | INT64,
    st.sampled_from(Code),
    _RECORDS,
)
_V2: Final = _v2_answers() | _BATCHES | st.sampled_from(_CAPTURED["v2"])

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


_V3: Final = st.builds(
    lambda answer, count: frame(answer.SerializeToString()) * count,
    st.one_of(messages(pb.Response), *[_usual(operation) for operation in (*_BODIES, pb.ADD_ENTRY, pb.ADD_ENTRY)]),
    st.sampled_from([1, 1, 30]),
) | st.sampled_from(_CAPTURED["v3"])


def _bodies(stream: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    whole = stream.map(lambda data: bytes(next(iter(frames(data)))))
    return st.builds(
        lambda parts: [body for body, count in parts for _ in range(count)],
        st.lists(st.tuples(whole | hostile(whole), st.sampled_from([1, 1, 9, 30])), min_size=1, max_size=4),
    )


def _framed(bodies: list[bytes]) -> Frames:
    return frames(list(map(frame, bodies)))


def _rows(answers: Any) -> Counter[Any]:
    """What each answer says, whatever the order."""
    said: Counter[Any] = Counter()
    for one in answers:
        if isinstance(one, AddAnswers):
            said.update(zip(one.ledger_ids.tolist(), one.entry_ids.tolist(), one.codes.tolist(), strict=True))
        else:
            said[str(one)] += 1
    return said


@fuzz(80, bodies=_bodies(_V2))
def test_v2_answers(bodies: list[bytes]) -> None:
    """Together they are what they are one by one, or refused."""
    _together_as_alone(answers_v2.parse_answers, bodies)


@fuzz(80, bodies=_bodies(_V3))
def test_v3_answers(bodies: list[bytes]) -> None:
    """Together they are what they are one by one, or refused."""
    _together_as_alone(answers_v3.parse_answers, bodies)


def _together_as_alone(parse: Any, bodies: list[bytes]) -> None:
    together = outcome(lambda: list(parse(_framed(bodies))), WireFormatError)
    alone = [outcome(lambda body=body: list(parse(_framed([body]))), WireFormatError) for body in dict.fromkeys(bodies)]  # type: ignore[misc]
    assert isinstance(together, Refused) == any(isinstance(one, Refused) for one in alone)
    if not isinstance(together, Refused):
        counts = Counter(bodies)
        said: Counter[Any] = Counter()
        for body, one in zip(dict.fromkeys(bodies), alone, strict=True):
            for what, times in _rows(one).items():
                said[what] += times * counts[body]
        assert _plain(_rows(together)) == _plain(said)


def _plain(said: Counter[Any]) -> Counter[Any]:
    """Without where a view lies in memory."""
    plain: Counter[Any] = Counter()
    for what, times in said.items():
        plain[what.partition("<memory")[0] if isinstance(what, str) else what] += times
    return plain


@fuzz(50, stream=hostile(st.lists(_V2, min_size=1, max_size=4).map(b"".join)), sizes=pieces((2000, 60, 500)))
def test_a_v2_connection_takes_answers_or_closes(stream: bytes, sizes: list[int]) -> None:
    async def requests(connection: LedgerConnection) -> None:
        assert isinstance(connection, BookieConnection)
        await asyncio.gather(
            connection.read(LEDGER, range(3)), connection.batch_read(LEDGER, 0, 9, 999), return_exceptions=True
        )

    asyncio.run(_converse(BookieConnection("b:1"), requests, stream, sizes))


@fuzz(50, stream=hostile(st.lists(_V3, min_size=1, max_size=4).map(b"".join)), sizes=pieces((2000, 60, 500)))
def test_a_v3_connection_takes_answers_or_closes(stream: bytes, sizes: list[int]) -> None:
    async def requests(connection: LedgerConnection) -> None:
        assert isinstance(connection, BookieConnectionV3)
        asked = [
            connection.read(LEDGER, range(3)),
            connection.read_lac(LEDGER),
            connection.bookie_info(),
            connection.list_entries(LEDGER),
            connection.long_poll(LEDGER, 1, 50),
            connection.force(LEDGER),
        ]
        for one in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, BookKeeperError | asyncio.CancelledError):
                raise one

    asyncio.run(_converse(BookieConnectionV3("b:1"), requests, stream, sizes))


async def _converse(connection: LedgerConnection, requests: Any, stream: bytes, sizes: list[int]) -> None:
    """Whatever comes, the connection takes it or closes, and what waits ends then."""
    connection.connection_made(Transport(has_socket=True))
    told: list[int] = []
    connection.listen(LEDGER, lambda _, entry_ids, codes: told.append(len(entry_ids) + len(codes)), lambda _: None)
    waiting = asyncio.create_task(requests(connection))
    await asyncio.sleep(0)
    for part in parts_of(stream, sizes):
        if connection.closed:
            break
        # A frame gets a buffer of the size that it announces, up to the limit of frames.
        with bounded(DEFAULT_MAX_FRAME_BYTES + 2 * LIMIT_BYTES):
            room = connection.get_buffer(-1)
            room[: len(part)] = part
            connection.buffer_updated(len(part))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    await waiting


_LISTS: Final = st.lists(st.integers(0, 60), max_size=20, unique=True).map(
    lambda ids: encode_availability(np.array(sorted(ids), np.int64))
)


@fuzz(100, data=hostile(_LISTS), asked=st.integers(0, 2**62) | st.sampled_from([e for e in EDGES if e >= 0]))
def test_lists_of_entries(data: bytes, asked: int) -> None:
    """A list that is accepted answers all questions about it, however many entries it claims."""
    found = outcome(lambda: decode_availability(data), WireFormatError)
    if isinstance(found, EntryAvailability):
        with bounded():
            assert found.count >= 0
            assert found.count == 0 or next(found.ranges()).start in found
            ids = range(asked, min(asked + 50, 2**63 - 1))
            assert list(found.lacking(ids)) == [entry_id for entry_id in ids if entry_id not in found]


@fuzz(50, ids=st.lists(st.integers(0, 2**40) | st.integers(0, 60), max_size=30, unique=True))
def test_lists_of_entries_are_read_as_they_were_made(ids: list[int]) -> None:
    found = decode_availability(encode_availability(np.array(sorted(ids), np.int64)))
    assert [entry_id for part in found.ranges() for entry_id in part] == sorted(ids)


@fuzz(120, data=hostile(_RECORDS), first=_SMALL, digest_type=st.sampled_from(DigestType))
def test_records_of_a_batch_read(data: bytes, first: int, digest_type: DigestType) -> None:
    """What is returned was written so, entry by entry."""
    digest = digest_function(digest_type, PASSWORD)
    found = outcome(
        lambda: verify_records(memoryview(data), LEDGER, first, digest_type, digest),
        WireFormatError,
        DigestMismatchError,
        names=f"ledger {LEDGER}",
    )
    cut = outcome(lambda: list(cut_records(memoryview(data))))
    if not isinstance(found, Refused):
        stored = [verify_entry(one, LEDGER, first + i, digest_type, digest) for i, one in enumerate(cut[: len(found)])]  # type: ignore[index]
        assert [bytes(one.payload) for one in stored] == list(map(bytes, found.payloads))
        assert found.max_lac == max(-1, *(one.last_add_confirmed for one in stored))


@fuzz(50, payloads=st.lists(st.binary(max_size=30), min_size=1, max_size=30), first=st.integers(0, 2**62))
def test_records_are_read_as_they_were_made(payloads: list[bytes], first: int) -> None:
    records = b"".join(frame(_stored(first + i, payload)) for i, payload in enumerate(payloads))
    block = verify_records(memoryview(records), LEDGER, first, DigestType.CRC32C, _DIGEST)
    assert list(map(bytes, block.payloads)) == payloads


@fuzz(60, packet=hostile(st.builds(lambda lac: pack_lac(LEDGER, lac, _DIGEST), INT64)), entry=hostile(_RECORDS))
def test_one_entry_and_one_packet(packet: bytes, entry: bytes) -> None:
    outcome(lambda: verify_lac(packet, LEDGER, DigestType.CRC32C, _DIGEST), DigestMismatchError)
    outcome(lambda: verify_entry(entry[4:], LEDGER, None, DigestType.CRC32C, _DIGEST), DigestMismatchError)


@fuzz(40, answer=messages(pb.Response))
def test_fields_of_v3_answers(answer: pb.Response) -> None:
    """Whatever fields are there, each reading of them gives a value or the error."""
    outcome(lambda: wire_v3.read_answer(answer, LEDGER, 3), WireFormatError)
    outcome(lambda: wire_v3.lac_answer(answer))
    outcome(lambda: wire_v3.long_poll_answer(answer))
