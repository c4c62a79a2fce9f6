"""Marks (:mod:`.ledger_marks`) and locks of under-replicated ledgers in ZooKeeper.

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
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from bk_spark.bookie.metadata.cluster_clock import unix_time_ms
from bk_spark.bookie.metadata.proven_changes import ATTEMPTS, delete_empty_parents, prove_and_change
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.bookie.replication.ledger_marks import LedgerMarks
from bk_spark.protocol.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    SessionLostError,
)
from bk_spark.protocol.metadata.replication_notes import reason_path
from bk_spark.protocol.metadata.under_replication import (
    LAYOUT,
    Mark,
    check_layout,
    decode_lock,
    encode_lock,
    encode_worker,
    locked_ledger,
)
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, TransactionConflictError, Znode


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """Who repairs a ledger: the ``holder`` as it calls itself, its session, and when it took the lock."""

    holder: str | None
    session_id: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class LockedLedger:
    """What a repair begins with: a ledger's mark, None if it is not marked, and its znode, None if it is deleted."""

    mark: Mark | None
    ledger: Znode | None


class UnderReplicationStore(LedgerMarks):
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
        super().__init__(zk, root, wall_ms=wall_ms)
        #: Ledgers whose lock this session may hold although nobody here wants it.
        self._unwanted: set[int] = set()
        #: The proofs with which locks were taken, by ledger.
        self._proofs: dict[int, str | None] = {}
        #: Ledgers whose lock was taken and which nobody here has tried to give back since, with the proof.
        self._held: dict[int, str] = {}
        #: Those of them that had no note of a failure when they were locked.
        self._without_reason: set[int] = set()
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
        paths = self.paths
        for path in (paths.marks, paths.locks, paths.workers, paths.collectors, paths.election):
            self.zk.ensure_path(path)

    def begin_worker(self, name: str) -> str:
        """Create the znode that proves that a worker's session lives. Return its path.

        It ends with the session. ``name`` informs people. Call this again after SessionLostError. All locks are gone
        then.
        """
        return self._prove_session(self.paths.workers, name)

    def begin_collector(self, bookie_id: str) -> str:
        """The same as :meth:`begin_worker` for a bookie's garbage collection, which is not listed among the workers."""
        return self._prove_session(self.paths.collectors, bookie_id)

    def _prove_session(self, directory: str, name: str) -> str:
        for _ in range(ATTEMPTS):
            path = f"{directory}/{uuid.uuid4().hex}"
            try:
                return self.zk.create(path, encode_worker(name), ephemeral=True)
            except OutcomeUnknownError:
                found = self.zk.get_latest(path)
                if found is not None and found.owner_session == self.zk.session_id:
                    return path
        raise MetadataUnavailableError(f"no session could be registered below {directory}")

    def lock(self, ledger_id: int, *, proof: str) -> bool:
        """Take a ledger's lock. Return False if another worker, a bookie's garbage collection or a tool holds it.

        Parameters
        ----------
        ledger_id
            The ledger. Whether it is marked is not checked.
        proof
            The path from :meth:`begin_worker` or :meth:`begin_collector`. The lock and the proof end together.

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
                self._held[ledger_id] = proof
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
        lock after this session's end, keeps it.

        Raises MetadataUnavailableError if ZooKeeper does not answer. :meth:`release_unwanted` tries again.
        """
        self._forget(ledger_id)
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

    def _forget(self, ledger_id: int) -> None:
        """The lock may not be held any more."""
        self._held.pop(ledger_id, None)
        self._without_reason.discard(ledger_id)

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

    def read_locked(self, ledger_id: int, ledger_path: str) -> LockedLedger:
        """Read a ledger's mark and its znode at ``ledger_path``, after :meth:`lock`. They are no older than the lock:
        taking it was a transaction of this session, and what a session reads is never older than what it did."""
        mark, reason = self.paths.mark(ledger_id), reason_path(self.paths.root, ledger_id)
        found = self.zk.get_many([mark, reason, ledger_path])
        if found[reason] is None:
            # Only who has the lock makes a note.
            self._without_reason.add(ledger_id)
        marked = found[mark]
        return LockedLedger(None if marked is None else self._decoded(ledger_id, marked), found[ledger_path])

    def forget_reason(self, ledger_id: int) -> None:
        """Delete the note why a ledger could not be repaired. Raises MetadataUnavailableError."""
        if ledger_id in self._without_reason:
            return
        reason = reason_path(self.paths.root, ledger_id)
        # A deletion that fails costs a transaction, which ZooKeeper writes to its disk. Hardly any ledger has a note.
        if self.zk.exists(reason) is not None:
            with contextlib.suppress(NoNodeError):
                self.zk.delete(reason)

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
        # While the proof exists, so does a lock that was taken with it.
        held = self._held.get(ledger_id) == proof
        self._forget(ledger_id)
        # The mark is alone in its directory.
        directory = [DeleteOp(mark.rpartition("/")[0])]
        for _ in range(ATTEMPTS):
            if not held:
                found = self.zk.get_latest(lock)
                if found is None or found.owner_session != self.zk.session_id:
                    # If a reply was lost, the transaction took effect.
                    break
            try:
                prove_and_change(self.zk, proof, [DeleteOp(mark, version), *directory, DeleteOp(lock)])
            except TransactionConflictError as conflict:
                if directory and conflict.operation == directory[0]:
                    # Somebody put something beside the mark.
                    directory.clear()
                    continue
                if conflict.operation.path == mark:
                    self.release(ledger_id)
                return conflict.reason == "NoNodeError" and conflict.operation.path == mark
            except OutcomeUnknownError:
                held = False
                continue
            self._proofs.pop(ledger_id, None)
            delete_empty_parents(self.zk, directory[0].path if directory else mark, self.paths.marks)
            return True
        else:
            raise MetadataUnavailableError("the ledger's mark could not be deleted", ledger_id=ledger_id)
        if self.zk.exists(proof) is None:
            raise SessionLostError("the session with ZooKeeper has ended, and its lock", ledger_id=ledger_id)
        if self.zk.exists(mark) is not None:
            return False
        delete_empty_parents(self.zk, mark, self.paths.marks)
        return True


def _holder(found: Znode, path: str) -> str | None:
    try:
        return decode_lock(found.data, path)
    except MetadataFormatError:
        return None
