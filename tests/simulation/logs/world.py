"""The model world of logs: ZooKeeper, ledgers, a clock, and processes (actors) that run the real machines.

A machine performs one action at a time, and actions of others can come between any two of them. One random source
decides who goes next, what fails and what gets lost: the seed determines the whole history.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from bk_spark.log.core.steps import (
    Action,
    Conflict,
    Done,
    Found,
    InSession,
    LimitTime,
    ListChildren,
    LogMachine,
    MeasureClock,
    Pause,
    Read,
    ReadTimer,
    ReleaseLock,
    Sync,
    TakeLock,
    TimerRead,
    Transact,
    Warn,
    syncs,
)
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, encode_page
from bk_spark.log.formats.segment import SegmentTable
from bk_spark.log.formats.settings import EntryFormat, LogSettings, encode_settings
from bk_spark.log.formats.znodes import Head, Policy, encode_head, encode_policy
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.machine import EndedBy
from bk_spark.protocol.metadata.znodes import CreateOp
from bk_spark.protocol.quorum import Quorum
from tests.simulation.logs.clocks import ProcessClock
from tests.simulation.logs.invariants import Watch
from tests.simulation.logs.ledgers import ModelLedgers
from tests.simulation.logs.schemas import FIRST_SCHEMA
from tests.simulation.logs.zookeeper import LogsZooKeeper, Look, Origin, Session, Weather
from tests.simulation.outcomes import InvariantError
from tests.support.zookeeper_model import Changes, RefusedError

SETTINGS = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.ARROW, b"secret", FIRST_SCHEMA)
ROOT = "/logs"
NAME = "flights"
START_MS = 1_760_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
#: How far a wrong clock is ahead.
WRONG_TIMES_MS = (-8 * DAY_MS, -HOUR_MS, -20_000, 20_000, HOUR_MS, 8 * DAY_MS, 8 * DAY_MS)


@dataclass(frozen=True, slots=True)
class Wait:
    """An action of actors: continue when ``until`` holds (or earlier, if the world wants to check whether it does)."""

    until: Callable[[], bool]
    why: str


#: A script yields a machine's actions and those of processes.
Script = Generator[Action | Wait, Any, Any]


class Actor:
    """A process: a session with ZooKeeper, and a script that yields actions and receives events.

    It may die before any of its actions (its ledgers stay open, its session lives on for a while, its messages in
    flight may arrive), or be stopped for long and then continue as if nothing had happened.
    """

    kind: ClassVar[str] = "actor"

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.session = world.new_session()
        self.clock = ProcessClock(lambda: world.now_ms, world.random, world.wrong_time_of_day())
        #: It is stopped (SIGSTOP) until this step.
        self.stopped_until = 0
        #: Its whole machine is stopped, so its clock stops too.
        self.suspended = False
        self.ended = ""
        self._machine: LogMachine[Any] | None = None
        #: Its next action.
        self.next: Action | Wait | None = None

    def __repr__(self) -> str:
        return f"{self.name} ({self.ended or self.next})"

    def now_ms(self) -> int:
        return self.clock.cluster.now_ms()

    def script(self) -> Script:
        """Everything the process does. A return is its normal end."""
        raise NotImplementedError

    @property
    def runnable(self) -> bool:
        if self.ended or self.stopped_until > self.world.steps:
            return False
        return type(self.next) is not Wait or self.next.until()

    def step(self) -> None:
        """Perform the next action."""
        machine = self._machine
        if machine is None:
            machine = self._machine = LogMachine(self.script())
        else:
            assert self.next is not None
            machine.handle(self.world.perform(self, self.next))
        if isinstance(machine.outcome, EndedBy):
            raise machine.outcome.error
        if machine.outcome is not None:
            self.end(machine.outcome.result or "done")
        else:
            (self.next,) = machine.take_actions()
            self.session.ask_next()

    def end(self, how: str) -> None:
        self.ended = how
        self.next = None
        self.world.alive.remove(self)
        self.world.tell(self.name, "ends", how)
        if self._machine is not None:
            # A dead process does nothing, so ignore what its code would do on its way out.
            machine, self._machine = self._machine, None
            with suppress(RuntimeError):
                machine.close()

    def kill(self) -> None:
        self.end("killed")


class World:
    """The whole model. ``random`` decides everything."""

    def __init__(self, seed: int | str, *, wrong_clocks: float = 0.0, records_commits: bool = False) -> None:
        self.random = Random(seed)
        #: Whether the log is of a release that records commits and keeps earlier states.
        self.records_commits = records_commits
        #: The probability that a new process's machine has a wrong time of day.
        self.wrong_clocks = wrong_clocks
        self.now_ms = START_MS
        self.steps = 0
        #: Nothing fails any more, and nobody is slow.
        self.healed = False
        self.conflicts = 0
        self._places = 0
        self.weather = Weather()
        self.trace: list[tuple[int, str, object, object]] = []
        self.sessions: list[Session] = []
        self.actors: list[Actor] = []
        self.alive: list[Actor] = []
        self.zk = LogsZooKeeper(lambda: self.now_ms)
        self.ledgers = ModelLedgers(self.zk, self.random)
        self.watch = Watch(self.zk, self.ledgers, lambda: self.now_ms)
        self.zk.on_change = self._on_change
        self.zk.transact([CreateOp(ROOT)])
        self.paths = self.make_log()

    # --- the log ---

    def make_log(self) -> LogPaths:
        """Create the log like LogStore.create_log. Raises RefusedError if it exists."""
        paths = LogPaths(ROOT, NAME, self.uuid())
        self.zk.transact(
            [
                CreateOp(paths.head, encode_head(Head(paths.log_id, kept_offset=0 if self.records_commits else None))),
                CreateOp(paths.identity),
                CreateOp(paths.settings, encode_settings(paths.log_id, SETTINGS)),
                CreateOp(paths.policy, encode_policy(Policy())),
                CreateOp(paths.pages),
                CreateOp(paths.page(0), encode_page(SegmentPage(paths.log_id, 0, 0, SegmentTable.of(())))),
                CreateOp(paths.apps),
                CreateOp(paths.ledgers),
                CreateOp(paths.lock),
            ]
        )
        self.paths = paths
        return paths

    def uuid(self) -> str:
        value = f"{self.random.getrandbits(128):032x}"
        return "-".join((value[:8], value[8:12], value[12:16], value[16:20], value[20:]))

    # --- what happens ---

    def wrong_time_of_day(self) -> int:
        """How far the clock of a new process is ahead; mostly 0."""
        return self.random.choice(WRONG_TIMES_MS) if self.random.random() < self.wrong_clocks else 0

    def new_session(self) -> Session:
        session = Session(self.zk, self.random, self.weather)
        self.sessions.append(session)
        return session

    def add(self, actor: Actor) -> Actor:
        self.actors.append(actor)
        self.alive.append(actor)
        self.tell(actor.name, "starts", "")
        return actor

    def perform(self, actor: Actor, action: Action | Wait) -> Any:
        actor.session.origin = Origin(actor.kind, actor.session.synced_ms)
        answer = self._perform(actor.session, action)
        event = answer.event if isinstance(answer, InSession) else answer
        if isinstance(event, Done | Found) and syncs(action):
            actor.clock.measure(actor.session.session)
        elif isinstance(event, Done) and isinstance(action, Transact | MeasureClock):
            actor.clock.note(actor.session.session)
        self.conflicts += isinstance(event, Conflict)
        if not isinstance(action, Wait):
            self.tell(actor.name, action, event)
        return answer

    def _perform(self, session: Session, action: Action | Wait) -> Any:
        match action:
            case Sync() | Read() | ListChildren():
                return session.read(action)
            case Look():
                return session.look(action)
            case MeasureClock():
                # A Sync is enough in the model: its answer tells the time.
                return session.read(Sync(self.paths.head)).event
            case Transact(operations):
                return session.transact(operations)
            case TakeLock():
                return self._take_lock(session)
            case ReleaseLock():
                return session.release_locks()
            case ReadTimer():
                return TimerRead(self.now_ms)
            case Pause() | Wait() | LimitTime() | Warn():
                return Done()
            case _:
                return self.ledgers.perform(session, action)

    def _take_lock(self, session: Session) -> Done:
        """Nobody waits: at worst the lock is not available in time, and this models that case. Later changes see
        that there are others."""
        self._places += 1
        with suppress(RefusedError):
            self.zk.transact(
                [CreateOp(f"{self.paths.lock}/{session.session}-{self._places:010d}", ephemeral=True)], session.session
            )
        return Done()

    def expire(self, session: Session) -> None:
        self.tell("zk", "session over", session.session)
        self.zk.expire(session.session)

    def pass_time(self, ms: int) -> None:
        self._tick(ms)
        self.tell("clock", f"+{ms} ms", "")

    def run(self, *actors: Actor, most_steps: int = 20_000) -> None:
        """Run these actors, in random order, until each has ended or waits for another."""
        for _ in range(most_steps):
            ready = [actor for actor in actors or self.alive if actor.runnable]
            if not ready:
                return
            self.step(self.random.choice(ready))
        raise InvariantError(f"does not come to rest: {[actor for actor in actors or self.actors if not actor.ended]}")

    def advance(self, actor: Actor, until: Callable[[object], bool], most_steps: int = 1_000) -> Actor:
        """Run ``actor`` alone until its next action satisfies ``until``."""
        for _ in range(most_steps):
            if actor.next is not None and until(actor.next):
                return actor
            if not actor.runnable:
                break
            self.step(actor)
        raise InvariantError(f"does not come to that point: {actor}")

    def step(self, actor: Actor) -> None:
        self.steps += 1
        self._tick(self.random.randint(1, 40))
        actor.step()

    def _tick(self, ms: int) -> None:
        self.now_ms += ms
        for actor in self.alive:
            if actor.suspended and actor.stopped_until > self.steps:
                actor.clock.suspended(ms)

    def _on_change(self, changes: Changes) -> None:
        self.tell("zk", "changes", changes)
        self.watch.on_change(changes)

    # --- telling ---

    def tell(self, who: str, what: object, how: object) -> None:
        self.trace.append((self.now_ms, who, what, how))

    def story(self, last: int = 10_000) -> str:
        from tests.simulation.logs.story import told

        lines = [f"{(at - START_MS) / 1000:12.3f} {who:12} {told(what, how)}" for at, who, what, how in self.trace]
        return "\n".join(lines[-last:])


__all__ = ["Actor", "InvariantError", "RefusedError", "Script", "Wait", "World"]
