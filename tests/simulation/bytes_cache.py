"""The protocol's codecs behind caches.

They are pure functions, and a million short histories repeat the same few frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bk_spark.protocol.codes import Code, DigestType, FlagV2, OpV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import ENTRY_HEADER, Entry, pack_entry, verify_entry
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.metadata import ledger_metadata, under_replication
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.wire import answers_v2, wire_v2
from bk_spark.protocol.wire.add_frames import AddFrames, EntryPackager
from bk_spark.protocol.wire.answers_v2 import AddAnswers, ReadAnswer
from bk_spark.protocol.wire.framing import frame as frame_of, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import answers_v3, wire_v3
from bk_spark.protocol.wire.v3.add_frames_v3 import ADD_TXN_BIT, EntryPackagerV3
from bk_spark.protocol.wire.wire_v2 import AddRun, ReadRun
from tests.support.ledgers import LEDGER, PASSWORD, payload_of
from tests.support.wire import frames

_KEY = master_key(PASSWORD)
_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class AddSeen:
    """An ADD as a bookie sees it."""

    entry_id: int
    stored: bytes
    recovery: bool
    #: Answered before it is synced.
    deferred: bool = False


@dataclass(frozen=True, slots=True)
class ReadSeen:
    entry_id: int
    fencing: bool


@dataclass(frozen=True, slots=True)
class ForceSeen:
    """Sync everything taken so far."""


@dataclass(frozen=True, slots=True)
class PollSeen:
    """Answer when your last add confirmed exceeds ``previous_lac``."""

    previous_lac: int


@lru_cache(200_000)
def request_in(frame: bytes) -> AddSeen | ReadSeen | ForceSeen | PollSeen:
    """The request in a frame (with its length prefix)."""
    if is_v3(frame[4:]):
        return _request_v3(wire_v3.parse_request(frame[4:]))
    (request,) = wire_v2.parse_requests(frames(frame))
    if isinstance(request, AddRun):
        assert request.master_key == _KEY
        return AddSeen(int(request.entry_ids[0]), bytes(request.records[4:]), bool(request.flags & FlagV2.RECOVERY_ADD))
    assert isinstance(request, ReadRun)
    assert set(request.ledger_ids.tolist()) == {LEDGER}
    fencing = bool(request.flags & FlagV2.FENCING)
    assert not fencing or request.master_key == _KEY
    return ReadSeen(int(request.entry_ids[0]), fencing)


def _request_v3(request: pb.Request) -> AddSeen | ForceSeen | PollSeen:
    """Here only deferred sync and long polls need v3."""
    if request.HasField("readRequest"):
        assert request.readRequest.ledgerId == LEDGER
        return PollSeen(request.readRequest.previousLAC)
    if request.HasField("forceLedgerRequest"):
        assert request.forceLedgerRequest.ledgerId == LEDGER
        return ForceSeen()
    add = request.addRequest
    assert add.masterKey == _KEY
    entry_id = ENTRY_HEADER.unpack_from(add.body)[1]
    recovery = add.HasField("flag") and add.flag == pb.AddRequest.RECOVERY_ADD
    return AddSeen(entry_id, add.body, recovery, bool(add.writeFlags & wire_v3.DEFERRED_SYNC))


@lru_cache(200_000)
def code_in(frame: bytes) -> Code:
    """What any answer says."""
    if not is_v3(frame[4:]):
        answer = answer_in(frame)
        return Code.from_v2(int(answer.codes[0])) if isinstance(answer, AddAnswers) else answer.code
    response = wire_v3.parse_response(frame[4:])
    return wire_v3.response_code(response, None)


@lru_cache(200_000)
def answer_in(frame: bytes) -> AddAnswers | ReadAnswer:
    """The answer in a frame. Its arrays are shared: do not write to them."""
    parse = answers_v3.parse_answers if is_v3(frame[4:]) else answers_v2.parse_answers
    (answer,) = parse(frames(frame))
    assert isinstance(answer, AddAnswers | ReadAnswer)
    if isinstance(answer, AddAnswers):
        answer.entry_ids.flags.writeable = answer.codes.flags.writeable = False
    return answer


@lru_cache(200_000)
def read_request(entry_id: int, flags: FlagV2, with_key: bool = False) -> bytes:
    return wire_v2.read_requests(LEDGER, np.array([entry_id]), flags, _KEY if with_key else None)


@lru_cache(200_000)
def code_answer(op: OpV2, entry_id: int, code: Code) -> bytes:
    return wire_v2.add_answers(2, np.array([LEDGER]), np.array([entry_id]), code, op)


@lru_cache(200_000)
def deferred_answer(entry_id: int, code: Code) -> bytes:
    """An answer to a v3 add."""
    header = wire_v3.request_header(pb.ADD_ENTRY, ADD_TXN_BIT)
    status = pb.StatusCode.Name(code.v3)
    body = pb.AddResponse(status=status, ledgerId=LEDGER, entryId=entry_id)
    return frame_of(pb.Response(header=header, status=status, addResponse=body).SerializeToString())


@lru_cache(1)
def force_request() -> bytes:
    return wire_v3.force_ledger_request(1, LEDGER)


@lru_cache(1)
def force_answer() -> bytes:
    body = pb.ForceLedgerResponse(status=pb.EOK, ledgerId=LEDGER)
    header = wire_v3.request_header(pb.FORCE_LEDGER, 1)
    return frame_of(pb.Response(header=header, status=pb.EOK, forceLedgerResponse=body).SerializeToString())


@lru_cache(200_000)
def poll_request(previous_lac: int, wait_ms: int) -> bytes:
    return wire_v3.long_poll_request(1, LEDGER, previous_lac, wait_ms)


@lru_cache(200_000)
def poll_answer(code: Code, max_lac: int | None) -> bytes:
    status = pb.StatusCode.Name(code.v3)
    body = pb.ReadResponse(status=status, ledgerId=LEDGER, entryId=-1)
    if max_lac is not None:
        body.maxLAC = max_lac
    header = wire_v3.request_header(pb.READ_ENTRY, 1)
    return frame_of(pb.Response(header=header, status=status, readResponse=body).SerializeToString())


@lru_cache(200_000)
def poll_answer_in(frame: bytes) -> wire_v3.LongPollAnswer:
    return wire_v3.long_poll_answer(wire_v3.parse_response(frame[4:]))


def lac_in(stored: bytes) -> int:
    """The last add confirmed in an entry's header."""
    return int(ENTRY_HEADER.unpack_from(stored)[2])


@lru_cache(200_000)
def with_lac(stored: bytes, last_add_confirmed: int) -> bytes:
    """The entry with another last add confirmed in its header. Its digest, if any, is wrong."""
    ledger_id, entry_id, _, length = ENTRY_HEADER.unpack_from(stored)
    return ENTRY_HEADER.pack(ledger_id, entry_id, last_add_confirmed, length) + stored[ENTRY_HEADER.size :]


@lru_cache(200_000)
def entry_answer(asked: int, stored: bytes) -> bytes:
    return b"".join(wire_v2.read_answer(2, LEDGER, asked, stored))


@lru_cache(200_000)
def entry_in(stored: bytes, entry_id: int | None, digest_type: DigestType) -> Entry:
    """Raises DigestMismatchError, as every reader's check does."""
    return verify_entry(stored, LEDGER, entry_id, digest_type, digest_function(digest_type, PASSWORD))


def stored_entry(entry_id: int, last_add_confirmed: int, digest_type: DigestType) -> bytes:
    """An entry as a bookie holds it."""
    payload, digest = payload_of(entry_id), digest_function(digest_type, PASSWORD)
    return pack_entry(LEDGER, entry_id, last_add_confirmed, length_of(entry_id), payload, digest)


@lru_cache(100_000)
def metadata_in(data: bytes) -> LedgerMetadata:
    return ledger_metadata.decode(data)


#: Takes the place of ``under_replication.parse_text``: marks and locks.
parse_text = lru_cache(10_000)(under_replication.parse_text)


def length_of(last_entry_id: int) -> int:
    """Payload bytes of a ledger that ends at ``last_entry_id``."""
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


@lru_cache(100_000)
def payloads_of(first: int, last: int) -> Payloads:
    """The payloads of entries ``first`` to ``last``."""
    return Payloads.of([payload_of(entry) for entry in range(first, last + 1)])


def split(views: Iterable[memoryview]) -> list[bytes]:
    """Split what a writer sends at once into single frames."""
    data = b"".join(views)
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 4 + _U32.unpack_from(data, at)[0]
        parts.append(data[at:end])
        at = end
    return parts


class CachedPackager:
    """The real packager, with its results cached."""

    def __init__(self, digest_type: DigestType, flags: FlagV2, deferred_sync: bool = False) -> None:
        self._key = (digest_type, flags, deferred_sync)
        self.overhead_bytes = _packager(*self._key).overhead_bytes

    def package(
        self, first_entry_id: int, last_add_confirmed: int, length_before: int, payloads: Payloads
    ) -> AddFrames:
        content = tuple(bytes(payload) for payload in payloads)
        return _package(*self._key, first_entry_id, last_add_confirmed, length_before, content)


@lru_cache
def _packager(digest_type: DigestType, flags: FlagV2, deferred_sync: bool) -> EntryPackager | EntryPackagerV3:
    if deferred_sync:
        return EntryPackagerV3(LEDGER, digest_type, PASSWORD, flags, deferred_sync=True)
    return EntryPackager(LEDGER, digest_type, PASSWORD, flags)


@lru_cache(100_000)
def _package(
    digest_type: DigestType,
    flags: FlagV2,
    deferred_sync: bool,
    first: int,
    lac: int,
    length_before: int,
    content: tuple[bytes, ...],
) -> AddFrames:
    made = _packager(digest_type, flags, deferred_sync).package(first, lac, length_before, Payloads.of(content))
    made.offsets.flags.writeable = made.lengths.flags.writeable = False
    return made
