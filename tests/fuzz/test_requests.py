"""What clients send to a bookie: framing, v2 and v3 requests, and a connection that handles them."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from bk_spark.protocol.codes import Code, DigestType, FlagV2
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.add_frames import EntryPackager
from bk_spark.protocol.wire.framing import CommonBuffer, Frames, ReceiveBuffer, Receiving, frame
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import EntryPackagerV3
from bk_spark.protocol.wire.v3.request_runs_v3 import AddRunV3, ReadRunV3, segments, uniform_run
from bk_spark.protocol.wire.wire_v2 import AddRun, BatchRead, ReadRun, RequestV2, parse_requests
from bookie_server.net.common.limits import NetConfig
from bookie_server.storage.entrylog.entry_log_reader import StoredEntries
from tests.fuzz.damage import INT64, hostile, parts_of, pieces
from tests.fuzz.front import Owner, serve
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import Refused, outcome
from tests.fuzz.messages import messages
from tests.support.bookie import KEY, PASSWORD
from tests.support.front import HeldBookie
from tests.support.wire import captured, frames

_FRAME_LIMIT: Final = 64 * 1024
_CAPTURED: Final = [one.data for name in ("v2", "v3") for one in captured(f"wire-{name}", name) if one.request]
_FLAGS: Final = st.sampled_from([FlagV2(number) for number in range(8)])
#: Ids whose stored entries a v3 frame can carry.
_ID: Final = st.integers(0, 2**63 - 1) | st.integers(0, 300)


@st.composite
def _adds(draw: st.DrawFn, *, v3: bool) -> bytes:
    kind = EntryPackagerV3 if v3 else EntryPackager
    packager = kind(draw(_ID), draw(st.sampled_from(DigestType)), PASSWORD, draw(_FLAGS))
    sizes = draw(
        st.lists(st.integers(0, 30), min_size=1, max_size=12) | st.builds(lambda n: [7] * n, st.integers(8, 40))
    )
    first = draw(st.integers(0, 2**62) | st.integers(0, 300))
    return bytes(packager.package(first, draw(st.integers(-1, 2**62)), 0, Payloads.of([bytes(n) for n in sizes])).data)


@st.composite
def _reads(draw: st.DrawFn) -> bytes:
    ledger_id, ids, flags = draw(INT64), draw(st.lists(INT64, min_size=1, max_size=12)), draw(_FLAGS)
    return wire_v2.read_requests(ledger_id, ids, flags, KEY if flags & FlagV2.FENCING else None)


_BATCH_READS: Final = st.builds(
    wire_v2.batch_read_request, INT64, INT64, INT64, st.integers(-(2**31), 2**31 - 1), INT64
)
_AUTH: Final = st.builds(lambda body: frame(b"\x02\x03\x00\x00" + body), st.binary(max_size=20))
_KINDS: Final = {
    pb.ADD_ENTRY: ("addRequest", pb.AddRequest),
    pb.READ_ENTRY: ("readRequest", pb.ReadRequest),
    pb.WRITE_LAC: ("writeLacRequest", pb.WriteLacRequest),
    pb.READ_LAC: ("readLacRequest", pb.ReadLacRequest),
    pb.FORCE_LEDGER: ("forceLedgerRequest", pb.ForceLedgerRequest),
    pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", pb.GetBookieInfoRequest),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", pb.GetListOfEntriesOfLedgerRequest),
}


def _usual(operation: pb.OperationType) -> SearchStrategy[pb.Request]:
    """Requests whose operation and body fit each other, with any numbers in them."""
    name, kind = _KINDS[operation]
    fields: dict[str, SearchStrategy[Any]] = {}
    if operation == pb.ADD_ENTRY:
        fields = {"body": st.binary(min_size=32, max_size=50), "ledgerId": st.sampled_from([7, -1]) | INT64}
    header = messages(pb.BKPacketHeader, version=st.just(pb.VERSION_THREE), operation=st.just(operation))
    return st.builds(lambda one, body: pb.Request(header=one, **{name: body}), header, messages(kind, **fields))


_MESSAGES: Final = st.builds(
    lambda request, count: frame(request.SerializeToString()) * count,
    st.one_of(messages(pb.Request), *[_usual(operation) for operation in (*_KINDS, pb.ADD_ENTRY, pb.READ_ENTRY)]),
    st.sampled_from([1, 1, 9]),
)
_V2: Final = _adds(v3=False) | _reads() | _BATCH_READS | _AUTH
_V3: Final = _adds(v3=True) | _MESSAGES
_STREAM: Final[SearchStrategy[bytes]] = st.builds(
    b"".join, st.lists(_V2 | _V3 | st.sampled_from(_CAPTURED), min_size=1, max_size=4)
)


def _framed(bodies: list[bytes]) -> Frames:
    return frames(list(map(frame, bodies)))


def _bodies(stream: SearchStrategy[bytes]) -> SearchStrategy[list[bytes]]:
    """Bodies of frames, some of which were damaged. Often several are alike, as runs are."""
    whole = stream.map(lambda data: bytes(next(iter(frames(data)))))
    one = whole | hostile(whole)
    return st.builds(
        lambda parts: [body for body, count in parts for _ in range(count)],
        st.lists(st.tuples(one, st.sampled_from([1, 1, 2, 9, 25])), min_size=1, max_size=5),
    )


@fuzz(100, stream=hostile(_STREAM), sizes=pieces((1, 3, 4, 60, 1000)))
def test_frames_are_cut_or_refused(stream: bytes, sizes: list[int]) -> None:
    """The frames do not depend on how the bytes arrive, and nothing is kept beyond the limit."""
    ways = [
        _cut(stream, sizes, ReceiveBuffer(_FRAME_LIMIT, 64)),
        _cut(stream, sizes, Receiving(CommonBuffer(_FRAME_LIMIT, 64))),
        _cut(stream, [100_000], ReceiveBuffer(_FRAME_LIMIT, 64)),
    ]
    assert len({refused for _, refused in ways}) == 1
    # What came together with a frame that is refused is lost with the connection.
    most = max((found for found, _ in ways), key=len)
    assert all(found == most[: len(found)] and (refused or found == most) for found, refused in ways)
    assert stream.startswith(b"".join(map(frame, most)))


def _cut(stream: bytes, sizes: list[int], buffer: ReceiveBuffer | Receiving) -> tuple[list[bytes], bool]:
    """The frames of the stream, and whether it was refused behind them."""
    found: list[bytes] = []

    def receive() -> None:
        for part in parts_of(stream, sizes):
            at = 0
            while at < len(part):
                if isinstance(buffer, Receiving) and buffer.large_frame_bytes:
                    buffer.give_room(buffer.large_frame_bytes)
                room = buffer.get_buffer()
                size = min(len(room), len(part) - at)
                room[:size] = part[at : at + size]
                at += size
                received = buffer.received(size)
                if received is not None:
                    found.extend(map(bytes, received))
                if isinstance(buffer, ReceiveBuffer):
                    assert buffer.capacity_bytes <= _FRAME_LIMIT + 64
                else:
                    assert buffer.half_frame_bytes + buffer.large_frame_bytes <= _FRAME_LIMIT

    return found, isinstance(outcome(receive, WireFormatError), Refused)


@fuzz(120, bodies=_bodies(_V2))
def test_v2_requests(bodies: list[bytes]) -> None:
    """Together they are what they are one by one, up to the first that is refused."""

    def parse(some: list[bytes]) -> list[RequestV2] | Refused:
        return outcome(lambda: list(parse_requests(_framed(some))), WireFormatError)

    alone: list[Any] = []
    for body in bodies:
        one = parse([body])
        if isinstance(one, Refused):
            assert isinstance(parse(bodies), Refused)
            return
        alone += _said(one)
    together = parse(bodies)
    assert not isinstance(together, Refused)
    assert _said(together) == alone


def _said(requests: list[RequestV2]) -> list[Any]:
    """What each request says."""
    said: list[Any] = []
    for one in requests:
        if isinstance(one, AddRun):
            columns = zip(
                one.ledger_ids.tolist(), one.entry_ids.tolist(), one.last_adds_confirmed.tolist(), strict=True
            )
            for i, ids in enumerate(columns):
                record = bytes(one.records[one.offsets[i] : one.offsets[i + 1]])
                assert struct.unpack_from(">Iqqq", record) == (len(record) - 4, *ids)
                said.append((one.version, one.flags, one.master_key, record))
        elif isinstance(one, ReadRun):
            ids_ = zip(one.ledger_ids.tolist(), one.entry_ids.tolist(), strict=True)
            said += [(one.version, one.flags, one.master_key, *ids) for ids in ids_]
        else:
            said.append(one)
    return said


@fuzz(50, ids=st.tuples(INT64, INT64, INT64), count=st.integers(-(2**31), 2**31 - 1), size=INT64)
def test_a_batch_read_is_read_as_it_was_built(ids: tuple[int, int, int], count: int, size: int) -> None:
    assert list(parse_requests(frames(wire_v2.batch_read_request(*ids, count, size)))) == [
        BatchRead(2, 0, None, *ids, count, size)
    ]


@fuzz(120, bodies=_bodies(_V3))
def test_v3_requests(bodies: list[bytes]) -> None:
    """A run says what protobuf reads of each of its requests."""
    received = _framed(bodies)
    first = 0
    for last, alike in segments(received):
        if alike:
            run = outcome(lambda first=first, last=last: uniform_run(received, first, last), WireFormatError)  # type: ignore[misc]
            assert not isinstance(run, Refused)
            if run is not None:
                _check_run(run, bodies[first:])
        first = last
    assert first == len(bodies)
    for body in bodies:
        outcome(lambda body=body: wire_v3.parse_request(body), WireFormatError)  # type: ignore[misc]


def _check_run(run: AddRunV3 | ReadRunV3, bodies: list[bytes]) -> None:
    ids = zip(map(int, run.txn_ids), map(int, run.ledger_ids), map(int, run.entry_ids), strict=True)
    for i, (found, body) in enumerate(zip(ids, bodies, strict=False)):
        request = wire_v3.parse_request(body)
        said = request.addRequest if isinstance(run, AddRunV3) else request.readRequest
        assert found == (request.header.txnId, said.ledgerId, said.entryId)
        assert run.high_priority == (request.header.priority > 0)
        if isinstance(run, AddRunV3):
            assert run.records[run.offsets[i] : run.offsets[i + 1]] == frame(said.body)
            assert run.master_key == said.masterKey
            assert run.recovery == (said.HasField("flag") and said.flag == pb.AddRequest.RECOVERY_ADD)


class _Bookie(HeldBookie):
    """Has no entry for a batch read."""

    async def read_batch(self, *_: int, taken: bool = False) -> tuple[Code, list[StoredEntries]]:
        return Code.NO_ENTRY, []


@fuzz(
    60,
    stream=hostile(_STREAM) | _bodies(_V2 | _V3).map(lambda bodies: b"".join(map(frame, bodies))),
    sizes=pieces((2000, 60, 1000)),
)
def test_a_connection_answers_or_closes(stream: bytes, sizes: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """No request makes the bookie raise what it does not expect (the log would have it)."""
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        asyncio.run(serve(_Bookie(), stream, sizes, Owner(), config=NetConfig(max_frame_bytes=_FRAME_LIMIT)))
    assert not caplog.records, caplog.text
