"""Entries that a check has read and verified, so that a copy need not read them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bk_spark.protocol.replication.actions import StoredEntries
from bk_spark.protocol.replication.copying.copy_limits import CopyLimits


class KnownEntries:
    """Right entries of one ledger's closed fragments, as they are stored: the first ones that fit in ``max_bytes``."""

    def __init__(self, max_bytes: int = 0) -> None:
        self._free_bytes = max_bytes
        self._by_first: dict[int, StoredEntries] = {}
        self._ids: set[int] = set()

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._ids

    def add(self, entries: StoredEntries) -> None:
        """Keep those of the entries that are not known, each run of them as far as there is room."""
        entry_ids = entries.entry_ids
        if self._ids.isdisjoint(entry_ids):
            self._keep(entries)
            return
        offsets = _offsets(entries)
        begin = 0
        for end in range(len(entry_ids) + 1):
            if end == len(entry_ids) or entry_ids[end] in self._ids:
                if end > begin:
                    self._keep(_part(entries, offsets, begin, end))
                begin = end + 1

    def _keep(self, entries: StoredEntries) -> None:
        size_bytes = len(entries.records)
        if size_bytes <= self._free_bytes:
            self._free_bytes -= size_bytes
            self._by_first[entries.entry_ids[0]] = entries
            self._ids.update(entries.entry_ids)

    def within(self, series: range) -> list[StoredEntries]:
        """Return the known entries of a series, ascending."""
        found = [self._by_first[each] for each in sorted(self._by_first) if each in series]
        # Several entries lie in one series if they have its step.
        return [each for each in found if len(each.entry_ids) == 1 or each.entry_ids.step == series.step]

    def batches(self, series: range, limits: CopyLimits) -> Iterator[StoredEntries]:
        """Yield the entries of :meth:`within` in batches as a copy may send them."""
        for known in self.within(series):
            offsets = _offsets(known)
            begin = 0
            for number in range(len(known.entry_ids)):
                size_bytes = offsets[number + 1] - offsets[begin]
                full = number - begin >= limits.batch_entries or size_bytes > limits.batch_bytes
                if full and number > begin:
                    yield _part(known, offsets, begin, number)
                    begin = number
            yield _part(known, offsets, begin, len(known.entry_ids))

    def unknown(self, series: range) -> Iterator[range]:
        """Yield the parts of a series between the entries of :meth:`within`."""
        begin = 0
        for known in self.within(series):
            end = series.index(known.entry_ids[0])
            if end > begin:
                yield series[begin:end]
            begin = series.index(known.entry_ids[-1]) + 1
        if begin < len(series):
            yield series[begin:]


class KnownNeighbours:
    """A check reads the ends of a copy. Each would be a batch of its own, and a sync of the target's journal.

    Parameters
    ----------
    most_bytes
        Larger known entries are a batch of their own.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        #: The known entries and the step of their series, by the entry that follows, or precedes.
        self._before: dict[int, tuple[StoredEntries, int]] = {}
        self._after: dict[int, tuple[StoredEntries, int]] = {}

    def take(self, known: StoredEntries, step: int, unread: Sequence[range]) -> bool:
        """Keep ``known`` for :meth:`join`, if it lies beside one of the ``unread`` parts of its series."""
        follows, precedes = known.entry_ids[-1] + step, known.entry_ids[0] - step
        if len(known.records) > self._most_bytes:
            return False
        if follows not in self._before and any(part[0] == follows for part in unread):
            self._before[follows] = known, step
        elif precedes not in self._after and any(part[-1] == precedes for part in unread):
            self._after[precedes] = known, step
        else:
            return False
        return True

    def join(self, read: StoredEntries) -> StoredEntries:
        """Return what was read, with the known entries beside it. Each is returned once."""
        before = self._before.pop(read.entry_ids[0], None)
        after = self._after.pop(read.entry_ids[-1], None)
        parts, step = [read], read.entry_ids.step
        for found in (before, after):
            if found is not None:
                parts.insert(0 if found is before else len(parts), found[0])
                step = found[1]
        if len(parts) == 1:
            return read
        ids = range(parts[0].entry_ids[0], parts[-1].entry_ids[-1] + 1, step)
        return StoredEntries(ids, memoryview(b"".join(part.records for part in parts)))


def one_by_one(entries: StoredEntries) -> Iterator[StoredEntries]:
    """Yield each entry by itself, without a copy."""
    offsets = _offsets(entries)
    for number in range(len(entries.entry_ids)):
        yield _part(entries, offsets, number, number + 1)


def _offsets(entries: StoredEntries) -> list[int]:
    """Return where each entry's record begins, and the end of the last one."""
    offsets = [0]
    for _ in entries.entry_ids:
        at = offsets[-1]
        offsets.append(at + 4 + int.from_bytes(entries.records[at : at + 4], "big"))
    return offsets


def _part(entries: StoredEntries, offsets: Sequence[int], begin: int, end: int) -> StoredEntries:
    """Return the entries from number ``begin`` to before number ``end``, without a copy."""
    return StoredEntries(entries.entry_ids[begin:end], entries.records[offsets[begin] : offsets[end]])
