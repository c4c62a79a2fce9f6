"""Marks and locks of under-replicated ledgers in ZooKeeper.

Blocking and thread-safe. The znodes are Apache's (:mod:`bk_spark.protocol.metadata.under_replication`). Source:
compatibility.md §6.1, §6.2.

A *worker* begins with :meth:`UnderReplicationStore.begin_worker`. The ephemeral znode that it returns proves that the
worker's session lives. It is checked in the transaction that takes a lock, deletes a mark, or changes a ledger's
metadata (:meth:`LedgerStore.write_proven`). So a worker whose session has ended can change nothing.

If a lost connection leaves an outcome unknown, this module syncs and reads again. A lock is then recognised by its
owner. So only one store may take locks in a session.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.proven_changes import ATTEMPTS, prove_and_change, put
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.errors import (
    MetadataConflictError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID
from bk_spark.protocol.metadata.under_replication import (
    LAYOUT,
    MARK_DEPTH,
    Mark,
    UnderReplicationPaths,
    check_layout,
    decode_lock,
    encode_lock,
    encode_worker,
    is_mark_group,
    locked_ledger,
)
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, SetOp, TransactionConflictError, TransactionOp, Znode

_LOG: Final = logging.getLogger(__name__)
#: The most marks in a page.
MARKS_PER_PAGE: Final = 256
_MARKS_PER_TRANSACTION: Final = 100


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """Who repairs a ledger: the ``holder`` as it calls itself, its session, and when it took the lock."""

    holder: str | None
    session_id: int
    since_ms: int


class UnderReplicationStore:
    """The znodes below ``<root>/underreplication`` of one cluster.

    Calls end within ``zk``'s timeout, and within :meth:`ZooKeeper.within`. They raise MetadataUnavailableError if
    ZooKeeper does not answer.

    Parameters
    ----------
    zk
        The session. A worker's locks live as long as it does.
    root
        The root of the cluster's znodes, such as ``/ledgers``.
    wall_ms
        This machine's time of day, for the time in marks. It only informs people.
    """

    def __init__(self, zk: ZooKeeper, root: str, *, wall_ms: Callable[[], int] = unix_time_ms) -> None:
        self.zk = zk
        self.paths = UnderReplicationPaths(root)
        self._wall_ms = wall_ms
        #: Ledgers whose lock this session may hold although nobody here wants it.
        self._unwanted: set[int] = set()
        #: The proofs with which locks were taken, by ledger.
        self._proofs: dict[int, str | None] = {}
        #: One thread at a time gives locks back, so that none deletes a lock that another has just taken.
        self._releasing = threading.RLock()

    def prepare(self) -> None:
        """Create the znodes that hold the others, where they are missing. Safe to repeat.

        Raises MetadataFormatError for a layout that this release does not know, and MetadataUnavailableError if there
        is no cluster.
        """
        if self.zk.exists(f"{self.paths.root}/LAYOUT") is None:
            raise MetadataUnavailableError(
                f"no BookKeeper cluster at {self.paths.root}: {self.paths.root}/LAYOUT does not exist; check the path "
                "in metadataServiceUri, or initialise the cluster first"
            )
        for _ in range(ATTEMPTS):
            layout = self.zk.get_latest(self.paths.layout)
            if layout is not None:
                check_layout(layout.data, self.paths.layout)
                break
            self.zk.ensure_path(self.paths.base)
            with contextlib.suppress(NodeExistsError, OutcomeUnknownError):
                self.zk.create(self.paths.layout, LAYOUT)
        for path in (self.paths.marks, self.paths.locks, self.paths.workers, self.paths.election):
            self.zk.ensure_path(path)

    # --- marks --------------------------------------------------------------------------------------

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
        # A content that cannot be parsed stays. It marks the ledger all the same.
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

    # --- workers and locks --------------------------------------------------------------------------

    def begin_worker(self, name: str) -> str:
        """Create the znode that proves that a worker's session lives. Return its path.

        It ends with the session. ``name`` informs people. Call this again after SessionLostError. All locks are gone
        then.
        """
        for _ in range(ATTEMPTS):
            path = f"{self.paths.workers}/{uuid.uuid4().hex}"
            try:
                return self.zk.create(path, encode_worker(name), ephemeral=True)
            except OutcomeUnknownError:
                found = self.zk.get_latest(path)
                if found is not None and found.owner_session == self.zk.session_id:
                    return path
        raise MetadataUnavailableError(f"no worker could be registered below {self.paths.workers}")

    def lock(self, ledger_id: int, *, proof: str | None) -> bool:
        """Take a ledger's lock. Return False if another worker, a bookie's garbage collection or a tool holds it.

        Parameters
        ----------
        ledger_id
            The ledger. Whether it is marked is not checked.
        proof
            The path from :meth:`begin_worker`. The lock and the proof end together. None for a caller that changes no
            metadata.

        Raises
        ------
        SessionLostError
            If the worker's session has ended.
        MetadataUnavailableError
            If ZooKeeper does not answer. A lock that this call may have taken is given back by
            :meth:`release_unwanted`.
        """
        path = self.paths.lock(ledger_id)
        with self._releasing:
            if ledger_id in self._unwanted:
                self.release(ledger_id)
        for _ in range(ATTEMPTS):
            try:
                prove_and_change(self.zk, proof, [CreateOp(path, encode_lock(socket.gethostname()), ephemeral=True)])
                self._proofs[ledger_id] = proof
                return True
            except TransactionConflictError as conflict:
                if conflict.reason != "NodeExistsError":
                    raise
                return False
            except OutcomeUnknownError:
                self._proofs[ledger_id] = proof
                found = self._find_lock(ledger_id)
                if found is not None:
                    return found.owner_session == self.zk.session_id
        raise MetadataUnavailableError("the ledger could not be locked", ledger_id=ledger_id)

    def release(self, ledger_id: int) -> None:
        """Give back a ledger's lock, if this session holds it. Safe to repeat.

        The proof of :meth:`lock` is checked in the transaction that deletes the lock. So another worker, who took the
        lock after this session's end, keeps it. A caller that gave no proof must bound this call
        (:meth:`ZooKeeper.within`) by less than its session's timeout.

        Raises MetadataUnavailableError if ZooKeeper does not answer. :meth:`release_unwanted` tries again.
        """
        with self._releasing:
            for _ in range(ATTEMPTS):
                found = self._find_lock(ledger_id)
                if found is None or found.owner_session != self.zk.session_id:
                    break
                try:
                    prove_and_change(self.zk, self._proofs.get(ledger_id), [DeleteOp(self.paths.lock(ledger_id))])
                    break
                except SessionLostError:
                    # Look again whose lock it is now. Somebody may have deleted the proof of a session that lives.
                    self._proofs[ledger_id] = None
                except TransactionConflictError:
                    break  # the lock is gone
                except MetadataUnavailableError:
                    self._unwanted.add(ledger_id)
            else:
                raise MetadataUnavailableError("the ledger's lock could not be given back", ledger_id=ledger_id)
            self._unwanted.discard(ledger_id)
            self._proofs.pop(ledger_id, None)

    def release_unwanted(self) -> None:
        """Give back locks that could not be given back before. Without that, nobody else could repair their ledgers
        for as long as this session lives. Raises MetadataUnavailableError."""
        with self._releasing:
            for ledger_id in sorted(self._unwanted):
                self.release(ledger_id)

    def _find_lock(self, ledger_id: int) -> Znode | None:
        """Read a lock that this session may hold. If that fails, nobody here wants the lock any more."""
        try:
            return self.zk.get_latest(self.paths.lock(ledger_id))
        except MetadataUnavailableError:
            self._unwanted.add(ledger_id)
            raise

    def locks(self, watch: WatchCallback | None = None) -> dict[int, LedgerLock]:
        """Return all locks by ledger id. ``watch`` is called when a lock is taken or given back."""
        ids = [locked_ledger(name) for name in self.zk.children(self.paths.locks, watch) or ()]
        paths = {self.paths.lock(ledger_id): ledger_id for ledger_id in ids if ledger_id is not None}
        return {
            paths[path]: LedgerLock(_holder(found, path), found.owner_session, found.ctime_ms)
            for path, found in self.zk.get_many(list(paths)).items()
            if found is not None
        }

    def finish(self, ledger_id: int, version: int, *, proof: str) -> bool:
        """Delete a ledger's mark at ``version``, the empty directories above it, and the ledger's lock.

        If the lock is not held any more, nothing is deleted. So this is safe to repeat.

        Parameters
        ----------
        ledger_id
            The ledger, whose lock is held. Nothing of it was bad after the mark was read.
        version
            The version of the mark that was read while the lock was held.
        proof
            The path from :meth:`begin_worker`.

        Returns
        -------
        bool
            Whether the ledger is not marked any more. False if another client marked it again meanwhile. The lock is
            given back in both cases.

        Raises
        ------
        SessionLostError
            If the worker's session has ended. Another worker decides about the mark.
        MetadataUnavailableError
            If ZooKeeper does not answer. The mark may or may not be deleted, and the lock may still be held: call this
            again, or :meth:`release`.
        """
        mark, lock = self.paths.mark(ledger_id), self.paths.lock(ledger_id)
        for _ in range(ATTEMPTS):
            found = self.zk.get_latest(lock)
            if found is None or found.owner_session != self.zk.session_id:
                # If a reply was lost, the transaction took effect.
                break
            try:
                prove_and_change(self.zk, proof, [DeleteOp(mark, version), DeleteOp(lock)])
            except TransactionConflictError as conflict:
                if conflict.operation.path == mark:
                    self.release(ledger_id)
                return conflict.reason == "NoNodeError" and conflict.operation.path == mark
            except OutcomeUnknownError:
                continue
            self._proofs.pop(ledger_id, None)
            self._delete_empty_parents(mark)
            return True
        else:
            raise MetadataUnavailableError("the ledger's mark could not be deleted", ledger_id=ledger_id)
        if self.zk.exists(proof) is None:
            raise SessionLostError("the session with ZooKeeper has ended, and its lock", ledger_id=ledger_id)
        if self.zk.exists(mark) is not None:
            return False
        self._delete_empty_parents(mark)
        return True

    def _delete_empty_parents(self, mark_path: str) -> None:
        """Directories that stay, because no answer comes or another client needs them, do no harm."""
        path = mark_path
        with contextlib.suppress(MetadataConflictError, MetadataUnavailableError):
            for _ in range(MARK_DEPTH):
                path = path.rpartition("/")[0]
                self.zk.delete(path)


def _holder(found: Znode, path: str) -> str | None:
    try:
        return decode_lock(found.data, path)
    except MetadataFormatError:
        return None
