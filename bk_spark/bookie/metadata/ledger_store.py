"""Ledger metadata in ZooKeeper: create, read, compare-and-set, delete, list. Source: compatibility.md §3.2, §3.7.

Blocking and thread-safe. If a lost connection leaves an outcome unknown, this module resolves it by ``sync`` and
reading again. After that, ZooKeeper applies no change that this session sent before. A create is recognised by its
creator's token. A delete took effect if the znode is gone or was created by another transaction. A compare-and-set is
recognised by the stored content. A change is sent again only if it was not applied. OutcomeUnknownError remains only if
ZooKeeper cannot be read either.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bk_spark.bookie.metadata.ledger_ids import next_ledger_id
from bk_spark.bookie.metadata.proven_changes import delete_empty_parents, prove_and_change
from bk_spark.bookie.metadata.zookeeper import WatchCallback, ZooKeeper
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataConflictError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.metadata.ledger_paths import LedgerManager, parse_layout
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import CreateOp, SetOp, TransactionConflictError, TransactionOp, Znode

_ATTEMPTS = 8

#: Given the new ledger's id, returns further operations for the transaction that creates the ledger.
CreateWith = Callable[[int], Sequence[TransactionOp]]


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """Metadata, the version of their znode, and the id of the transaction that created the znode, if it is known."""

    metadata: LedgerMetadata
    version: int
    created_zxid: int | None = field(default=None, compare=False)


class LedgerStore:
    """The ledgers of one cluster. Raises MetadataUnavailableError if there is no cluster at the URI."""

    def __init__(self, zk: ZooKeeper, uri: MetadataServiceUri) -> None:
        self.zk = zk
        self.root = uri.root
        layout = zk.get(f"{uri.root}/LAYOUT")
        if layout is None:
            raise MetadataUnavailableError(
                f"no BookKeeper cluster at {uri}: {uri.root}/LAYOUT does not exist; check the path in "
                "metadataServiceUri, or initialise the cluster first"
            )
        self.manager: LedgerManager = parse_layout(layout.data)
        if uri.layout is not None and uri.layout != self.manager.value:
            raise InvalidArgumentError(
                f"metadataServiceUri {uri} asks for the {uri.layout} ledger manager, the cluster uses "
                f"{self.manager.value}; write zk+{self.manager.value}:// or plain zk://"
            )

    def create(
        self, metadata: LedgerMetadata, create_with: CreateWith | None = None, ledger_id: int | None = None
    ) -> tuple[int, StoredMetadata]:
        """Store the metadata of a new ledger, together with ``create_with(id)``, under ``ledger_id`` or a new id.

        Raises LedgerExistsError (only with ``ledger_id``), TransactionConflictError (an operation of
        ``create_with`` does not hold), OutcomeUnknownError (only with ``create_with``),
        MetadataUnavailableError. The last may leave an unused ledger behind.
        """
        token = secrets.randbits(63) or 1
        metadata = replace(metadata, creator_token=token)
        data = ledger_metadata.encode(metadata)
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            chosen = ledger_id
            try:
                if chosen is None:
                    # A lost connection may waste a sequence number, which does no harm.
                    chosen = next_ledger_id(self.zk, self.root, self.manager)
                path = self.path_of(chosen)
                self.zk.ensure_path(path.rpartition("/")[0])
            except NoNodeError as failed:
                # Another client's delete removed the empty parent while its child was being created.
                error = failed
                continue
            except MetadataUnavailableError as failed:
                # No answer came. The first error says most: the others come when the time is over.
                error = error or failed
                continue
            try:
                self.zk.transaction([CreateOp(path, data), *(create_with(chosen) if create_with else ())])
                return chosen, StoredMetadata(metadata, 0)
            except TransactionConflictError as conflict:
                if conflict.operation.path != path:
                    raise
                # The id is taken, or a parent was deleted.
                found = self.zk.get(path)
                error = conflict
            except OutcomeUnknownError as unknown:
                found = self._settle(path, unknown, None if create_with is None else unknown)
                error = unknown
            except MetadataUnavailableError as unsent:
                error = unsent
                continue
            if found is not None:
                if _made_with(token, found):
                    return chosen, StoredMetadata(metadata, found.version)
                if ledger_id is not None:
                    raise LedgerExistsError("a ledger with this id already exists", ledger_id=ledger_id) from error
        raise MetadataUnavailableError(f"no ledger could be created in {_ATTEMPTS} attempts: {error}") from error

    def read(self, ledger_id: int) -> StoredMetadata:
        """Read the metadata. Raises NoSuchLedgerError, MetadataFormatError."""
        return stored_metadata(ledger_id, self.zk.get(self.path_of(ledger_id)))

    def read_latest(self, ledger_id: int, watch: WatchCallback | None = None) -> StoredMetadata:
        """Do the same as :meth:`read`, after bringing the server up to date."""
        return stored_metadata(ledger_id, self.zk.get_latest(self.path_of(ledger_id), watch))

    def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        """Compare-and-set. Raises MetadataConflictError, NoSuchLedgerError, MetadataUnavailableError (nothing was
        written), OutcomeUnknownError (ZooKeeper cannot be read)."""
        return self._write(ledger_id, metadata, version, self.zk.set)

    def write_proven(
        self, ledger_id: int, metadata: LedgerMetadata, read: StoredMetadata, proof: str
    ) -> StoredMetadata:
        """Compare-and-set for a replication worker, if the ephemeral znode ``proof`` exists.

        Parameters
        ----------
        ledger_id
            The ledger, whose lock the worker holds.
        metadata
            The new metadata.
        read
            The metadata that :meth:`read` or :meth:`read_latest` returned.
        proof
            The path of a znode of the session that holds the lock.

        Raises
        ------
        SessionLostError
            If ``proof`` does not exist. Nothing was written.
        NoSuchLedgerError
            If the ledger was deleted, even if another ledger has its id now.
        MetadataConflictError
            If another client changed the metadata.
        MetadataUnavailableError
            If nothing was written, because ZooKeeper did not answer.
        OutcomeUnknownError
            If ZooKeeper cannot be read after a lost reply.
        """
        found = self.zk.exists(self.path_of(ledger_id))
        if found is None or found.created_zxid != read.created_zxid:
            raise NoSuchLedgerError("the ledger was deleted", ledger_id=ledger_id)

        def change(path: str, data: bytes, version: int) -> int:
            try:
                prove_and_change(self.zk, proof, [SetOp(path, data, version)])
            except TransactionConflictError as conflict:
                if conflict.reason != "NoNodeError":
                    raise
                raise NoNodeError(f"znode {path} does not exist") from conflict
            return version + 1

        written = self._write(ledger_id, metadata, read.version, change)
        return replace(written, created_zxid=read.created_zxid)

    def _write(
        self, ledger_id: int, metadata: LedgerMetadata, version: int, change: Callable[[str, bytes, int], int]
    ) -> StoredMetadata:
        """``change`` sets a path to data at a version, and returns the new version."""
        # The creator's token is only for creation. Apache's client also drops it at every update.
        metadata = replace(metadata, creator_token=None)
        data, path = ledger_metadata.encode(metadata), self.path_of(ledger_id)
        lost: OutcomeUnknownError | None = None
        for _ in range(_ATTEMPTS):
            try:
                return StoredMetadata(metadata, change(path, data, version))
            except NoNodeError as error:
                raise NoSuchLedgerError("the ledger was deleted", ledger_id=ledger_id) from error
            except OutcomeUnknownError as unknown:
                lost = unknown
                found = self._settle(path, unknown, unknown)
                if found is not None and found.version == version + 1 and found.data == data:
                    return StoredMetadata(metadata, found.version)
                # Not written, or overwritten since. The next attempt shows which.
        raise MetadataUnavailableError("the ledger's metadata could not be written", ledger_id=ledger_id) from lost

    def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        """Read, ``change``, compare-and-set, and repeat after a conflict. ``change`` returns None for "no change". It
        must return None for its own result, which resolves a lost reply."""
        for _ in range(_ATTEMPTS):
            stored = self.read_latest(ledger_id)
            changed = change(stored.metadata)
            if changed is None:
                return stored
            try:
                return self.write(ledger_id, changed, stored.version)
            except MetadataConflictError:
                continue
        raise MetadataConflictError("the ledger's metadata keeps changing", ledger_id=ledger_id)

    def delete(self, ledger_id: int) -> None:
        """Delete the ledger. Its bookies collect it later. Ignored if the ledger does not exist.

        After a lost reply, this does not delete a ledger that another client created under the same id meanwhile.
        Raises MetadataUnavailableError.
        """
        path = self.path_of(ledger_id)
        found = self.zk.exists(path)
        if found is None:
            # This server may not know it yet.
            found = self.zk.get_latest(path)
        lost: OutcomeUnknownError | None = None
        for _ in range(_ATTEMPTS):
            if found is None:
                return
            try:
                self.zk.delete(path)
                break
            except NoNodeError:
                return
            except OutcomeUnknownError as unknown:
                lost = unknown
                now = self._settle(path, unknown, None)
                if now is None or now.created_zxid != found.created_zxid:
                    break
        else:
            raise MetadataUnavailableError("the ledger could not be deleted", ledger_id=ledger_id) from lost
        if self.manager is not LedgerManager.FLAT:
            delete_empty_parents(self.zk, path, self.root)

    def list_ledgers(self, *, descending: bool = False) -> Iterator[list[int]]:
        """Yield the ids of all ledgers, ascending, in batches. A batch has the children of one znode, at most 10,000
        except in the flat layout. Ledgers created or deleted meanwhile may or may not be listed."""
        yield from self._list(self.root, "", descending)

    def _list(self, path: str, digits: str, descending: bool) -> Iterator[list[int]]:
        names = self.zk.children(path) or ()
        # Names of one length sort like their numbers. Shorter names come first, because their ids are lower.
        listed = sorted(names, key=lambda name: (len(name), name), reverse=descending)
        if not self.manager.is_leaf(digits):
            for name in listed:
                if self.manager.is_branch(digits, name):
                    yield from self._list(f"{path}/{name}", digits + name, descending)
        else:
            yield [int(digits + name[1:]) for name in listed if self.manager.is_ledger(digits, name)]

    def _settle(self, path: str, unknown: OutcomeUnknownError, otherwise: OutcomeUnknownError | None) -> Znode | None:
        """Read ``path`` after a change of unknown outcome. On failure, raise ``otherwise`` or the retriable error."""
        try:
            return self.zk.get_latest(path)
        except MetadataUnavailableError as error:
            if otherwise is not None:
                raise otherwise from error
            raise MetadataUnavailableError(f"{error.message} (after {unknown.message})") from error

    def path_of(self, ledger_id: int) -> str:
        """Return the path of the ledger's znode."""
        return self.manager.ledger_path(self.root, ledger_id)


def stored_metadata(ledger_id: int, found: Znode | None) -> StoredMetadata:
    """Decode a ledger's znode. Raises NoSuchLedgerError if there is none, MetadataFormatError."""
    if found is None:
        raise NoSuchLedgerError("the ledger does not exist", ledger_id=ledger_id)
    return StoredMetadata(ledger_metadata.decode(found.data), found.version, found.created_zxid)


def _made_with(token: int, found: Znode) -> bool:
    try:
        return ledger_metadata.decode(found.data).creator_token == token
    except MetadataFormatError:
        return False
