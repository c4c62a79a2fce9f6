"""Connections of a client whose bookie sends what nobody should: v2 and v3."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

from hypothesis import strategies as st

from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, Code, OpV2
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.wire.framing import frame
from tests.fuzz.answers import CODES, LEDGER, V2, V3
from tests.fuzz.damage import hostile, parts_of, pieces
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.guard import LIMIT_BYTES, bounded
from tests.fuzz.transport import Transport

_ANSWER: Final = struct.Struct(">BBHiqq")
_SIZES: Final = pieces((2000, 60, 500))
#: Entries of two reads that wait for answers at the same time.
_READS: Final = (range(3), range(1, 4))
_BATCHES: Final = 2


@st.composite
def _v2_streams(draw: st.DrawFn) -> bytes:
    """Answers to what the connection has asked for: each once or twice, in any order, some of them others."""
    entries = [(OpV2.READ, entry_id, draw(st.binary(max_size=8))) for ids in _READS for entry_id in ids]
    batches = [(OpV2.BATCH_READ, 0, number.to_bytes(8, "big") + bytes(number)) for number in range(_BATCHES + 2)]
    asked = draw(st.permutations([*entries, *batches, (OpV2.ADD, 5, b""), (OpV2.ADD, 6, b"")]))
    # A read ends well only with all of its answers.
    taken = asked[: draw(st.integers(1, len(asked)) | st.just(len(asked)))]
    taken += draw(st.lists(st.sampled_from(asked), max_size=2))
    stream = b""
    for op, entry_id, body in taken:
        version = draw(st.sampled_from([2] * 100 + [3]))
        ledger_id = draw(st.sampled_from([LEDGER] * 10 + [LEDGER + 1]))
        stream += frame(_ANSWER.pack(version, op, 0, draw(CODES), ledger_id, entry_id) + body)
    return stream


class _Expected:
    """What the answers in a stream say, one after another, up to the first that a connection refuses."""

    def __init__(self, stream: bytes) -> None:
        self.refused = False
        self.adds: list[tuple[int, int]] = []
        self.reads: list[dict[int, Any]] = [{} for _ in _READS]
        self.batches: dict[int, Any] = {}
        self._waiting = {entry_id: [i for i, ids in enumerate(_READS) if entry_id in ids] for entry_id in range(4)}
        while len(stream) >= 4 and not self.refused:
            size = int.from_bytes(stream[:4], "big")
            self.refused = size > DEFAULT_MAX_FRAME_BYTES
            if not self.refused and len(stream) >= 4 + size:
                self.refused = not self._take(stream[4 : 4 + size])
            stream = stream[4 + size :]

    def _take(self, body: bytes) -> bool:
        if len(body) < _ANSWER.size:
            return False
        version, op, _, code, ledger_id, entry_id = _ANSWER.unpack_from(body)
        rest = body[_ANSWER.size :]
        if version != 2 or op not in (OpV2.ADD, OpV2.READ, OpV2.BATCH_READ) or (op == OpV2.BATCH_READ > len(rest) < 8):
            return False
        if op == OpV2.ADD and ledger_id == LEDGER:
            self.adds.append((entry_id, code))
        elif op == OpV2.READ and ledger_id == LEDGER and self._waiting.get(entry_id):
            self.reads[self._waiting[entry_id].pop(0)][entry_id] = (ledger_id, entry_id, Code.from_v2(code), rest)
        elif op == OpV2.BATCH_READ:
            request_id = int.from_bytes(rest[:8], "big", signed=True)
            found = (ledger_id, entry_id, request_id, Code.from_v2(code), rest[8:])
            self.batches.setdefault(request_id, found)
        return True


def _plain(answer: Any) -> Any:
    """Bytes in place of a view of them."""
    return (*answer[:-1], bytes(answer[-1]))


@fuzz(70, stream=_v2_streams() | hostile(_v2_streams() | V2), sizes=_SIZES)
def test_a_v2_connection_takes_answers_or_closes(stream: bytes, sizes: list[int]) -> None:
    """Each request gets the answer that is its own, the first one if there are several, or none."""
    expected, reads, batches = _Expected(stream), [], []

    async def requests(connection: LedgerConnection) -> None:
        assert isinstance(connection, BookieConnection)
        found = await asyncio.gather(
            *[connection.read(LEDGER, ids) for ids in _READS],
            *[connection.batch_read(LEDGER, 0, 9, 999) for _ in range(_BATCHES)],
            return_exceptions=True,
        )
        reads.extend(found[: len(_READS)])
        batches.extend(found[len(_READS) :])

    closed, adds = asyncio.run(_converse(BookieConnection("b:1"), requests, stream, sizes))
    assert closed == expected.refused
    # What came together with a frame that is refused is lost with the connection.
    assert adds == expected.adds[: len(adds)]
    assert expected.refused or len(adds) == len(expected.adds)
    wanted = [found if len(found) == len(ids) else None for ids, found in zip(_READS, expected.reads, strict=True)]
    wanted += [expected.batches.get(number) for number in range(1, _BATCHES + 1)]
    for one, want in zip([*reads, *batches], wanted, strict=True):
        if isinstance(one, BaseException):
            assert isinstance(one, BookKeeperError)
            assert want is None or expected.refused
        else:
            assert ({i: _plain(each) for i, each in one.items()} if isinstance(one, dict) else _plain(one)) == want


@fuzz(50, stream=hostile(st.lists(V3, min_size=1, max_size=4).map(b"".join)), sizes=_SIZES)
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


async def _converse(
    connection: LedgerConnection,
    requests: Callable[[LedgerConnection], Awaitable[None]],
    stream: bytes,
    sizes: list[int],
) -> tuple[bool, list[tuple[int, int]]]:
    """Whatever comes, the connection takes it or closes, and what waits ends then.

    Returns whether the connection closed, and entries and codes of the adds that it told of.
    """
    connection.connection_made(Transport(has_socket=True))
    told: list[tuple[int, int]] = []
    connection.listen(
        LEDGER,
        lambda _, entry_ids, codes: told.extend(zip(entry_ids.tolist(), codes.tolist(), strict=True)),
        lambda _: None,
    )
    waiting = asyncio.ensure_future(requests(connection))
    await asyncio.sleep(0)
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
    closed = connection.closed
    connection.connection_lost(None)
    await waiting
    return closed, told
