"""Upkeep of one log: truncation, its policy and retention, and rounds of maintenance."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from bk_spark.log.core.reading import decision_steps
from bk_spark.log.core.tail.give_up import GiveUpTail
from bk_spark.log.formats.znodes import Policy
from bk_spark.log.gc.maintenance import MaintenanceReport, maintenance_steps
from bk_spark.log.gc.reap_rules import ReapLimits
from bk_spark.log.gc.reaper import OnReapProgress
from bk_spark.log.gc.retention import SetPolicy, policy_of, retention_steps
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.reader import LogReader

_LOG: Final = logging.getLogger(__name__)
_TOKEN_BYTES: Final = 16


class LogUpkeep:
    """What removes parts of a log, now or later. Its methods are those of :class:`bk_spark.log.log.Log`."""

    def __init__(self, log: BlockingLog) -> None:
        self._log = log

    def truncate(self, up_to_offset: int, *, dry_run: bool = False) -> int:
        """Drop the oldest segments. Maintenance deletes their ledgers later. A log's first offset never decreases.

        Parameters
        ----------
        up_to_offset
            Drop whole sealed segments that end at or below this offset.
        dry_run
            Change nothing.

        Returns
        -------
        int
            The log's first offset after this call. With ``dry_run``: after a real one.

        Raises
        ------
        InvalidArgumentError
            If the offset is beyond the log's end.
        MetadataConflictError, MetadataUnavailableError, OutcomeUnknownError
            Retry.
        """
        change = self._truncation(up_to_offset)
        return self._log.run(decision_steps(change, self._log.now_ms)) if dry_run else self._log.change(change)

    def give_up_tail(self, entries: int, *, dry_run: bool = False) -> range:
        """Let a log continue although the ledger at its open end was deleted. Its offsets are lost, new ones follow.

        Reads of the lost offsets fail, or skip them where lost data may be skipped. Truncation removes them.

        Parameters
        ----------
        entries
            How many offsets to give up: at least as many entries as any reader has seen there. New entries have later
            offsets. 0 if nothing was ever acknowledged.
        dry_run
            Change nothing.

        Returns
        -------
        range
            The lost offsets.

        Raises
        ------
        LedgerRefusedError
            If the log has no open end, or its ledger exists.
        LogTailOpenError
            If a log writer holds the tail.
        InvalidArgumentError
            If the number is out of bounds.
        """
        change = GiveUpTail(self._log.paths, entries, self._log.ledgers.ledger_path)
        return self._log.run(decision_steps(change, self._log.now_ms)) if dry_run else self._log.change(change)

    def policy(self) -> Policy:
        """Read the log's policy.

        Returns
        -------
        Policy
            What maintenance keeps. A new log has the default policy, which drops no rows.
        """
        self._log.zk.sync(self._log.paths.head)
        znode = self._log.pages.get(self._log.paths.policy)
        self._log.pages.head()
        return policy_of(znode, self._log.paths).policy

    def set_policy(self, policy: Policy) -> None:
        """Set the log's policy.

        Parameters
        ----------
        policy
            What maintenance keeps from now on.

        Raises
        ------
        InvalidArgumentError
            If a value is out of bounds.
        """
        self._log.change(SetPolicy(self._log.paths, policy))

    def apply_retention(self, policy: Policy | None = None, *, dry_run: bool = False) -> int:
        """Truncate the log according to a policy.

        Parameters
        ----------
        policy
            The policy. Default: the log's own.
        dry_run
            Change nothing.

        Returns
        -------
        int
            The log's first offset after this call. With ``dry_run``: after a real one.

        Raises
        ------
        ClockDifferenceError
            If the clocks of this machine and ZooKeeper differ by more than a minute.
        """
        return self._log.run(
            retention_steps(self._log.paths, self._log.now_ms, self._log.zk.clock.check, policy, dry_run=dry_run)
        )

    def maintain(
        self,
        *,
        force: bool = False,
        dry_run: bool = False,
        limits: ReapLimits | None = None,
        on_progress: OnReapProgress | None = None,
    ) -> MaintenanceReport:
        """Run one bounded round of maintenance.

        A round applies retention, moves list pages into an index ledger, and deletes unused ledgers.

        An error in one part does not stop the others.

        Parameters
        ----------
        force
            Run even if another round began less than 10 minutes ago.
        dry_run
            Change nothing. The report says what a real round would do.
        limits
            Limits for the reaper.
        on_progress
            Called as the reaper makes progress.

        Returns
        -------
        MaintenanceReport
            What was done, and what failed.

        Raises
        ------
        InvalidArgumentError
            If the log was opened without its password.
        NoSuchLogError
            If the log was deleted.
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        steps = maintenance_steps(
            self._log.paths,
            self._log.ledgers.ledger_path,
            self._log.now_ms,
            self._log.zk.clock.check,
            secrets.token_bytes(_TOKEN_BYTES),
            limits=limits,
            force=force,
            dry_run=dry_run,
            on_progress=on_progress,
        )
        report = self._log.run(steps)
        for part, why in report.failed:
            _LOG.warning("maintenance of log %s: %s failed: %s", self._log.name, part, why)
        return report

    def _truncation(self, up_to_offset: int) -> Truncate:
        """Return the change that truncates the current list."""
        snapshot = self._log.snapshot()
        if snapshot.first_offset < up_to_offset < snapshot.next_offset:
            page, segment = snapshot.segment_at(up_to_offset)
            return Truncate(self._log.paths, up_to_offset, SegmentStart(segment.base_offset, page))
        tail_end = 0
        if up_to_offset > snapshot.next_offset and snapshot.open_tail is not None:
            tail_end = LogReader(self._log).readable_end(snapshot)
        return Truncate(self._log.paths, up_to_offset, tail_end=tail_end)
