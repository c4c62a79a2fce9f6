"""The reader of streams for Spark 4.0 and 4.1."""

from __future__ import annotations

import logging
from typing import Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.plain_errors import plain_errors
from bk_spark.datasource.stream.base_reader import BaseReader, JsonOffset

_LOG: Final = logging.getLogger(__name__)


class UnlimitedReader(BaseReader):
    """Spark asks for the end of a batch, and tells neither where it begins nor what triggered it.

    The start is known all the same. When a query is restarted, Spark first passes the last offset of its checkpoint to
    :meth:`partitions`, as start and end. If it does not, the query is new. A batch takes everything that waits: with
    ``Trigger.AvailableNow`` Spark runs a single batch, and what is beyond a limit would wait for the next run.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        #: Where the next batch begins, if it is not the query's first.
        self._reached: JsonOffset | None = None
        self._warned = False

    @plain_errors
    def latestOffset(self) -> JsonOffset:  # type: ignore[override]  # noqa: N802 (Spark's name)
        """Return the end of all that waits after the last batch, or after the query's start."""
        self._warn_of_limits()
        start = self.initialOffset() if self._reached is None else self._reached
        self._reached = self._next(start, limited=False)
        return self._reached

    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        """Return the tasks of the batch. Notes where the next batch begins."""
        self._reached = end
        return super().partitions(start, end)

    def _warn_of_limits(self) -> None:
        options = self._options
        limits = {
            "maxEntriesPerTrigger": options.max_entries_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
            "minEntriesPerTrigger": options.min_entries_per_trigger,
        }
        given = [name for name, limit in limits.items() if limit is not None]
        if given and not self._warned:
            self._warned = True
            _LOG.warning(
                "%s: no effect, since only from 4.2 on Spark tells sources in Python the limits of a batch. Each batch "
                "takes everything that waits",
                " and ".join(given),
            )
