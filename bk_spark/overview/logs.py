"""The logs: their segments, growth and retention, who writes them, and how far streaming queries have read them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log.formats.names import LogPaths, head_path, is_log_name, readers_path
from bk_spark.log.formats.page import SegmentPage, decode_page
from bk_spark.log.formats.progress import Progress, decode_progress
from bk_spark.log.formats.znodes import (
    Head,
    decode_application,
    decode_head,
    decode_owner,
    decode_policy,
)
from bk_spark.overview.bookies import RATES_OVER_S
from bk_spark.protocol.errors import LogReplacedError, MetadataFormatError
from bk_spark.protocol.metadata.znodes import Znode

#: Logs that are shown, queries of one log, and pages of segments that one collection reads.
MAX_LOGS: Final = 200
MAX_WRITERS: Final = 10
MAX_PAGES: Final = 200
MAX_READERS: Final = 200
#: Positions of all readers that are shown. Each reader has one at least.
MAX_POSITIONS_SHOWN: Final = 2_000
#: Newest pages of one log that are summed up.
MAX_PAGES_OF_LOG: Final = 5_000
#: Applications of one log, and of all, that one collection reads.
_MAX_APPLICATIONS: Final = 100
_MAX_ALL_APPLICATIONS: Final = 5_000
#: Full pages that are remembered, and batch writes without a name.
_MAX_KNOWN_PAGES: Final = 20_000
_MAX_KNOWN_UNNAMED: Final = 100_000
_MAX_INT64: Final = (1 << 63) - 1

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Page:
    """The sums of a page."""

    segments: int
    size_bytes: int
    open_tail: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """A log as it was at ``at_s``."""

    log_id: str
    next_offset: int
    at_s: float


class Logs:
    """Collects the logs below the znode ``root``. It remembers their ends, for rates, and full pages, which never
    change."""

    def __init__(self, zk: ZooKeeper, root: str) -> None:
        self._zk = zk
        self._root = root
        self._before: dict[str, _Known] = {}
        self._pages: dict[tuple[str, int], _Page] = {}
        self._budget = 0
        #: Applications that are batch writes without a name. They stay that for good, and many may be kept.
        self._unnamed: dict[str, None] = {}
        self._applications_budget = 0

    def collect(self) -> tuple[list[Record], list[Record], int, int]:
        """Return the logs by name, the streaming queries that read some, and how many of either were left out."""
        names = sorted(filter(is_log_name, self._zk.children(self._root) or ()))
        shown = names[:MAX_LOGS]
        self._budget, self._applications_budget = MAX_PAGES, _MAX_ALL_APPLICATIONS
        heads = self._zk.get_many([head_path(self._root, name) for name in shown])
        now_s = time.monotonic()
        records, ends = [], {}
        for name, znode in zip(shown, heads.values(), strict=True):
            if znode is None:
                continue
            try:
                head = decode_head(znode.data, head_path(self._root, name))
                record = self._record(name, head, now_s)
            except (MetadataFormatError, LogReplacedError) as error:
                records.append({"log": name, "state": "unreadable", "problem": error.message})
                continue
            ends[name] = _Known(head.log_id, head.next_offset, now_s)
            records.append(record)
        self._before = ends
        readers, other_readers = self._readers(ends)
        return records, readers, len(names) - len(shown), other_readers

    def _record(self, name: str, head: Head, now_s: float) -> Record:
        paths = LogPaths(self._root, name, head.log_id)
        page_numbers = range(head.first_znode_page, head.tail_page + 1)[-MAX_PAGES_OF_LOG:]
        if not page_numbers:
            raise MetadataFormatError(f"head of a log {paths.head} is damaged: its tail page is in the index")
        pages = self._read_pages(paths, page_numbers)
        complete = len(pages) == len(page_numbers) and page_numbers[0] == head.first_page
        tail = pages[-1] if pages else None
        before = self._before.get(name)
        rate = None
        if before is not None and before.log_id == head.log_id and 0 < now_s - before.at_s <= RATES_OVER_S:
            rate = round((head.next_offset - before.next_offset) / (now_s - before.at_s), 3)
        policy, owner = self._zk.get(paths.policy), self._zk.get(paths.owner)
        kept = None if policy is None else decode_policy(policy.data, paths.policy)
        writer = None if owner is None else decode_owner(owner.data, paths.owner)
        return {
            "log": name,
            "state": "being deleted" if head.deleted_time_ms else "ok",
            "problem": None,
            "first_offset": head.first_offset,
            "next_offset": head.next_offset,
            "entries_per_s": rate,
            "segments": sum(page.segments for page in pages),
            "bytes": sum(page.size_bytes for page in pages),
            # Older pages are in index ledgers, or were too many to be read at once.
            "complete": complete,
            "open_tail": tail is not None and tail.open_tail,
            "owner": None if writer is None else f"{writer.host}, process {writer.process_id}",
            "last_commit_ms": head.last_commit_time_ms or None,
            "retention_time_ms": None if kept is None else kept.retention_time_ms or None,
            "retention_bytes": None if kept is None else kept.retention_size_bytes or None,
            "writers": self._writers(paths),
        }

    def _read_pages(self, paths: LogPaths, numbers: range) -> list[_Page]:
        """Return the pages that are known or can be read, the tail last."""
        known = {each: page for each in numbers[:-1] if (page := self._pages.get((paths.log_id, each))) is not None}
        # The newest first. The tail is always read.
        wanted = [each for each in reversed(numbers[:-1]) if each not in known][: max(0, self._budget - 1)]
        wanted = [*wanted[::-1], numbers[-1]]
        self._budget -= len(wanted)
        found = self._zk.get_many([paths.page(each) for each in wanted])
        for number, (path, znode) in zip(wanted, found.items(), strict=True):
            if znode is not None:
                known[number] = _sums(decode_page(znode.data, path, log_id=paths.log_id, number=number))
                if number != numbers[-1]:
                    self._pages[paths.log_id, number] = known[number]
        while len(self._pages) > _MAX_KNOWN_PAGES:
            del self._pages[next(iter(self._pages))]
        return [known[each] for each in sorted(known)]

    def _writers(self, paths: LogPaths) -> list[Record]:
        """Return the applications that committed last. Batch writes without a name are left out."""
        names = (f"{paths.apps}/{each}" for each in sorted(self._zk.children(paths.apps) or ()))
        wanted = [path for path in names if path not in self._unnamed]
        found = self._zk.get_many(wanted[: min(_MAX_APPLICATIONS, self._applications_budget)])
        self._applications_budget -= len(found)
        committed = []
        for path, znode in found.items():
            if znode is None:
                continue
            one = decode_application(znode.data, path)
            if one.anonymous:
                self._unnamed[path] = None
            else:
                committed.append(one)
        while len(self._unnamed) > _MAX_KNOWN_UNNAMED:
            del self._unnamed[next(iter(self._unnamed))]
        committed.sort(key=lambda one: -one.commit_time_ms)
        return [
            {
                "application": one.app,
                "query": one.query_id or None,
                "batch": one.batch_id if one.query_batch_id is None else one.query_batch_id,
                "rows": one.rows,
                "committed_ms": one.commit_time_ms,
            }
            for one in committed[:MAX_WRITERS]
        ]

    def _readers(self, ends: dict[str, _Known]) -> tuple[list[Record], int]:
        top = readers_path(self._root)
        names = sorted(self._zk.children(top) or ())
        found = self._zk.get_many([f"{top}/{each}" for each in names[:MAX_READERS]])
        records: list[Record] = []
        room = MAX_POSITIONS_SHOWN
        for path, znode in found.items():
            if znode is None:
                continue
            try:
                record = _reader(decode_progress(znode.data, path), znode, ends)
            except MetadataFormatError as error:
                records.append(
                    {"reader": path.rpartition("/")[2], "problem": error.message, "logs": [], "other_logs": 0}
                )
                continue
            # Those with the largest lag.
            shown = record["logs"][: max(1, room)]
            record["other_logs"] += len(record["logs"]) - len(shown)
            record["logs"] = shown
            room -= len(shown)
            records.append(record)
        return records, len(names) - len(found)


def _sums(page: SegmentPage) -> _Page:
    return _Page(len(page.table), int(page.table.size_bytes.sum()), bool(page.open_tail))


def _reader(progress: Progress, znode: Znode, ends: dict[str, _Known]) -> Record:
    logs: list[Record] = []
    for one in progress.positions:
        end = one.end
        known = ends.get(one.log)
        if known is not None and known.log_id == one.log_id:
            # The query may be busy, and not know yet what was committed since.
            end = max(end, known.next_offset)
        logs.append({"log": one.log, "read_to": one.read_to, "end": end, "lag_entries": max(0, end - one.read_to)})
    logs.sort(key=lambda log: (-log["lag_entries"], log["log"]))
    return {
        "reader": f"{progress.host}, process {progress.process_id}",
        "problem": None,
        "began_ms": progress.began_time_ms,
        "told_ms": znode.mtime_ms,
        "lag_entries": min(_MAX_INT64, sum(log["lag_entries"] for log in logs)),
        "logs": logs,
        "other_logs": progress.others,
    }
