"""Validation of the options that a user gave for one read or write."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from bk_spark.datasource.options.foreign import foreign_option
from bk_spark.datasource.options.options import OPTIONS, Group, SourceOptions, Use
from bk_spark.datasource.options.pulsar_options import Values
from bk_spark.log.positions.texts import Edge
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import did_you_mean

#: Options that Spark itself adds.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_QUORUM: Final = ("ensembleSize", "writeQuorumSize", "ackQuorumSize")
#: A read names exactly one of these.
_TOPICS: Final = ("pulsarTopic", "pulsarTopics", "pulsarTopicsPattern")
_SOURCES: Final = ("log", "logs", "logPattern", "ledgerId", "ledgerIds", *_TOPICS)
#: Options that say nothing about topics, and why.
_NOT_FOR_TOPICS: Final = {
    "entryFormat": "the entries of a topic have Pulsar's own format",
    "includeMetadata": "all columns are read if no schema says which",
    "logRoot": "topics are found by Pulsar's metadata (pulsarMetadataStore)",
    "startingOffsetsByTimestampStrategy": "a topic's messages are filtered by their times, so none is an empty read",
    "asOf": "a topic has no commits",
    "pushDownFilters": "entries of topics are not left out by conditions",
}
#: Alternatives: at most one of each may be given.
_EITHER: Final = (
    ("password", "passwordFile"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
)
#: Options that say where a read starts and ends.
_RANGE: Final = tuple(name for names in _EITHER[1:] for name in names)
_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS.values()}
_OF_TOPICS: Final = frozenset(key for key, option in _BY_KEY.items() if option.group is Group.PULSAR)
_USE_NAMES: Final = {
    Use.READ: "reading",
    Use.WRITE: "writing",
    Use.BATCH_READ: "batch reads",
    Use.STREAM_READ: "streaming reads",
    Use.BATCH_WRITE: "batch writes",
    Use.STREAM_WRITE: "streaming writes",
}
#: Spark 4.2 and 4.3 do not pass the options of a catalog table to sources in Python.
TABLES_REMEDY: Final = (
    "In SQL: Spark does not keep the options of CREATE TABLE … USING bookkeeper. Give them with each use, SELECT … "
    "FROM t WITH (metadataServiceUri = '…', log = '…') and INSERT INTO t WITH (…) …, or make a view, which keeps them: "
    "CREATE TEMPORARY VIEW v USING bookkeeper OPTIONS (metadataServiceUri '…', log '…')"
)
#: Spark adds this option when a table is created.
_OF_CREATE_TABLE: Final = "provider"


def parse_options(raw: Mapping[str, str], *, writing: bool, streaming: bool | None = False) -> SourceOptions:
    """Validate what a user gave.

    Parameters
    ----------
    raw
        The options' texts by name. Names are case-insensitive.
    writing
        Whether this is a write.
    streaming
        Whether this is a stream. None: not known yet, accept options of both.

    Raises
    ------
    InvalidArgumentError
        Names the option and the remedy.
    """
    _check_not_creating_table(raw)
    use = _use(writing, streaming)
    values: dict[str, Any] = {
        option.name: None if option.default is None else option.parse(option.default) for option in OPTIONS.values()
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
        values[option.name] = option.parse(value, "option ")
        given.add(lowered)
    _check_together(values, given, use)
    _check_quorum(values, given)
    return SourceOptions(given=frozenset(given), **{field: values[option.name] for field, option in OPTIONS.items()})


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


def _check_quorum(values: Mapping[str, Any], given: set[str]) -> None:
    try:
        Quorum(*(values[name] for name in _QUORUM))
    except InvalidArgumentError as error:
        # The first of each pair must not be smaller than the second.
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
        _check_source(values, given)
    else:
        _check_target(values, given)
    for one, other in itertools.chain.from_iterable(itertools.combinations(names, 2) for names in _EITHER):
        if values[one] is not None and values[other] is not None:
            raise InvalidArgumentError(f"give one of the options {one} and {other}, not both")
    _check_strategy(values)
    if use is Use.BATCH_WRITE and (values["txnAppId"] is None) != (values["txnVersion"] is None):
        raise InvalidArgumentError("options txnAppId and txnVersion go together: give both or neither")
    least, most = values["minEntriesPerTrigger"], values["maxEntriesPerTrigger"]
    if least is None and "maxtriggerdelay" in given:
        raise InvalidArgumentError("option maxTriggerDelay is the longest wait for minEntriesPerTrigger: give both")
    if least is not None and most is not None and least > most:
        raise InvalidArgumentError(f"minEntriesPerTrigger, {least}, is more than maxEntriesPerTrigger, {most}")
    if use is Use.BATCH_READ:
        _check_batch_range(values)


def _check_target(values: Mapping[str, Any], given: set[str]) -> None:
    if values["logColumn"] is None:
        if values["log"] is None:
            raise InvalidArgumentError(
                'option log is missing: name the log to write to, .option("log", "…"), or by logColumn a column that '
                "names the log of each row"
            )
        if "maxlogs" in given:
            raise InvalidArgumentError("option maxLogs is for writes to several logs: give logColumn too")
    elif values["log"] is not None:
        raise InvalidArgumentError("give one of the options log and logColumn, not both")
    elif values["mergeSchema"]:
        raise InvalidArgumentError(
            "option mergeSchema changes the columns of one log; logColumn names several: leave one of them out"
        )


def _check_strategy(values: Mapping[str, Any]) -> None:
    times = ("startingTimestamp", "startingOffsetsByTimestamp")
    if values["startingOffsetsByTimestampStrategy"] is not None and all(values[name] is None for name in times):
        raise InvalidArgumentError(
            "option startingOffsetsByTimestampStrategy says what to do without an entry at the time where the read "
            f"starts: give {' or '.join(times)} too"
        )


def _check_source(values: Mapping[str, Any], given: set[str]) -> None:
    named = [name for name in _SOURCES if values[name] is not None]
    if len(named) != 1:
        found = f"{' and '.join(named)} are" if named else "none of them is"
        raise InvalidArgumentError(
            f'name what to read by one of the options {", ".join(_SOURCES)}, such as .option("log", "…"): {found} given'
        )
    if named[0] in _TOPICS:
        _check_topics(values, given)
    else:
        _check_no_message_ids(values)
        for name in given & _OF_TOPICS:
            raise InvalidArgumentError(f"option {_BY_KEY[name].name} is for topics of Pulsar ({', '.join(_TOPICS)})")
    if named[0].startswith("ledger"):
        for end, name in itertools.product(("starting", "ending"), ("Timestamp", "OffsetsByTimestamp")):
            if values[end + name] is not None:
                raise InvalidArgumentError(
                    f"option {end}{name} is for logs, which know when their entries were committed; {named[0]} names "
                    f"ledgers, which do not: use {end}Offsets with entry ids"
                )
        if values["asOf"] is not None:
            raise InvalidArgumentError(
                f"option asOf is for logs, which have commits; {named[0]} names ledgers, which have none: use "
                "endingOffsets with entry ids"
            )


def _check_topics(values: Mapping[str, Any], given: set[str]) -> None:
    for name, why in _NOT_FOR_TOPICS.items():
        if name.lower() in given:
            raise InvalidArgumentError(f"option {name} is not for topics of Pulsar: {why}")
    if "pulsarbadvalues" in given and values["pulsarValues"] is not Values.SCHEMA:
        raise InvalidArgumentError("option pulsarBadValues is for values that are decoded: set pulsarValues to schema")
    if values["pulsarReadCompacted"]:
        for name in _RANGE:
            if name.lower() in given:
                raise InvalidArgumentError(
                    f"option {name} is not for a compacted view, which is read as a whole: leave it out, or "
                    "pulsarReadCompacted"
                )
    for option in ("startingOffsets", "endingOffsets"):
        positions = values[option]
        for name, one in positions.items() if isinstance(positions, Mapping) else ():
            if isinstance(one, int):
                raise InvalidArgumentError(
                    f"option {option} gives topic {name} the number {one}: topics have no numbers of entries; give the "
                    'id of a message, such as "12:0", -2 for the first one, or -1 for the end'
                )


def _check_no_message_ids(values: Mapping[str, Any]) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        positions = values[option]
        for name, one in positions.items() if isinstance(positions, Mapping) else ():
            if isinstance(one, MessageIdData):
                raise InvalidArgumentError(
                    f"option {option} gives {name} the id of a message of Pulsar, {one}: give an offset, a number"
                )


def _check_batch_range(values: Mapping[str, Any]) -> None:
    """Refuse a batch that starts at the end or ends at the start: it is always empty."""
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
    names = [option.name for option in OPTIONS.values()]
    nearest = did_you_mean(key, names) or f"; known are {', '.join(names)}"
    return f"unknown option {key!r}{nearest}"
