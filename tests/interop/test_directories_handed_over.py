"""Either bookie goes on with directories that the other left."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import BookieUnavailableError
from bookie_server.identity.dirty import is_dirty, mark_dirty
from bookie_server.identity.generation import new_generation, read_generation, write_generation
from bookie_server.local import LocalBookie, LocalCluster
from bookie_server.process import EXIT_BOOKIE_ERROR
from bookie_server.storage.index.index import IndexFiles
from tests.faults.seeds import wanted
from tests.interop.apache import STOP_TIMEOUT_MS, ApacheBookie, Bookies
from tests.interop.java_client import JavaClient
from tests.interop.java_shell import JavaShell
from tests.interop.shelf import DIRECTORIES, PASSWORD, Shelf, bookie_settings
from tests.support.clusters import new_cluster
from tests.support.daily import number_of_today
from tests.support.servers import start_timeout_ms

pytestmark = pytest.mark.timeout(600)

#: Bookies one after the other, each with whether it is killed at its end. Apache's is not killed after ours was: what
#: it replayed of an explicit LAC without entries it need not have written when it moves its mark.
_COURSES: Final[dict[str, list[tuple[type[LocalBookie], bool]]]] = {
    "stopped": [(LocalBookie, False), (ApacheBookie, False), (LocalBookie, False)],
    "ours-killed": [(LocalBookie, True), (ApacheBookie, False), (LocalBookie, False)],
    "apaches-killed": [(ApacheBookie, True), (LocalBookie, False)],
}

#: A bookie flushes meanwhile, some times (`flushInterval` in shelf.py), and moves its mark where it does so while idle.
_IDLE_S: Final = 0.3
_POLL_S: Final = 0.1


@pytest.mark.turns(3)
@pytest.mark.parametrize("course", list(_COURSES))
@pytest.mark.parametrize(
    ("storage", "directories"), [("SortedLedgerStorage", "several"), ("InterleavedLedgerStorage", "one")]
)
def test_either_bookie_goes_on_with_the_others_directories(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, storage: str, directories: str, course: str
) -> None:
    """Under one id and configuration, each with what those before it wrote."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[directories]),
        "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}",
    }
    shelf = Shelf(uri)
    kinds = _COURSES[course]
    with Bookies(tmp_path / "bookies", uri, [kinds[0][0]], settings) as bookies:
        for kind, killed in kinds:
            if not bookies.bookies[0].running:
                bookies.change_kind(kind)
                bookies.start()
            (bookie,) = bookies.bookies
            shelf.check(bookie.port)
            for volume in shelf.volumes:
                if volume.payloads and not volume.explicit_lac:
                    read = java_client.read(
                        uri, volume.ledger_id, recovery=False, wire=2, password=PASSWORD.decode(), with_payloads=True
                    )
                    assert read.payloads == volume.payloads
            shelf.fill()
            shelf.check(bookie.port)
            if killed:
                bookie.kill()
            else:
                assert bookie.terminate(STOP_TIMEOUT_MS)
            java_client.forget(uri)


@pytest.mark.turns(2)
@pytest.mark.parametrize("directories", list(DIRECTORIES))
def test_h1_large_entries_keep_apaches_bookie_off_until_ours_has_stopped_in_order(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, directories: str
) -> None:
    """H1: what only our journal knows to be in an entry log, Apache's replay would skip. So it refuses such a journal,
    until ours has written its index."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[directories]),
        "largeEntryMinBytes": "30000",
    }
    shelf = Shelf(uri)
    with Bookies(tmp_path / "bookies", uri, [LocalBookie], settings) as bookies:
        shelf.fill()
        shelf.fill_and_kill(bookies.bookies[0])
        java_client.forget(uri)
        bookies.change_kind(ApacheBookie)
        (refusing,) = bookies.bookies
        refusing.start()
        deadline = time.monotonic() + start_timeout_ms() / 1000
        while "Invalid journal version" not in refusing.log_tail():
            assert refusing.running, refusing.failure("Apache's bookie does not say why it ended")
            assert time.monotonic() < deadline, refusing.failure("Apache's bookie does not refuse")
            time.sleep(_POLL_S)
        refusing.kill()
        for kind in (LocalBookie, ApacheBookie, LocalBookie):
            bookies.change_kind(kind)
            bookies.start()
            (bookie,) = bookies.bookies
            shelf.check(bookie.port, explicit_lacs=False)
            if kind is ApacheBookie:
                for volume in shelf.volumes[:3]:
                    read = java_client.read(
                        uri, volume.ledger_id, recovery=False, wire=2, password=PASSWORD.decode(), with_payloads=True
                    )
                    assert read.payloads == volume.payloads
            shelf.fill()
            assert bookie.terminate(STOP_TIMEOUT_MS)
            java_client.forget(uri)


@pytest.mark.turns(2)
@pytest.mark.parametrize("directories", list(DIRECTORIES))
def test_directories_of_dbledgerstorage_are_refused_until_they_are_converted(
    tmp_path: Path, zk_only: LocalCluster, directories: str
) -> None:
    """Its entry logs are alike, but its index is RocksDB: our bookie would answer "no such entry" for all of them."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[directories]),
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    }
    shelf = Shelf(uri)
    with Bookies(tmp_path / "bookies", uri, [ApacheBookie], settings) as bookies, JavaShell() as shell:
        (bookie,) = bookies.bookies
        shelf.fill()
        assert bookie.terminate(STOP_TIMEOUT_MS)
        before = _files(tmp_path / "data")
        bookies.change_kind(LocalBookie)
        _assert_refused(bookies)
        assert _files(tmp_path / "data") == before
        converted = shell.run(bookie.conf_path, "convert-to-interleaved-storage")
        assert converted.status == 0, converted.text
        if directories == "several":
            # Each has entry logs with the ids of the others: Apache's tool leaves them ambiguous, and the databases of
            # all but the first.
            _assert_refused(bookies)
        else:
            bookies.start()
            shelf.check(bookie.port, explicit_lacs=False)


def _assert_refused(bookies: Bookies) -> None:
    with pytest.raises(BookieUnavailableError, match=r"current/ledgers is an index of Apache's DbLedgerStorage"):
        bookies.start()
    assert bookies.bookies[0].exit_code == EXIT_BOOKIE_ERROR


def _files(directory: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of every file that is not a lock."""
    found = {path: path.stat() for path in directory.rglob("*") if path.is_file() and "lock" not in path.name}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.mark.turns(2)
@pytest.mark.parametrize("storage", ["SortedLedgerStorage", "InterleavedLedgerStorage"])
def test_apaches_bookie_serves_ledgers_in_limbo_and_keeps_the_flag(
    tmp_path: Path, zk_only: LocalCluster, storage: str
) -> None:
    """It knows no such bit of the header, and writes it as it found it. It also starts on our GENERATION and DIRTY, and
    leaves the first: ours starts on them again."""
    uri = new_cluster(zk_only, tmp_path.name)
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES["one"]),
        "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}",
    }
    shelf = Shelf(uri)
    nothing = np.empty(0, np.int64)
    with Bookies(tmp_path / "bookies", uri, [LocalBookie], settings) as bookies:
        shelf.fill()
        assert bookies.bookies[0].terminate()
        directory = str(tmp_path / "data" / "ledgers0" / "current")
        index = IndexFiles([directory], lambda: [directory])
        ledger_ids = index.ledger_ids().tolist()
        assert ledger_ids
        before = {}
        for ledger_id in ledger_ids:
            header = index.read_header(ledger_id)
            assert header is not None
            before[ledger_id] = replace(header, limbo=True)
            index.write(ledger_id, before[ledger_id], nothing, nothing)
        index.sync()
        # As after a replacement of directories, and a run that was killed.
        generation = new_generation()
        currents = [str(path) for path in (tmp_path / "data").glob("*/current")]
        assert len(currents) == 2
        for current in currents:
            write_generation(current, generation)
        mark_dirty([directory], synced=True, losses_handled=True)
        assert is_dirty([directory])
        bookies.change_kind(ApacheBookie)
        bookies.start()
        shelf.check(bookies.bookies[0].port)
        # A fence has the header written again.
        (still_open,) = (volume for volume in shelf.volumes if volume.explicit_lac)
        with BlockingClient(uri) as client:
            client.recover_and_open(still_open.ledger_id, PASSWORD)
        assert bookies.bookies[0].terminate()
        for ledger_id in ledger_ids:
            fenced = before[ledger_id].fenced or ledger_id == still_open.ledger_id
            assert index.read_header(ledger_id) == replace(before[ledger_id], fenced=fenced)
        assert [read_generation(current) for current in currents] == [generation] * 2
        assert not is_dirty([directory])
        shelf.volumes.remove(still_open)
        shelf.volumes.append(replace(still_open, explicit_lac=False, fenced=True))
        bookies.change_kind(LocalBookie)
        bookies.start()
        shelf.check(bookies.bookies[0].port)
        assert bookies.bookies[0].terminate()
        for ledger_id in ledger_ids:
            header = index.read_header(ledger_id)
            assert header is not None
            assert header.limbo
        index.close()


@dataclass(frozen=True, slots=True)
class Stage:
    """One bookie on the directories, from its start to its end."""

    kind: type[LocalBookie]
    writes: bool
    killed: bool

    def __str__(self) -> str:
        name = "Apache's" if self.kind is ApacheBookie else "ours"
        return f"{name} {'writing' if self.writes else 'idle'} {'killed' if self.killed else 'stopped'}"


STAGES: Final = [Stage(*values) for values in product((LocalBookie, ApacheBookie), (True, False), (True, False))]


def walk(seed: int) -> list[Stage]:
    """Every stage of ours behind every one of Apache's, the other way round, and idle ones of Apache's in a row, in an
    order drawn from ``seed``: each step is taken once."""
    rng = random.Random(seed)
    left = {
        stage: [
            after
            for after in STAGES
            if after.kind is not stage.kind or (stage.kind is ApacheBookie and not stage.writes and not after.writes)
        ]
        for stage in STAGES
    }
    for after in left.values():
        rng.shuffle(after)
    # Hierholzer's way through all steps, which ends where it begins.
    path, trail = [], [STAGES[0]]
    while trail:
        if left[trail[-1]]:
            trail.append(left[trail[-1]].pop())
        else:
            path.append(trail.pop())
    return path[::-1]


#: The steps, in parts that run on directories of their own.
_WALK: Final = walk(14)
_PARTS: Final = 4
#: Seeds that were asked for choose parts; ``make nightly`` runs all.
_SEEDS: Final = wanted("HANDED_OVER_SEEDS")


def _parts() -> Iterator[list[Stage]]:
    size = -(-(len(_WALK) - 1) // _PARTS)
    for first in range(0, len(_WALK) - 1, size):
        yield _WALK[first : first + size + 1]


def test_the_walk_takes_every_step() -> None:
    steps = [step for part in _parts() for step in pairwise(part)]
    assert len(steps) == len(set(steps)) == 36
    assert {(a, b) for a in STAGES for b in STAGES if a.kind is not b.kind} <= set(steps)


def _part(number: int) -> int:
    """``make test`` runs one, another one every day."""
    return (number if _SEEDS else number_of_today()) % _PARTS


@pytest.mark.parametrize("number", _SEEDS or range(1))
def test_h1_every_order_of_bookies_stopped_and_killed_idle_and_writing(
    tmp_path: Path, zk_only: LocalCluster, java_client: JavaClient, number: int
) -> None:
    """H1: our bookie killed, Apache's started on its directory, idle, writing, killed; and all other orders. Each
    starts on what those before it left, and all that was acknowledged is read back from both kinds."""
    part = _part(number)
    print(f"part {part}: repeat with make handed-over SEEDS={part}")
    uri = new_cluster(zk_only, tmp_path.name)
    storage = ("Sorted", "Interleaved")[part % 2]
    settings = {
        **ApacheBookie.sizes,
        **bookie_settings(tmp_path / "data", *DIRECTORIES[("one", "several")[part // 2]]),
        "ledgerStorageClass": f"org.apache.bookkeeper.bookie.{storage}LedgerStorage",
    }
    stages = list(_parts())[part]
    # In the end each kind has to serve all of it.
    stages += [Stage(ApacheBookie, False, False), Stage(LocalBookie, False, False)]
    shelf = Shelf(uri)
    began = time.monotonic()
    with Bookies(tmp_path / "bookies", uri, [stages[0].kind], settings) as bookies:
        for place, stage in enumerate(stages):
            if not bookies.bookies[0].running:
                bookies.change_kind(stage.kind)
                try:
                    bookies.start()
                except Exception as error:
                    error.add_note(f"after {', '.join(map(str, stages[:place]))}: {stage}")
                    raise
            (bookie,) = bookies.bookies
            if stage.writes:
                shelf.fill()
            else:
                time.sleep(_IDLE_S)  # it may do what an idle bookie does
            if place >= len(stages) - 2:
                shelf.check(bookie.port, explicit_lacs=False)
            if stage.killed and stage.writes:
                shelf.fill_and_kill(bookie)
            elif stage.killed:
                bookie.kill()
            else:
                assert bookie.terminate(STOP_TIMEOUT_MS)
            java_client.forget(uri)
            print(f"{time.monotonic() - began:.1f} s: {stage}")
    print(f"{len(stages)} starts, {len(shelf.volumes)} ledgers")
