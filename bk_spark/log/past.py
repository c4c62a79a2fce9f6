"""The past of one log: its commits, and its state after one of them."""

from __future__ import annotations

import datetime
from itertools import islice

from bk_spark.log.core.reading import measure_clock_steps
from bk_spark.log.history.commits import Commit
from bk_spark.log.io.blocking import BlockingLog
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.positions.texts import AsOf, as_of


class LogPast:
    """What a log was. Its methods are those of :class:`bk_spark.log.log.Log`."""

    def __init__(self, log: BlockingLog) -> None:
        self._log = log

    def as_of(self, commit: int | str | datetime.datetime | AsOf) -> LogSnapshot:
        """Read the list as it was after a commit.

        Parameters
        ----------
        commit
            An offset: the commit that holds it. A time, as a datetime or in ISO 8601: the last commit then or before.
            Or a transaction, such as ``nightly:7``: the application's name and the number of its batch.

        Returns
        -------
        LogSnapshot
            The log's state after that commit, without an open tail. Later changes of the log do not change it.

        Raises
        ------
        LogRangeGoneError
            If rows of that state are gone. The error names them. How long they stay is in the log's policy.
        InvalidArgumentError
            If there is no such commit, or a commit up to that time may still come.
        """
        wanted = as_of(commit, f"log {self._log.name}: as_of")
        return self._log.snapshot().as_of(wanted, self.measured_now_ms)

    def history(self, limit: int = 1_000) -> tuple[int, list[Commit]]:
        """Read the log's last commits.

        Parameters
        ----------
        limit
            How many commits to return.

        Returns
        -------
        kept_from : int
            The first offset in the list. States that began before it can no longer be read.
        commits : list of Commit
            The newest commits, truncations and log writers' ledgers, the newest first.
        """
        snapshot = self._log.snapshot()
        return snapshot.kept_from, list(islice(snapshot.commits(), limit))

    def measured_now_ms(self) -> int:
        """Measure the cluster's time. Costs one write below the root of the logs.

        Returns
        -------
        int
            The time now, in Unix milliseconds, or slightly less.

        Raises
        ------
        MetadataUnavailableError
            If ZooKeeper does not answer.
        """
        self._log.run(measure_clock_steps(self._log.paths))
        return self._log.now_ms()
