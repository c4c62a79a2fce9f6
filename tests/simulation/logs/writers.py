"""Log writers: each holds the tail open while it lives, and takes over from others."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, NamedTuple

from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.reading import sync_steps
from bk_spark.log.core.steps import Failed
from bk_spark.log.core.tail import KeepTail, ReleaseTail, TailPlace
from bk_spark.log.core.writer_steps import Roll, close_steps, open_steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import Owner
from bk_spark.protocol.errors import (
    ClockDifferenceError,
    LedgerFencedError,
    LogFencedError,
    LogTailOpenError,
    NoSuchLedgerError,
)
from tests.simulation.logs.ledgers import Drain, Send
from tests.simulation.logs.streaming import FAILURES, REFUSALS
from tests.simulation.logs.world import Actor, Script, Wait, World

#: With these errors a writer ends; a new one may be opened.
WRITER_FAILURES = (*FAILURES, ClockDifferenceError, LedgerFencedError, NoSuchLedgerError)


class WriterEntry(NamedTuple):
    """An entry of a log writer."""

    writer: str
    number: int


class LogWriter(Actor):
    """A program that opens a writer, appends, and ends it; it repeats this several times, whatever happened."""

    kind: ClassVar[str] = "log writer"

    def __init__(
        self,
        world: World,
        name: str,
        paths: LogPaths,
        *,
        appends: int = 10,
        roll_entries: int = 4,
        take_over: bool = False,
        lives: int = 1,
        pause_steps: int = 0,
        ends: str = "close",
    ) -> None:
        super().__init__(world, name)
        self.paths = paths
        self.acknowledged: list[int] = []
        #: How its lives ended.
        self.endings: list[str] = []
        self.rolls = self.kept = 0
        self._appends = appends
        self._roll_entries = roll_entries
        self._take_over = take_over
        self._lives = lives
        self._pause_steps = pause_steps
        self._ends = ends
        self._numbers = 0
        self.owner: Owner | None = None
        self.keeper: Keeper | None = None

    def script(self) -> Script:
        for _ in range(self._lives):
            if self._pause_steps:
                due = self.world.steps + self.world.random.randint(0, 2 * self._pause_steps)
                yield Wait(lambda due=due: self.world.steps >= due or self.world.healed, "pause")
            try:
                yield from self._live()
            except LogTailOpenError as error:
                self._ended("politely not opened", error)
            except LogFencedError as error:
                self._ended("fenced", error)
            except WRITER_FAILURES as error:
                self._ended("failed", error)
            except REFUSALS as error:
                self._ended("refused", error)
                return "refused"
            else:
                self._ended(self._ends, "")
        return "done"

    def _ended(self, how: str, error: object) -> None:
        self.endings.append(how)
        self.world.tell(self.name, how, error)

    def keep(self) -> None:
        """After its session expired, its keeper (a thread of its own) checks whether it still has its place."""
        if self.owner is not None and self.keeper is None and not self.ended:
            self.keeper = Keeper(self)
            self.world.add(self.keeper)

    def _live(self) -> Generator[Any, Any, None]:
        try:
            yield from self._write()
        finally:
            self.owner = None
            if self.keeper is not None and not self.keeper.ended:
                self.keeper.end("stopped")
            self.keeper = None

    def _write(self) -> Generator[Any, Any, None]:
        yield from sync_steps(self.paths)
        owner = Owner(self.world.uuid(), "host", 1, self.now_ms())
        place = yield from open_steps(self.paths, owner, self.now_ms, take_over=self._take_over)
        self.world.tell(self.name, "is open", place)
        self.owner = owner
        told = -1
        for _ in range(self._appends):
            if self.keeper is not None and self.keeper.ended:
                keeper, self.keeper = self.keeper, None
                if keeper.ended == "lost":
                    raise LogFencedError("its keeper says so")
                self.kept += keeper.ended == "kept"
            if len(self._entries(place)) >= self._roll_entries:
                try:
                    rolled = yield from Roll(self.paths, owner, place.ledger_id, self.now_ms).steps()
                finally:
                    told = self._tell(place, told)
                if rolled is not None:
                    place, told = rolled, -1
                    self.rolls += 1
            self._numbers += 1
            sent = yield Send(place.ledger_id, (WriterEntry(owner.writer_id, self._numbers),))
            if isinstance(sent, Failed):
                raise self._lost(sent)
            if self.world.random.random() < 0.7:
                drained = yield Drain(place.ledger_id)
                told = self._tell(place, told)
                if isinstance(drained, Failed):
                    raise self._lost(drained)
        if self._ends == "close":
            try:
                yield from close_steps(self.paths, owner, place.ledger_id, self.now_ms)
            finally:
                self._tell(place, told)
        elif self._ends == "abandon":
            yield from change_steps(ReleaseTail(self.paths, owner), self.now_ms)

    def _entries(self, place: TailPlace) -> list[object]:
        return self.world.ledgers.all[place.ledger_id].entries

    def _tell(self, place: TailPlace, told: int) -> int:
        """Tell the user which entries are safe, and their offsets: everything the writer knows."""
        if self.ended:
            return told
        last = self.world.ledgers.all[place.ledger_id].acknowledged - 1
        for entry_id in range(told + 1, last + 1):
            self.acknowledged.append(place.base_offset + entry_id)
            self.world.watch.acknowledged(self.paths, place.base_offset + entry_id, place.ledger_id, entry_id)
        return last

    def _lost(self, failed: Failed) -> Exception:
        if isinstance(failed.error, LedgerFencedError):
            return LogFencedError("fenced by another", ledger_id=failed.error.ledger_id)
        return failed.error


class Keeper(Actor):
    """A log writer's thread that creates the owner's znode again. It shares the writer's session, and stops with it."""

    kind: ClassVar[str] = "keeper"

    def __init__(self, writer: LogWriter) -> None:
        super().__init__(writer.world, f"{writer.name}.keeper")
        self.session, self.clock = writer.session, writer.clock
        self.writer = writer

    @property
    def runnable(self) -> bool:
        return super().runnable and self.writer.stopped_until <= self.world.steps

    def script(self) -> Script:
        writer = self.writer
        assert writer.owner is not None
        try:
            place = yield from change_steps(KeepTail(writer.paths, writer.owner), self.now_ms)
        except (LogFencedError, *REFUSALS) as error:
            self.world.tell(self.name, "error", error)
            return "lost"
        except FAILURES as error:
            self.world.tell(self.name, "error", error)
            return "failed"
        assert isinstance(place, TailPlace)
        return "kept"
