"""Types of znodes and of the transactions that change them. Source: ZooKeeper's programmer's guide, "ZNodes" and the
``multi`` operation."""

from __future__ import annotations

from dataclasses import dataclass

from bk_spark.protocol.errors import MetadataConflictError


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode's content, and the fields of its stat that this project uses."""

    data: bytes
    version: int
    ctime_ms: int
    mtime_ms: int
    owner_session: int
    #: Id of the transaction that created it. Distinguishes it from an earlier znode with the same path.
    created_zxid: int
    #: The number of its direct children.
    children: int = 0
    #: How often a direct child was created or deleted, as ZooKeeper reports it: 32 bits with a sign.
    child_changes: int = 0

    @property
    def created_children(self) -> int:
        """How many direct children were ever created. It is the number of the next sequential child."""
        # The sum is twice this number. ``child_changes`` has only its lower 32 bits, and is negative from 2^30 on.
        return ((self.child_changes + self.children) & 0xFFFF_FFFF) // 2


@dataclass(frozen=True, slots=True)
class CreateOp:
    """The transaction creates ``path``. It fails if ``path`` exists, or its parent does not."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    """The transaction replaces the content of ``path``. It fails if ``path`` does not have ``version``. -1 is any."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """The transaction deletes ``path``. It fails if ``path`` has children or does not have ``version``. -1 is any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class CheckOp:
    """The transaction requires that ``path`` has ``version``. With -1, it must only exist."""

    path: str
    version: int


TransactionOp = CreateOp | SetOp | DeleteOp | CheckOp


class TransactionConflictError(MetadataConflictError):
    """A transaction was refused as a whole. ``operation`` is the first that failed."""

    def __init__(self, operation: TransactionOp, reason: str) -> None:
        super().__init__(f"ZooKeeper transaction refused: {type(operation).__name__} of {operation.path}: {reason}")
        self.operation = operation
        self.reason = reason
