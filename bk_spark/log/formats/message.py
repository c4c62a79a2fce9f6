"""What tasks tell the driver, and what the driver asks to be committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bk_spark.log.formats.names import escape_id, utf8_length
from bk_spark.log.formats.segment import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, MAX_SEGMENT_ROWS
from bk_spark.protocol.errors import InvalidArgumentError, LogReplacedError

MAX_BATCH_ID: Final = (1 << 63) - 1
MAX_QUERY_ID_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Acknowledged entries ``first_entry`` to ``last_entry`` (inclusive) of a ledger, with the rows and
    payload bytes in them."""

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
        return self.last_entry - self.first_entry + 1

    def continued_by(self, other: LedgerRange) -> bool:
        return (self.ledger_id, self.last_entry + 1) == (other.ledger_id, other.first_entry)

    def with_continuation(self, other: LedgerRange) -> LedgerRange:
        return replace(
            self,
            last_entry=other.last_entry,
            rows=self.rows + other.rows,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class CommitMessage:
    """One task's result: where the rows of ``partition`` are, in order. Small, and can be pickled.

    ``run`` is the run id of a streaming query (a batch write draws a UUID), ``app`` its name in the log
    (``txnAppId``). ``query_id`` and ``query_batch_id`` are the streaming query's id and its own number of the batch,
    which in foreachBatch need not be the ``batch_id`` (``txnVersion``). Several ranges where the task had to go on in
    another ledger; none where it had no rows.
    """

    log_id: str
    app: str
    run: str
    query_id: str
    batch_id: int
    partition: int
    ranges: tuple[LedgerRange, ...] = ()
    query_batch_id: int | None = None


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Append the rows of ``messages`` as batch ``batch_id`` of application ``app``, once.

    Parameters
    ----------
    query_id : a streaming query's id, the same over its restarts, also of a batch write in its foreachBatch. Every
        other batch write gives a constant: its repetition (same ``app``, same ``batch_id``) then counts as done, not
        as another query's batch.
    messages : one for each partition, in any order; may be empty.
    overwrite : the log then begins with this batch.
    fence_tail : end a log writer that holds the tail open; without it the commit is refused while that writer lives.
    anonymous : a batch write without a name: ``app`` is a UUID drawn for it, ``batch_id`` is 0.
    query_batch_id : the query's own number of the batch; None for a batch write outside of foreachBatch.
    skip_committed : take a batch for done, too, where the query committed later ones: its checkpoint was set back.
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
    #: All ranges in partition order. Neighbours that continue each other are one.
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
        return sum(part.rows for part in self.ranges)

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[CommitMessage],
        *,
        overwrite: bool = False,
        anonymous: bool = False,
        fence_tail: bool = False,
        skip_committed: bool = False,
    ) -> CommitRequest:
        """The request of a driver that knows its query's ids from the messages alone."""
        if not messages:
            raise InvalidArgumentError("no commit message: the batch cannot be told")
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
        )

    def _check(self, message: CommitMessage) -> None:
        if message.log_id != self.log_id:
            raise LogReplacedError(
                f"partition {message.partition} wrote to log id {message.log_id}, the commit is for {self.log_id}: "
                "the log was deleted and made again under its name; run the write again"
            )
        theirs = (message.app, message.run, message.query_id, message.batch_id, message.query_batch_id)
        if theirs != (self.app, self.run, self.query_id, self.batch_id, self.query_batch_id):
            raise InvalidArgumentError(
                f"partition {message.partition} wrote for application {message.app!r}, run {message.run}, query "
                f"{message.query_id}, batch {message.batch_id} (the query's {message.query_batch_id}); the commit is "
                f"of application {self.app!r}, run {self.run}, query {self.query_id}, batch {self.batch_id} (the "
                f"query's {self.query_batch_id})"
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
