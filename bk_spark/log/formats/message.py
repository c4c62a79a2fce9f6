"""What tasks report to the driver, and what the driver asks to commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bk_spark.log.formats.names import escape_id, utf8_length
from bk_spark.log.formats.schema_history import MAX_SCHEMA_VERSIONS
from bk_spark.log.formats.segment import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, MAX_SEGMENT_ROWS
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError

MAX_BATCH_ID: Final = (1 << 63) - 1
MAX_QUERY_ID_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Acknowledged entries of one ledger, in sequence.

    Parameters
    ----------
    ledger_id
        The ledger.
    first_entry, last_entry
        The ids of the first and of the last entry.
    rows
        How many rows the entries hold.
    size_bytes
        The payload bytes of the entries.

    Raises
    ------
    InvalidArgumentError
        If a number is out of bounds.
    """

    ledger_id: int
    first_entry: int
    last_entry: int
    rows: int
    size_bytes: int

    def __post_init__(self) -> None:
        if (
            self.ledger_id < 0
            or not 0 <= self.first_entry <= self.last_entry < MAX_SEGMENT_ENTRIES
            or not 0 <= self.rows < MAX_SEGMENT_ROWS
            or not 0 <= self.size_bytes < MAX_SEGMENT_BYTES
        ):
            raise InvalidArgumentError(f"not a range of entries: {self}")

    @property
    def entries(self) -> int:
        """The number of entries."""
        return self.last_entry - self.first_entry + 1

    def continued_by(self, other: LedgerRange) -> bool:
        """Whether ``other`` begins where this range ends."""
        return (self.ledger_id, self.last_entry + 1) == (other.ledger_id, other.first_entry)

    def with_continuation(self, other: LedgerRange) -> LedgerRange:
        """Return one range that covers this range and ``other``, which continues it."""
        return replace(
            self,
            last_entry=other.last_entry,
            rows=self.rows + other.rows,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """One task's result: where the rows of a partition are, in order. Small and picklable.

    Parameters
    ----------
    log_id
        The id of the log that the task wrote for.
    app
        The name of the application in the log (``txnAppId``).
    run
        The id of the run: one start of a streaming query, or one batch write.
    query_id
        The id of the streaming query.
    batch_id
        The number of the batch (``txnVersion``).
    partition
        The number of the partition, starting at 0.
    ranges
        Where the rows are. Several ranges if the task had to change its ledger. Empty if it had no rows.
    query_batch_id
        The query's own batch number. In ``foreachBatch`` it can differ from ``batch_id``.
    schema_version
        The version of the log's schema whose columns the rows have. Ignored if the commit merges their columns.
    case_sensitive
        Whether the task's columns differ from others by the case of their names, for a commit that merges them.
    """

    log_id: str
    app: str
    run: str
    query_id: str
    batch_id: int
    partition: int
    ranges: tuple[LedgerRange, ...] = ()
    query_batch_id: int | None = None
    schema_version: int = 0
    case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A batch to append to a log, exactly once.

    Parameters
    ----------
    log_id
        The id of the log.
    app
        The name of the application. Each batch number is committed once per application.
    run
        The id of the run.
    query_id
        The id of the streaming query. It stays the same after a restart, also for a batch write in the query's
        ``foreachBatch``. Any other batch write passes a constant. If that write is repeated with the same ``app`` and
        ``batch_id``, it counts as done and not as another query's batch.
    batch_id
        The number of the batch.
    messages
        One per partition, in any order. May be empty.
    overwrite
        Make the log begin with this batch.
    anonymous
        A batch write without a name: ``app`` is a new UUID, and ``batch_id`` is 0.
    fence_tail
        End a log writer that holds the tail. Otherwise the commit is refused while that writer is alive.
    query_batch_id
        The query's own batch number. None for a batch write outside of ``foreachBatch``.
    skip_committed
        Count the batch as done if the query has committed later ones. For a query whose checkpoint was set back.
    consecutive
        The query commits each of its batches to this log, one after another, as a sink does. So a batch that does not
        follow the query's last one in the log is refused.
    merge_schema
        The rows' columns, as a schema in Spark's JSON form. The log's schema grows by what it lacks, in the transaction
        that adds the rows. None: the rows have the columns of the version that the messages name.

    Raises
    ------
    InvalidArgumentError
        If an argument is out of bounds, or the messages are inconsistent.
    LogReplacedError
        If a message was written for another log.
    """

    log_id: str
    app: str
    run: str
    query_id: str
    batch_id: int
    messages: tuple[CommitMessage, ...] = ()
    overwrite: bool = False
    anonymous: bool = False
    fence_tail: bool = False
    query_batch_id: int | None = None
    skip_committed: bool = False
    consecutive: bool = False
    merge_schema: str | None = None
    #: All ranges in partition order. Adjacent ranges that continue each other are merged.
    ranges: tuple[LedgerRange, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        escape_id("application", self.app)
        escape_id("run", self.run)
        if utf8_length("query id", self.query_id) > MAX_QUERY_ID_BYTES:
            raise InvalidArgumentError(f"query id is longer than {MAX_QUERY_ID_BYTES} bytes")
        if not 0 <= self.batch_id <= MAX_BATCH_ID:
            raise InvalidArgumentError(f"batch id (txnVersion) must be 0 to 2^63-1, not {self.batch_id}")
        if self.query_batch_id is not None and not 0 <= self.query_batch_id <= MAX_BATCH_ID:
            raise InvalidArgumentError(f"a query's batch must be 0 to 2^63-1, not {self.query_batch_id}")
        if self.anonymous and self.batch_id != 0:
            raise InvalidArgumentError("a batch write without a name has batch id 0")
        partitions = set()
        for message in self.messages:
            self._check(message)
            partitions.add(message.partition)
        if len(partitions) != len(self.messages):
            raise InvalidArgumentError(f"two commit messages of batch {self.batch_id} name the same partition")
        ranges = _joined(self.messages)
        _check_disjoint(ranges)
        object.__setattr__(self, "ranges", tuple(ranges))

    @property
    def rows(self) -> int:
        """The number of rows in the batch."""
        return sum(part.rows for part in self.ranges)

    @property
    def schema_version(self) -> int:
        """The version of the log's schema whose columns the rows have, unless the commit merges them."""
        return self.messages[0].schema_version if self.messages else 0

    @property
    def case_sensitive(self) -> bool:
        """Whether the rows' columns differ from others by the case of their names."""
        return self.messages[0].case_sensitive if self.messages else False

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[CommitMessage],
        *,
        overwrite: bool = False,
        anonymous: bool = False,
        fence_tail: bool = False,
        skip_committed: bool = False,
        consecutive: bool = False,
        merge_schema: str | None = None,
    ) -> CommitRequest:
        """Create the request when the driver knows its query only from the messages.

        Parameters
        ----------
        messages
            One for each partition, at least one.
        overwrite, anonymous, fence_tail, skip_committed, consecutive, merge_schema
            As for the class.

        Returns
        -------
        CommitRequest
            The request.

        Raises
        ------
        InvalidArgumentError
            If there is no message, or the messages are inconsistent.
        """
        if not messages:
            raise InvalidArgumentError("there is no commit message, so the batch is unknown: give at least one")
        one = messages[0]
        return cls(
            one.log_id,
            one.app,
            one.run,
            one.query_id,
            one.batch_id,
            tuple(messages),
            overwrite,
            anonymous,
            fence_tail,
            one.query_batch_id,
            skip_committed,
            consecutive,
            merge_schema,
        )

    def _check(self, message: CommitMessage) -> None:
        if message.log_id != self.log_id:
            raise LogReplacedError(
                f"partition {message.partition} wrote to log id {message.log_id}, the commit is for {self.log_id}: "
                "the log was deleted and created again under its name; run the write again"
            )
        theirs = (message.app, message.run, message.query_id, message.batch_id, message.query_batch_id)
        if theirs != (self.app, self.run, self.query_id, self.batch_id, self.query_batch_id):
            raise InvalidArgumentError(
                f"partition {message.partition} wrote for application {message.app!r}, run {message.run}, query "
                f"{message.query_id}, batch {message.batch_id} (the query's {message.query_batch_id}); the commit is "
                f"of application {self.app!r}, run {self.run}, query {self.query_id}, batch {self.batch_id} (the "
                f"query's {self.query_batch_id})"
            )
        if not 0 <= message.schema_version < MAX_SCHEMA_VERSIONS:
            raise InvalidArgumentError(
                f"partition {message.partition} wrote rows of version {message.schema_version} of the log's schema, "
                f"and there are versions from 0 to {MAX_SCHEMA_VERSIONS - 1}: give the version of the log's columns"
            )
        if message.schema_version != self.schema_version:
            raise InvalidArgumentError(
                f"partition {message.partition} wrote rows of version {message.schema_version} of the log's schema, "
                f"others of version {self.schema_version}: write all partitions with the same columns"
            )
        if message.case_sensitive != self.case_sensitive:
            own, others = (
                "with regard to case" if one.case_sensitive else "without regard to case" for one in (message, self)
            )
            raise InvalidArgumentError(
                f"partition {message.partition} compared names of columns {own}, others {others}: write all partitions "
                "with the same spark.sql.caseSensitive"
            )


def _joined(messages: Sequence[CommitMessage]) -> list[LedgerRange]:
    joined: list[LedgerRange] = []
    for message in sorted(messages, key=lambda m: m.partition):
        for part in message.ranges:
            if joined and joined[-1].continued_by(part):
                joined[-1] = joined[-1].with_continuation(part)
            else:
                joined.append(part)
    return joined


def _check_disjoint(ranges: Sequence[LedgerRange]) -> None:
    last: LedgerRange | None = None
    for part in sorted(ranges, key=lambda r: (r.ledger_id, r.first_entry)):
        if last is not None and last.ledger_id == part.ledger_id and part.first_entry <= last.last_entry:
            raise InvalidArgumentError(f"two commit messages name entry {part.first_entry} of ledger {part.ledger_id}")
        last = part
