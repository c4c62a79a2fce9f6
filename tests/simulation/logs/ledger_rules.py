"""What must hold for the ledgers of logs: which are condemned and deleted, and when (see invariants.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bk_spark.log.formats.names import INDEX, WRITERS, LogPaths
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.settings import LogSettings
from bk_spark.log.formats.znodes import Application, Head, decode_application, decode_registration
from bk_spark.protocol.metadata.znodes import Znode
from tests.simulation.logs.ledgers import ROOT as LEDGERS, ModelLedgers
from tests.simulation.logs.zookeeper import LogsZooKeeper
from tests.simulation.outcomes import InvariantError
from tests.support.zookeeper_model import Changes

DELETE_GRACE_MS = 60 * 60_000
ORPHAN_RETENTION_MS = 7 * 24 * 60 * 60_000


def require(condition: object, text: str) -> None:
    if not condition:
        raise InvariantError(text)


@dataclass(eq=False)
class ListWatch:
    """The whole history of one log's list."""

    paths: LogPaths
    head: Head
    #: Every segment ever sealed, by its base offset.
    sealed: dict[int, Segment] = field(default_factory=dict)
    #: (ledger, entry) by offset.
    entries: list[tuple[int, int]] = field(default_factory=list)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    open_tail: Segment | None = None
    last_time_ms: int = 0
    #: When each segment was sealed, by ZooKeeper's clock.
    sealed_ms: dict[int, int] = field(default_factory=dict)
    #: Full pages, as they were in ZooKeeper.
    full_pages: dict[int, bytes] = field(default_factory=dict)
    #: Ledgers that the list refers to; ``left_ms`` says when others left it.
    referenced: frozenset[int] = frozenset()
    index_ledgers: frozenset[int] = frozenset()
    left_ms: dict[int, int] = field(default_factory=dict)
    #: app -> batch -> offset of its first row
    batches: dict[str, dict[int, int]] = field(default_factory=dict)
    #: Acknowledged to a log writer's user, and not yet in a sealed segment: offset -> (ledger, entry)
    promised: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Tokens of all starts of maintenance.
    claims: list[bytes] = field(default_factory=list)
    deleted: bool = False
    #: As they were last written.
    settings: LogSettings | None = None
    #: When the log began to be which range of offsets.
    states: list[tuple[int, int, int]] = field(default_factory=list)
    #: When the policy began to promise how much of the past.
    promises: list[tuple[int, int]] = field(default_factory=list)

    def least_history_ms(self, since_ms: int) -> int:
        """The shortest time for which a policy kept the past since then."""
        before = [history_ms for time_ms, history_ms in self.promises if time_ms <= since_ms][-1:]
        return min(before + [history_ms for time_ms, history_ms in self.promises if time_ms > since_ms], default=0)

    def first_offset_at(self, time_ms: int) -> int:
        """Where the log began at a time."""
        return max((first for state_ms, first, _ in self.states if state_ms <= time_ms), default=0)


class LedgerWatch:
    """Checks changes to ledgers and registrations."""

    def __init__(self, zk: LogsZooKeeper, ledgers: ModelLedgers, now_ms: Callable[[], int]) -> None:
        self._zk = zk
        self._ledgers = ledgers
        self._now_ms = now_ms
        #: ledger -> its present or last registration
        self._registration: dict[int, str] = {}
        self.logs: dict[str, ListWatch] = {}
        #: Ledgers that the log did not create.
        self.foreign: set[int] = set()

    # --- looking ---

    def application(self, paths: LogPaths, app: str) -> Application | None:
        return self.application_at(f"{paths.app(app)}")

    def application_at(self, path: str) -> Application | None:
        znode = self._zk.read(path)
        return None if znode is None else decode_application(znode.data, path)

    def registrations(self, paths: LogPaths) -> Iterable[tuple[str, str, int]]:
        """(application's key, run's key, ledger) of each."""
        for app in self._zk.children(paths.ledgers) or ():
            for run in self._zk.children(f"{paths.ledgers}/{app}") or ():
                for name in self._zk.children(paths.run_at(app, run)) or ():
                    yield app, run, int(name)

    # --- changes ---

    def check_ledgers(self, changes: Changes) -> None:
        made: set[int] = set()
        deleted: set[int] = set()
        registered: set[int] = set()
        unregistered: dict[int, str] = {}
        for path, (before, after) in changes.items():
            if path.startswith(f"{LEDGERS}/"):
                ledger_id = int(path.rpartition("/L")[2])
                if before is None:
                    made.add(ledger_id)
                elif after is None:
                    deleted.add(ledger_id)
            elif path.startswith("/logs/") and path.count("/") == 6 and path.split("/")[3] == "ledgers":
                ledger_id = int(path.rpartition("/")[2])
                if before is None:
                    registered.add(ledger_id)
                    self._registration[ledger_id] = path
                elif after is None:
                    unregistered[ledger_id] = path
                    self._check_deletion(ledger_id, path, before)
                if before is not None and not self._log_of(path).deleted:
                    run_path = path.rpartition("/")[0]
                    require(run_path in changes, f"{path} was changed, and {run_path} was not written")
                if before is None or after is None:
                    continue
                if decode_registration(after.data, path).condemned:
                    self._check_condemned(ledger_id, path, changes, after.ctime_ms)
        require(made == registered or made <= self.foreign, f"ledgers {made} were made, {registered} registered")
        require(deleted == set(unregistered), f"ledgers {deleted} were deleted, {set(unregistered)} unregistered")

    def _log_of(self, path: str) -> ListWatch:
        return [log for log in self.logs.values() if path.startswith(f"{log.paths.head}/")][-1]

    def _check_condemned(self, ledger_id: int, path: str, changes: Changes, made_ms: int) -> None:
        log = self._log_of(path)
        old = self._now_ms() - made_ms >= ORPHAN_RETENTION_MS
        require(ledger_id not in log.referenced, f"ledger {ledger_id} is condemned, and the list refers to it")
        _, _, _, _, app, run, _ = path.split("/")
        app_path = f"{log.paths.apps}/{app}"
        before = changes[app_path][0] if app_path in changes else self._zk.read(app_path)
        application = None if before is None else decode_application(before.data, app_path)
        if application is not None and ledger_id in application.in_use:
            require(
                self._now_ms() >= application.commit_time_ms + ORPHAN_RETENTION_MS,
                f"ledger {ledger_id} is condemned, and in use by {application.app}",
            )
        over = application is not None and (run in application.retired_runs or application.anonymous)
        require(
            old or over or app in (WRITERS, INDEX) or ledger_id in log.left_ms,
            f"ledger {ledger_id} of {app}/{run} is condemned, and its run may still commit it",
        )

    def _check_deletion(self, ledger_id: int, path: str, registration: Znode) -> None:
        log = self._log_of(path)
        if log.deleted:
            return
        now_ms = self._now_ms()
        require(ledger_id not in log.referenced, f"ledger {ledger_id} is deleted, and the list refers to it")
        since = now_ms - log.left_ms.get(ledger_id, 0)
        require(since >= DELETE_GRACE_MS, f"ledger {ledger_id} is deleted {since} ms after it left the list")
        require(
            decode_registration(registration.data, path).condemned
            and now_ms - registration.mtime_ms >= DELETE_GRACE_MS,
            f"ledger {ledger_id} is deleted, condemned at {registration.mtime_ms}, now it is {now_ms}",
        )
        ledger = self._ledgers.all[ledger_id]
        # Bookies that know it with another password take nothing from a writer.
        require(
            ledger.fenced or ledger.used_before, f"ledger {ledger_id} is deleted, and its writer may still add to it"
        )

    # --- in the end ---

    def left_over(self, paths: LogPaths, *, retired_only: bool) -> list[str]:
        """Registered ledgers that the list does not refer to; with ``retired_only`` only those of retired runs, log
        writers and the index."""
        log = self.logs[paths.log_id]
        left = []
        for app, run, ledger_id in self.registrations(paths):
            application = self.application_at(f"{paths.apps}/{app}")
            retired = app in (WRITERS, INDEX) or (application is not None and run in application.retired_runs)
            if ledger_id not in log.referenced and (retired or not retired_only):
                left.append(f"ledger {ledger_id} of {app}/{run}")
        return left

    def unknown(self) -> list[str]:
        """Existing ledgers that no log has registered."""
        known = self.foreign.union(
            ledger_id for log in self.logs.values() for _, _, ledger_id in self.registrations(log.paths)
        )
        return [
            f"ledger {ledger_id}"
            for ledger_id in self._ledgers.all
            if self._ledgers.exists(ledger_id) and ledger_id not in known
        ]
