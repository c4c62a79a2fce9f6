"""Start a bookie on what a crash left, and see whether everything holds."""

from __future__ import annotations

import struct
from pathlib import Path

from bk_spark.protocol.codes import Code
from bookie_server.gc.entry_log_usage import read_usage
from bookie_server.storage.entrylog.entry_log import MAGIC
from bookie_server.storage.ledger_descriptors import LedgerDescriptor
from tests.crash.expectations import CrashError, Expectations, ExpectedLedger
from tests.crash.subject import Shape, Subject, key_of, stored


async def check(subject: Subject, expected: Expectations) -> None:
    """Raises CrashError where something answered is missing, or something is there that nobody wrote."""
    for ledger_id, ledger in expected.ledgers.items():
        descriptor = subject.bookie.descriptor(ledger_id)
        if isinstance(descriptor, Code):
            if descriptor == Code.IO_ERROR and not expected.synced and not ledger.answered:
                # The header of a new index file and the journal were both lost. Nothing is said to be absent.
                continue
            raise CrashError(f"ledger {ledger_id}: {descriptor.name}")
        if descriptor is None:
            if ledger.answered and not ledger.deleted:
                raise CrashError(f"ledger {ledger_id} is gone")
            continue
        await _check_entries(subject, ledger_id, ledger, descriptor)
        await _check_state(subject, ledger_id, ledger, descriptor)


async def _check_entries(
    subject: Subject, ledger_id: int, ledger: ExpectedLedger, descriptor: LedgerDescriptor
) -> None:
    last = max(ledger.entries, default=-1)
    ids = list(range(last + 3))
    found = await subject.read_all(ledger_id, ids)
    for entry_id, entry in zip(ids, found, strict=True):
        what = f"entry {ledger_id}/{entry_id}"
        if isinstance(entry, bytes):
            if entry not in ledger.allowed(entry_id):
                raise CrashError(f"{what} has bytes that nobody wrote, or old ones: {_told(entry)}")
        elif entry != Code.NO_ENTRY:
            raise CrashError(f"{what}: {entry.name}")
        elif ledger.required(entry_id):
            raise CrashError(f"{what} was answered and is gone")
    present = [i for i, entry in zip(ids, found, strict=True) if isinstance(entry, bytes)]
    if descriptor.last_entry != max(present, default=-1):
        raise CrashError(f"ledger {ledger_id}: last entry {descriptor.last_entry}, but entries {present} are there")
    start = present[0] if present else 0
    run = await subject.read_run(ledger_id, start)
    if run != found[start : start + len(run)] or start + len(run) in present:
        raise CrashError(f"ledger {ledger_id}: a batch read from {start} gives {len(run)} entries of {present}")


async def _check_state(subject: Subject, ledger_id: int, ledger: ExpectedLedger, descriptor: LedgerDescriptor) -> None:
    if descriptor.master_key != key_of(ledger_id):
        raise CrashError(f"ledger {ledger_id} has the master key {descriptor.master_key.hex()}")
    if descriptor.fenced and not ledger.fence_asked:
        raise CrashError(f"ledger {ledger_id} is fenced, which nobody asked for")
    if ledger.deleted:
        return
    if ledger.fence_answered:
        if not descriptor.fenced:
            raise CrashError(f"ledger {ledger_id} was fenced and is not")
        codes = await subject.add([stored(ledger_id, 1 << 20, -1, b"")], key_of(ledger_id))
        if codes != [Code.FENCED]:
            raise CrashError(f"an add to ledger {ledger_id}, which is fenced: {codes[0].name}")
    explicit = struct.unpack_from(">qq", descriptor.explicit_lac)[1] if descriptor.explicit_lac is not None else -1
    if not ledger.lac_answered <= explicit <= ledger.lac_asked:
        raise CrashError(f"ledger {ledger_id}: explicit LAC {explicit}, {ledger.lac_answered} was answered")
    known = await subject.bookie.known_lac(descriptor)
    if not ledger.lac_answered <= known <= ledger.lac_asked:
        raise CrashError(f"ledger {ledger_id}: LAC {known}; asked {ledger.lac_asked}, answered {ledger.lac_answered}")


def check_maps(root: Path) -> None:
    """Where the header of an entry log points at a ledgers map, the map is there."""
    for path in root.glob("ledgers*/current/*.log"):
        with path.open("rb") as file:
            header = file.read(20)
        points = len(header) == 20 and header[:4] == MAGIC and header[8:16].strip(b"\0")
        if points and not read_usage(0, str(path)).from_map:
            raise CrashError(f"{path.relative_to(root)} points at a map that is not there")


def _told(entry: bytes) -> str:
    ids = struct.unpack_from(">qqq", entry.ljust(24, b"\0"))
    return f"{len(entry)} bytes of {ids[0]}/{ids[1]}, {entry[32:48]!r}"


async def check_that_it_goes_on(root: Path, shape: Shape, expected: Expectations) -> None:
    """Start, add, stop in good order, and start again: what is new is there, and what was."""
    ledger_id = max(expected.ledgers, default=0) + 1000
    content = stored(ledger_id, 0, -1, b"after the crash")
    subject = Subject(root, shape)
    subject.start()
    await subject.finish_compactions()
    await check(subject, expected)
    codes = await subject.add([content], key_of(ledger_id))
    await subject.stop()
    if codes != [Code.OK] or subject.failures:
        raise CrashError(f"an add after the crash: {codes[0].name}; failures {subject.failures}")
    subject = Subject(root, shape)
    try:
        if await subject.read_all(ledger_id, [0]) != [content]:
            raise CrashError("an entry added after the crash is gone")
        await check(subject, expected)
    finally:
        subject.leave()
