"""Expiry: how long the rows that an overwrite, a truncation or retention took out of a log stay in its list. No I/O.

The policy's ``history_ms`` promises that every state that the log had within that time can be read. The rows of the
state at a moment begin at the log's first offset at that moment, and first offsets only grow. So the list may begin at
the log's first offset ``history_ms`` ago, and no later. A commit may happen up to COMMIT_TIME_LAG_MS after its time, so
rows are kept that much longer.

Only :class:`Expire` moves the start of the list, and only the reaper uses it, before it reads which ledgers the list
refers to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bk_spark.log.core.append import read_head
from bk_spark.log.core.changes import change_steps
from bk_spark.log.core.plan import AlreadyDone, Plan, Readings
from bk_spark.log.core.reading import ask_steps, head_steps
from bk_spark.log.core.steps import SegmentList, Steps
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Policy
from bk_spark.log.gc.retention import ReadPolicy, policy_of
from bk_spark.log.gc.truncation import SegmentStart
from bk_spark.protocol.metadata.znodes import CheckOp


class Expire:
    """The change that makes the list begin at ``start``, as the policy in ``read`` allows. Its result is the offset at
    which the list begins. Does nothing if the policy has changed."""

    def __init__(self, paths: LogPaths, start: SegmentStart, read: ReadPolicy) -> None:
        self.paths = paths
        self._start = start
        self._read = read

    @property
    def what(self) -> str:
        """For error texts: names the log."""
        return f"end of what is kept of earlier states of log {self.paths.name}"

    @property
    def again(self) -> str:
        """Nobody has to act: the next round of maintenance finds what is left."""
        return "the next round continues"

    def decide(self, readings: Readings, now_ms: int, maybe: int | None) -> AlreadyDone[int] | Plan[int]:
        """Raises NoSuchLogError, LogReplacedError, and MetadataFormatError if a znode cannot be decoded."""
        readings.require(self.paths.policy, self.paths.head)
        read = read_head(readings, self.paths)
        head, start = read.head, self._start
        is_same = policy_of(readings.get(self.paths.policy), self.paths).check == self._read.check
        if head.kept_offset is None or start.offset <= head.kept_offset or not is_same:
            return AlreadyDone(head.list_offset)
        new_head = replace(head, kept_offset=start.offset, first_page=max(head.first_page, start.page))
        write = read.write(self.paths, new_head)
        return Plan((), (CheckOp(self.paths.identity, -1), self._read.check, write), start.offset)


def expire_steps(
    paths: LogPaths, read: ReadPolicy, now_ms: Callable[[], int], *, dry_run: bool = False
) -> Steps[int | None]:
    """Drop from the list what the policy no longer keeps of earlier states. Returns where the list begins then.

    With ``dry_run`` nothing is changed. Returns None if the log keeps no earlier states. Raises the errors of reading
    and changing the list.
    """
    head = (yield from head_steps(paths)).head
    if head.kept_offset is None:
        return None
    if head.kept_offset == head.first_offset:
        return head.kept_offset
    start = yield from ask_steps(lambda segments: start_to_keep(segments, read.policy, now_ms()))
    if start is None or start.offset <= head.kept_offset:
        return head.kept_offset
    if dry_run:
        return start.offset
    return (yield from change_steps(Expire(paths, start, read), now_ms))


def start_to_keep(segments: SegmentList, policy: Policy, now_ms: int) -> SegmentStart | None:
    """Return where the list may begin. None: where it begins now."""
    offset: int | None = segments.first_offset
    if policy.history_ms:
        offset = segments.first_offset_at(now_ms - policy.history_ms - COMMIT_TIME_LAG_MS)
    return None if offset is None else SegmentStart(offset, segments.page_of(offset))
