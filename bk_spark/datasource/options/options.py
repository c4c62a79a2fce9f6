"""Options of one read or write, validated by the table of options."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bk_spark.bookie.passwords import password_in
from bk_spark.datasource.options.foreign import foreign_option
from bk_spark.datasource.options.table import OPTIONS, Use
from bk_spark.datasource.options.values import Edge, Positions, WrongValueError, did_you_mean
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum

#: Options that Spark itself adds.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_QUORUM: Final = ("ensembleSize", "writeQuorumSize", "ackQuorumSize")
#: A read names exactly one of these.
_SOURCES: Final = ("log", "logs", "logPattern", "ledgerId", "ledgerIds")
#: Two ways to say one thing: at most one of each pair.
_EITHER: Final = (
    ("password", "passwordFile"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)
_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}
_USE_NAMES: Final = {
    Use.READ: "reading",
    Use.WRITE: "writing",
    Use.BATCH_READ: "batch reads",
    Use.STREAM_READ: "streaming reads",
    Use.BATCH_WRITE: "batch writes",
    Use.STREAM_WRITE: "streaming writes",
}
#: Spark 4.2 and 4.3 hand no option of a table in the catalog to sources in Python.
TABLES_REMEDY: Final = (
    "In SQL: Spark does not keep the options of CREATE TABLE … USING bookkeeper. Give them with each use, SELECT … "
    "FROM t WITH (metadataServiceUri = '…', log = '…') and INSERT INTO t WITH (…) …, or make a view, which keeps them: "
    "CREATE TEMPORARY VIEW v USING bookkeeper OPTIONS (metadataServiceUri '…', log '…')"
)
#: Spark adds it to the options when a table is made.
_OF_CREATE_TABLE: Final = "provider"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of one read or write; ``given`` holds the lower-cased names the user set.

    What is of no use in this read or write has its default. Timestamps are milliseconds of Unix time.
    """

    metadata_service_uri: str
    log_root: str
    log: str | None
    logs: tuple[str, ...] | None
    log_pattern: str | None
    ledger_id: int | None
    ledger_ids: tuple[int, ...] | None
    starting_offsets: Positions | None
    starting_timestamp_ms: int | None
    ending_offsets: Positions | None
    ending_timestamp_ms: int | None
    fail_on_data_loss: bool
    push_down_filters: bool
    entry_format: EntryFormat | None
    include_metadata: bool
    compression: str | None
    entry_bytes: int
    split_bytes: int
    min_partitions: int
    max_records_per_partition: int | None
    max_entries_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_entries_per_trigger: int | None
    max_trigger_delay_ms: int
    quorum: Quorum
    digest_type: DigestType
    txn_app_id: str | None
    txn_version: int | None
    fence_tail: bool
    skip_committed_batches: bool
    ledger_roll_bytes: int
    ledger_roll_interval_ms: int
    given: frozenset[str]
    _password: str | None = field(repr=False)
    _password_file: str | None

    @property
    def ledgers(self) -> tuple[int, ...] | None:
        """The ledgers of a read that names ledgers; None where it names logs."""
        return self.ledger_ids if self.ledger_id is None else (self.ledger_id,)

    def password(self) -> bytes:
        """The password; empty where none was given. Raises InvalidArgumentError for an unreadable file."""
        if self._password_file is None:
            return (self._password or "").encode()
        remedy = "it must be readable where the driver and the executors run"
        return password_in(self._password_file, "option passwordFile", remedy)


def parse_options(raw: Mapping[str, str], *, writing: bool, streaming: bool | None = False) -> SourceOptions:
    """Validate what a user gave. Raises InvalidArgumentError naming the option and the remedy.

    ``streaming`` None: it is not known yet whether this is a batch or a stream, what is good for either passes.
    """
    _check_not_creating_table(raw)
    use = _use(writing, streaming)
    values: dict[str, Any] = {
        option.name: None if option.default is None else option.parse(option.default) for option in OPTIONS
    }
    given = set()
    for key, value in raw.items():
        lowered = key.lower()
        if lowered in _SPARKS_OWN:
            continue
        option = _BY_KEY.get(lowered)
        if option is None:
            raise InvalidArgumentError(_unknown(key))
        if not option.uses & use:
            here = "write" if writing else "read"
            raise InvalidArgumentError(
                f"option {option.name} is for {_USE_NAMES[option.uses]} only: leave it out of this "
                f"{'streaming ' if streaming else ''}{here}"
            )
        try:
            values[option.name] = option.parse(value)
        except WrongValueError as wrong:
            shown = "" if option.secret else f" {value!r}"
            raise InvalidArgumentError(f"option {option.name}:{shown} {wrong}") from None
        given.add(lowered)
    _check_together(values, given, use)
    return SourceOptions(
        metadata_service_uri=values["metadataServiceUri"],
        log_root=values["logRoot"],
        log=values["log"],
        logs=values["logs"],
        log_pattern=values["logPattern"],
        ledger_id=values["ledgerId"],
        ledger_ids=values["ledgerIds"],
        starting_offsets=values["startingOffsets"],
        starting_timestamp_ms=values["startingTimestamp"],
        ending_offsets=values["endingOffsets"],
        ending_timestamp_ms=values["endingTimestamp"],
        fail_on_data_loss=values["failOnDataLoss"],
        push_down_filters=values["pushDownFilters"],
        entry_format=EntryFormat(values["entryFormat"]) if values["entryFormat"] else None,
        include_metadata=values["includeMetadata"],
        compression=None if values["compression"] == "none" else values["compression"],
        entry_bytes=values["entryBytes"],
        split_bytes=values["splitBytes"],
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        max_entries_per_trigger=values["maxEntriesPerTrigger"],
        max_bytes_per_trigger=values["maxBytesPerTrigger"],
        min_entries_per_trigger=values["minEntriesPerTrigger"],
        max_trigger_delay_ms=values["maxTriggerDelay"],
        quorum=_quorum(values, given),
        digest_type=DigestType[values["digestType"]],
        txn_app_id=values["txnAppId"],
        txn_version=values["txnVersion"],
        fence_tail=values["fenceTail"],
        skip_committed_batches=values["skipCommittedBatches"],
        ledger_roll_bytes=values["ledgerRollBytes"],
        ledger_roll_interval_ms=values["ledgerRollInterval"],
        given=frozenset(given),
        _password=values["password"],
        _password_file=values["passwordFile"],
    )


def _check_not_creating_table(raw: Mapping[str, str]) -> None:
    if any(key.lower() == _OF_CREATE_TABLE for key in raw):
        raise InvalidArgumentError(
            "CREATE TABLE … USING bookkeeper makes a table only with its columns and without options, such as CREATE "
            f"TABLE t (value BINARY) USING bookkeeper. {TABLES_REMEDY}"
        )


def _use(writing: bool, streaming: bool | None) -> Use:
    uses = Use.WRITE if writing else Use.READ
    if streaming is None:
        return uses
    return uses & (Use.STREAM_READ | Use.STREAM_WRITE if streaming else Use.BATCH_READ | Use.BATCH_WRITE)


def _quorum(values: Mapping[str, Any], given: set[str]) -> Quorum:
    try:
        return Quorum(*(values[name] for name in _QUORUM))
    except InvalidArgumentError as error:
        # Each pair in which the first is to be the larger one and is not.
        wrong = [pair for pair in itertools.combinations(_QUORUM, 2) if values[pair[0]] < values[pair[1]]]
        own = [f"lower {low} or raise {high}" for high, low in wrong if {high.lower(), low.lower()} <= given]
        defaults = [name for name in _QUORUM if name.lower() not in given and any(name in pair for pair in wrong)]
        remedy = "; ".join(own) or f"set {' and '.join(defaults)} too, not given here"
        raise InvalidArgumentError(f"{error.message.rpartition(': ')[0]}: {remedy}") from None


def _check_together(values: Mapping[str, Any], given: set[str], use: Use) -> None:
    if values["metadataServiceUri"] is None:
        raise InvalidArgumentError(
            "option metadataServiceUri is missing: say where the cluster is, for example "
            '.option("metadataServiceUri", "zk://localhost:2181/ledgers")' + ("" if given else f". {TABLES_REMEDY}")
        )
    if use in Use.READ:
        _check_source(values)
    elif values["log"] is None:
        raise InvalidArgumentError('option log is missing: name the log to write to, .option("log", "…")')
    for one, other in _EITHER:
        if values[one] is not None and values[other] is not None:
            raise InvalidArgumentError(f"give one of the options {one} and {other}, not both")
    if use is Use.BATCH_WRITE and (values["txnAppId"] is None) != (values["txnVersion"] is None):
        raise InvalidArgumentError("options txnAppId and txnVersion go together: give both or neither")
    least, most = values["minEntriesPerTrigger"], values["maxEntriesPerTrigger"]
    if least is None and "maxtriggerdelay" in given:
        raise InvalidArgumentError("option maxTriggerDelay is the longest wait for minEntriesPerTrigger: give both")
    if least is not None and most is not None and least > most:
        raise InvalidArgumentError(f"minEntriesPerTrigger, {least}, is more than maxEntriesPerTrigger, {most}")
    if use is Use.BATCH_READ:
        _check_batch_range(values)


def _check_source(values: Mapping[str, Any]) -> None:
    named = [name for name in _SOURCES if values[name] is not None]
    if len(named) != 1:
        found = f"{' and '.join(named)} are" if named else "none of them is"
        raise InvalidArgumentError(
            f'name what to read by one of the options {", ".join(_SOURCES)}, such as .option("log", "…"): {found} given'
        )
    if named[0].startswith("ledger"):
        for name in ("startingTimestamp", "endingTimestamp"):
            if values[name] is not None:
                raise InvalidArgumentError(
                    f"option {name} is for logs, which know when their entries were committed; {named[0]} names "
                    f"ledgers, which do not: use {name.replace('Timestamp', 'Offsets')} with entry ids"
                )


def _check_batch_range(values: Mapping[str, Any]) -> None:
    """A batch that starts at the end, or ends at the start, would be empty for ever."""
    for name, edge, other in (
        ("startingOffsets", Edge.LATEST, "earliest"),
        ("endingOffsets", Edge.EARLIEST, "latest"),
    ):
        found = values[name]
        if edge is found or (isinstance(found, dict) and edge in found.values()):
            raise InvalidArgumentError(
                f"option {name}: {edge.value} makes a batch read nothing; give {other}, or offsets"
            )


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return 'load() and save() take no path here: name the log with .option("log", "…")'
    if key.lower() in ("orphanretention", "deletegrace"):
        return f"option {key!r} is the log's, not a write's: set it with bkctl log retention LOG, or Log.set_policy"
    foreign = foreign_option(key)
    if foreign is not None:
        return f"unknown option {key!r}: {foreign}"
    names = [option.name for option in OPTIONS]
    nearest = did_you_mean(key, names) or f"; known are {', '.join(names)}"
    return f"unknown option {key!r}{nearest}"
