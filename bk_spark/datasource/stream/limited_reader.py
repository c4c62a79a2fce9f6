"""The reader of streams from Spark 4.2 on, which tells sources the start and the limit of a batch."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.stream.base_reader import BaseReader, JsonOffset


class LimitedReader(BaseReader, SupportsTriggerAvailableNow):
    """Keeps micro-batches within the limits of the options, with ``Trigger.AvailableNow``, too."""

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's names, here and below)
        """Return anything but ReadAllAvailable if there are limits. Spark supports one limit at a time. It passes
        ReadAllAvailable back if the trigger has no limit. That is the only use of the argument."""
        options = self._options
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_entries_per_trigger is not None:
            return ReadMinRows(options.min_entries_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at what is readable now. Spark calls this before the first batch."""
        self._plan().stop_at_present_end()

    @plain_errors
    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:  # noqa: N802
        """Return the end of the batch that begins at ``start``. Only whether ``limit`` is ReadAllAvailable matters."""
        return self._next(start, limited=not isinstance(limit, ReadAllAvailable))

    @plain_errors
    def reportLatestOffset(self) -> JsonOffset | None:  # noqa: N802
        """Return the known end, regardless of limits, and how far the planned batch is behind it. Only for display."""
        planner = self._planner
        latest = None if planner is None else planner.latest_known()
        if planner is None or latest is None:
            return None
        return {**planner.to_json(latest), "behind": planner.behind()}
