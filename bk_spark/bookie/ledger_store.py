"""Ledger metadata in ZooKeeper: create, read, compare-and-set, delete. Source: facts §3.7.

Blocking; thread-safe. Every outcome that a lost connection leaves open is settled here by reading
again: a create by its creator token, a delete by the node being gone. A compare-and-set is left to the
caller (OutcomeUnknownError), who knows what it wanted to write.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bk_spark.bookie.ledger_ids import next_ledger_id
from bk_spark.bookie.zookeeper import CreateOp, TransactionConflictError, TransactionOp, ZooKeeper
from bk_spark.protocol import ledger_metadata
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoNodeError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bk_spark.protocol.ledger_metadata import LedgerMetadata
from bk_spark.protocol.ledger_paths import LedgerManager, parse_layout
from bk_spark.protocol.metadata_uri import MetadataServiceUri

_CREATE_ATTEMPTS = 8

#: Given the new ledger's id: what else to do in the transaction that creates the ledger.
CreateWith = Callable[[int], Sequence[TransactionOp]]


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """Metadata and the version of the znode that holds it."""

    metadata: LedgerMetadata
    version: int


class LedgerStore:
    """The ledgers of one cluster. Raises MetadataUnavailableError where no cluster is at the URI."""

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

    def create(self, metadata: LedgerMetadata, create_with: CreateWith | None = None) -> tuple[int, StoredMetadata]:
        """Store the metadata of a new ledger under a new id, together with ``create_with(id)``."""
        token = secrets.randbits(63) or 1
        metadata = replace(metadata, creator_token=token)
        data = ledger_metadata.encode(metadata)
        error: Exception | None = None
        for _ in range(_CREATE_ATTEMPTS):
            try:
                ledger_id = next_ledger_id(self.zk, self.root, self.manager)
            except OutcomeUnknownError as unknown:
                # A sequence number lost with the connection costs a number, nothing else.
                error = unknown
                continue
            path = self._path(ledger_id)
            try:
                self.zk.ensure_path(path.rpartition("/")[0])
                self.zk.transaction([CreateOp(path, data), *(create_with(ledger_id) if create_with else ())])
                return ledger_id, StoredMetadata(metadata, 0)
            except TransactionConflictError as conflict:
                if conflict.operation.path != path:
                    raise
                # The id is taken, or an empty parent was just removed by another client's delete.
                error = conflict
            except NoNodeError as gone:
                # So was a parent while its child was being made.
                error = gone
            except OutcomeUnknownError as unknown:
                self.zk.sync(path)
                found = self.zk.get(path)
                if found is not None and ledger_metadata.decode(found.data).creator_token == token:
                    return ledger_id, StoredMetadata(metadata, found.version)
                error = unknown
        raise MetadataUnavailableError(f"no ledger could be created in {_CREATE_ATTEMPTS} attempts") from error

    def read(self, ledger_id: int) -> StoredMetadata:
        """Raises NoSuchLedgerError, MetadataFormatError."""
        found = self.zk.get(self._path(ledger_id))
        if found is None:
            raise NoSuchLedgerError("the ledger does not exist", ledger_id=ledger_id)
        return StoredMetadata(ledger_metadata.decode(found.data), found.version)

    def read_latest(self, ledger_id: int) -> StoredMetadata:
        """As :meth:`read`, after bringing the server up to date."""
        self.zk.sync(self._path(ledger_id))
        return self.read(ledger_id)

    def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> StoredMetadata:
        """Compare-and-set. Raises MetadataConflictError, NoSuchLedgerError, OutcomeUnknownError."""
        # The creator's token is for creation alone: Apache's client drops it at every update too.
        metadata = replace(metadata, creator_token=None)
        try:
            new_version = self.zk.set(self._path(ledger_id), ledger_metadata.encode(metadata), version)
        except NoNodeError as error:
            raise NoSuchLedgerError("the ledger was deleted", ledger_id=ledger_id) from error
        return StoredMetadata(metadata, new_version)

    def update(self, ledger_id: int, change: Callable[[LedgerMetadata], LedgerMetadata | None]) -> StoredMetadata:
        """Read, ``change``, compare-and-set, again after a conflict. ``change`` gives None for "as it is"
        and must be such that applying it to its own result gives None (a lost reply is settled so)."""
        for _ in range(_CREATE_ATTEMPTS):
            stored = self.read_latest(ledger_id)
            changed = change(stored.metadata)
            if changed is None:
                return stored
            try:
                return self.write(ledger_id, changed, stored.version)
            except (MetadataConflictError, OutcomeUnknownError):
                continue
        raise MetadataConflictError("the ledger's metadata keeps changing", ledger_id=ledger_id)

    def delete(self, ledger_id: int) -> None:
        """Forget the ledger; its bookies collect it later. A ledger that is gone already is no error."""
        path = self._path(ledger_id)
        try:
            self.zk.delete(path)
        except NoNodeError:
            return
        except OutcomeUnknownError:
            self.zk.sync(path)
            if self.zk.exists(path) is not None:
                raise
        if self.manager is not LedgerManager.FLAT:
            self._delete_empty_parents(path.rpartition("/")[0])

    def _delete_empty_parents(self, path: str) -> None:
        while len(path) > len(self.root):
            try:
                self.zk.delete(path)
            except (NoNodeError, MetadataConflictError, MetadataUnavailableError):
                return
            path = path.rpartition("/")[0]

    def _path(self, ledger_id: int) -> str:
        return self.manager.ledger_path(self.root, ledger_id)
