"""Marks of under-replicated ledgers in ZooKeeper.

Blocking and thread-safe. The znodes are Apache's (:mod:`bk_spark.protocol.metadata.under_replication`). Source:
compatibility.md §6.1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.proven_changes import prove_and_change, put
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.errors import MetadataFormatError, NoNodeError, OutcomeUnknownError
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID
from bk_spark.protocol.metadata.under_replication import MARK_DEPTH, Mark, UnderReplicationPaths, is_mark_group
from bk_spark.protocol.metadata.znodes import CreateOp, SetOp, TransactionConflictError, TransactionOp, Znode

#: The most marks in a page.
MARKS_PER_PAGE: Final = 256
_MARKS_PER_TRANSACTION: Final = 100


class LedgerMarks:
    """The marks of one cluster. The parameters are those of
    :class:`~bk_spark.bookie.replication.under_replication_store.UnderReplicationStore`."""

    def __init__(self, zk: ZooKeeper, root: str, *, wall_ms: Callable[[], int] = unix_time_ms) -> None:
        self.zk = zk
        self.paths = UnderReplicationPaths(root)
        self._wall_ms = wall_ms

    def mark(self, ledger_id: int, missing: Collection[str], *, proof: str | None = None) -> None:
        """Mark a ledger as under-replicated, because these bookies lack copies.

        An existing mark gets the bookies that it lacks. Its version changes in any case, so that a worker that has
        checked the ledger before this call does not delete the mark. Safe to repeat after any error.

        Parameters
        ----------
        ledger_id
            The ledger. Whether it exists is not checked.
        missing
            Bookie ids. May be empty.
        proof
            The path of an ephemeral znode that must exist, such as an auditor's vote.

        Raises
        ------
        SessionLostError
            If ``proof`` does not exist. Nothing was changed.
        MetadataConflictError
            If other clients changed the mark at each attempt.
        """
        put(self.zk, self.paths.mark(ledger_id), lambda found: self._marked(ledger_id, missing, found), proof)

    def mark_all(self, missing: Mapping[int, Collection[str]], *, proof: str | None = None) -> None:
        """Do :meth:`mark` for many ledgers, a hundred in one transaction. Safe to repeat after any error.

        Parameters
        ----------
        missing
            The bookies that lack copies, by ledger id.
        proof
            As for :meth:`mark`.

        Raises
        ------
        SessionLostError
            If ``proof`` does not exist. Ledgers in former transactions are marked.
        MetadataConflictError
            If other clients changed a mark at each attempt.
        """
        ids = list(missing)
        for start in range(0, len(ids), _MARKS_PER_TRANSACTION):
            part = ids[start : start + _MARKS_PER_TRANSACTION]
            if not self._mark_at_once({ledger_id: missing[ledger_id] for ledger_id in part}, proof):
                for ledger_id in part:
                    self.mark(ledger_id, missing[ledger_id], proof=proof)

    def _mark_at_once(self, missing: Mapping[int, Collection[str]], proof: str | None) -> bool:
        """Mark all, or none. Return False if another client was faster, if an empty directory is there already, or if
        the outcome is unknown."""
        paths = {self.paths.mark(ledger_id): ledger_id for ledger_id in missing}
        operations: list[TransactionOp] = []
        above: set[str] = set()
        for path, found in self.zk.get_many(list(paths)).items():
            ledger_id = paths[path]
            data = self._marked(ledger_id, missing[ledger_id], found)
            if found is None:
                directory = path.rpartition("/")[0]
                above.add(directory.rpartition("/")[0])
                operations += [CreateOp(directory), CreateOp(path, data)]
            else:
                operations.append(SetOp(path, data, found.version))
        try:
            for path in sorted(above):
                self.zk.ensure_path(path)
            prove_and_change(self.zk, proof, operations)
        except (TransactionConflictError, NoNodeError, OutcomeUnknownError):
            return False
        return True

    def _marked(self, ledger_id: int, missing: Collection[str], found: Znode | None) -> bytes:
        """Return the content of the mark that was ``found``, with these bookies, too."""
        now_ms = self._wall_ms()
        if found is None:
            return Mark(tuple(dict.fromkeys(missing)), now_ms).encode()
        mark = self._decoded(ledger_id, found)
        merged = mark.with_missing(missing, now_ms)
        # Content that cannot be parsed stays. The ledger is marked nevertheless.
        return found.data if merged is mark or mark.problem else merged.encode()

    def any_marks(self, watch: WatchCallback | None = None) -> bool:
        """Return whether any ledger may be marked. Costs one read.

        A client that stopped half-way may leave empty directories behind. They count as marks. ``watch`` is called
        when the answer may have changed.
        """
        return bool(self.zk.children(self.paths.marks, watch))

    def marks(
        self, *, rng: random.Random | None = None, watch: WatchCallback | None = None
    ) -> Iterator[dict[int, Mark]]:
        """Yield all marks by ledger id, in pages of at most :data:`MARKS_PER_PAGE`.

        Marks made or deleted meanwhile may or may not be there. Only one page is in memory, and the names in the
        directories above it.

        Parameters
        ----------
        rng
            Visit directories in random order, so that workers do not all begin with the same ledger. Default: by id.
        watch
            Called when a directory that was visited changes. A mark that is made anew in a directory that its deletion
            left behind does not call it, so look again from time to time. A watch cannot be withdrawn, so give one only
            after the last one was called.
        """
        return self._walk(self.paths.marks, "", rng, watch)

    def _walk(
        self, path: str, digits: str, rng: random.Random | None, watch: WatchCallback | None
    ) -> Iterator[dict[int, Mark]]:
        names = sorted(filter(is_mark_group, self.zk.children(path, watch) or ()))
        if rng is not None:
            rng.shuffle(names)
        if len(digits) < (MARK_DEPTH - 1) * 4:
            for name in names:
                yield from self._walk(f"{path}/{name}", digits + name, rng, watch)
            return
        for start in range(0, len(names), MARKS_PER_PAGE):
            ids = [int(digits + name, 16) for name in names[start : start + MARKS_PER_PAGE]]
            # The directories above a mark spell its id, so the mark is read without listing the last directory.
            paths = {self.paths.mark(ledger_id): ledger_id for ledger_id in ids if ledger_id <= MAX_LEDGER_ID}
            found = self.zk.get_many(list(paths))
            page = {paths[at]: self._decoded(paths[at], node) for at, node in found.items() if node is not None}
            if page:
                yield page

    def read_mark(self, ledger_id: int) -> Mark | None:
        """Return a ledger's mark, or None if it is not marked. After :meth:`lock` it is no older than the lock."""
        found = self.zk.get(self.paths.mark(ledger_id))
        return None if found is None else self._decoded(ledger_id, found)

    def _decoded(self, ledger_id: int, found: Znode) -> Mark:
        try:
            return Mark.decode(found.data, found.version, self.paths.mark(ledger_id))
        except MetadataFormatError as error:
            return Mark((), None, found.version, error.message)
