"""What must hold after every change of ZooKeeper. Violations raise :class:`InvariantError`.

The list of segments:

* it has no holes, and only its last segment may be an open tail;
* offsets are permanent: no offset is given to another entry, no entry has two, the order stays;
* offsets are given only to acknowledged entries, and commit times never decrease;
* commit times are ZooKeeper's, and retention drops nothing that the policy keeps by ZooKeeper's clock;
* each batch is in it once, complete, in partition order, and batches of an application are in order;
* what was overwritten or truncated stays in it as long as the policy promises to readers of earlier states;
* every acknowledged entry of a log writer is in it, or in the open tail, at the offset that the writer reported;
* each segment names a version of the schema that readers find, and versions only grow (``schemas.py``).

Maintenance: it starts at most once per INTERVAL_MS.

Ledgers:

* a ledger and its registration are created together and deleted together;
* no ledger is condemned that the list refers to, or that an application still uses; no condemned ledger is listed;
* no ledger is deleted that the list refers to, or referred to less than ``deleteGrace`` ago, or that may still be
  written.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from bk_spark.log.core.index import walk_steps
from bk_spark.log.core.steps import EntryRead, ReadEntry
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.page import SegmentPage, decode_page
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.znodes import Head, decode_head, decode_maintenance, decode_policy, decode_registration
from bk_spark.log.gc.maintenance import INTERVAL_MS
from bk_spark.protocol.metadata.znodes import Znode
from tests.simulation.logs.ledger_rules import LedgerWatch, ListWatch, require
from tests.simulation.logs.ledgers import ModelLedgers
from tests.simulation.logs.schemas import check_rows, check_settings
from tests.simulation.logs.zookeeper import LogsZooKeeper
from tests.simulation.outcomes import InvariantError
from tests.support.zookeeper_model import Changes

__all__ = ["InvariantError", "ListWatch", "Row", "Watch", "batch_rows", "require"]


#: A process's knowledge of ZooKeeper's time may be this much too low: the answer's travel time, and clock drift.
MEASURED_LOW_MS = 5_000
#: The longest life of a session that does not hear from its process.
SESSION_MS = 60_000
#: The kinds of processes that apply the policy.
RETENTION = "retention"
MAINTENANCE = "maintenance"


class Row(NamedTuple):
    """One entry of a task."""

    app: str
    batch_id: int
    partition: int
    number: int


def batch_rows(app: str, batch_id: int) -> list[list[Row]]:
    """The rows of a batch, by partition: the same for every run and attempt. Some partitions are empty."""
    salt = sum(app.encode()) + 7 * batch_id
    partitions = 1 + salt % 3
    counts = [(salt // (3 + partition)) % 4 for partition in range(partitions)]
    return [[Row(app, batch_id, partition, n) for n in range(count)] for partition, count in enumerate(counts)]


class Watch(LedgerWatch):
    """Checks every change of ZooKeeper as it happens."""

    def __init__(self, zk: LogsZooKeeper, ledgers: ModelLedgers, now_ms: Callable[[], int]) -> None:
        super().__init__(zk, ledgers, now_ms)
        self._pages: dict[bytes, SegmentPage] = {}

    # --- what others tell ---

    def acknowledged(self, paths: LogPaths, offset: int, ledger_id: int, entry_id: int) -> None:
        """A log writer told its user that its entry is safe at ``offset``."""
        log = self.logs[paths.log_id]
        log.promised[offset] = (ledger_id, entry_id)
        self._check_promises(log)

    def committed(self, paths: LogPaths, app: str, batch_id: int, start: int | None, end: int | None) -> None:
        """A driver was told that its batch is in the log, by this commit or an earlier one."""
        log = self.logs[paths.log_id]
        rows = [row for partition in batch_rows(app, batch_id) for row in partition]
        if not rows:
            return
        there = log.batches.get(app, {})
        require(batch_id in there, f"{app} was told that batch {batch_id} is in the log, and it is not")
        if start is not None:
            told = (start, end)
            require(told == (there[batch_id], there[batch_id] + len(rows)), f"{app}, batch {batch_id}: told {told}")

    # --- looking ---

    def page_of(self, paths: LogPaths, offset: int) -> tuple[int, Segment] | None:
        """The page and the sealed segment that hold ``offset``."""
        log = self.logs[paths.log_id]
        for number in () if log.deleted else range(log.head.first_page, log.head.tail_page + 1):
            for segment in self._page(log, log.head, number).table:
                if segment.base_offset <= offset < segment.end_offset:
                    return number, segment
        return None

    # --- changes ---

    def on_change(self, changes: Changes) -> None:
        for path, (before, after) in changes.items():
            if before is None and after is not None and path.count("/") == 2 and path.startswith("/logs/"):
                head = decode_head(after.data, path)
                self.logs[head.log_id] = ListWatch(LogPaths("/logs", path.rpartition("/")[2], head.log_id), head)
        for log in self.logs.values():
            if log.deleted:
                continue
            if log.paths.identity in changes and changes[log.paths.identity][1] is None:
                log.deleted = True
                continue
            if log.paths.policy in changes:
                policy = changes[log.paths.policy][1]
                assert policy is not None
                log.promises.append((self._now_ms(), decode_policy(policy.data, log.paths.policy).history_ms))
            if log.paths.maintenance in changes:
                self._check_claim(log, *changes[log.paths.maintenance])
            if log.paths.settings in changes:
                check_settings(self._zk, log)
            if any(path == log.paths.head or path.startswith(log.paths.pages) for path in changes):
                self._check_list(log)
        self.check_ledgers(changes)

    def _check_claim(self, log: ListWatch, before: Znode | None, after: Znode | None) -> None:
        """Maintenance does not start again within INTERVAL_MS."""
        if after is None:
            return
        log.claims.append(decode_maintenance(after.data, log.paths.maintenance))
        if before is not None:
            since_ms = after.mtime_ms - before.mtime_ms
            require(since_ms >= INTERVAL_MS, f"maintenance begins {since_ms} ms after another began it")

    def _check_list(self, log: ListWatch) -> None:
        head_znode = self._zk.read(log.paths.head)
        require(head_znode is not None, "the head is gone before the log's identity")
        assert head_znode is not None
        before, head = log.head, decode_head(head_znode.data, log.paths.head)
        self._check_time(before, head)
        for name in ("first_offset", "next_offset", "first_page", "tail_page", "last_commit_time_ms"):
            require(getattr(before, name) <= getattr(head, name), f"{name} moved back: {before} -> {head}")
        log.head = head
        self._check_past(log, before)
        # Whoever overwrites a log seals its open tail in the same transaction, maybe in a page that it drops.
        first_page = head.first_page
        while first_page > before.first_page and self._zk.read(log.paths.page(first_page - 1)) is not None:
            first_page -= 1
        segments = self._segments(log, head, head.first_page)
        self._check_new(log, segments if first_page == head.first_page else self._segments(log, head, first_page))
        self._note_times(log)
        if self._zk.origin.kind in (RETENTION, MAINTENANCE) and head.first_offset > before.first_offset:
            self._check_retention(log, before.first_offset)
        self._check_promises(log)
        self._note_references(log, segments)

    def _check_past(self, log: ListWatch, before: Head) -> None:
        """What reads as of a commit were promised stays in the list: the states of as long as the policy says."""
        head, now_ms = log.head, self._now_ms()
        require(before.list_offset <= head.list_offset, f"the start of the list moved back: {before} -> {head}")
        if (head.first_offset, head.next_offset) != (before.first_offset, before.next_offset) or not log.states:
            log.states.append((self._latest_ms(), head.first_offset, head.next_offset))
        if head.kept_offset is None or head.list_offset == before.list_offset:
            return
        since_ms = now_ms - log.promises[-1][1]
        promised = log.first_offset_at(since_ms)
        require(
            head.list_offset <= promised,
            f"the list begins at {head.list_offset}; {now_ms - since_ms} ms ago the log began at {promised}",
        )

    def _check_time(self, before: Head, head: Head) -> None:
        """A commit time is ZooKeeper's, as of the committer's last sync or later, whatever the committer's clock
        says."""
        time_ms, earliest_ms = head.last_commit_time_ms, self._zk.origin.synced_ms - MEASURED_LOW_MS
        if time_ms > before.last_commit_time_ms:
            require(
                earliest_ms <= time_ms <= self._now_ms(),
                f"a commit time {time_ms - self._now_ms()} ms ahead of ZooKeeper's clock, not after {earliest_ms}",
            )

    def _note_times(self, log: ListWatch) -> None:
        """Note when new segments were sealed: at the latest at the session's end, which in the model survives all
        pauses."""
        for offset in log.sealed:
            log.sealed_ms.setdefault(offset, self._latest_ms())

    def _latest_ms(self) -> int:
        """The latest time at which the present change can have been made outside of the model."""
        return min(self._now_ms(), self._zk.origin.synced_ms + SESSION_MS)

    def _check_retention(self, log: ListWatch, first_offset: int) -> None:
        """Everything dropped is outside the policy's limits, now and by ZooKeeper's clock."""
        znode = self._zk.read(log.paths.policy)
        assert znode is not None
        policy = decode_policy(znode.data, log.paths.policy)
        kept_bytes = sum(s.size_bytes for s in log.sealed.values() if s.base_offset >= log.head.first_offset)
        by_size = policy.retention_size_bytes and kept_bytes >= policy.retention_size_bytes
        for segment in log.sealed.values():
            if by_size or not first_offset < segment.end_offset <= log.head.first_offset:
                continue
            age_ms = self._now_ms() - log.sealed_ms[segment.base_offset]
            require(
                policy.retention_time_ms and age_ms >= policy.retention_time_ms,
                f"retention drops {segment}, which was sealed {age_ms} ms ago: {policy}",
            )

    def _segments(self, log: ListWatch, head: Head, first_page: int) -> list[Segment]:
        """All segments in the pages from ``first_page`` on, with the open tail at the end."""
        segments: list[Segment] = []
        for number in range(first_page, head.tail_page + 1):
            page = self._page(log, head, number)
            require(not segments or page.base_offset == segments[-1].end_offset, f"page {number} leaves a hole")
            segments += page.table
        end = segments[-1].end_offset if segments else self._page(log, head, head.tail_page).base_offset
        require(end == head.next_offset, f"the list ends at {end}, its head says {head.next_offset}")
        require(
            all(segment.last_entry is not None for segment in segments[:-1]), "an open segment that is not the last"
        )
        for one, other in pairwise(segments):
            require(one.end_offset == other.base_offset, f"a hole between {one} and {other}")
            require(one.commit_time_ms <= other.commit_time_ms, f"commit times go back: {one}, {other}")
        require(
            not segments or segments[0].base_offset <= head.list_offset or head.list_offset == head.next_offset,
            f"pages begin at {segments[:1]}, the log at {head.first_offset}",
        )
        return segments

    def _page(self, log: ListWatch, head: Head, number: int) -> SegmentPage:
        path = log.paths.page(number)
        znode = self._zk.read(path)
        indexed = head.index is not None and number < head.index.end_page
        if znode is None:
            require(indexed, f"page {number} is missing")
            data = log.full_pages[number]
        else:
            data = znode.data
        page = self._pages.get(data)
        if page is None:
            page = self._pages[data] = decode_page(data, path, log_id=head.log_id, number=number)
        if number < head.tail_page:
            require(log.full_pages.setdefault(number, data) == data, f"page {number} changed after it was full")
        return page

    def _check_new(self, log: ListWatch, segments: list[Segment]) -> None:
        old_end, old_tail = len(log.entries), log.open_tail
        log.open_tail = None
        new: list[Segment] = []
        for segment in segments:
            if segment.last_entry is None:
                log.open_tail = segment
            elif segment.base_offset < old_end:
                require(log.sealed.get(segment.base_offset) == segment, f"what was sealed changed: {segment}")
            else:
                new.append(segment)
        for segment in new:
            self._check_sealed(log, segment)
        if old_tail is not None and (log.open_tail is None or log.open_tail.ledger_id != old_tail.ledger_id):
            new = self._check_sealed_tail(old_tail, new)
        require(log.open_tail is None or log.open_tail.commit_time_ms >= log.last_time_ms, "the tail opens earlier")
        if log.open_tail is not None and (old_tail is None or old_tail.ledger_id != log.open_tail.ledger_id):
            self._check_listed(log, log.open_tail.ledger_id)
            require(
                (log.open_tail.ledger_id, 0) not in log.offsets and log.open_tail.first_entry == 0,
                f"opened again, or not from its start: {log.open_tail}",
            )
        rows: list[object] = []
        for segment in new:
            if segment.ledger_id not in self.foreign:
                entries = self._ledgers.all[segment.ledger_id].entries
                own = entries[segment.first_entry : segment.first_entry + segment.entries]
                check_rows(self._zk, log, segment, [row for row in own if isinstance(row, Row)])
                rows += own
        if rows:
            self._check_batch(log, rows, old_end if not new else new[0].base_offset)

    def _check_sealed(self, log: ListWatch, segment: Segment) -> None:
        require(segment.base_offset == len(log.entries), f"a hole, or offsets used again: {segment}")
        require(segment.commit_time_ms >= log.last_time_ms, f"committed earlier than what is before it: {segment}")
        ledger = self._ledgers.all[segment.ledger_id]
        assert segment.last_entry is not None
        safe = ledger.acknowledged - 1 if ledger.end is None else ledger.end
        require(segment.last_entry <= safe, f"{segment} names entries that are not safe: {ledger}")
        log.last_time_ms = segment.commit_time_ms
        log.sealed[segment.base_offset] = segment
        for entry_id in range(segment.first_entry, segment.last_entry + 1):
            where = (segment.ledger_id, entry_id)
            again = segment.ledger_id in self.foreign and log.offsets.get(where, 0) < log.head.first_offset
            require(where not in log.offsets or again, f"{where} is in the list twice")
            log.offsets[where] = len(log.entries)
            log.entries.append(where)
        self._check_listed(log, segment.ledger_id)

    def _check_sealed_tail(self, tail: Segment, new: list[Segment]) -> list[Segment]:
        """The former open tail is sealed with everything its ledger holds (if nothing, it left the list). Returns
        the other new segments."""
        ledger = self._ledgers.all[tail.ledger_id]
        require(ledger.end is not None, f"the tail was sealed, and its ledger is not closed: {ledger}")
        if ledger.end == -1:
            return new
        sealed = new[0] if new else None
        require(
            sealed is not None
            and (sealed.ledger_id, sealed.first_entry, sealed.last_entry) == (tail.ledger_id, 0, ledger.end)
            and sealed.commit_time_ms == tail.commit_time_ms,
            f"the open tail {tail} was sealed as {sealed}, its ledger ends at {ledger.end}",
        )
        return new[1:]

    def _check_listed(self, log: ListWatch, ledger_id: int) -> None:
        require(self._ledgers.exists(ledger_id), f"ledger {ledger_id} is listed, and does not exist")
        if ledger_id in self.foreign:
            return
        path = self._registration.get(ledger_id, "")
        znode = self._zk.read(path)
        require(znode is not None and path.startswith(log.paths.ledgers), f"ledger {ledger_id} is not registered")
        assert znode is not None
        require(not decode_registration(znode.data, path).condemned, f"{path} is listed, and condemned")

    def _check_batch(self, log: ListWatch, rows: list[object], start: int) -> None:
        first = rows[0]
        require(isinstance(first, Row), f"a batch with entries of somebody else: {first}")
        assert isinstance(first, Row)
        expected = [row for partition in batch_rows(first.app, first.batch_id) for row in partition]
        require(rows == expected, f"not one whole batch in order: {rows}, not {expected}")
        done = log.batches.setdefault(first.app, {})
        require(first.batch_id not in done, f"batch {first.batch_id} of {first.app} is in the log twice")
        require(
            not done or max(done) < first.batch_id,
            f"batch {first.batch_id} of {first.app} after {max(done, default=-1)}",
        )
        done[first.batch_id] = start

    def _check_promises(self, log: ListWatch) -> None:
        for offset, where in list(log.promised.items()):
            if offset < len(log.entries):
                require(
                    log.entries[offset] == where, f"{where} was told offset {offset}, it holds {log.entries[offset]}"
                )
                del log.promised[offset]
            else:
                tail = log.open_tail
                require(
                    tail is not None and (tail.ledger_id, offset - tail.base_offset) == where,
                    f"{where} was acknowledged at offset {offset}, and is not in the log; its tail is {tail}",
                )

    def _note_references(self, log: ListWatch, segments: list[Segment]) -> None:
        head = log.head
        referenced = {s.ledger_id for s in segments if s.end_offset > head.list_offset or s.last_entry is None}
        if head.index is not None:
            needed = self._index_ledgers(log, head)
            for ledger_id in needed - log.index_ledgers:
                self._check_listed(log, ledger_id)
            log.index_ledgers = needed
            referenced |= needed
        for ledger_id in log.referenced - referenced:
            log.left_ms[ledger_id] = self._now_ms()
        log.referenced = frozenset(referenced)
        for ledger_id in referenced:
            require(self._ledgers.exists(ledger_id), f"the list refers to ledger {ledger_id}, which is deleted")

    def _index_ledgers(self, log: ListWatch, head: Head) -> frozenset[int]:
        """The index ledgers needed to find the head's pages. The pages in the index must equal the original ones."""
        steps = walk_steps(log.paths, head)
        try:
            action = next(steps)
            while True:
                assert isinstance(action, ReadEntry), action
                action = steps.send(EntryRead(self._entry(action.ledger_id, action.entry_id)))
        except StopIteration as end:
            walk = end.value
        for number in range(walk.pages.first_page, walk.pages.end_page):
            require(
                self._entry(*walk.pages.place(number)) == log.full_pages[number], f"the index has another page {number}"
            )
        return frozenset(walk.ledgers)

    def _entry(self, ledger_id: int, entry_id: int) -> bytes:
        ledger = self._ledgers.all[ledger_id]
        require(
            self._ledgers.exists(ledger_id) and ledger.end is not None and entry_id <= ledger.end,
            f"the index refers to entry {entry_id} of {ledger}",
        )
        payload = ledger.entries[entry_id]
        assert isinstance(payload, bytes)
        return payload
