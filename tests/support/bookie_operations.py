"""Random requests to a model of a bookie and to a real one, whose answers must be alike.

Requests and answers are frames. Models hold one ledger, ``LEDGER``. At the real bookie each sequence has a ledger of
its own, whose id is written into the frames.

An entry that is added again has the same content, and the last add confirmed grows with the entries, as in ledgers.
Long polls are compared by code and last add confirmed: models give no entry with them.

A ledger without metadata is deleted by the next garbage collection. What is asked afterwards is about the same ledger:
who does not know that it is gone may still ask.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2, OpV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame, is_v3
from bk_spark.protocol.wire.proto import bookkeeper_protocol_pb2 as pb
from bk_spark.protocol.wire.v3 import wire_v3
from tests.simulation.bytes_cache import force_answer, force_request, poll_request, read_request, stored_entry
from tests.support.bookie import Connection
from tests.support.ledgers import LEDGER, PASSWORD

ENTRIES: Final = 6
#: Longer than a sequence takes: a poll is answered for its news, or not at all.
POLL_MS: Final = 60_000
_KEY: Final = master_key(PASSWORD)
_DIGEST: Final = digest_function(DigestType.CRC32C, PASSWORD)
_ID: Final = LEDGER.to_bytes(8, "big")


class DifferenceError(AssertionError):
    """The model and the bookie answered differently."""


class Model(Protocol):
    """A model of a bookie that holds one ledger."""

    #: Whether it answers long polls, and whether it takes and tells explicit LACs.
    polls: bool
    lacs: bool

    def ask(self, request: bytes, *, poll: int = 0) -> bytes | None:
        """The answer; None if a poll waits. ``poll`` is its number, from 1 on."""

    def answered_polls(self) -> dict[int, bytes]:
        """Polls that waited, and were answered since the last call."""


class Comparison:
    """One sequence of requests to one ledger."""

    def __init__(self, seed: str, ledger_id: int, model: Model, connect: Callable[[], Connection]) -> None:
        self._random = Random(seed)
        self._ledger_id = ledger_id
        self._model = model
        self._connect = connect
        #: The last add confirmed in each entry.
        self._confirmed = sorted(
            self._random.randrange(-1, entry_id) if entry_id else -1 for entry_id in range(ENTRIES)
        )
        #: One for v2, one for v3, as clients have them.
        self._real = (connect(), connect())
        #: The connections of polls that wait: a bookie answers the requests of a connection in order.
        self._polls: dict[int, Connection] = {}
        self._polled = 0
        #: The requests so far, for the error.
        self.told: list[str] = []

    def run(self, steps: int) -> None:
        """Raises DifferenceError."""
        for _ in range(steps):
            self._step()

    def deleted(self) -> None:
        """The bookie, and the model, have deleted the ledger."""
        self.told.append("delete")
        self._take_polls()

    def end(self) -> None:
        """Fence the ledger, and read all that is there."""
        self._read("fence", LAST_ENTRY, FlagV2.FENCING)
        for entry_id in range(ENTRIES):
            self._read("read", entry_id, FlagV2.NONE)
        self.close()

    def close(self) -> None:
        for connection in (*self._real, *self._polls.values()):
            connection.socket.close()

    def reconnect(self) -> None:
        """The bookie has started again."""
        self.close()
        self._polls.clear()
        self._real = (self._connect(), self._connect())

    def force(self) -> None:
        self._both("force", force_request())

    def _step(self) -> None:
        random, draw = self._random, self._random.random()
        entry_id = random.randrange(ENTRIES)
        if draw < 0.4:
            self._add(entry_id, recovery=random.random() < 0.3, deferred=False)
        elif draw < 0.5:
            self._add(entry_id, recovery=random.random() < 0.3, deferred=True)
        elif draw < 0.7:
            self._read("read", entry_id, FlagV2.NONE)
        elif draw < 0.8:
            self._read("read the last entry", LAST_ENTRY, FlagV2.NONE)
        elif draw < 0.84:
            self._read("fence", random.choice([LAST_ENTRY, entry_id]), FlagV2.FENCING)
        elif draw < 0.9:
            self.force()
        elif self._model.lacs:
            self._lac(random.randrange(-1, ENTRIES))
        elif self._model.polls:
            self._poll(random.randrange(-1, ENTRIES))

    # --- requests ---

    def _add(self, entry_id: int, *, recovery: bool, deferred: bool) -> None:
        stored = stored_entry(entry_id, self._confirmed[entry_id], DigestType.CRC32C)
        if deferred:
            flag = {"flag": pb.AddRequest.RECOVERY_ADD} if recovery else {}
            add = pb.AddRequest(ledgerId=LEDGER, entryId=entry_id, masterKey=_KEY, body=stored, **flag)
            add.writeFlags = wire_v3.DEFERRED_SYNC
            header = wire_v3.request_header(pb.ADD_ENTRY, 1)
            request = frame(pb.Request(header=header, addRequest=add).SerializeToString())
        else:
            flags = FlagV2.RECOVERY_ADD if recovery else FlagV2.NONE
            request = frame(wire_v2.header_int(OpV2.ADD, flags).to_bytes(4, "big") + _KEY + stored)
        how = f"{'recovery ' if recovery else ''}{'deferred ' if deferred else ''}add"
        self._both(f"{how} of {entry_id}", request)

    def _read(self, what: str, entry_id: int, flags: FlagV2) -> None:
        self._both(f"{what} {entry_id}", read_request(entry_id, flags, flags is FlagV2.FENCING))

    def _lac(self, lac: int) -> None:
        if self._random.random() < 0.5:
            packet = pack_lac(LEDGER, lac, _DIGEST)
            self._both(f"write LAC {lac}", wire_v3.write_lac_request(1, LEDGER, packet, _KEY))
        self._both("read the LAC", wire_v3.read_lac_request(1, LEDGER))

    def _poll(self, previous_lac: int) -> None:
        self._polled += 1
        number, connection = self._polled, self._connect()
        self.told.append(f"poll {number} above {previous_lac}")
        request = poll_request(previous_lac, POLL_MS)
        connection.send(_with_id(request, self._ledger_id))
        self._polls[number] = connection
        answer = self._model.ask(request, poll=number)
        if answer is not None:
            self._take_poll(number, answer)
            return
        # The poll has come before whatever other connections ask from now on: this is answered after it.
        connection.send(_with_id(force_request(), self._ledger_id))
        self._compare(f"a force after poll {number}", force_answer(), frame(bytes(connection.body())))

    def _take_poll(self, number: int, answer: bytes) -> None:
        with self._polls.pop(number) as connection:
            self._compare(f"poll {number}", answer, frame(bytes(connection.body())))

    def _both(self, what: str, request: bytes) -> None:
        self.told.append(what)
        answer = self._model.ask(request)
        assert answer is not None
        connection = self._real[is_v3(request[4:])]
        connection.send(_with_id(request, self._ledger_id))
        self._compare(what, answer, frame(bytes(connection.body())))
        self._take_polls()

    def _take_polls(self) -> None:
        for number, poll_answer in self._model.answered_polls().items():
            self._take_poll(number, poll_answer)

    def _compare(self, what: str, model: bytes, real: bytes) -> None:
        says, found = _meaning(model, LEDGER), _meaning(real, self._ledger_id)
        if says != found:
            raise DifferenceError(f"{what}: the model says {says}, the bookie {found}")


def _with_id(request: bytes, ledger_id: int) -> bytes:
    body = request[4:]
    if not is_v3(body):
        # The first such bytes: the key and what precedes the id do not have them.
        assert body.find(_ID) in (4, 24)
        return frame(body.replace(_ID, ledger_id.to_bytes(8, "big"), 1))
    parsed = wire_v3.parse_request(body)
    for part in (
        parsed.addRequest,
        parsed.readRequest,
        parsed.forceLedgerRequest,
        parsed.writeLacRequest,
        parsed.readLacRequest,
    ):
        if part.ledgerId:
            part.ledgerId = ledger_id
    for packed in (parsed.addRequest, parsed.writeLacRequest):
        if packed.body:
            packed.body = ledger_id.to_bytes(8, "big") + packed.body[8:]
    return frame(parsed.SerializeToString())


def _meaning(answer: bytes, ledger_id: int) -> tuple[object, ...]:
    """What an answer says, without the ledger's id."""
    body = answer[4:]
    if not is_v3(body):
        code = Code.from_v2(int.from_bytes(body[4:8], "big", signed=True))
        assert int.from_bytes(body[8:16], "big") == ledger_id
        return body[:4], code.name, int.from_bytes(body[16:24], "big", signed=True), body[32:]
    response = wire_v3.parse_response(body)
    if response.HasField("readResponse"):
        told = wire_v3.long_poll_answer(response)
        return "poll", told.code.name, told.max_lac
    if response.HasField("readLacResponse"):
        said, packet, stored = wire_v3.lac_answer(response)
        return "LAC", said.name, packet and packet[8:], stored and stored[8:]
    code = wire_v3.response_code(response, None)
    return response.header.operation, code.name
