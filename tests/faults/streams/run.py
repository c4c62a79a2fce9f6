"""A streaming query kept going by a supervisor while its processes and servers are killed, then the verdict."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.log import Log, LogStore
from bk_spark.log.formats.znodes import Application
from bk_spark.protocol.errors import BookKeeperError
from bookie_server.local import LocalCluster
from tests.faults.streams.driver import Driver
from tests.faults.streams.plan import Fault, Plan, Step
from tests.faults.streams.query import QuerySettings
from tests.faults.streams.verdict import orphans_of, problems_of
from tests.faults.timeline import Timeline
from tests.support.logs import PASSWORD, RAW, commit, entries, listed_ledgers
from tests.support.streams import committed, forget_last_commit

#: Of a whole run; a start of Spark with two executors takes 15 s here, and minutes on a machine that is busy.
_RUN_S: Final = 1_200.0
_STARTS: Final = 14
_POLL_S: Final = 0.02
_ZOMBIE_S: Final = 300.0
#: Ours in commit(), or Spark's own where it finds the checkpoint changed before that.
_TOLD: Final = re.compile(r"took over|CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|[Cc]oncurrent(ly using| update)")
_TWO_HOURS_MS: Final = 2 * 3_600_000
#: More than the reaper's default ``orphan_retention_ms``.
_WEEK_H: Final = 8 * 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """``taken_over`` drivers went on after another had taken over from them. All of them failed: ``told`` of them for
    that, the others for what else was done to them."""

    plan: Plan
    timeline: Timeline
    rows: int
    ledgers: int
    starts: int
    taken_over: int
    told: int
    carried_out: int
    problems: list[str]
    outputs: list[Path]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"seed {self.plan.seed}: repeat with make stream-faults SEEDS={self.plan.seed}",
                f"{self.rows} rows in {self.ledgers} ledgers, {self.starts} starts, {self.taken_over} taken over from, "
                f"{self.told} of them told, {self.carried_out} of {len(self.plan.steps)} faults carried out",
                *self.problems,
                "",
                str(self.timeline),
                *(f"output: {path}" for path in self.outputs),
            ]
        )


class StreamRun:
    """``cluster`` has three ZooKeeper servers and bookies enough to lose one."""

    def __init__(self, cluster: LocalCluster, plan: Plan, directory: Path) -> None:
        self._cluster = cluster
        self._plan = plan
        self._directory = directory
        self._timeline = Timeline()
        self._problems: list[str] = []
        self._drivers: list[Driver] = []
        #: Suspended, with the batch that was committed when they were.
        self._paused: list[tuple[Driver, int]] = []
        #: Gone on after another took over from them: they must find out, and end by themselves.
        self._zombies: list[Driver] = []
        self._told = 0
        self._starting: list[threading.Thread] = []
        name = f"numbers-{plan.seed}-{uuid.uuid4().hex[:8]}"
        self._settings = QuerySettings(
            uri=cluster.metadata_service_uri,
            log=name,
            source_log=f"{name}-in" if plan.from_log else None,
            checkpoint=str(directory / "checkpoint"),
            batches=plan.batches,
            rows_per_batch=plan.rows_per_batch,
            partitions=plan.partitions,
            password=PASSWORD.decode(),
            trigger_ms=300,
        )

    def run(self) -> Outcome:
        carried_out = 0
        rows = ledgers = 0
        with BlockingClient(self._settings.uri) as client:
            self._client = client
            self._logs = LogStore.of(client)
            self._log = self._make_logs()
            try:
                carried_out = self._supervise()
                self._wait_for_zombies()
            finally:
                for driver in self._drivers:
                    driver.destroy()
                for thread in self._starting:
                    thread.join()
                self._cluster.heal()
            if not self._problems:
                rows, ledgers = self._judge()
        return Outcome(
            self._plan,
            self._timeline,
            rows,
            ledgers,
            len(self._drivers),
            len(self._zombies),
            self._told,
            carried_out,
            self._problems,
            [driver.output for driver in self._drivers],
        )

    # --- the query and its faults ---

    def _supervise(self) -> int:
        """Start the query, again whenever it ends before its last batch, and carry out the plan; the number of
        faults that were."""
        steps = list(self._plan.steps)
        carried_out = 0
        deadline = time.monotonic() + _RUN_S
        driver = self._start()
        while time.monotonic() < deadline:
            application = self._application()
            batch = _batch_of(application)
            if application is not None:
                self._let_go(application)
            if driver.ended and driver.status != 0:
                if len(self._drivers) >= _STARTS:
                    self._problems.append(f"the query was started {_STARTS} times and is not done")
                    return carried_out
                driver = self._start()
            elif driver.ended and not self._paused:
                return carried_out
            if steps and batch >= steps[0].at_batch:
                step = steps.pop(0)
                time.sleep(step.delay_ms / 1000)
                self._timeline.note("plan", str(step))
                driver = self._carry_out(step, driver)
                carried_out += 1
            time.sleep(_POLL_S)
        self._problems.append(f"not done after {_RUN_S:g} s: batch {self._committed()} is the last")
        return carried_out

    def _carry_out(self, step: Step, driver: Driver) -> Driver:
        match step.fault:
            case Fault.KILL_EXECUTOR:
                if not driver.kill_executor(step.which):
                    self._timeline.note("plan", "there was none")
            case Fault.KILL_WORKER:
                if not driver.kill_worker(step.which):
                    self._timeline.note("plan", "there was none")
            case Fault.KILL_DRIVER:
                driver.kill_driver()
            case Fault.KILL_DRIVER_AT_COMMIT:
                before = self._committed()
                until = time.monotonic() + 20.0
                while self._committed() == before and not driver.ended and time.monotonic() < until:
                    pass
                driver.kill_driver()
            case Fault.LOSE_LAST_COMMIT:
                driver.kill_driver()
                self._lose_last_commit()
            case Fault.PAUSE_DRIVER:
                driver.suspend()
                self._paused.append((driver, self._committed()))
                return self._start()
            case Fault.KILL_BOOKIE:
                bookie = self._cluster.bookies[step.which % len(self._cluster.bookies)]
                if bookie.running:
                    bookie.kill()
                    self._later(step.down_ms, bookie.start)
            case Fault.KILL_LEADER:
                for server in self._cluster.zookeepers:
                    if server.running and server.mode() == "leader":
                        server.kill()
                        self._later(step.down_ms, server.start)
                        break
            case Fault.MAINTAIN:
                self._maintain(_TWO_HOURS_MS)
        return driver

    def _let_go(self, now: Application) -> None:
        """Paused drivers go on when another has committed since, or all is done."""
        for driver, before in list(self._paused):
            run = driver.run
            if (now.batch_id > before and now.run != run) or now.batch_id >= self._plan.batches - 1:
                self._timeline.note("plan", f"driver {driver.number} goes on")
                driver.resume()
                self._paused.remove((driver, before))
                # Nobody took over from one that had committed nothing: it may take over itself.
                if run is not None and now.successor_of(run) is not None:
                    self._zombies.append(driver)

    def _wait_for_zombies(self) -> None:
        for driver in self._zombies:
            if not driver.wait(_ZOMBIE_S):
                self._problems.append(f"driver {driver.number} still runs {_ZOMBIE_S:g} s after another took over")
            elif driver.status == 0:
                self._problems.append(f"driver {driver.number} was not told that another took over")
            elif _TOLD.search(driver.output.read_text(errors="replace")):
                self._told += 1

    def _start(self) -> Driver:
        driver = Driver(self._settings, self._directory, len(self._drivers), self._plan.executors)
        self._drivers.append(driver)
        self._timeline.note("plan", f"driver {driver.number} starts, batch {self._committed()} is the last")
        return driver

    def _later(self, after_ms: int, start: Callable[[], None]) -> None:
        def work() -> None:
            time.sleep(after_ms / 1000)  # as the plan says
            start()

        thread = threading.Thread(target=work, name="restart of a server")
        self._starting.append(thread)
        thread.start()

    def _lose_last_commit(self) -> None:
        checkpoint = Path(self._settings.checkpoint)
        application = self._application()
        if committed(checkpoint) and application is not None:
            lost = forget_last_commit(checkpoint, application.batch_id)
            self._timeline.note("plan", f"commit {lost} is gone")
        else:
            self._timeline.note("plan", "there was none, or ZooKeeper does not say what is in the log")

    def _committed(self) -> int:
        """The last batch in the log; -1 for none, or while ZooKeeper does not say."""
        return _batch_of(self._application())

    def _application(self) -> Application | None:
        """What the query has committed; None for nothing, or while ZooKeeper does not say."""
        try:
            zk = self._client.zookeeper
            with zk.within(5_000):
                for app in zk.children(self._log.paths.apps) or ():
                    return self._log.application(app)
        except BookKeeperError as error:
            self._timeline.note("look", f"{error}")
        return None

    # --- logs ---

    def _make_logs(self) -> Log:
        if self._settings.source_log is not None:
            self._fill(self._logs.create_log(self._settings.source_log, RAW, PASSWORD))
        return self._logs.create_log(self._settings.log, RAW, PASSWORD)

    def _fill(self, log: Log) -> None:
        """Numbered entries, in a few ledgers that have nothing to do with batches."""
        rows = self._settings.rows
        for number, (start, end) in enumerate(pairwise((0, rows // 3, rows // 2, rows))):
            commit(log, number, [str(row).encode() for row in range(start, end)])

    def _opened(self, store: LogStore) -> Log:
        """The log, with nothing kept from earlier looks at it."""
        return store.open_log(self._settings.log, log_id=self._log.log_id, password=PASSWORD)

    def _maintain(self, ahead_ms: int) -> None:
        """The reaper as it is, but for its clock and its grace."""
        store = LogStore(self._client.zookeeper, client=self._client, now_ms=lambda: unix_time_ms() + ahead_ms)
        log = self._opened(store)
        try:
            self._timeline.note("reaper", str(log.maintain(force=True)))
        except BookKeeperError as error:
            self._timeline.note("reaper", f"failed: {error}")

    # --- the verdict ---

    def _judge(self) -> tuple[int, int]:
        partitions = None if self._plan.from_log else self._plan.partitions
        log = self._opened(self._logs)
        values = [int(entry) for entry in entries(log)]
        self._problems += problems_of(values, self._plan.rows_per_batch, partitions)
        if len(values) < self._settings.rows:
            self._problems.append(f"{len(values)} rows, expected {self._settings.rows}")
        # Two hours later nothing is left of runs that were taken over from, after days nothing of runs that never
        # committed; and everything else is there.
        for hours, days_later in ((0, False), (2, False), (4, False), (_WEEK_H, False), (_WEEK_H + 2, True)):
            self._maintain(hours * 3_600_000)
            if hours >= 4:
                log = self._opened(self._logs)
                self._problems += orphans_of(self._client, log, days_later=days_later)
        if [int(entry) for entry in entries(log)] != values:
            self._problems.append("the reaper changed what the log holds")
        return len(values), len(listed_ledgers(log))


def _batch_of(application: Application | None) -> int:
    return -1 if application is None else application.batch_id
