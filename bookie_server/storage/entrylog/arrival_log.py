"""The entry log that takes large entries in order of arrival, before they are acknowledged.

A journal's thread writes large entries of a group here and syncs them. Then the journal gets their locations
(located_record.py) in place of their bytes, and the group is acknowledged as others are. So each byte is written once,
fences and master keys keep their order with the adds, and a replay needs nothing but the journal. An index file has the
entries from the next flush on. Until the marks have passed them, neither collection nor compaction may touch the log
(:attr:`ArrivalLog.unfinished`).
"""

from __future__ import annotations

from collections.abc import Collection, Set as AbstractSet

from bookie_server.storage.disk.directories import LedgerDirectories
from bookie_server.storage.entrylog.entry_log_writer import EntryLogIds, EntryLogWriter


class ArrivalLog(EntryLogWriter):
    """Written by the thread of one journal; the event loop releases logs."""

    def __init__(
        self, directories: LedgerDirectories, ids: EntryLogIds, size_limit_bytes: int, direct: AbstractSet[str]
    ) -> None:
        super().__init__(directories, ids, size_limit_bytes, direct)
        self._left: list[int] = []

    def close(self) -> None:
        """Close the log under way. :meth:`take_left` returns its id."""
        if self.entry_log_id >= 0:
            self._left.append(self.entry_log_id)
        super().close()

    def take_left(self) -> list[int]:
        """The logs that were closed since the last call. In the thread."""
        left, self._left = self._left, []
        return left

    def release(self, entry_log_ids: Collection[int]) -> None:
        """Note that the marks have passed all entries of these closed logs. Any thread."""
        self.unfinished.difference_update(entry_log_ids)
