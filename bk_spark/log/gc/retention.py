"""Retention: which segments a log's policy keeps. Stored in ``<log>/policy``.

Rows within either limit are never dropped. Whole segments are dropped, from the start of the log.

* By time: a segment is dropped when everything in it is older than the limit, by the cluster's clock. A segment's time
  is its commit. For a log writer's segment it is when the segment was opened, so its last entry is only known to be
  older than the next segment's time, or than the log's last change for the last segment. A commit may happen up to
  COMMIT_TIME_LAG_MS after its time, so segments are kept that much longer.
* By size: a segment is dropped if the log without it still has the limit's size. Bytes of an open tail are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bk_spark.log.core.append import head_of, read_head
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings, write_over
from bk_spark.log.core.reading import ask_steps, decision_steps, measure_clock_steps, read_steps, sync_steps
from bk_spark.log.core.steps import SegmentList, Steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Policy, decode_policy, encode_policy
from bk_spark.log.gc.truncation import SegmentStart, Truncate
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.znodes import CheckOp, TransactionOp, Znode

_MAX_LIMIT: Final = (1 << 63) - 1


class SetPolicy:
    """The change that stores ``policy`` and replaces the stored one."""

    def __init__(self, paths: LogPaths, policy: Policy) -> None:
        for name, value in (
            ("retention time (ms)", policy.retention_time_ms),
            ("retention size (bytes)", policy.retention_size_bytes),
            ("orphan retention (ms)", policy.orphan_retention_ms),
            ("delete grace (ms)", policy.delete_grace_ms),
            ("history (ms)", policy.history_ms),
        ):
            if not 0 <= value <= _MAX_LIMIT:
                limit = " (without limit)" if name.startswith("retention") else ""
                raise InvalidArgumentError(f"log {paths.name}: {name} must be 0{limit} to 2^63-1, not {value}")
        self.paths = paths
        self._policy = policy

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"setting the retention of log {self.paths.name}"

    @property
    def again(self) -> str:
        """A repetition writes the same policy."""
        return "set it again"

    def decide(self, readings: Readings, now_ms: int, maybe: Policy | None) -> AlreadyDone[Policy] | Plan[Policy]:
        """Raises NoSuchLogError, LogReplacedError."""
        readings.require(self.paths.head, self.paths.policy)
        read = read_head(readings, self.paths)
        data, znode = encode_policy(self._policy), readings.get(self.paths.policy)
        writes: list[TransactionOp] = []
        if znode is None or znode.data != data:
            writes.append(write_over(self.paths.policy, data, znode))
        if self._policy.history_ms and read.head.kept_offset is None:
            # A log of the first release. From now on its pages record commits, which that release cannot read.
            writes.append(read.write(self.paths, replace(read.head, kept_offset=read.head.first_offset)))
        if not writes:
            return AlreadyDone(self._policy)
        return Plan((), (CheckOp(self.paths.identity, -1), *writes), self._policy)


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """The policy, and the check that it is unchanged, for transactions that drop data because of it."""

    policy: Policy
    check: CheckOp


def policy_of(znode: Znode | None, paths: LogPaths) -> ReadPolicy:
    """Decode the policy. Raises MetadataFormatError, also if there is none: it is created with the log."""
    if znode is None:
        raise MetadataFormatError(f"log {paths.name}: its policy {paths.policy} is missing")
    return ReadPolicy(decode_policy(znode.data, paths.policy), CheckOp(paths.policy, znode.version))


def policy_steps(paths: LogPaths) -> Steps[ReadPolicy]:
    """Read the policy. Raises NoSuchLogError, LogReplacedError, MetadataFormatError, MetadataUnavailableError."""
    yield from sync_steps(paths)
    # In this order: if the policy is missing, the head shows that the log was deleted.
    znodes = yield from read_steps(paths, (paths.policy, paths.head))
    head_of(znodes[paths.head], paths)
    return policy_of(znodes[paths.policy], paths)


def offset_to_keep(segments: SegmentList, policy: Policy, now_ms: int) -> int:
    """Return the first offset that the policy keeps. Truncating up to there drops everything else."""
    kept = []
    if policy.retention_time_ms:
        kept.append(_kept_by_time(segments, now_ms - policy.retention_time_ms - COMMIT_TIME_LAG_MS))
    if policy.retention_size_bytes:
        kept.append(_kept_by_size(segments, policy.retention_size_bytes))
    return max(segments.first_offset, min(kept, default=segments.first_offset))


class Retain:
    """``truncate``, as the policy in ``read`` requires. Does nothing if the policy has changed."""

    def __init__(self, truncate: Truncate, read: ReadPolicy) -> None:
        self.paths = truncate.paths
        self.what, self.again = truncate.what, truncate.again
        self._truncate = truncate
        self._read = read

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        """Raises NoSuchLogError, LogReplacedError, and MetadataFormatError if a znode cannot be decoded."""
        readings.require(self.paths.policy, self.paths.head)
        read_head(readings, self.paths)
        if policy_of(readings.get(self.paths.policy), self.paths).check != self._read.check:
            return AlreadyDone(read_head(readings, self.paths).head.first_offset)
        step = self._truncate.decide(readings, now_ms, maybe)
        if isinstance(step, AlreadyDone):
            return step
        return replace(step, transaction=(*step.transaction, self._read.check))


def retention_steps(
    paths: LogPaths,
    now_ms: Callable[[], int],
    check_clock: Callable[[], object],
    policy: Policy | None = None,
    *,
    dry_run: bool = False,
) -> Steps[int]:
    """Truncate what ``policy`` (default: the stored one) does not keep. Returns the log's resulting first offset.

    With ``dry_run`` nothing is changed, and the result is where the log would begin. ``check_clock`` raises
    ClockDifferenceError if this machine's clock differs from the cluster's. Raises that, LogRangeGoneError if another
    process truncated the log in the meantime, and the errors of reading and changing the list.
    """
    if not dry_run:
        yield from measure_clock_steps(paths)
        check_clock()
    read = yield from policy_steps(paths)
    asked = policy or read.policy
    first_offset, truncate = yield from ask_steps(lambda segments: _truncation(paths, segments, asked, now_ms()))
    if truncate is None:
        return first_offset
    change = truncate if policy is not None else Retain(truncate, read)
    return (yield from (decision_steps if dry_run else change_steps)(change, now_ms))


def _truncation(paths: LogPaths, segments: SegmentList, policy: Policy, now_ms: int) -> tuple[int, Truncate | None]:
    """Return the first offset, and the change that drops what ``policy`` does not keep, if any."""
    kept = offset_to_keep(segments, policy, now_ms)
    if kept <= segments.first_offset:
        return segments.first_offset, None
    start = None
    if kept < segments.next_offset:
        page, segment = segments.segment_at(kept)
        start = SegmentStart(segment.base_offset, page)
    return segments.first_offset, Truncate(paths, kept, start)


def _kept_by_time(segments: SegmentList, since_ms: int) -> int:
    if segments.last_commit_time_ms < since_ms:
        return segments.next_offset
    # The segment before the first one that is young enough may have entries written until that one began.
    return max(segments.first_offset, segments.offset_at(since_ms) - 1)


def _kept_by_size(segments: SegmentList, limit_bytes: int) -> int:
    later_bytes = 0
    for table in segments.tables_from_end():
        # Bytes from each segment to the end of the log; they decrease from segment to segment.
        to_end = later_bytes + np.cumsum(table.size_bytes[::-1])[::-1]
        if to_end[0] >= limit_bytes:
            return int(table.base_offset[np.flatnonzero(to_end >= limit_bytes)[-1]])
        later_bytes = int(to_end[0])
    return segments.first_offset
