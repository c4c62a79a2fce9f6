"""Known bugs of the ledger protocol, played on real bookies: C4, C7, C12 (C6 is in test_bookie_process.py).

The same ids stand in tests/simulation and tests/unit, where order and loss of messages can be chosen freely.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.codes import Code, FlagV2
from bk_spark.protocol.errors import BookKeeperError, EntryUnknownError, NoSuchLedgerError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bookie_server.local import LocalBookie, LocalCluster
from tests.support.bookie import KEY, BookieProcess, Connection, add_frame, stored
from tests.support.nursery import QuickCluster
from tests.support.servers import BOOKIE_SETTINGS, start_timeout_ms

LEDGER = 1
OTHER_KEY = bytes(20)


@pytest.fixture
def bookie(tmp_path: Path, zk_only: LocalCluster, ledgers_root: str) -> Iterator[BookieProcess]:
    process = BookieProcess(tmp_path / "bookie", f"zk://{zk_only.zookeepers[0].id}{ledgers_root}", flushInterval="50")
    yield process
    process.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster whose bookies write entries to their logs soon, so that they can be damaged there."""
    settings = {**BOOKIE_SETTINGS, "flushInterval": "100"}
    directory = tmp_path_factory.mktemp("flushing")
    with QuickCluster(directory, bookies=3, bookie_settings=settings, start_timeout_ms=start_timeout_ms()) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_service_uri) as client:
        yield client


def test_c4_a_fence_outlives_kill_9(bookie: BookieProcess) -> None:
    """The bookie crashes right after it answered the fence; the writer, of which it may know nothing yet, resumes."""
    unknown = LEDGER + 1
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(LEDGER, [0]) == [Code.OK]
        assert connection.fence(LEDGER) == stored(LEDGER, 0)
        assert connection.fence(unknown) is Code.NO_ENTRY
    bookie.crash()
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(LEDGER, [1]) == [Code.FENCED]
        assert connection.add(unknown, [0]) == [Code.FENCED]
        assert connection.add(LEDGER, [1], flags=FlagV2.RECOVERY_ADD) == [Code.OK]
    # And once more, from the index file this time.
    assert bookie.stop() == 0
    bookie.start()
    with bookie.connect() as connection:
        assert connection.add(LEDGER, [2]) == [Code.FENCED]
        assert connection.add(unknown, [0]) == [Code.FENCED]


def wait_logged(bookie: LocalBookie, payload: bytes) -> list[tuple[Path, int]]:
    """Where the payload is in entry logs, once the flush that wrote it is over."""
    deadline = time.monotonic() + 30
    while not (places := _find(bookie, payload)):
        assert time.monotonic() < deadline, f"{payload!r} does not come into an entry log of {bookie.id}"
        time.sleep(0.02)
    return places


def _find(bookie: LocalBookie, payload: bytes) -> list[tuple[Path, int]]:
    directory = bookie.directory / "ledgers" / "current"
    places: list[tuple[Path, int]] = []
    for path in sorted(directory.glob("*.log")):
        content, at = path.read_bytes(), -1
        while (at := content.find(payload, at + 1)) >= 0:
            places.append((path, at))
    # The mark comes last.
    marked = (directory / "lastMark").stat().st_mtime_ns
    return [] if any(path.stat().st_mtime_ns > marked for path, _ in places) else places


class Damage:
    """Flips bytes of an entry in a bookie's entry logs; :meth:`undo` flips them back."""

    def __init__(self, bookie: LocalBookie, payload: bytes, offset: int) -> None:
        self._places = [(path, at + offset) for path, at in wait_logged(bookie, payload)]
        self._flip()

    def undo(self) -> None:
        self._flip()

    def _flip(self) -> None:
        for path, at in self._places:
            with path.open("r+b") as file:
                file.seek(at)
                (old,) = file.read(1)
                file.seek(at)
                file.write(bytes([old ^ 0x40]))


#: From the payload back over digest (CRC32C: 4 bytes), length, LAC, entry id, ledger id (8 each) to the record's size.
DAMAGES = {"payload": 2, "digest": -2, "LAC": -13, "entry id": -21, "ledger id": -29, "size": -37, "huge size": -40}
#: What a bookie sees that does not know the digest's key: it is not the entry that was asked for.
SEEN_BY_BOOKIES = {-21, -29, -40}
BY_DAMAGE = pytest.mark.parametrize("offset", DAMAGES.values(), ids=DAMAGES.keys())


def of_cluster(cluster: LocalCluster, bookie_id: str) -> LocalBookie:
    return next(one for one in cluster.bookies if one.id == bookie_id)


def wait_held(bookie: LocalBookie, ledger_id: int, entry_id: int) -> None:
    """An acknowledged entry is on its way to the bookies that the ack quorum does not need."""
    deadline = time.monotonic() + 30
    with Connection(bookie.port) as connection:
        while not isinstance(connection.read(ledger_id, entry_id), bytes):
            assert time.monotonic() < deadline, f"entry {entry_id} does not come to {bookie.id}"
            time.sleep(0.02)


def written(ledger_id: int, entry_id: int) -> bytes:
    """A payload that is nowhere else in an entry log."""
    return f"entry {entry_id} of ledger {ledger_id} of test c7 ".encode() * 3


@BY_DAMAGE
def test_c7_a_damaged_entry_is_read_from_another_bookie(
    client: BlockingClient, cluster: LocalCluster, offset: int
) -> None:
    writer = client.create()
    payloads = [written(writer.ledger_id, i) for i in range(20)]
    for payload in payloads:
        writer.append(payload)
    ensemble = writer.close().last_segment.ensemble
    for bookie_id in ensemble[:2]:
        damaged = of_cluster(cluster, bookie_id)
        wait_held(damaged, writer.ledger_id, 19)
        # With a damaged size, the bookie reads on into what follows, which a later flush might bring only then.
        wait_logged(damaged, payloads[19])
        Damage(damaged, payloads[7], offset)
        with Connection(damaged.port) as connection:
            answer = connection.read(writer.ledger_id, 7)
            if offset in SEEN_BY_BOOKIES:
                assert answer is Code.IO_ERROR
            else:
                assert isinstance(answer, bytes)
            assert isinstance(connection.read(writer.ledger_id, 8), bytes)
    assert client.open_for_reading(writer.ledger_id).read(0, 19) == payloads


@BY_DAMAGE
def test_c7_recovery_does_not_truncate_at_a_damaged_entry(
    client: BlockingClient, cluster: LocalCluster, offset: int
) -> None:
    writer = client.create()
    payloads = [written(writer.ledger_id, i) for i in range(3)]
    for payload in payloads:
        writer.append(payload)
        writer.flush()
    ensemble = [of_cluster(cluster, bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]
    for one in ensemble:
        wait_held(one, writer.ledger_id, 2)
    writer.abandon()
    damages = [Damage(one, payloads[2], offset) for one in ensemble]
    with pytest.raises(EntryUnknownError):
        client.recover_and_open(writer.ledger_id)
    assert client.metadata(writer.ledger_id).state is LedgerState.IN_RECOVERY
    for damage in damages[1:]:
        damage.undo()
    # One is still damaged: what two others hold is enough, and is written back.
    reader = client.recover_and_open(writer.ledger_id)
    assert reader.last_add_confirmed == 2
    assert reader.read(0, 2) == payloads


def test_c12_first_adds_and_a_fence_race_on_one_bookie(bookie: BookieProcess) -> None:
    """Many writers, two of them with another key, are the first to add to a ledger, and somebody fences it."""
    ledgers, writers, entries = range(1, 9), 6, 30
    bookie.start()
    answers: dict[tuple[int, int, bytes], list[Code]] = {}
    fenced_at: dict[int, bytes | Code] = {}
    start = threading.Barrier(writers + 1)

    def write(number: int, connection: Connection) -> None:
        key = OTHER_KEY if number % 3 == 2 else KEY
        start.wait()
        for ledger_id in ledgers:
            first = number * entries
            codes = connection.add(ledger_id, range(first, first + entries), key=key)
            answers[ledger_id, first, key] = codes

    def fence(connection: Connection) -> None:
        start.wait()
        for ledger_id in ledgers:
            fenced_at[ledger_id] = connection.fence(ledger_id)

    with ExitStack() as connections:
        threads = [
            threading.Thread(target=write, args=(number, connections.enter_context(bookie.connect())))
            for number in range(writers)
        ]
        threads.append(threading.Thread(target=fence, args=(connections.enter_context(bookie.connect()),)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for restarted in (False, True):
        with bookie.connect() as connection:
            for ledger_id in ledgers:
                _check_race(connection, ledger_id, answers, fenced_at[ledger_id])
        if not restarted:
            bookie.crash()
            bookie.start()
    assert bookie.stop() == 0
    index_files = list((bookie.directory / "ledgers").rglob("*.idx"))
    assert sorted(int(path.stem, 16) for path in index_files) == list(ledgers)


def _check_race(
    connection: Connection,
    ledger_id: int,
    answers: dict[tuple[int, int, bytes], list[Code]],
    fence_answer: bytes | Code,
) -> None:
    """One key owns the ledger; every add that was answered OK is there; none is taken any more."""
    by_key: dict[bytes, set[Code]] = {KEY: set(), OTHER_KEY: set()}
    for (ledger, first, key), codes in answers.items():
        if ledger != ledger_id:
            continue
        by_key[key].update(codes)
        for i, code in enumerate(codes):
            found = connection.read(ledger_id, first + i)
            assert (found == stored(ledger_id, first + i)) if code is Code.OK else isinstance(found, Code)
    (owner,) = [key for key, codes in by_key.items() if Code.UNAUTHORIZED not in codes]
    other = OTHER_KEY if owner == KEY else KEY
    assert by_key[other] == {Code.UNAUTHORIZED}
    assert by_key[owner] <= {Code.OK, Code.FENCED}
    if owner == KEY:
        assert fence_answer is not Code.UNAUTHORIZED
        assert connection.add(ledger_id, [9_999]) == [Code.FENCED]
    else:
        assert fence_answer is Code.UNAUTHORIZED
    assert connection.add(ledger_id, [9_999], key=other) == [Code.UNAUTHORIZED]


def test_c12_no_add_that_follows_the_fences_answer_is_taken(bookie: BookieProcess) -> None:
    bookie.start()
    with bookie.connect() as writer, bookie.connect() as recoverer:
        # Without waiting for answers: the fence comes while adds are on the way.
        writer.send(b"".join(add_frame(LEDGER, i, size=1_000) for i in range(400)))
        recoverer.fence(LEDGER)
        writer.send(b"".join(add_frame(LEDGER, i, size=1_000) for i in range(400, 800)))
        codes = {}
        for _ in range(800):
            body = writer.body()
            code = Code.from_v2(int.from_bytes(body[4:8], "big", signed=True))
            codes[int.from_bytes(body[16:24], "big")] = code
        assert {codes[i] for i in range(400, 800)} == {Code.FENCED}
        assert set(codes.values()) <= {Code.OK, Code.FENCED}
        # Everything accepted lies in front of everything refused.
        accepted = [i for i, code in codes.items() if code is Code.OK]
        assert sorted(accepted) == list(range(len(accepted)))


def test_c12_a_writer_does_not_bring_a_deleted_ledger_back(client: BlockingClient, cluster: LocalCluster) -> None:
    writer = client.create()
    writer.append(b"one")
    writer.flush()
    with BlockingClient(cluster.metadata_service_uri) as other:
        other.delete(writer.ledger_id)
    with pytest.raises(BookKeeperError):
        writer.close()
    with pytest.raises(NoSuchLedgerError):
        client.metadata(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        client.recover_and_open(writer.ledger_id)
