"""Log writers: each holds the tail open while it lives, and takes over from others. They run the shipped machine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import numpy as np

from bk_spark.log.core.reading import sync_steps
from bk_spark.log.core.steps import Done
from bk_spark.log.core.tail.roll import RollLimits
from bk_spark.log.core.tail.tail_changes import TailPlace
from bk_spark.log.core.tail.writer_actions import TakeTurn
from bk_spark.log.core.tail.writing import TailWriting
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import Owner
from bk_spark.protocol.errors import (
    ClockDifferenceError,
    LedgerFencedError,
    LogFencedError,
    LogTailOpenError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from tests.simulation.logs.invariants import require
from tests.simulation.logs.ledgers import ENTRY_BYTES
from tests.simulation.logs.streaming import FAILURES, REFUSALS
from tests.simulation.logs.world import HOUR_MS, Actor, Script, Wait, World

#: With these errors a writer ends; a new one may be opened.
WRITER_FAILURES = (*FAILURES, ClockDifferenceError, LedgerFencedError, NoSuchLedgerError, UnauthorizedError)
_ROLL_MS: Final = 12 * HOUR_MS
_CLOSE_TRIES: Final = 3

_T = TypeVar("_T")


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
        self.writing: TailWriting | None = None
        self.keeper: Keeper | None = None
        #: Whose steps run now: its own, or its keeper's.
        self.turn: Actor | None = None
        #: Its ledgers, and the last entry of each that its user was told of.
        self._places: dict[TailPlace, int] = {}

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
        """Its session expired, so its keeper (a thread of its own) checks whether it still has its place."""
        if self.writing is None or self.ended:
            return
        if self.keeper is None or self.keeper.ended:
            self.keeper = Keeper(self, self.writing)
            self.world.add(self.keeper)
        else:
            self.keeper.has_news = True

    def _live(self) -> Generator[Any, Any, None]:
        try:
            yield from self._write()
        finally:
            self.writing = None
            if self.keeper is not None and not self.keeper.ended:
                self.keeper.end("stopped")
            self.keeper = self.turn = None

    def _write(self) -> Generator[Any, Any, None]:
        yield from sync_steps(self.paths)
        owner = Owner(self.world.uuid(), "host", 1, self.now_ms())
        limits = RollLimits(1 << 40, _ROLL_MS, self._roll_entries)
        writing = TailWriting(self.paths, owner, limits, self.now_ms, self._elapsed_ms)
        self._places = {}
        yield from writing.open_steps(take_over=self._take_over)
        self.world.tell(self.name, "is open", writing.place)
        self.writing = writing
        random = self.world.random
        left = self._appends
        while left:
            # One roll at most.
            count = random.randint(1, min(2, left, self._roll_entries))
            left -= count
            yield from self._send(writing, count)
            if writing.idle_ms(has_entries=False) == 0 and random.random() < 0.3:
                # What its sender does when the ledger is due.
                yield from self._run(writing, writing.serve_steps((), _offsets(0)))
            if random.random() < 0.7:
                yield from self._run(writing, writing.flush_steps())
        if self._ends == "close":
            writing.stop()
            yield from self._close(writing)
        elif self._ends == "abandon":
            writing.stop()
            yield from self._run(writing, writing.abandon_steps())

    def _send(self, writing: TailWriting, count: int) -> Generator[Any, Any, None]:
        first, self._numbers = self._numbers + 1, self._numbers + count
        entries: Any = tuple(WriterEntry(writing.owner.writer_id, first + n) for n in range(count))
        yield from self._run(writing, writing.send_steps(entries, _offsets(count)))

    def _close(self, writing: TailWriting) -> Generator[Any, Any, None]:
        for tries_left in reversed(range(_CLOSE_TRIES)):
            try:
                yield from self._run(writing, writing.close_steps((), _offsets(0)))
            except FAILURES:
                if writing.failure is not None or not tries_left:
                    raise
            else:
                return

    def _run(self, writing: TailWriting, steps: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        """Run steps while the keeper runs none that change the writer."""
        yield Wait(lambda: self.turn is None, "turn")
        self.turn = self
        try:
            return (yield from steps)
        except LogFencedError as error:
            if error is writing.failure:
                safe = writing.place.base_offset + self.world.ledgers.all[writing.ledger_id].acknowledged
                require(error.acknowledged_offset == safe, f"{self.name} was told {error.acknowledged_offset}: {safe}")
            raise
        finally:
            self.turn = None
            if writing.place not in self._places:
                self.rolls += bool(self._places)
                self._places[writing.place] = -1
            for place, told in self._places.items():
                self._places[place] = self._tell(place, told)

    def _elapsed_ms(self) -> float:
        return self.clock.cluster.monotonic_s() * 1000

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


class Keeper(Actor):
    """A log writer's thread that checks its hold on the tail. It shares the writer's session, and dies with it."""

    kind: ClassVar[str] = "keeper"

    def __init__(self, writer: LogWriter, writing: TailWriting) -> None:
        super().__init__(writer.world, f"{writer.name}.keeper")
        self.session, self.clock = writer.session, writer.clock
        self.writer = writer
        self.writing = writing
        #: The session expired again meanwhile.
        self.has_news = True

    @property
    def runnable(self) -> bool:
        return super().runnable and self.writer.stopped_until <= self.world.steps

    def kill(self) -> None:
        self.writer.kill()

    def script(self) -> Script:
        writer, writing = self.writer, self.writing
        while self.has_news:
            self.has_news = False
            again_ms = yield from self._taking_turns(writing.keep_steps())
            if writer.turn is self:
                writer.turn = None
            if again_ms is not None:
                self.has_news = True
                yield Wait(lambda: True, "again")
        if writing.failure is None and not writing.is_closing:
            writer.kept += 1
            return "kept"
        return "over"

    def _taking_turns(self, steps: Generator[Any, Any, _T]) -> Generator[Any, Any, _T]:
        try:
            action = next(steps)
            while True:
                if isinstance(action, TakeTurn):
                    yield Wait(lambda: self.writer.turn is None, "turn")
                    self.writer.turn = self
                    action = steps.send(Done())
                else:
                    action = steps.send((yield action))
        except StopIteration as end:
            result: _T = end.value
            return result


def _offsets(count: int) -> Any:
    return np.arange(count + 1) * ENTRY_BYTES
