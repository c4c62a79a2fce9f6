"""Recovery over real sockets: dead, hanging and corrupt replicas, other recoverers, lost replies."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool, connects_by
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.writing.recovery import recover_ledger
from bk_spark.protocol.codes import LAST_ENTRY, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.entries.entry import pack_entry, verify_entry
from bk_spark.protocol.errors import (
    BookKeeperError,
    EntryUnknownError,
    MetadataConflictError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger.recovery import ATTEMPTS
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.quorum import Quorum
from tests.support import patient_loop
from tests.support.connections import assert_no_requests, listens, live
from tests.support.ledgers import LEDGER, PASSWORD, ledger, payload_of
from tests.support.served_bookie import ModelServices, ServedBookie

DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
#: For tests in which a bookie hangs. In all others a busy machine is not to be taken for a hanging bookie.
GIVES_UP_SOON = {"read_timeout_ms": 600, "add_timeout_ms": 600}


def length_of(last_entry_id: int) -> int:
    return sum(len(payload_of(entry)) for entry in range(last_entry_id + 1))


class Stage:
    """Bookies b1 … b5 with an open ledger on the first three."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.bookies = [ServedBookie(f"b{number}") for number in range(1, 6)]
        self.services = ModelServices(self.bookies, ledger())
        self.pool = self.new_pool()

    def new_pool(self) -> ConnectionPool[LedgerConnection]:
        kind = BookieConnection if self.config.use_v2_wire_protocol else BookieConnectionV3
        return ConnectionPool(connects_by(kind, self.services.address), self.config)

    def __getitem__(self, number: int) -> ServedBookie:
        return self.bookies[number - 1]

    def put(self, entries: range, *numbers: int, lac: int = -1) -> None:
        for number in numbers:
            for entry in entries:
                self[number].entries[entry] = pack_entry(
                    LEDGER, entry, min(lac, entry - 1), length_of(entry), payload_of(entry), DIGEST
                )

    def corrupt(self, entry: int, *numbers: int) -> None:
        for number in numbers:
            stored = bytearray(self[number].entries[entry])
            stored[-1] ^= 1
            self[number].entries[entry] = bytes(stored)

    def before_close(self, act: Callable[[ModelServices], None], *, times: int = 1) -> None:
        """Call ``act`` just before a recovery closes the ledger."""
        left = itertools.repeat(None, times)

        async def before(call: str) -> None:
            if call == "write" and self.services.metadata.state is not LedgerState.OPEN:
                for _ in itertools.islice(left, 1):
                    act(self.services)

        self.services.before = before

    async def recover(self) -> LedgerMetadata:
        services: Any = self.services
        return await recover_ledger(LEDGER, DigestType.CRC32C, PASSWORD, services, self.pool, self.config)


Play = Callable[[Stage], Coroutine[Any, Any, None]]


def staged(**settings: Any) -> Callable[[Play], Callable[[], None]]:
    """A test over a :class:`Stage`, once over each wire protocol; nothing may be left at its end."""
    all_settings = {"read_timeout_ms": 60_000, "add_timeout_ms": 60_000, "connect_timeout_ms": 30_000, **settings}

    def decorate(play: Play) -> Callable[[], None]:
        async def run(*, v2: bool) -> None:
            stage = Stage(ClientConfig(use_v2_wire_protocol=v2, **all_settings))
            for bookie in stage.bookies:
                await bookie.start()
            try:
                async with asyncio.timeout(60):
                    await play(stage)
                left = asyncio.all_tasks() - {asyncio.current_task()}
                assert not left, left
                for connection in live(stage.pool, stage.bookies):
                    assert not listens(connection)
                    assert_no_requests(connection)
                assert not (v2 and any(bookie.requests_v3 for bookie in stage.bookies))
            finally:
                await stage.pool.close()
                for bookie in stage.bookies:
                    await bookie.stop()

        @functools.wraps(play)
        def test() -> None:
            patient_loop.run(run(v2=True))
            patient_loop.run(run(v2=False))

        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return decorate


@staged()
async def test_an_empty_ledger(stage: Stage) -> None:
    closed = await stage.recover()
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, -1, 0)
    assert all(stage[number].fenced for number in (1, 2, 3))


@pytest.mark.parametrize("lac", [-1, 0, 5, 8])
def test_what_lies_beyond_the_lac_is_on_the_whole_write_quorum_afterwards(lac: int) -> None:
    @staged()
    async def play(stage: Stage) -> None:
        stage.put(range(lac + 1), 1, 2, 3, lac=lac)
        # On one bookie alone they could be left out: two that lack an entry prove that it was not acknowledged.
        stage.put(range(lac + 1, 10), 2, 3, lac=lac)
        closed = await stage.recover()
        assert (closed.last_entry_id, closed.length, closed.segments) == (9, length_of(9), ledger().segments)
        while not stage[1].entries.keys() >= set(range(10)):
            await asyncio.sleep(0.005)
        for entry in range(lac + 1, 10):
            for number in (1, 2, 3):
                stored = stage[number].entries[entry]
                found = verify_entry(stored, LEDGER, entry, DigestType.CRC32C, DIGEST)
                assert (found.payload, found.length) == (payload_of(entry), length_of(entry))

    play()


@staged()
async def test_c1_every_read_that_decides_where_the_ledger_ends_fences(stage: Stage) -> None:
    """A bookie that the fence did not reach must be fenced by the read it answers, or it takes the entry afterwards."""
    stage.put(range(5), 1, 2, 3, lac=4)
    stage.put(range(5, 10), 2, 3, lac=4)
    closed = await stage.recover()
    assert closed.last_entry_id == 9
    for number in (1, 2, 3):
        deciding = [read for read in stage[number].reads if read[0] == LAST_ENTRY or read[0] > 4]
        # The fence itself, five entries, and the one that no bookie has.
        assert {entry for entry, _ in deciding} >= {LAST_ENTRY, *range(5, 11)}, number
        assert all(fencing for _, fencing in deciding), (number, deciding)


@staged()
async def test_nothing_beyond_the_lac(stage: Stage) -> None:
    stage.put(range(10), 1, 2, 3, lac=8)
    for number in (1, 2, 3):
        del stage[number].entries[9]
        stage[number].entries[8] = pack_entry(LEDGER, 8, 7, length_of(8), payload_of(8), DIGEST)
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.length) == (8, length_of(8))


@staged()
async def test_a_long_tail_of_entries(stage: Stage) -> None:
    stage.put(range(400), 1, 2, 3)
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.length) == (399, length_of(399))


@staged()
async def test_c3_an_empty_last_segment(stage: Stage) -> None:
    stage.services.change(ledger(Quorum(3, 3, 2), (0, "b1 b2 b3"), (6, "b4 b2 b5")))
    stage.put(range(6), 1, 2, 3, lac=3)
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.length) == (5, length_of(5))
    # The earlier segment is read for the length, not fenced.
    assert [stage[number].fenced for number in (1, 2, 3, 4, 5)] == [False, True, False, True, True]


@staged()
async def test_a_dead_bookie_is_done_without_and_replaced_in_the_write_back(stage: Stage) -> None:
    stage.put(range(6), 2, 3)
    await stage[1].stop()
    stage[1].port = 0
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.segments) == (5, (Segment(0, ("b4", "b2", "b3")),))
    # Two answers are enough for each entry, so the new bookie may still have all of them to read.
    while len(stage[4].entries) < 6:
        await asyncio.sleep(0.001)


@staged(**GIVES_UP_SOON)
async def test_a_hanging_bookie_is_done_without(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage[2].silent = True
    closed = await stage.recover()
    assert closed.last_entry_id == 5


@staged(**GIVES_UP_SOON)
async def test_two_hanging_bookies_are_too_many(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage[2].silent = stage[3].silent = True
    with pytest.raises(EntryUnknownError, match="b2, b3"):
        await stage.recover()
    assert stage.services.metadata.state is LedgerState.IN_RECOVERY
    for number in (2, 3):
        stage[number].silent = False
    assert (await stage.recover()).last_entry_id == 5


@staged()
async def test_c7_a_corrupt_replica_is_unknown(stage: Stage) -> None:
    stage.put(range(6), 1, 2)
    stage.corrupt(4, 1)
    assert (await stage.recover()).last_entry_id == 5


@staged()
async def test_c7_no_sound_replica_never_truncates(stage: Stage) -> None:
    stage.put(range(6), 1, 2)
    stage.corrupt(4, 1, 2)
    with pytest.raises(EntryUnknownError) as raised:
        await stage.recover()
    assert raised.value.entry_id == 4
    assert stage.services.metadata.state is LedgerState.IN_RECOVERY


@staged()
async def test_too_many_requests_are_waited_out(stage: Stage) -> None:
    # On one bookie alone they could be left out: two that lack an entry prove that it was not acknowledged.
    stage.put(range(40), 1, 2)
    stage[2].refuse = stage[3].refuse = 60
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.segments) == (39, ledger().segments)


# --- metadata -----------------------------------------------------------------------------------


@staged()
async def test_a_closed_ledger_is_left_as_it_is(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage.services.change(stage.services.metadata.closed(3, 30))
    assert await stage.recover() == stage.services.metadata
    assert stage[1].connections == set()


@staged()
async def test_somebody_else_closes_first(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage.before_close(lambda services: services.change(services.metadata.closed(4, 44)))
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.length) == (4, 44)


@staged()
async def test_the_writer_closes_meanwhile_and_wins(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage.before_close(lambda services: services.change(services.metadata.closed(5, length_of(5))))
    assert (await stage.recover()).last_entry_id == 5


@staged()
async def test_metadata_that_change_once_are_recovered_anew(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    changed = ledger(Quorum(3, 3, 2), (0, "b4 b2 b3"), state=LedgerState.IN_RECOVERY)
    stage.before_close(lambda services: services.change(changed))
    closed = await stage.recover()
    assert (closed.last_entry_id, closed.segments) == (5, (Segment(0, ("b4", "b2", "b3")),))


@staged()
async def test_metadata_that_keep_changing_end_the_recovery(stage: Stage) -> None:
    stage.before_close(lambda services: services.change(services.metadata), times=100)
    with pytest.raises(MetadataConflictError, match="keeps changing"):
        await stage.recover()
    # The first one marks the ledger.
    assert stage.services.calls.count("write") == 1 + ATTEMPTS


@staged()
async def test_c13_a_lost_reply_of_the_close_is_found_out(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)

    def lose() -> None:
        raise OutcomeUnknownError("connection lost")

    stage.services.after_write = lose
    closed = await stage.recover()
    assert (closed.last_entry_id, stage.services.calls.count("write")) == (5, 2)


@staged()
async def test_c16_the_next_recovery_ends_alike(stage: Stage) -> None:
    stage.put(range(4), 1, 2, 3, lac=2)
    stage.put(range(4, 6), 1, lac=2)
    # While b3 is away, only b2 lacks them. That proves nothing.
    await stage[3].stop()

    def die(services: ModelServices) -> None:
        raise MetadataUnavailableError("the recoverer dies here")

    stage.before_close(die)
    with pytest.raises(MetadataUnavailableError):
        await stage.recover()
    # Now an ack quorum holds entries 4 and 5, so the bookie that alone had them may go.
    stage.services.before = None
    await stage[3].start()
    await stage[1].stop()
    stage[1].port = 0
    assert (await stage.recover()).last_entry_id == 5


@pytest.mark.parametrize("call", ["address b2", "read_latest", "write"])
def test_an_error_nobody_thought_of_ends_the_recovery(call: str) -> None:
    @staged()
    async def play(stage: Stage) -> None:
        stage.put(range(6), 1, 2, 3)

        async def before(name: str) -> None:
            if name == call:
                raise RuntimeError("nobody thought of this")

        stage.services.before = before
        with pytest.raises((BookKeeperError, RuntimeError), match="nobody thought of this"):
            await stage.recover()

    play()


@staged()
async def test_a_cancelled_recovery_leaves_nothing_behind(stage: Stage) -> None:
    stage.put(range(6), 1, 2, 3)
    stage[1].silent = stage[2].silent = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stage.recover()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@staged()
async def test_recoveries_at_once_end_alike(stage: Stage) -> None:
    stage.put(range(20), 1, 2, 3, lac=10)
    stage.put(range(20, 30), 2, lac=10)
    pools = [stage.new_pool() for _ in range(4)]
    services: Any = stage.services
    closed = await asyncio.gather(
        *(recover_ledger(LEDGER, DigestType.CRC32C, PASSWORD, services, pool, stage.config) for pool in pools)
    )
    assert len({(one.last_entry_id, one.length) for one in closed}) == 1
    assert closed[0].last_entry_id >= 19
    for pool in pools:
        await pool.close()
