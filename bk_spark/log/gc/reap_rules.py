"""Which ledgers of a log may be deleted, and when. No I/O.

These rules only decide *when*. They may be wrong about which runs are still active: such a run is then refused and
starts again. Only the transactions in :mod:`bk_spark.log.gc.reaping` guarantee that no data is lost.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from bk_spark.log.formats.names import INDEX, WRITERS, LogPaths, run_key
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Application, LedgerRegistration, Owner, decode_application, decode_owner
from bk_spark.protocol.metadata.znodes import CheckOp, Znode

#: Ledgers of log writers and index ledgers are listed moments after they were created, or never.
SETTLED_MS: Final = 15 * 60 * 1000
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class ReapLimits:
    """When ledgers are deleted, and how much one round does.

    Parameters
    ----------
    orphan_retention_ms, delete_grace_ms
        As in the log's policy, which every round reads.
    forget_anonymous_ms
        From the commit of a batch write without a name to the removal of its application.
    max_ledgers
        The most ledgers condemned in one round, and the most deleted.
    max_failures
        A round recovers no more ledgers after this many recoveries that failed.
    max_runs
        The most runs checked in one round. They are chosen at random each time.
    policy
        The check that the policy is still the same. It is part of the transactions that delete ledgers.
    max_applications
        The most applications that one round checks for removal, also chosen at random.
    """

    orphan_retention_ms: int = 7 * _DAY_MS
    delete_grace_ms: int = 60 * 60 * 1000
    forget_anonymous_ms: int = 7 * _DAY_MS
    max_ledgers: int = 10_000
    max_failures: int = 16
    max_runs: int = 20_000
    policy: CheckOp | None = None
    max_applications: int = 1_000


class Reason(enum.Enum):
    """Why an unreferenced ledger is condemned."""

    RUN_RETIRED = "its run is over, and the log does not refer to it"
    DROPPED = "its segments were truncated or overwritten"
    APPLICATION_IDLE = "its segments were truncated or overwritten, and its application no longer commits"
    OLD = "nothing has referred to it for long"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, identified by its znode names."""

    app_key: str
    run_key: str

    @property
    def is_known(self) -> bool:
        """Whether this release knows what kind of run this is."""
        return not self.app_key.startswith("+") or self.app_key in (WRITERS, INDEX)

    @property
    def is_of_application(self) -> bool:
        """Whether an application made the run; otherwise it is a log writer, or a move into an index ledger."""
        return not self.app_key.startswith("+")

    def path(self, paths: LogPaths) -> str:
        """Return the run's znode, the parent of its registrations."""
        return paths.run_at(self.app_key, self.run_key)

    def registration(self, paths: LogPaths, ledger_id: int) -> str:
        """Return the znode that registers a ledger for the run."""
        return f"{self.path(paths)}/{ledger_id}"

    def holder_path(self, paths: LogPaths) -> str:
        """Return the znode that shows whether the run is active."""
        return f"{paths.apps}/{self.app_key}" if self.is_of_application else paths.owner


class Holder:
    """Who may be using a run's ledgers: an application, or the log writer that holds the tail open."""

    def __init__(self, run: Run, paths: LogPaths, znode: Znode | None) -> None:
        """``znode`` was read at ``run.holder_path``. Raises MetadataFormatError."""
        path = run.holder_path(paths)
        self.application: Application | None = None
        self.owner: Owner | None = None
        if znode is not None and run.is_of_application:
            self.application = decode_application(znode.data, path)
        elif znode is not None:
            self.owner = decode_owner(znode.data, path)

    @cached_property
    def _retired_keys(self) -> frozenset[str]:
        return frozenset(map(run_key, self.application.retired_runs)) if self.application else frozenset()

    def has_ended(self, run: Run) -> bool:
        """Whether ``run`` is known to commit nothing more. An application without a name has only one batch."""
        application = self.application
        if application is None:
            return False
        present = run_key(application.run) == run.run_key
        return application.anonymous or (not present and run.run_key in self._retired_keys)

    def may_work(self, run: Run) -> bool:
        """Whether ``run`` is the last one that was active."""
        if run.app_key == WRITERS:
            return self.owner is not None and self.owner.writer_id == run.run_key
        application = self.application
        return application is not None and not application.anonymous and run_key(application.run) == run.run_key

    def last_in_use(self, ledger_id: int) -> int | None:
        """Return the last committed entry of a ledger in use."""
        return self.application.in_use.get(ledger_id) if self.application else None


def reason_to_condemn(
    run: Run,
    holder: Holder,
    ledger_id: int,
    registration: LedgerRegistration,
    *,
    made_ms: int,
    open_tail: int | None,
    now_ms: int,
    limits: ReapLimits,
) -> Reason | None:
    """Return why an unreferenced ledger must be condemned now, or None to keep it.

    ``made_ms`` is when the ledger was registered. ``open_tail`` is the ledger that a log writer is writing.
    """
    age_ms = now_ms - made_ms
    if not run.is_of_application:
        if age_ms < SETTLED_MS:
            return None
        if run.app_key == WRITERS and holder.may_work(run) and (open_tail is None or ledger_id > open_tail):
            # The writer's next ledger, created but not listed yet.
            return Reason.OLD if age_ms >= limits.orphan_retention_ms else None
        return Reason.DROPPED if holder.may_work(run) or run.app_key == INDEX else Reason.RUN_RETIRED
    if holder.last_in_use(ledger_id) is not None:
        assert holder.application is not None
        idle_ms = min(age_ms, now_ms - holder.application.commit_time_ms - COMMIT_TIME_LAG_MS)
        return Reason.APPLICATION_IDLE if idle_ms >= limits.orphan_retention_ms else None
    if registration.last_committed_entry is not None:
        return Reason.DROPPED
    if holder.has_ended(run):
        return Reason.RUN_RETIRED
    return Reason.OLD if age_ms >= limits.orphan_retention_ms else None
