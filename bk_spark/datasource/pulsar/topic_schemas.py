"""The columns of a read of topics: those of every message, and ``value`` as the schemas of the topics say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from bk_spark.datasource.entries.schemas import arrow_schema, check_has_columns
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.options.pulsar_options import Values
from bk_spark.datasource.pulsar.places import NamedTopics, bookies_of, stores_of
from bk_spark.datasource.pyspark_api import spark_struct
from bk_spark.log.entries.schema_checks import VALUE
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.choices import EncryptedPayloads
from bk_spark.protocol.pulsar.columns import COLUMNS, ENCRYPTION_COLUMN
from bk_spark.protocol.pulsar.topics.schemas import StoredSchema
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.pulsar.stored_schemas import stored_schemas
from bk_spark.pulsar.stores import Stores

_REMEDY: Final = "read it as binary (pulsarValues binary)"


def topic_schema(options: SourceOptions) -> StructType:
    """Return the schema of a read for which the user gives none. Asks the stores only if values are to be decoded.

    Raises NoSuchTopicError, and InvalidArgumentError if the topics' values have different types.
    """
    columns = COLUMNS
    if options.pulsar_encrypted is not EncryptedPayloads.RAW:
        # It would be null in all rows.
        columns = columns.remove(columns.get_field_index(ENCRYPTION_COLUMN))
    if options.pulsar_values is Values.SCHEMA:
        stores = stores_of(options)
        # All partitions have one schema.
        topics = {topic.schema_path: topic for topic in NamedTopics(options).required(stores)}
        columns = columns.set(0, pa.field(VALUE, _common_type(options, stores, topics.values())))
    return spark_struct(columns)


def check_topic_read(options: SourceOptions, schema: StructType) -> None:
    """Raise InvalidArgumentError, naming the column, if a topic cannot be read as ``schema``."""
    check_has_columns(schema)
    arrow_schema(schema)
    known = {one.name: one for one in spark_struct(COLUMNS).fields}
    for one in schema.fields:
        if one.name not in known:
            raise InvalidArgumentError(
                f"a topic of Pulsar has no column {one.name}; it has {', '.join(known)}: leave the column out of the "
                "schema"
            )
        if one.name != VALUE or options.pulsar_values is not Values.SCHEMA:
            _check_type(one, known[one.name])


def _check_type(wanted: StructField, known: StructField) -> None:
    text = wanted.dataType.simpleString()
    allowed = [known.dataType.simpleString()]
    if allowed == ["binary"]:
        allowed.append("string")
    if text not in allowed:
        raise InvalidArgumentError(
            f"column {wanted.name} of a topic is {allowed[0]}, not {text}: give it as {' or '.join(allowed)}"
        )


def _common_type(options: SourceOptions, stores: Stores, topics: Iterable[TopicName]) -> pa.DataType:
    from bk_spark.protocol.pulsar.values import value_type  # only here, its packages are an extra

    found: tuple[TopicName, pa.DataType] | None = None
    for topic in topics:
        newest = newest_schema(options, stores, topic)
        if newest is None:
            raise InvalidArgumentError(f"topic {topic.full} has no schema: {_REMEDY}")
        kind = value_type(newest)
        try:
            spark_struct(pa.schema([pa.field(VALUE, kind)]))
        except PySparkException as error:
            raise InvalidArgumentError(
                f"Spark has no type for the schema of topic {topic.full}: {error}; {_REMEDY}"
            ) from error
        if found is None:
            found = topic, kind
        elif found[1] != kind:
            raise InvalidArgumentError(
                f"the schemas of topics {found[0].full} and {topic.full} differ ({found[1]} and {kind}): read the "
                "topics apart, or as binary"
            )
    assert found is not None
    return found[1]


def newest_schema(options: SourceOptions, stores: Stores, topic: TopicName) -> StoredSchema | None:
    """Return the newest version of a topic's schema, or None if it has none."""
    versions = stored_schemas(topic, stores.local, bookies_of(options))
    return versions[max(versions)] if versions else None
