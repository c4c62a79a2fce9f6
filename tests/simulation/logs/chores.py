"""Actors that write no rows: truncation, appending of ledgers, policies, new columns, maintenance, deletion."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, ClassVar

from bk_spark.log.core.append_ledger import AppendLedger, registered_steps
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.index_move import move_steps
from bk_spark.log.core.takeover import commit_steps
from bk_spark.log.formats.message import CommitRequest
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.znodes import Policy
from bk_spark.log.gc.deletion import delete_steps
from bk_spark.log.gc.retention import SetPolicy
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.errors import InvalidArgumentError, MetadataConflictError
from bk_spark.protocol.metadata.znodes import CreateOp
from tests.simulation.logs.invariants import require
from tests.simulation.logs.ledgers import ModelLedger, closed_metadata, ledger_path
from tests.simulation.logs.schemas import schema_of
from tests.simulation.logs.streaming import REFUSALS
from tests.simulation.logs.world import Actor, RefusedError, Script, Wait, World
from tests.simulation.logs.writers import WRITER_FAILURES


class Chore(Actor):
    """Does one thing several times, with pauses. A failure ends that attempt, not the process."""

    kind: ClassVar[str] = "chore"

    def __init__(self, world: World, name: str, paths: LogPaths, times: int = 1, pause_steps: int = 0) -> None:
        super().__init__(world, name)
        self.paths = paths
        self.times = times
        self._pause_steps = pause_steps
        #: How often it succeeded, and how often it failed.
        self.done = self.failed = 0

    def script(self) -> Script:
        for _ in range(self.times):
            if self._pause_steps:
                due = self.world.steps + self.world.random.randint(0, 2 * self._pause_steps)
                yield Wait(lambda due=due: self.world.steps >= due or self.world.healed, "pause")
            try:
                result = yield from self.once()
            except WRITER_FAILURES as error:
                self.failed += 1
                self.world.tell(self.name, "error", error)
            except REFUSALS as error:
                self.world.tell(self.name, "error", error)
                return "refused"
            else:
                self.done += 1
                self.world.tell(self.name, self.kind, result)
        return "done"

    def once(self) -> Generator[Any, Any, object]:
        raise NotImplementedError


class Truncator(Chore):
    """Drops everything below ``up_to``, or below an offset drawn each time."""

    kind: ClassVar[str] = "truncated"

    def __init__(
        self,
        world: World,
        name: str,
        paths: LogPaths,
        times: int = 1,
        pause_steps: int = 0,
        up_to: int | None = None,
    ) -> None:
        super().__init__(world, name, paths, times, pause_steps)
        self._up_to = up_to

    def once(self) -> Generator[Any, Any, object]:
        log = self.world.watch.logs[self.paths.log_id]
        up_to = self._up_to
        if up_to is None:
            up_to = self.world.random.randint(log.head.first_offset, log.head.next_offset + 2)
        # Log.truncate finds it in a snapshot in the same way.
        place = self.world.watch.page_of(self.paths, up_to)
        start = None if place is None else SegmentStart(place[1].base_offset, place[0])
        end = log.head.next_offset
        try:
            first = yield from change_steps(Truncate(self.paths, up_to, start), self.now_ms)
        except InvalidArgumentError as error:
            require(up_to > end, f"refused, though the log reached that far: {error}")
            return error
        except MetadataConflictError as error:
            require(up_to >= end, f"refused, though the offset was in the list: {error}")
            return error
        require(first <= max(up_to, log.head.first_offset), f"truncated to {first}, asked for {up_to}")
        require(first <= log.head.first_offset, f"told that the log starts at {first}: {log.head}")
        return first


class Grower(Chore):
    """Adds a column to the log's schema with each write, which has no rows and so leaves the head alone."""

    kind: ClassVar[str] = "grown"

    def once(self) -> Generator[Any, Any, object]:
        column = f"{self.name}_{self.done + self.failed}"
        request = CommitRequest(
            self.paths.log_id,
            self.world.uuid(),
            self.name,
            "batch",
            0,
            anonymous=True,
            merge_schema=schema_of(number="short", **{column: "date"}),
        )
        yield from commit_steps(self.paths, request, self.now_ms)
        settings = self.world.watch.logs[self.paths.log_id].settings
        assert settings is not None
        require(f'"{column}"' in (settings.schema_json or ""), f"told that there is a column {column}: {settings}")
        return column


class Appender(Chore):
    """Appends ``ledger_id``, which another program wrote and closed."""

    kind: ClassVar[str] = "appended"

    def __init__(self, world: World, name: str, paths: LogPaths, ledger_id: int, pause_steps: int = 0) -> None:
        super().__init__(world, name, paths, 1, pause_steps)
        self._ledger_id = ledger_id

    def once(self) -> Generator[Any, Any, object]:
        registration = yield from registered_steps(self.paths, self._ledger_id)
        require(registration is None, f"ledger {self._ledger_id} is registered: {registration}")
        token = self.world.random.randbytes(16)
        change = AppendLedger(self.paths, self._ledger_id, ledger_path(self._ledger_id), token)
        offsets = yield from change_steps(change, self.now_ms)
        held = self.world.watch.logs[self.paths.log_id].entries[offsets.start : offsets.stop]
        require(
            held == [(self._ledger_id, entry_id) for entry_id in range(len(offsets))] and held,
            f"ledger {self._ledger_id} was told {offsets}, which hold {held}",
        )
        return offsets


def foreign_ledger(world: World, entries: int) -> int:
    """A closed ledger that the log did not create."""
    ledger_id = 1 + len(world.watch.foreign)
    world.watch.foreign.add(ledger_id)
    payloads: list[object] = [bytes([n]) for n in range(entries)]
    world.ledgers.all[ledger_id] = ModelLedger(ledger_id, payloads, entries, True, entries - 1)
    world.zk.transact([CreateOp(ledger_path(ledger_id), closed_metadata(entries - 1, entries))])
    return ledger_id


class IndexMover(Chore):
    """Moves full pages out of ZooKeeper, as maintenance does."""

    kind: ClassVar[str] = "moved pages"
    moved = 0

    def once(self) -> Generator[Any, Any, object]:
        report = yield from move_steps(self.paths, self.now_ms, max_znode_pages=1, keep_pages=1, new_id=self.world.uuid)
        self.moved += report.pages
        return report


class PolicySetter(Chore):
    """Sets a different policy each time."""

    kind: ClassVar[str] = "set policy"

    def once(self) -> Generator[Any, Any, object]:
        minutes, size_bytes = self.world.random.choice([(30, 0), (24 * 60, 0), (0, 700), (0, 0)])
        history_ms = self.world.random.choice([0, 20, 90, 24 * 60]) * 60_000 if self.world.records_commits else 0
        policy = Policy(minutes * 60_000, size_bytes, history_ms=history_ms)
        return (yield from change_steps(SetPolicy(self.paths, policy), self.now_ms))


class Deleter(Chore):
    """Deletes the log, and creates another one under its name."""

    kind: ClassVar[str] = "deleted"

    def __init__(self, world: World, name: str, paths: LogPaths, pause_steps: int = 0, *, again: bool = True) -> None:
        super().__init__(world, name, paths, 3, pause_steps)
        self._again = again

    def once(self) -> Generator[Any, Any, object]:
        report = yield from delete_steps(self.paths, ledger_path, self.now_ms)
        self.times = 1
        if self._again:
            # Refused if there is one already.
            with suppress(RefusedError):
                self.world.make_log()
        return report
