"""Which fields of messages the columns need: only these are read."""

from __future__ import annotations

from typing import Final

from bk_spark.protocol.pulsar.messages.batches import SingleField
from bk_spark.protocol.pulsar.messages.entry_frames import MetadataField

#: Fields of the entries' metadata that each column needs.
METADATA_FIELDS: Final[dict[str, tuple[MetadataField, ...]]] = {
    "value": (MetadataField.NULL_VALUE,),
    "__key": (
        MetadataField.PARTITION_KEY,
        MetadataField.PARTITION_KEY_B64_ENCODED,
        MetadataField.NULL_PARTITION_KEY,
    ),
    "__publishTime": (MetadataField.PUBLISH_TIME,),
    "__eventTime": (MetadataField.EVENT_TIME,),
    "__messageProperties": (MetadataField.PROPERTIES,),
    "__sequenceId": (MetadataField.SEQUENCE_ID,),
    "__producerName": (MetadataField.PRODUCER_NAME,),
    "__schemaVersion": (MetadataField.SCHEMA_VERSION,),
    "__orderingKey": (MetadataField.ORDERING_KEY,),
    "__deliverAt": (MetadataField.DELIVER_AT_TIME,),
    "__encryption": (MetadataField.ENCRYPTION_ALGO, MetadataField.ENCRYPTION_PARAM),
}
#: Fields of the metadata of messages in batches that each column needs.
SINGLE_FIELDS: Final[dict[str, tuple[SingleField, ...]]] = {
    "value": (SingleField.NULL_VALUE,),
    "__key": (SingleField.PARTITION_KEY, SingleField.PARTITION_KEY_B64_ENCODED, SingleField.NULL_PARTITION_KEY),
    "__eventTime": (SingleField.EVENT_TIME,),
    "__messageProperties": (SingleField.PROPERTIES,),
    "__sequenceId": (SingleField.SEQUENCE_ID,),
    "__orderingKey": (SingleField.ORDERING_KEY,),
}
