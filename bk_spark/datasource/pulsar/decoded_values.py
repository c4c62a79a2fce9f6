"""Column ``value`` decoded by a topic's schema, each message by the version that it was written with."""

from __future__ import annotations

import functools
import os
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.datasource.pulsar.places import bookies_of, stores_of
from bk_spark.log.entries.schema_checks import VALUE
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.choices import ValueErrors
from bk_spark.protocol.pulsar.topics.schemas import StoredSchema
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.values import ValueDecodeError, decode_values
from bk_spark.pulsar.stored_schemas import stored_schemas

_VERSION: Final = "__schemaVersion"
_KEY: Final = "__key"
_WHERE: Final = ("__ledgerId", "__entryId")


class DecodedValues:
    """Decodes the values of one topic to ``data_type``. Reads the versions of its schema when the first one is met."""

    #: What it needs besides ``value``.
    columns: Final = (_VERSION, _KEY, *_WHERE)

    def __init__(self, options: SourceOptions, topic: TopicName, data_type: pa.DataType) -> None:
        self._options = options
        self._topic = topic
        self._type = data_type
        #: Versions that messages name and the topic does not have.
        self._unknown: set[int] = set()

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the decoded values of a batch. Raises InvalidArgumentError, ValueDecodeError, which name a message."""
        versions = batch.column(_VERSION)
        present = pc.unique(versions)
        if len(present) == 1:
            return self._decoded(batch, present[0].as_py())
        parts, places = [], []
        for version in present:
            mask = pc.is_null(versions) if not version.is_valid else pc.fill_null(pc.equal(versions, version), False)
            rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            parts.append(self._decoded(batch.take(pa.array(rows)), version.as_py()))
            places.append(rows)
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_arrays(parts).take(pa.array(order))

    def _decoded(self, batch: pa.RecordBatch, version: int | None) -> pa.Array:
        values = batch.column(VALUE)
        schema = self._schema(version)
        if schema is None:
            return self._without_schema(batch, version)
        try:
            decoded = decode_values(
                schema,
                values,
                keys=batch.column(_KEY),
                read_as=self._newest(),
                on_error=self._options.pulsar_bad_values,
            )
        except ValueDecodeError as error:
            raise InvalidArgumentError(
                f"topic {self._topic.full}: a value does not fit version {version} of the schema ({error.message}); "
                "set pulsarBadValues to null to read such values as null, or read binary values",
                ledger_id=batch.column(_WHERE[0])[error.row].as_py(),
                entry_id=batch.column(_WHERE[1])[error.row].as_py(),
            ) from error
        return as_type(decoded, self._type)

    def _without_schema(self, batch: pa.RecordBatch, version: int | None) -> pa.Array:
        values = batch.column(VALUE)
        if values.null_count == len(values) or self._options.pulsar_bad_values is ValueErrors.NULL:
            return pa.nulls(len(values), self._type)
        row = int(np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))[0])
        what = "has no schema" if version is None else f"has schema version {version}, which the topic does not have"
        raise InvalidArgumentError(
            f"topic {self._topic.full}: a message {what}; set pulsarBadValues to null to read its value as null, "
            "or read binary values",
            ledger_id=batch.column(_WHERE[0])[row].as_py(),
            entry_id=batch.column(_WHERE[1])[row].as_py(),
        )

    def _schema(self, version: int | None) -> StoredSchema | None:
        if version is None:
            return None
        found = self._versions().get(version)
        if found is None and version not in self._unknown:
            # It may be newer than what this process has read.
            _read_versions.cache_clear()
            found = self._versions().get(version)
            self._unknown.add(version)
        return found

    def _newest(self) -> StoredSchema:
        """Return the version that the column is read as, if its schema is the topic's."""
        versions = self._versions()
        return versions[max(versions)]

    def _versions(self) -> dict[int, StoredSchema]:
        return _read_versions(os.getpid(), self._options, self._topic.schema_path, self._topic)


@functools.lru_cache(256)
def _read_versions(pid: int, options: SourceOptions, path: str, topic: TopicName) -> dict[int, StoredSchema]:
    """Return the versions of a schema. Each process reads those of each topic once."""
    return stored_schemas(topic, stores_of(options).local, bookies_of(options))


def as_type(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return ``array`` as ``data_type``: fields of structs by name, those that are missing as null.

    A topic's schema grows: an older version lacks fields, and a newer one has more than the read asks for.
    """
    if array.type == data_type:
        return array
    if pa.types.is_struct(array.type) and pa.types.is_struct(data_type):
        fields = []
        for one in data_type:
            at = array.type.get_field_index(one.name)
            # Not array.field(): that ignores the struct's own nulls, and an offset.
            part = array.flatten()[at] if at >= 0 else pa.nulls(len(array), one.type)
            fields.append(as_type(part, one.type))
        return pa.StructArray.from_arrays(fields, fields=list(data_type), mask=array.is_null())
    return array.cast(data_type)
