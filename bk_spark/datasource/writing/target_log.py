"""The log that a write goes to: found or created in the driver, and checked against the rows to write."""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

from bk_spark.datasource.connections import LogPlace, client_of, log_at, logs_of
from bk_spark.datasource.entries.schemas import (
    arrow_schema,
    check_has_columns,
    check_raw_write,
    spark_schema,
    stored_schema,
)
from bk_spark.datasource.options.options import SourceOptions
from bk_spark.log.entries.rows_plan import RowsPlan, plan_rows
from bk_spark.log.entries.schema_text import parse_schema
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.schema_history import SchemaHistory
from bk_spark.log.formats.schema_merge import ANY_CASE, EXACT, Names
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.log import Log
from bk_spark.protocol.errors import InvalidArgumentError, LogExistsError, NoSuchLogError

_LOG: Final = logging.getLogger(__name__)

#: A cache, because streaming writes ask again for each micro-batch.
_FOUND: Final[OrderedDict[tuple[SourceOptions, str, bytes], TargetLog]] = OrderedDict()
_MAX_FOUND: Final = 64


@dataclass(frozen=True, slots=True)
class TargetLog:
    """A log checked for a write. Small and picklable; its holder does not need to ask ZooKeeper."""

    place: LogPlace
    settings: LogSettings
    #: The columns of the rows to write, in Spark's JSON form.
    written_json: str
    merge_schema: bool = False

    def plan(self, names: Names) -> RowsPlan | None:
        """Return what the rows become in an arrow log. None: the log is raw. Raises InvalidArgumentError."""
        if self.settings.schemas is None:
            return None
        return _plan(self.settings.schemas, self.written_json, names, self.place.name, self.merge_schema)

    def open(self, password: bytes) -> Log:
        """Return the log, from this process's cache."""
        return log_at(self.place, password, self.settings)


def find_or_make_log(options: SourceOptions, schema: StructType) -> TargetLog:
    """Return the log of option ``log``. Creates it if it does not exist and there are enough bookies.

    Raises InvalidArgumentError if settings or columns differ from the log's, UnauthorizedError, NotEnoughBookiesError,
    MetadataUnavailableError.
    """
    return _known(options, schema, _find_or_make)


def find_log(options: SourceOptions, schema: StructType) -> TargetLog:
    """Like :func:`find_or_make_log`, for a log whose name is in the data: a wrong name must not create a log.

    Also raises NoSuchLogError.
    """
    return _known(options, schema, _find)


def _known(
    options: SourceOptions, schema: StructType, find: Callable[[SourceOptions, StructType, bytes], TargetLog]
) -> TargetLog:
    check_has_columns(schema)
    password = options.password()
    key = (options, schema.json(), password)
    known = _FOUND.get(key)
    if known is None or not _is_there(known.place):
        # No lock: Spark's processes do one thing at a time, and a race would only find the log twice.
        known = _FOUND[key] = find(options, schema, password)
        while len(_FOUND) > _MAX_FOUND:
            _FOUND.popitem(last=False)
    return known


def _is_there(place: LogPlace) -> bool:
    paths = LogPaths(place.log_root, place.name, place.log_id)
    return client_of(place.metadata_service_uri, place.client).zookeeper.exists(paths.identity) is not None


def _find_or_make(options: SourceOptions, schema: StructType, password: bytes) -> TargetLog:
    assert options.log is not None
    uri, root, name, conf = options.metadata_service_uri, options.log_root, options.log, options.client
    logs = logs_of(uri, root, conf)
    if not logs.exists(name):
        settings = _new_settings(options, schema, password)
        # Better no log than an unwritable one.
        client_of(uri, conf).check_enough_bookies(options.quorum)
        try:
            made = logs.create_log(name, settings)
            return TargetLog(
                LogPlace(uri, root, name, made.log_id, conf), settings, schema.json(), options.merge_schema
            )
        except LogExistsError:
            pass  # another writer was first: its settings apply, as for any existing log
    return _find(options, schema, password)


def _find(options: SourceOptions, schema: StructType, password: bytes) -> TargetLog:
    assert options.log is not None
    uri, root, name, conf = options.metadata_service_uri, options.log_root, options.log, options.client
    try:
        log = logs_of(uri, root, conf).open_log(name)
    except NoSuchLogError as error:
        if options.log_column is None:
            raise
        raise NoSuchLogError(
            f"column {options.log_column} (option logColumn) names log {name}, which does not exist: correct the name, "
            f"or create the log first, for example by a write of no rows with option log"
        ) from error
    _check_settings(log.settings, options, schema, password)
    place = LogPlace(uri, root, name, log.log_id, conf)
    target = TargetLog(place, log.settings, schema.json(), options.merge_schema)
    _check_columns(target)
    return target


def _new_settings(options: SourceOptions, schema: StructType, password: bytes) -> LogSettings:
    entry_format = options.entry_format or EntryFormat.ARROW
    schema_json = None
    if entry_format is EntryFormat.RAW:
        check_raw_write(schema)
        _refuse_arrow_options(options)
    else:
        arrow_schema(schema)
        schema_json = stored_schema(schema).json()
    return LogSettings.create(options.quorum, options.digest_type, entry_format, password, schema_json)


def _check_settings(settings: LogSettings, options: SourceOptions, schema: StructType, password: bytes) -> None:
    assert options.log is not None
    settings.check_password(password, options.log)
    asked: tuple[tuple[str, object, object], ...] = (
        ("entryFormat", options.entry_format and options.entry_format.value, settings.entry_format.value),
        ("ensembleSize", options.quorum.ensemble_size, settings.quorum.ensemble_size),
        ("writeQuorumSize", options.quorum.write_quorum_size, settings.quorum.write_quorum_size),
        ("ackQuorumSize", options.quorum.ack_quorum_size, settings.quorum.ack_quorum_size),
        ("digestType", options.digest_type.name, settings.digest_type.name),
    )
    for name, wanted, fixed in asked:
        if name.lower() in options.given and wanted != fixed:
            raise InvalidArgumentError(
                f"option {name}: log {options.log} was made with {fixed}, which cannot be changed to {wanted}; "
                "leave the option out, or write to another log"
            )
    if settings.entry_format is EntryFormat.RAW:
        check_raw_write(schema)
        _refuse_arrow_options(options)


def _check_columns(target: TargetLog) -> None:
    """Check the columns before tasks do. Only tasks know how Spark compares names, so both ways are tried."""
    try:
        plan = target.plan(ANY_CASE)
    except InvalidArgumentError:
        try:
            plan = target.plan(EXACT)
        except InvalidArgumentError:
            plan = None
        if plan is None:
            raise
    if plan is None:
        return
    arrow_schema(spark_schema(plan.schema))
    missing = [name for name in parse_schema(target.settings.schema_json).names if plan.schema.find(name) is None]
    if target.merge_schema and missing:
        _LOG.warning(
            "log %s: column %s is not in the data, and will be null in its rows", target.place.name, ", ".join(missing)
        )


@functools.lru_cache(64)
def _plan(schemas: SchemaHistory, written_json: str, names: Names, log: str, merge: bool) -> RowsPlan:
    return plan_rows(schemas, parse_schema(written_json), names, log, merge=merge)


def _refuse_arrow_options(options: SourceOptions) -> None:
    for name in ("compression", "entryBytes", "mergeSchema"):
        if name.lower() in options.given and (name != "mergeSchema" or options.merge_schema):
            raise InvalidArgumentError(f"option {name} is for entryFormat arrow; log {options.log} is raw")
