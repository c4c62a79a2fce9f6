"""Entry ids that index files have no room for: found at start, refused, left out where they are there already."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from bk_spark.protocol.codes import Code
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.disks.file_limit import last_indexable_entry
from bookie_server.storage.entrylog.entry_limit import EntryLimit
from bookie_server.storage.records import MAX_ENTRY_ID
from tests.support.running_storage import Place, delete_ledger, in_loop, running, stored

LIMIT_BYTES: Final = 2 << 40
LAST: Final = (LIMIT_BYTES - 1024) // 8192 * 1024 - 1


@pytest.fixture
def limit_files() -> Iterator[Callable[[int], None]]:
    """Sets ``ulimit -f`` of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "size_bytes", [8192, 9215, 9216, 9217, 1 << 20, LIMIT_BYTES, LIMIT_BYTES + 1024, 8 << 40, (8 << 40) + 1024]
)
def test_the_limit_is_what_whole_pages_fit_into(
    tmp_path: Path, limit_files: Callable[[int], None], size_bytes: int
) -> None:
    limit_files(size_bytes)
    last = last_indexable_entry([str(tmp_path)])
    assert last == min((size_bytes - 1024) // 8192 * 1024 - 1, MAX_ENTRY_ID)
    assert os.listdir(tmp_path) == []
    with (tmp_path / "as an index").open("wb") as file:
        if last >= 0:
            os.pwrite(file.fileno(), b"location", 1024 + 8 * last)
        if last < MAX_ENTRY_ID:
            with pytest.raises(OSError, match="too large"):
                os.truncate(file.fileno(), 1024 + 8 * (last + 1024 + 1))


def test_without_a_limit_every_id_can_be_taken(tmp_path: Path) -> None:
    assert last_indexable_entry([str(tmp_path)]) == MAX_ENTRY_ID


def test_a_directory_in_which_nothing_can_be_tried_has_no_known_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "LIMIT.tmp").mkdir()
    assert last_indexable_entry([str(tmp_path)]) == MAX_ENTRY_ID
    assert "cannot find the maximum length" in caplog.text


@pytest.mark.parametrize("recovery", [False, True])
@in_loop
async def test_an_add_beyond_the_limit_is_refused_alone(tmp_path: Path, recovery: bool) -> None:
    place = Place.make(tmp_path / "bookie", find_last_entry=lambda: LAST)
    async with running(place) as bookie:
        ids = [(1, 0), (1, LAST + 1), (2, MAX_ENTRY_ID), (1, LAST), (3, 5)]
        codes = await bookie.add(*(stored(*pair) for pair in ids), recovery=recovery)
        assert codes == [Code.OK, Code.BAD_REQUEST, Code.BAD_REQUEST, Code.OK, Code.OK]
        await bookie.storage.checkpoint()
        assert await bookie.read(*ids) == [
            stored(1, 0), Code.NO_ENTRY, Code.NO_LEDGER, stored(1, LAST), stored(3, 5)
        ]  # fmt: skip
        assert not bookie.troubles


@in_loop
async def test_a_limit_that_is_found_at_a_flush_leaves_out_what_is_beyond_it(
    tmp_path: Path, limit_files: Callable[[int], None]
) -> None:
    """The limit was lowered, or could not be found out at the start. The bookie stays writable, the marks move, and
    nothing that was acknowledged is said to be absent, also after restarts."""
    place = Place.make(tmp_path / "bookie", ledgers=2)
    directories = list(place.ledgers)
    place = place.with_settings(find_last_entry=lambda: last_indexable_entry(directories))
    far = [(1, LAST + 1), (1, MAX_ENTRY_ID), (2, MAX_ENTRY_ID)]
    near = [(1, 0), (1, LAST), (3, 7)]
    async with running(place) as bookie:
        assert set(await bookie.add(*(stored(*pair) for pair in near + far))) == {Code.OK}
        limit_files(LIMIT_BYTES)
        await bookie.storage.checkpoint()
        assert not bookie.troubles
        assert await bookie.add(stored(2, MAX_ENTRY_ID), stored(4, 0)) == [Code.BAD_REQUEST, Code.OK]
        marks = place.marks()
        for pair in near:
            assert bookie.read_now(*pair) == stored(*pair)
        for pair in far:
            assert bookie.read_now(*pair) is Code.IO_ERROR
        assert await bookie.read(*near, *far) == [stored(*pair) for pair in near] + [Code.IO_ERROR] * 3
    for _ in range(2):
        async with running(place) as bookie:
            assert place.marks() > marks
            assert await bookie.read(*far, (1, 1), (3, 8), (2, 0)) == [Code.IO_ERROR] * 3 + [Code.NO_ENTRY] * 3
            # Nobody is told that the ledger's entries are these and no others.
            assert (await bookie.bookie.list_entries(1))[0] is Code.IO_ERROR
    # Removed with the ledger: under its id another may be made.
    async with running(place) as bookie:
        await delete_ledger(bookie.upkeep, 1)
        assert not bookie.storage.entry_limit.lacks_some(1)
    assert {Path(path, "unindexed").read_text() for path in place.ledgers} == {f"2 {MAX_ENTRY_ID}\n"}


@in_loop
async def test_marks_wait_until_what_is_left_out_is_put_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [MAX_ENTRY_ID]
    place = Place.make(tmp_path / "bookie", find_last_entry=lambda: limits[0])
    async with running(place) as bookie:
        assert await bookie.add(stored(1, 0), stored(1, MAX_ENTRY_ID)) == [Code.OK] * 2
        bookie.storage.entry_limit.last = LAST
        before = place.marks()
        (place.ledger / "unindexed.tmp").mkdir()
        with pytest.raises(OSError, match="unindexed"):
            await bookie.storage.checkpoint()
        assert place.marks() == before
        assert await bookie.read((1, MAX_ENTRY_ID)) == [stored(1, MAX_ENTRY_ID)]
        (place.ledger / "unindexed.tmp").rmdir()
        await bookie.storage.checkpoint()
        assert place.marks() > before
        assert await bookie.read((1, 0), (1, MAX_ENTRY_ID)) == [stored(1, 0), Code.IO_ERROR]


def test_what_was_put_down_is_read_from_all_directories(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        os.mkdir(directory)
    (tmp_path / "b" / "unindexed.tmp").mkdir()  # it takes nothing
    EntryLimit(lambda: LAST, directories).note({7: 500, 8: 9})
    (tmp_path / "b" / "unindexed").write_text("7 400\n9 1\n")
    limit = EntryLimit(lambda: LAST, directories)
    assert [limit.first_lacking(ledger_id) for ledger_id in (7, 8, 9, 10)] == [400, 9, 1, MAX_ENTRY_ID + 1]
    (tmp_path / "a" / "unindexed").write_text("7 four\n")
    with pytest.raises(CorruptFileError, match="unindexed does not hold pairs"):
        EntryLimit(lambda: LAST, directories)
