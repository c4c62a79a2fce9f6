"""What must be true after a crash, from what was asked and answered before it.

The workload puts these marks into the recorder's log: a request when it is made, an answer when it arrives. A crash
may fall between any two.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from bk_spark.protocol.codes import Code
from tests.crash.disk import Disk
from tests.crash.operations import Image, Operation, Rename, SyncAll, SyncDirectory

_MARK = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class Entry:
    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    content: bytes

    def __str__(self) -> str:
        return f"{self.ledger_id}/{self.entry_id} ({len(self.content)} bytes)"


@dataclass(frozen=True, slots=True)
class AddAsked:
    number: int
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        return f"ADD {self.number} asked: {', '.join(map(str, self.entries))}"


@dataclass(frozen=True, slots=True)
class AddAnswered:
    number: int
    codes: tuple[Code, ...]

    def __str__(self) -> str:
        return f"ADD {self.number} answered: {', '.join(code.name for code in self.codes)}"


@dataclass(frozen=True, slots=True)
class FenceAsked:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class FenceAnswered:
    ledger_id: int
    code: Code


@dataclass(frozen=True, slots=True)
class LacAsked:
    ledger_id: int
    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class LacAnswered:
    ledger_id: int
    last_add_confirmed: int
    code: Code


@dataclass(frozen=True, slots=True)
class Seen:
    """Somebody read the entry: from now on it must be there, whether its add was answered or not."""

    ledger_id: int
    entry_id: int
    content: bytes

    def __str__(self) -> str:
        return f"READ {self.ledger_id}/{self.entry_id} ({len(self.content)} bytes)"


@dataclass(frozen=True, slots=True)
class Deletion:
    """The ledger is being deleted: from now on it may be there, or not, or in part."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class Note:
    text: str

    def __str__(self) -> str:
        return f"-- {self.text}"


@dataclass(frozen=True, slots=True)
class SyncAsked:
    """Something begins that makes durable what was answered before: a request to force, a checkpoint, a stop."""

    number: int


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """It has succeeded."""

    number: int


Mark = (
    AddAsked
    | AddAnswered
    | FenceAsked
    | FenceAnswered
    | LacAsked
    | LacAnswered
    | Seen
    | Deletion
    | SyncAsked
    | SyncEnded
    | Note
)


@dataclass(slots=True)
class _Versions:
    """Contents asked for under one entry id, with the numbers of their adds, and the highest number answered OK."""

    asked: list[tuple[int, bytes]] = field(default_factory=list)
    answered: int = -1


@dataclass(slots=True)
class ExpectedLedger:
    entries: dict[int, _Versions] = field(default_factory=dict)
    fence_asked: bool = False
    fence_answered: bool = False
    lac_asked: int = -1
    lac_answered: int = -1
    #: Anything at all was answered: the ledger must be known.
    answered: bool = False
    deleted: bool = False

    def allowed(self, entry_id: int) -> list[bytes]:
        """Contents that the entry may have: the newest one answered, or any asked for later."""
        versions = self.entries.get(entry_id)
        return [] if versions is None else [c for number, c in versions.asked if number >= versions.answered]

    def required(self, entry_id: int) -> bool:
        versions = self.entries.get(entry_id)
        return versions is not None and versions.answered >= 0 and not self.deleted

    def last_required(self) -> int:
        return max((i for i in self.entries if self.required(i)), default=-1)


class Expectations:
    """Follows a log up to a cut.

    What was answered must be there. Of a bookie without ``synced`` journals (``journalSyncData=false``), what was
    answered before something that syncs began, and this has ended. The process alone may end at any time: nothing that
    was answered is lost then.
    """

    def __init__(self, *, synced: bool = True) -> None:
        self.synced = synced
        #: What was answered and may be lost, in order, and how much of that each sync under way covers.
        self._promises: list[Callable[[], None]] = []
        self._covered: dict[int, int] = {}
        self._kept = 0
        self.ledgers: dict[int, ExpectedLedger] = {}
        #: Grows with every mark.
        self.version = 0
        self._adds: dict[int, AddAsked] = {}
        self._written_marks: dict[str, bytes] = {}
        #: Path of a mark to what it must not fall behind.
        self.marks: dict[str, tuple[int, int]] = {}

    def ledger(self, ledger_id: int) -> ExpectedLedger:
        return self.ledgers.setdefault(ledger_id, ExpectedLedger())

    @property
    def may_be_lost(self) -> int:
        """How many answers are not durable yet."""
        return len(self._promises) - self._kept

    def _promise(self, promise: Callable[[], None]) -> None:
        """It is kept at once, or from the end of the next sync on."""
        if self.synced:
            promise()
        else:
            self._promises.append(promise)

    def note(self, mark: Mark) -> None:
        self.version += 1
        match mark:
            case AddAsked():
                self._adds[mark.number] = mark
                for entry in mark.entries:
                    ledger = self.ledger(entry.ledger_id)
                    ledger.entries.setdefault(entry.entry_id, _Versions()).asked.append((mark.number, entry.content))
                    ledger.lac_asked = max(ledger.lac_asked, entry.last_add_confirmed)
            case AddAnswered():
                for entry, code in zip(self._adds[mark.number].entries, mark.codes, strict=True):
                    if code == Code.OK:
                        self._promise(functools.partial(self._add, entry, mark.number))
            case FenceAsked(ledger_id):
                self.ledger(ledger_id).fence_asked = True
            case FenceAnswered(ledger_id, code):
                if code == Code.OK:
                    self._promise(functools.partial(self._fence, ledger_id))
            case LacAsked(ledger_id, last_add_confirmed):
                ledger = self.ledger(ledger_id)
                ledger.lac_asked = max(ledger.lac_asked, last_add_confirmed)
            case LacAnswered(ledger_id, last_add_confirmed, code):
                if code == Code.OK:
                    self._promise(functools.partial(self._confirm, ledger_id, last_add_confirmed))
            case SyncAsked(number):
                self._covered[number] = len(self._promises)
            case SyncEnded(number):
                covered = self._covered.pop(number)
                for promise in self._promises[self._kept : covered]:
                    promise()
                self._kept = max(self._kept, covered)
            case Seen(ledger_id, entry_id, content):
                ledger = self.ledger(ledger_id)
                versions = ledger.entries[entry_id]
                seen = max(number for number, asked in versions.asked if asked == content)
                versions.answered = max(versions.answered, seen)
                ledger.answered = True
            case Deletion(ledger_id):
                self.ledger(ledger_id).deleted = True

    def _add(self, entry: Entry, number: int) -> None:
        ledger = self.ledger(entry.ledger_id)
        versions = ledger.entries[entry.entry_id]
        versions.answered = max(versions.answered, number)
        ledger.answered = True

    def _fence(self, ledger_id: int) -> None:
        self.ledger(ledger_id).fence_answered = self.ledger(ledger_id).answered = True

    def _confirm(self, ledger_id: int, last_add_confirmed: int) -> None:
        ledger = self.ledger(ledger_id)
        ledger.lac_answered = max(ledger.lac_answered, last_add_confirmed)
        ledger.answered = True

    def watch_marks(self, operation: Operation, disk: Disk) -> None:
        """Follow ``lastMark`` files; ``operation`` was just applied to ``disk``."""
        if isinstance(operation, Rename) and os.path.basename(operation.new_path).startswith("lastMark"):
            self._written_marks[operation.new_path] = disk.content(operation.new_path)
        elif isinstance(operation, SyncDirectory | SyncAll) and self._written_marks:
            for path in list(self._written_marks):
                if isinstance(operation, SyncAll) or os.path.dirname(path) == operation.path:
                    mark = decoded_mark(self._written_marks.pop(path))
                    if mark < self.marks.get(path, (0, 0)):
                        raise CrashError(f"{path} went back from {self.marks[path]} to {mark}")
                    self.marks[path] = mark

    def check_marks(self, image: Image) -> None:
        """The marks in ``image`` have not fallen behind."""
        for path, least in self.marks.items():
            found = decoded_mark(image.files.get(path, b""))
            if found < least:
                raise CrashError(f"{path} was durable at {least} and is {found}")


class CrashError(AssertionError):
    """Something that must hold after a crash does not."""


def decoded_mark(content: bytes) -> tuple[int, int]:
    journal_id, offset = _MARK.unpack(content) if len(content) == _MARK.size else (0, 0)
    return journal_id, offset
