"""Directories that are lost in a crash, or answers that were not synced: the bookie starts with the operator's word, is
in limbo, and is checked.

The disk of a crash (disk.py) loses whole directories as well, and is started as the process starts it: cookies, marks
of the ledgers that ZooKeeper names (a model), and the storage. Until a ledger is checked, the bookie calls none of its
entries absent. Then the other bookies' copies are added, as the check of the data does, and limbo ends. The power is
cut on the way, too.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, cast

from bk_spark.bookie.metadata.ledger_store import LedgerStore
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import LAST_ENTRY, Code, DigestType
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment
from bk_spark.protocol.metadata.ledger_paths import LedgerManager
from bk_spark.protocol.quorum import Quorum
from bookie_server.identity.cookies import current_directories
from bookie_server.identity.dirty import mark_dirty
from bookie_server.integrity.marking import check_identity
from bookie_server.integrity.own_ledgers import OwnLedgers
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from tests.crash.choices import choice_of
from tests.crash.disk import Disk
from tests.crash.expectations import CrashError, Expectations, ExpectedLedger
from tests.crash.operations import Image
from tests.crash.recorder import Recorder, materialise
from tests.crash.subject import (
    Shape,
    Subject,
    directories_of,
    journal_directories,
    key_of,
    ledger_directories,
    password_of,
    stored,
)
from tests.support.bookie_settings import bookie_config
from tests.support.zookeeper_model import ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

_ME: Final = "b:1"
#: In place of the name of a lost directory.
NONE_LOST: Final = "-"
#: Every third ledger is closed: nobody may add to it, and it is not fenced.
_CLOSED_EVERY: Final = 3


def directories_to_lose(shape: Shape, rng: random.Random) -> tuple[str, ...]:
    """The names of some directories: mostly journals, since what is only there is lost. Without syncs, a crash suffices
    that leaves all directories ("-")."""
    if not shape.sync_journals and rng.random() < 0.7:
        return (NONE_LOST,)
    names = [*journal_directories(shape), *ledger_directories(shape)]
    kind = rng.random()
    if kind < 0.4:
        return tuple(journal_directories(shape))
    if kind < 0.7:
        return (rng.choice(journal_directories(shape)),)
    return tuple(rng.sample(names, rng.randint(1, len(names))))


class Loss:
    """The directories ``lost`` of the bookie on ``root``, which is empty, when a crash left ``image``."""

    def __init__(self, root: Path, shape: Shape, image: Image, expected: Expectations, lost: tuple[str, ...]) -> None:
        self._root = root
        self._shape = shape
        self._ledgers = {ledger_id: ledger for ledger_id, ledger in expected.ledgers.items() if not ledger.deleted}
        self._ledger_directories_lost = not set(lost).isdisjoint(ledger_directories(shape))
        #: Acknowledged entries that the bookie did not have.
        self.unknown = 0
        session = ModelSession(ZooKeeperModel())
        for path, data in (("/ledgers/LAYOUT", LedgerManager.HIERARCHICAL.layout), ("/ledgers/INSTANCEID", b"one")):
            session.create(path, data, make_parents=True)
        self._zookeeper = cast(ZooKeeper, session)
        self._config = bookie_config(
            journal_directories=tuple(str(root / name) for name in journal_directories(shape)),
            ledger_directories=tuple(str(root / name) for name in ledger_directories(shape)),
            index_directories=tuple(str(root / name) for name in ledger_directories(shape)),
            data_integrity_checking=True,
            data_integrity_stamp_missing_cookies=True,
        )
        for name in directories_of(shape):
            (root / name).mkdir()
        check_identity(self._zookeeper, self._config)
        store = LedgerStore(self._zookeeper, self._config.metadata_service_uri)
        for ledger_id, ledger in self._ledgers.items():
            store.create(_metadata(ledger_id, ledger), ledger_id=ledger_id)
        materialise(image, root)
        self._current = current_directories([str(root / name) for name in ledger_directories(shape)])
        if not shape.sync_journals:
            # As the process writes it, which is none here, on a kernel that does not run any more.
            for path in self._current:
                Path(path, "DIRTY").write_text("1\njournalSyncData=false\nbootId=\n", "ascii")
        for name in set(lost) - {NONE_LOST}:
            shutil.rmtree(root / name)
            (root / name).mkdir()

    def run(self, runner: asyncio.Runner) -> list[Any]:
        """Start, check what is answered, end limbo, and start again. Return what was done to files. Raises
        CrashError."""
        recorder = self._recorder = Recorder(self._root)
        with recorder.installed():
            runner.run(self._started(self._check_and_end_limbo))
            log = list(recorder.log)
            runner.run(self._started(self._check_whole))
        return log

    def run_cut(self, runner: asyncio.Runner, log: list[Any], cut: int, keeps: str) -> None:
        """The same from what a crash at ``cut`` of the ``log`` of :meth:`run` left. Each ledger is in limbo, or
        whole."""
        disk = Disk(self._recorder.base, self._recorder.numbers)
        for item in log[: cut + 1]:
            disk.apply(item)
        image = disk.image(choice_of(keeps, log[cut]))
        for path in self._root.iterdir():
            shutil.rmtree(path)
        materialise(image, self._root)
        self.run(runner)

    async def _started(self, work: Callable[[Subject], Awaitable[None]]) -> None:
        try:
            check_identity(self._zookeeper, self._config)
            if not self._shape.sync_journals:
                mark_dirty(self._current, synced=False, losses_handled=True)
            subject = Subject(self._root, self._shape)
        except Exception as error:
            raise CrashError(f"the start after a loss fails: {type(error).__name__}: {error}") from error
        subject.start()
        try:
            await work(subject)
        finally:
            await subject.stop()

    async def _check_and_end_limbo(self, subject: Subject) -> None:
        own = OwnLedgers(subject.storage)
        for ledger_id, ledger in self._ledgers.items():
            descriptor = self._descriptor(subject, ledger_id)
            if descriptor.limbo:
                await self._check_limbo(subject, own, ledger_id, ledger)
            else:
                await self._check_ledger(subject, ledger_id, ledger)
        for ledger_id, ledger in self._ledgers.items():
            last = max(ledger.entries, default=0)
            held = set((await own.read(ledger_id, 0, last)).entry_ids.tolist())
            copies = [ledger.allowed(each)[-1] for each in ledger.entries if ledger.required(each) and each not in held]
            if copies and await subject.add(copies, key_of(ledger_id), recovery=True) != [Code.OK] * len(copies):
                raise CrashError(f"ledger {ledger_id}: copies are refused")
            await own.end_limbo(ledger_id)
        await subject.checkpoint()
        await self._check_whole(subject)

    async def _check_limbo(self, subject: Subject, own: OwnLedgers, ledger_id: int, ledger: ExpectedLedger) -> None:
        ids = list(range(max(ledger.entries, default=-1) + 3))
        found = await subject.read_all(ledger_id, ids)
        # An index that outlived its entry logs leads nowhere. That is an I/O error, which says no more than "unknown".
        unknown = {Code.UNKNOWN_LEDGER_STATE} | ({Code.IO_ERROR} if self._ledger_directories_lost else set())
        for entry_id, entry in zip(ids, found, strict=True):
            if isinstance(entry, bytes):
                _check_bytes(ledger_id, ledger, entry_id, entry)
            elif entry not in unknown:
                raise CrashError(f"entry {ledger_id}/{entry_id}: {entry.name} in limbo")
            else:
                self.unknown += ledger.required(entry_id)
        if await subject.read_all(ledger_id, [LAST_ENTRY]) != [Code.UNKNOWN_LEDGER_STATE]:
            raise CrashError(f"ledger {ledger_id} has a last entry in limbo")
        there = [entry_id for entry_id, entry in zip(ids, found, strict=True) if isinstance(entry, bytes)]
        held = (await own.read(ledger_id, 0, ids[-1])).entry_ids.tolist()
        if held != there:
            raise CrashError(f"ledger {ledger_id}: the check of the data believes in {held}, but {there} are there")
        if _is_open(ledger_id):
            codes = await subject.add([stored(ledger_id, 1 << 20, -1, b"")], key_of(ledger_id))
            if codes != [Code.FENCED]:
                raise CrashError(f"an add to ledger {ledger_id}, which was open at the loss: {codes[0].name}")

    async def _check_whole(self, subject: Subject) -> None:
        for ledger_id, ledger in self._ledgers.items():
            if self._descriptor(subject, ledger_id).limbo:
                raise CrashError(f"ledger {ledger_id} is in limbo again")
            await self._check_ledger(subject, ledger_id, ledger)

    async def _check_ledger(self, subject: Subject, ledger_id: int, ledger: ExpectedLedger) -> None:
        """Limbo has ended: what is said to be absent was not acknowledged."""
        ids = list(range(max(ledger.entries, default=-1) + 3))
        for entry_id, entry in zip(ids, await subject.read_all(ledger_id, ids), strict=True):
            if isinstance(entry, bytes):
                _check_bytes(ledger_id, ledger, entry_id, entry)
            elif ledger.required(entry_id):
                raise CrashError(f"entry {ledger_id}/{entry_id} was answered, and is {entry.name} after limbo")
            elif entry != Code.NO_ENTRY:
                raise CrashError(f"entry {ledger_id}/{entry_id}: {entry.name} after limbo")

    def _descriptor(self, subject: Subject, ledger_id: int) -> LedgerDescriptor:
        descriptor = subject.bookie.descriptor(ledger_id)
        if descriptor is None or isinstance(descriptor, Code):
            raise CrashError(f"ledger {ledger_id} names this bookie and is not known: {descriptor}")
        if descriptor.master_key != key_of(ledger_id):
            raise CrashError(f"ledger {ledger_id} has the master key {descriptor.master_key.hex()}")
        return descriptor


def _is_open(ledger_id: int) -> bool:
    return ledger_id % _CLOSED_EVERY != 0


def _metadata(ledger_id: int, ledger: ExpectedLedger) -> LedgerMetadata:
    metadata = LedgerMetadata(
        Quorum(3, 3, 2),
        (Segment(0, (_ME, "b:2", "b:3")),),
        digest_type=DigestType.CRC32C,
        password=password_of(ledger_id),
    )
    return metadata if _is_open(ledger_id) else metadata.in_recovery().closed(ledger.last_required(), 0)


def _check_bytes(ledger_id: int, ledger: ExpectedLedger, entry_id: int, entry: bytes) -> None:
    """It may be an older one than was acknowledged: another bookie has the newest."""
    versions = ledger.entries.get(entry_id)
    if versions is None or entry not in [content for _, content in versions.asked]:
        raise CrashError(f"entry {ledger_id}/{entry_id} has bytes that nobody wrote")
