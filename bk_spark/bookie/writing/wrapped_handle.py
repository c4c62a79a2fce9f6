"""The properties that all handles of a ledger being written have."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookie.writing.write_handle import WriteHandle
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata

_H = TypeVar("_H", bound="WriteHandle | WrappedHandle[Any]")


class WrappedHandle(Generic[_H]):
    """A handle of a ledger being written that wraps another, and shows the same properties."""

    def __init__(self, handle: _H) -> None:
        self._handle = handle

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._handle.ledger_id

    @property
    @documented_as(WriteHandle.metadata)
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    @documented_as(WriteHandle.last_add_confirmed)
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    @documented_as(WriteHandle.last_add_acknowledged)
    def last_add_acknowledged(self) -> int:
        return self._handle.last_add_acknowledged

    @property
    @documented_as(WriteHandle.length)
    def length(self) -> int:
        return self._handle.length

    @property
    @documented_as(WriteHandle.error)
    def error(self) -> BookKeeperError | None:
        return self._handle.error
