"""Performs the metadata calls of machines at the model world's store."""

from __future__ import annotations

from bk_spark.protocol.errors import MetadataConflictError, MetadataUnavailableError, OutcomeUnknownError
from bk_spark.protocol.ledger.metadata_calls import (
    CompareAndSet,
    MetadataAction,
    MetadataEvent,
    MetadataFailed,
    MetadataFound,
    MetadataWritten,
)
from bk_spark.protocol.metadata.ledger_metadata import encode
from tests.simulation.bytes_cache import metadata_in
from tests.simulation.events import MetaCall, MetaReply


def metadata_call(actor: str, tag: tuple[str | int, ...], action: MetadataAction) -> MetaCall:
    """``action`` on its way to the store."""
    if isinstance(action, CompareAndSet):
        return MetaCall(actor, tag, encode(action.metadata), action.version)
    return MetaCall(actor, tag)


def metadata_event(reply: MetaReply) -> MetadataEvent:
    """The event for the client's machine."""
    if reply.outcome == "ok":
        kind = MetadataWritten if reply.was_write else MetadataFound
        return kind(metadata_in(reply.data), reply.version)
    if not reply.was_write:
        return MetadataFailed(MetadataUnavailableError("the metadata cannot be read"))
    if reply.outcome == "conflict":
        return MetadataFailed(MetadataConflictError("changed by another client"))
    return MetadataFailed(OutcomeUnknownError("the reply was lost"))
