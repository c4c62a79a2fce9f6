"""Reads the versions of a topic's schema from their ledgers."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import MetadataFormatError, NoSuchEntryError, NoSuchLedgerError
from bk_spark.protocol.pulsar.topics.schemas import SchemaLocator, SchemaVersion, StoredSchema
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.pulsar.stores import Store

#: Versions that are read of one topic, the newest ones.
_MAX_VERSIONS: Final = 1_000
#: The broker makes these ledgers without a password, whatever the topics' ledgers have.
_PASSWORD: Final = b""


def stored_schemas(topic: TopicName, store: Store, client: BlockingClient) -> dict[int, StoredSchema]:
    """Return the versions of a topic's schema by number, ascending, from the last deletion on. Empty if it has none.

    Raises MetadataFormatError, NoSuchLedgerError, EntryUnknownError, MetadataUnavailableError.
    """
    path = topic.schema_path
    (znode,) = store.latest([path])
    if znode is None:
        return {}
    found: dict[int, StoredSchema] = {}
    for version in SchemaLocator.parse(znode.data, path).versions[-_MAX_VERSIONS:]:
        schema = _stored(topic, version, client)
        if schema.deleted:
            found.clear()
        else:
            found[version.version] = schema
    return found


def _stored(topic: TopicName, version: SchemaVersion, client: BlockingClient) -> StoredSchema:
    what = f"version {version.version} of the schema of {topic.full}"
    try:
        reader = client.open_for_reading(version.ledger_id, _PASSWORD, read_lac=False)
        # Its only entry. A broker that ended before it closed the ledger left it after the last add confirmed.
        with closing(reader.read_unconfirmed(version.entry_id, version.entry_id)) as blocks:
            payloads = [bytes(payload) for block in blocks for payload in block.payloads]
    except (NoSuchLedgerError, NoSuchEntryError) as error:
        raise type(error)(
            f"{what} is gone: read the topic without its schema, as binary",
            ledger_id=version.ledger_id,
            entry_id=version.entry_id,
        ) from error
    if not payloads:
        raise MetadataFormatError(f"{what} is empty", ledger_id=version.ledger_id, entry_id=version.entry_id)
    return StoredSchema.parse(payloads[0], version.version, what)
