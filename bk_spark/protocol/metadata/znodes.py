"""Znodes as they are read, and the transactions that change them. Source: ZooKeeper's programmer's guide, "ZNodes" and
the ``multi`` operation."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.errors import MetadataConflictError


@dataclass(frozen=True, slots=True)
class Znode:
    """Content and the parts of the stat that anyone here uses."""

    data: bytes
    version: int
    ctime_ms: int
    mtime_ms: int
    owner_session: int
    #: Id of the transaction that created it: tells a znode from another one that had the path before.
    created_zxid: int
    #: How many znodes are right below it.
    children: int = 0


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Holds the transaction to ``path`` being at ``version``; -1 only asks that it exists."""

    path: str
    version: int


TransactionOp = CreateOp | SetOp | DeleteOp | CheckOp


class TransactionConflictError(MetadataConflictError):
    """A transaction was refused as a whole; ``operation`` is the first that did not hold."""

    def __init__(self, operation: TransactionOp, reason: str) -> None:
        super().__init__(f"ZooKeeper transaction refused: {type(operation).__name__} of {operation.path}: {reason}")
        self.operation = operation
        self.reason = reason
