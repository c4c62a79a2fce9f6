"""A start after a loss of data marks the ledgers first: real directories and ZooKeeper, cut at every write and sync."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.entries.digest import master_key
from bk_spark.protocol.errors import CookieMismatchError, CorruptFileError, MetadataFormatError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.quorum import Quorum
from bookie_server.config.config import BookieConfig
from bookie_server.gc.ledger_metadata_reads import LedgerMetadataReads
from bookie_server.identity.cookies import all_directories
from bookie_server.identity.dirty import boot_id
from bookie_server.integrity import marking
from bookie_server.integrity.marking import check_identity
from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog.entry_log import OFFSET_BITS
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds
from bookie_server.storage.index.index import IndexFiles, IndexHeader
from bookie_server.storage.journal.log_mark import LogMark, read_marks, write_marks
from tests.crash.choices import EXTREMES
from tests.crash.crashes import empty_directory
from tests.crash.disk import Disk
from tests.crash.recorder import Recorder, materialise
from tests.support.ledgers import PASSWORD, ledger

ME = "b1"
KEY = master_key(PASSWORD)
QUORUM = Quorum(3, 3, 2)
CLOSED = {"state": LedgerState.CLOSED, "last_entry_id": 19, "length": 190}
HERE, ELSEWHERE = (0, "b1 b2 b3"), (10, "b2 b3 b4")
#: Ledgers in ZooKeeper, and the headers that they get. None: it does not name this bookie.
MARKED: dict[int, tuple[LedgerMetadata, IndexHeader | None]] = {
    1: (ledger(QUORUM, HERE), IndexHeader(KEY, True, None, limbo=True)),
    2: (ledger(QUORUM, HERE, state=LedgerState.IN_RECOVERY), IndexHeader(KEY, True, None, limbo=True)),
    3: (replace(ledger(QUORUM, HERE), **CLOSED), IndexHeader(KEY, False, None, limbo=True)),
    # Its writer goes on without this bookie, and may need it again.
    4: (ledger(QUORUM, HERE, ELSEWHERE), IndexHeader(KEY, False, None, limbo=True)),
    5: (ledger(QUORUM, (0, "b2 b3 b4")), None),
    # Metadata of an old release, without a password.
    6: (replace(ledger(QUORUM, HERE), digest_type=None, password=None), IndexHeader(b"", True, None, limbo=True)),
}


class Lossy:
    """The directories of a bookie that has run, and the ledgers of its cluster."""

    def __init__(self, base: Path, zookeeper: ZooKeeper, root: str) -> None:
        self.base = base
        self.zookeeper = zookeeper
        self.config = BookieConfig(
            MetadataServiceUri.parse(f"zk://{zookeeper.servers}{root}"),
            ME,
            "b",
            "0.0.0.0",
            journal_directories=(str(base / "j0"), str(base / "j1")),
            ledger_directories=(str(base / "l0"), str(base / "l1")),
            index_directories=(str(base / "i0"), str(base / "i1")),
            data_integrity_checking=True,
        )
        self.check()
        store = LedgerStore(zookeeper, self.config.metadata_service_uri)
        for ledger_id, (metadata, _) in MARKED.items():
            store.create(metadata, ledger_id=ledger_id)
        write_marks([self.current("l0"), self.current("l1")], [LogMark(7, 512), LogMark(8, 512)])
        for name in ("j0", "j1"):
            Path(self.current(name), "0.txn").write_bytes(b"")
        # This bookie has one ledger and another one's entries.
        self.write(1, IndexHeader(KEY, False, bytes(range(24))), {0: 77})
        self.write(9, IndexHeader(KEY, False, None), {})

    def current(self, name: str) -> str:
        return str(self.base / name / "current")

    @property
    def index(self) -> IndexFiles:
        directories = [each for each in (self.current("i0"), self.current("i1")) if Path(each).exists()]
        return IndexFiles(directories, lambda: directories)

    def write(self, ledger_id: int, header: IndexHeader, slots: dict[int, int]) -> None:
        index = self.index
        index.write(ledger_id, header, np.array([*slots], np.int64), np.array([*slots.values()], np.int64))
        index.close()

    def headers(self) -> dict[int, IndexHeader | None]:
        index = self.index
        found = {ledger_id: index.read_header(ledger_id) for ledger_id in index.ledger_ids().tolist()}
        index.close()
        return found

    def lose(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.base / name)

    def check(self, **settings: Any) -> None:
        for directory in all_directories(self.config):
            Path(directory).mkdir(exist_ok=True)
        check_identity(self.zookeeper, replace(self.config, **settings))

    def check_with_word(self) -> None:
        self.check(data_integrity_stamp_missing_cookies=True)

    @property
    def stamped(self) -> bool:
        return all(Path(directory, "current", "VERSION").exists() for directory in all_directories(self.config))

    def assert_marked(self) -> None:
        found = {key: each for key, each in self.headers().items() if each is not None and each.limbo}
        wanted = {key: each for key, (_, each) in MARKED.items() if each is not None}
        # A part of the first ledger's header may have outlived the loss.
        first = found.get(1)
        assert first is not None
        assert {**found, 1: replace(first, explicit_lac=None)} == wanted


@pytest.fixture
def lossy(tmp_path: Path, zookeeper: ZooKeeper, ledgers_root: str) -> Lossy:
    return Lossy(tmp_path, zookeeper, ledgers_root)


@pytest.mark.parametrize("lost", [("j1",), ("l0",), ("i0",), ("i1", "j0"), ("j0", "j1", "l0", "l1", "i0", "i1")])
def test_c6_every_ledger_that_names_the_bookie_is_marked(lossy: Lossy, lost: tuple[str, ...]) -> None:
    lossy.lose(*lost)
    for settings in ({}, {"data_integrity_checking": False, "data_integrity_stamp_missing_cookies": True}):
        with pytest.raises(
            CookieMismatchError, match=r"there is no current/VERSION in .*dataIntegrityStampMissingCookies"
        ):
            lossy.check(**settings)
    lossy.check_with_word()
    assert lossy.stamped
    lossy.assert_marked()
    # The marks of journals that are still there stay.
    kept = {"j0": LogMark(7, 512), "j1": LogMark(8, 512)} if "l1" not in lost else {}
    wanted = [LogMark(0, 0) if name in lost else kept.get(name, LogMark(0, 0)) for name in ("j0", "j1")]
    assert read_marks([lossy.current("l0"), lossy.current("l1")], 2) == wanted
    assert not list(lossy.base.rglob("*.unchecked"))
    # It is a loss once.
    before = lossy.headers()
    index = lossy.index
    index.remove(3)
    index.close()
    lossy.check_with_word()
    lossy.check()
    assert lossy.headers() == {key: each for key, each in before.items() if key != 3}


def test_what_is_left_of_an_index_file_stays(lossy: Lossy) -> None:
    lossy.lose("j0")
    lossy.check_with_word()
    assert lossy.headers()[1] == IndexHeader(KEY, True, bytes(range(24)), limbo=True)
    assert lossy.headers()[9] == IndexHeader(KEY, False, None)
    index = lossy.index
    assert index.entry_ids(1).tolist() == [0]
    index.close()


def test_a_power_failure_anywhere_leaves_all_ledgers_marked_or_a_start_to_be_repeated(
    zookeeper: ZooKeeper, ledgers_root: str
) -> None:
    """The start is recorded, cut at each of its operations, and keeps any part of what was not synced. The directories
    have all their stamps only if every ledger is marked."""
    with empty_directory() as base:
        lossy = Lossy(base, zookeeper, ledgers_root)
        lossy.lose("j0", "l0", "i0", "i1")
        for directory in all_directories(lossy.config):
            Path(directory).mkdir(exist_ok=True)
        recorder = Recorder(base)
        with recorder.installed():
            lossy.check_with_word()
        disk = Disk(recorder.base, recorder.numbers)
        seen: dict[int, bool] = {}
        for operation in recorder.log:
            disk.apply(operation)
            for choice in EXTREMES.values():
                image = disk.image(choice)
                if image.key() not in seen:
                    for path in base.iterdir():
                        shutil.rmtree(path)
                    materialise(image, base)
                    seen[image.key()] = lossy.stamped
                    assert_marked_or_to_be_repeated(lossy)
    assert len(seen) > 60
    assert {*seen.values()} == {True, False}


def assert_marked_or_to_be_repeated(lossy: Lossy) -> None:
    if lossy.stamped:
        # They have one generation by then, in all directories.
        lossy.check()
        assert len(list(lossy.base.rglob("GENERATION"))) == 6
        assert {key for key, each in lossy.headers().items() if each is not None and each.limbo} == {1, 2, 3, 4, 6}
    else:
        with pytest.raises(CookieMismatchError):
            lossy.check()
    lossy.check_with_word()
    assert lossy.stamped
    lossy.assert_marked()


def test_the_metadata_of_a_long_list_are_read_in_parts(lossy: Lossy, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the flat layout all ledgers of the cluster are one list."""
    asked: list[list[int]] = []
    contents = LedgerMetadataReads.contents

    def note(reads: LedgerMetadataReads, ledger_ids: list[int]) -> dict[int, bytes | None]:
        asked.append(ledger_ids)
        return contents(reads, ledger_ids)

    monkeypatch.setattr(LedgerMetadataReads, "contents", note)
    monkeypatch.setattr(marking, "READS_AT_ONCE", 4)
    lossy.lose("j0")
    lossy.check_with_word()
    assert asked[:-1] == [[1, 2, 3, 4], [5, 6]]
    lossy.assert_marked()


@pytest.mark.parametrize("returns", ["j1", "l1", "i0"])
@pytest.mark.parametrize("replacements", [1, 2])
def test_c6_a_replaced_directory_that_comes_back_is_refused(lossy: Lossy, returns: str, replacements: int) -> None:
    """The bookie went on without it, so it has neither the marks nor the entries since."""
    if replacements == 2:
        lossy.lose("j0")
        lossy.check_with_word()
    kept = lossy.base / f"{returns} (as it was)"
    shutil.copytree(lossy.base / returns, kept)
    lossy.lose(returns)
    lossy.check_with_word()
    store = LedgerStore(lossy.zookeeper, lossy.config.metadata_service_uri)
    store.create(ledger(QUORUM, HERE), ledger_id=11)
    lossy.lose(returns)
    shutil.copytree(kept, lossy.base / returns)
    for check in (lossy.check, lossy.check_with_word):
        with pytest.raises(CookieMismatchError) as caught:
            check()
        old, _, others = str(caught.value).partition(f"{lossy.base / returns}: ")
        assert "were not in use together" in old
        assert others.startswith("none; ") == (replacements == 1)
        assert all(
            directory in others for directory in all_directories(lossy.config) if not directory.endswith(returns)
        )
        assert "Mount the disk that replaced it" in others
    # The way out that the error names.
    lossy.lose(returns)
    lossy.check_with_word()
    assert lossy.headers()[11] == IndexHeader(KEY, True, None, limbo=True)
    lossy.check()


def test_all_directories_have_one_generation_and_new_ones_get_it(lossy: Lossy) -> None:
    assert not list(lossy.base.rglob("GENERATION"))
    lossy.lose("i1", "j0")
    lossy.check_with_word()
    generations = {path.parent.parent.name: path.read_bytes() for path in lossy.base.rglob("GENERATION")}
    assert len(generations) == 6
    assert len({*generations.values()}) == 1
    added = str(lossy.base / "l2")
    lossy.config = replace(lossy.config, ledger_directories=(*lossy.config.ledger_directories, added))
    # An interrupted start left another one in the new directory.
    Path(lossy.current("l2")).mkdir(parents=True)
    Path(lossy.current("l2"), "GENERATION").write_bytes(b"1\n20200101T000000.000000Z-0000000000000000\n")
    lossy.check(allow_storage_expansion=True)
    assert Path(lossy.current("l2"), "GENERATION").read_bytes() == generations["l0"]
    lossy.check()


@pytest.mark.parametrize("content", [b"", b"2\n20200101T000000.000000Z-0000000000000000\n", b"1\n20200101T000000Z"])
def test_a_generation_of_an_unknown_version_is_refused_and_kept(lossy: Lossy, content: bytes) -> None:
    for directory in all_directories(lossy.config):
        Path(directory, "current", "GENERATION").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"GENERATION is damaged, or of a version .* does not know"):
        lossy.check()
    lossy.lose("j0")
    with pytest.raises(CorruptFileError, match=r"GENERATION is damaged, or of a version .* does not know"):
        lossy.check_with_word()
    assert Path(lossy.current("l0"), "GENERATION").read_bytes() == content


def test_index_files_that_outlived_all_entry_logs_must_go(lossy: Lossy) -> None:
    """New entry logs would get the ids of lost ones."""
    lossy.lose("l0", "l1")
    with pytest.raises(CookieMismatchError, match="move the content of these directories away, too"):
        lossy.check_with_word()
    assert not lossy.headers()[1].limbo
    lossy.lose("i0", "i1")
    lossy.check_with_word()
    lossy.assert_marked()


@pytest.mark.parametrize("lost", [("l0",), ("j0", "l1"), ("j0",)])
def test_no_new_entry_log_gets_the_id_of_a_lost_one(lossy: Lossy, lost: tuple[str, ...]) -> None:
    """Nobody could write ``lastId`` in the directory that is left. An index file names the lost logs, and has a damaged
    location."""
    for name in ("l0", "l1"):
        Path(lossy.current(name), "lastId").write_text("5\n")
    slots = {2: 6 << OFFSET_BITS | 77, 3000: 9 << OFFSET_BITS | 77, 3001: 1 << 62}
    lossy.write(3, IndexHeader(KEY, False, None), slots)
    lossy.lose(*lost)
    lossy.check_with_word()
    directories = LedgerDirectories([lossy.current("l0"), lossy.current("l1")])
    assert EntryLogIds(directories).allocate() == (6 if lost == ("j0",) else 10)
    lossy.assert_marked()


def test_a_directory_that_holds_something_is_not_a_lost_one(lossy: Lossy) -> None:
    Path(lossy.current("l1"), "VERSION").unlink()
    Path(lossy.current("l1"), "3.log").write_bytes(b"entries")
    with pytest.raises(CookieMismatchError, match="holds files but no readable current/VERSION"):
        lossy.check_with_word()


def test_metadata_that_nobody_understands_prevent_the_start(lossy: Lossy) -> None:
    store = LedgerStore(lossy.zookeeper, lossy.config.metadata_service_uri)
    path = store.manager.ledger_path(store.root, 5)
    found = lossy.zookeeper.get(path)
    assert found is not None
    lossy.zookeeper.set(path, b"garbage", found.version)
    lossy.lose("j0")
    with pytest.raises(MetadataFormatError, match="nobody knows whether ledger 5 names this bookie"):
        lossy.check_with_word()
    assert not lossy.stamped


#: What Apache's bookie, a run without and one with synced journals leave.
OTHER_BOOT = b"bootId=6e0b5ce1-32ee-4b5c-8b5e-5b8d6d1f0c55\n"
APACHES, UNSYNCED = b"", b"1\njournalSyncData=false\n" + OTHER_BOOT
SYNCED = b"1\njournalSyncData=true\n" + OTHER_BOOT
#: The bookie alone was killed.
SAME_BOOT = f"1\njournalSyncData=false\nbootId={boot_id()}\n".encode()


@pytest.mark.parametrize(
    ("settings", "left", "marks"),
    [
        # How the last run synced counts, not what the operator has configured since.
        ({"journal_sync_data": True}, UNSYNCED, True),
        ({"journal_sync_data": False}, UNSYNCED, True),
        ({"journal_sync_data": False}, SYNCED, False),
        ({"journal_sync_data": True}, SYNCED, False),
        ({"journal_sync_data": True}, APACHES, True),
        ({"journal_sync_data": False}, SAME_BOOT, False),
        ({"journal_sync_data": False}, None, False),
        ({"journal_sync_data": False, "data_integrity_checking": False}, UNSYNCED, False),
    ],
)
def test_c5_a_journal_that_is_not_synced_may_have_lost_entries(
    lossy: Lossy, settings: dict[str, bool], left: bytes | None, marks: bool
) -> None:
    """The journal of a bookie that syncs it has everything, however the bookie ended."""
    if left is not None:
        Path(lossy.current("l1"), "DIRTY").write_bytes(left)
    lossy.check(**settings)
    if marks:
        lossy.assert_marked()
    else:
        assert not any(each.limbo for each in lossy.headers().values())
    # The directories are marked until a clean stop.
    assert Path(lossy.current("l1"), "DIRTY").exists() == (left is not None)


def test_a_ledger_that_names_the_bookie_twice_is_marked_once(lossy: Lossy) -> None:
    store = LedgerStore(lossy.zookeeper, lossy.config.metadata_service_uri)
    segments = tuple(Segment(first, (ME, "b2", "b3")) for first in (0, 10))
    store.create(replace(ledger(), segments=segments), ledger_id=11)
    lossy.lose("i0", "i1")
    lossy.check_with_word()
    assert lossy.headers()[11] == IndexHeader(KEY, True, None, limbo=True)
