"""Our v3 connection to live bookies, Apache's and ours: every request, and frames whose numbers are padded."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bk_spark.bookie.connection.v3 import BookieConnectionV3
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType, FlagV2
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_lac, verify_entry, verify_lac
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookieAnswerError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.wire.v3.add_frames_v3 import EntryPackagerV3
from tests.support.connections import assert_no_requests

PASSWORD = b"open sesame"
KEY = master_key(PASSWORD)
DIGEST = digest_function(DigestType.CRC32C, PASSWORD)
RECOVERY = FlagV2.RECOVERY_ADD | FlagV2.HIGH_PRIORITY
_ledger_ids = itertools.count(uuid.uuid4().int % 2**40 << 20)


class Stage:
    """A connection to one bookie, and a ledger that nobody used."""

    def __init__(self, connection: BookieConnectionV3) -> None:
        self.connection = connection
        self.ledger_id = next(_ledger_ids)
        self.codes: dict[int, Code] = {}
        self._answered = asyncio.Event()
        connection.listen(self.ledger_id, self._on_answers, lambda _: self._answered.set())

    async def add(
        self, first: int, payloads: list[bytes], *, lac: int = -1, key: bytes = PASSWORD, **options: Any
    ) -> list[Code]:
        """The codes of adds of ``payloads`` as entries ``first`` and following."""
        packager = EntryPackagerV3(self.ledger_id, options.pop("digest", DigestType.CRC32C), key, **options)
        self.codes.clear()
        self.connection.send([packager.package(first, lac, 0, Payloads.of(payloads)).data])
        while len(self.codes) < len(payloads):
            assert not self.connection.closed
            self._answered.clear()
            await self._answered.wait()
        return [self.codes[entry_id] for entry_id in range(first, first + len(payloads))]

    def _on_answers(self, bookie_id: str, entry_ids: Any, codes: Any) -> None:
        self.codes.update(zip(entry_ids.tolist(), map(Code, codes.tolist()), strict=True))
        self._answered.set()


def is_apaches(uri: str) -> bool:
    return "apache" in uri


Play = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def run(bookies_uri: str) -> Callable[[Play], None]:
    """Runs a coroutine function with a :class:`Stage` at one of the bookies."""
    uri = MetadataServiceUri.parse(bookies_uri)
    zookeeper = ZooKeeper(uri.servers)
    zookeeper.start()
    bookies = [name for name in zookeeper.children(f"{uri.root}/available") or [] if name != "readonly"]
    zookeeper.close()
    host, _, port = min(bookies).rpartition(":")

    def start(play: Play) -> None:
        async def main() -> None:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: BookieConnectionV3(min(bookies)), host, int(port)
            )
            try:
                async with asyncio.timeout(60):
                    await play(Stage(connection))
                assert_no_requests(connection)
            finally:
                connection.close()
                await asyncio.sleep(0)

        asyncio.run(main())

    return start


@pytest.mark.parametrize("deferred_sync", [False, True])
@pytest.mark.parametrize("digest_type", DigestType)
def test_padded_adds_are_taken(run: Callable[[Play], None], digest_type: DigestType, deferred_sync: bool) -> None:
    payloads = [bytes([number % 251]) * (number * 97 % 2_003) for number in range(500)] + [bytes(1024 * 1024)]

    async def play(stage: Stage) -> None:
        codes = await stage.add(0, payloads, digest=digest_type, deferred_sync=deferred_sync)
        assert codes == [Code.OK] * len(payloads)
        answers = await stage.connection.read(stage.ledger_id, range(len(payloads) + 1))
        assert answers.pop(len(payloads)).code is Code.NO_ENTRY
        digest = digest_function(digest_type, PASSWORD)
        for entry_id, answer in answers.items():
            entry = verify_entry(answer.stored, stage.ledger_id, entry_id, digest_type, digest)
            assert entry.payload == payloads[entry_id]

    run(play)


@pytest.mark.parametrize("first", [0, 100, 2**31 - 3, 2**39, 2**62])
def test_ids_of_every_size(run: Callable[[Play], None], bookies_uri: str, first: int) -> None:
    async def play(stage: Stage) -> None:
        if first >= 2**40 and not is_apaches(bookies_uri):
            assert await stage.add(first, [b"x"] * 2) == [Code.BAD_REQUEST] * 2
            return
        assert await stage.add(first, [b"%d" % number for number in range(200)]) == [Code.OK] * 200
        answers = await stage.connection.read(stage.ledger_id, range(first, first + 200, 7))
        assert {answer.code for answer in answers.values()} == {Code.OK}

    run(play)


def test_fences_and_recovery_adds(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        flags = FlagV2.FENCING | FlagV2.HIGH_PRIORITY
        last = range(LAST_ENTRY, 0)
        assert await stage.add(0, [b"0", b"1"]) == [Code.OK] * 2
        answers = await stage.connection.read(stage.ledger_id, last, flags=flags, key=master_key(b"swordfish"))
        assert answers[LAST_ENTRY].code is Code.UNAUTHORIZED
        answers = await stage.connection.read(stage.ledger_id, last, flags=flags, key=KEY)
        assert verify_entry(answers[LAST_ENTRY].stored, stage.ledger_id, 1, DigestType.CRC32C, DIGEST).payload == b"1"
        assert await stage.add(2, [b"late"] * 3) == [Code.FENCED] * 3
        assert await stage.add(2, [b"written back"] * 60, flags=RECOVERY) == [Code.OK] * 60
        assert await stage.add(62, [b"x"], flags=RECOVERY, key=b"swordfish") == [Code.UNAUTHORIZED]
        answers = await stage.connection.read(stage.ledger_id, range(2, 3), flags=flags, key=KEY)
        assert answers[2].stored[-12:] == b"written back"

    run(play)


def test_explicit_lacs_and_forcing(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        connection, ledger_id = stage.connection, stage.ledger_id
        await stage.add(0, [b"x"] * 5, deferred_sync=True)
        assert await connection.force(ledger_id) is Code.OK
        assert await connection.write_lac(ledger_id, pack_lac(ledger_id, 4, DIGEST), KEY) is Code.OK
        _, packet, entry = await connection.read_lac(ledger_id)
        assert packet is not None
        assert entry is not None
        assert verify_lac(packet, ledger_id, DigestType.CRC32C, DIGEST) == 4
        last = verify_entry(entry, ledger_id, None, DigestType.CRC32C, DIGEST)
        assert (last.entry_id, last.last_add_confirmed) == (4, -1)
        wrong = master_key(b"swordfish")
        assert await connection.write_lac(ledger_id, pack_lac(ledger_id, 4, DIGEST), wrong) is not Code.OK

    run(play)


def test_long_polls(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        connection, ledger_id = stage.connection, stage.ledger_id
        assert (await connection.long_poll(ledger_id, -1, 100)).code is Code.NO_LEDGER
        await stage.add(0, [b"zero"])
        nothing = await connection.long_poll(ledger_id, -1, 50)
        assert (nothing.code, nothing.entry_id, nothing.stored) == (Code.OK, -1, None)
        # It waits, and an add that tells a higher LAC ends it; so does an explicit LAC.
        polls = [asyncio.ensure_future(connection.long_poll(ledger_id, -1, 20_000)) for _ in range(20)]
        await stage.add(1, [b"one"], lac=0)
        for answer in await asyncio.gather(*polls):
            assert (answer.code, answer.entry_id, answer.max_lac) == (Code.OK, 0, 0)
            assert answer.stored is not None
            assert verify_entry(answer.stored, ledger_id, 0, DigestType.CRC32C, DIGEST).payload == b"zero"
        poll = asyncio.ensure_future(connection.long_poll(ledger_id, 0, 20_000))
        await connection.read(ledger_id, range(1))
        assert not poll.done()
        await connection.write_lac(ledger_id, pack_lac(ledger_id, 1, DIGEST), KEY)
        answer = await poll
        assert (answer.code, answer.entry_id, answer.max_lac) == (Code.OK, 1, 1)

    run(play)


def test_many_requests_at_once(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        connection, ledger_id = stage.connection, stage.ledger_id
        await stage.add(0, [b"%d" % number for number in range(500)])
        reads = [connection.read(ledger_id, range(number, number + 1)) for number in range(500)]
        lacs = [connection.read_lac(ledger_id) for _ in range(250)]
        forces = [connection.force(ledger_id) for _ in range(250)]
        answers = await asyncio.gather(*reads, *lacs, *forces)
        for number, answer in enumerate(answers[:500]):
            assert bytes(answer[number].stored[36:]) == b"%d" % number
        assert {code for code, _, _ in answers[500:750]} == {Code.OK}
        assert set(answers[750:]) == {Code.OK}

    run(play)


def test_bookie_info(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        info = await stage.connection.bookie_info()
        assert info.total_disk_bytes is not None
        assert info.free_disk_bytes is not None
        assert 0 < info.free_disk_bytes <= info.total_disk_bytes

    run(play)


def test_lists_of_entries(run: Callable[[Play], None]) -> None:
    async def play(stage: Stage) -> None:
        for first, count in ((0, 3), (5, 3), (10, 3), (20, 1)):
            await stage.add(first, [b"x"] * count)
        availability = await stage.connection.list_entries(stage.ledger_id)
        assert list(itertools.chain.from_iterable(availability.ranges())) == [0, 1, 2, 5, 6, 7, 10, 11, 12, 20]
        with pytest.raises(BookieAnswerError, match="code NO_LEDGER"):
            await stage.connection.list_entries(2**61)

    run(play)
