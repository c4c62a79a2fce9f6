"""The one table of options: it validates what users give, and the reference is printed from it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bk_spark.log.settings import EntryFormat
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
#: Options that Spark itself adds.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


class _WrongValueError(Exception):
    """What is wrong with a value; completed to an error by the caller, who knows the option."""


def _text(value: str) -> str:
    if not value:
        raise _WrongValueError("is empty")
    return value


def _anything(value: str) -> str:
    return value


def _boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise _WrongValueError("must be true or false")
    return value.lower() == "true"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise _WrongValueError("must be a whole number") from None
        if not least <= number <= most:
            raise _WrongValueError(f"must be within {least} and {most}")
        return number

    return parse


def _size(least: int, most: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise _WrongValueError("must be a number of bytes, or one with k, m or g")
        size = int(match[1]) * _UNITS[match[2].lower()]
        if not least <= size <= most:
            raise _WrongValueError(f"must be within {least} and {most} bytes")
        return size

    return parse


def _choice(*names: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        for name in names:
            if value.lower() == name.lower():
                return name
        raise _WrongValueError(f"must be one of {', '.join(names)}{_did_you_mean(value, names)}")

    return parse


@dataclass(frozen=True, slots=True)
class Option:
    """``default`` None means: no default, the option may be absent."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    read: bool
    write: bool
    doc: str
    secret: bool = False


OPTIONS: Final = (
    Option(
        "metadataServiceUri",
        _text,
        None,
        True,
        True,
        "Where the cluster is, in Apache's syntax: zk+hierarchical://host:port;host:port/ledgers. Required.",
    ),
    Option("log", _text, None, True, True, "Name of the log. Writing makes a log that does not exist."),
    Option("ledgerId", _whole(0, 2**63 - 1), None, True, False, "Read this ledger instead of a log, whoever wrote it."),
    Option(
        "entryFormat",
        _choice("raw", "arrow"),
        None,
        True,
        True,
        "raw: one row, one entry. arrow: many rows an entry, as an Arrow IPC stream. "
        "Default: what the log was made with; raw for a new log and for ledgerId.",
    ),
    Option("includeMetadata", _boolean, False, True, False, "arrow: add log, offset, ledgerId, entryId, timestamp."),
    Option("minPartitions", _whole(1, 1_000_000), 1, True, False, "Cut the read into at least so many tasks."),
    Option(
        "splitBytes",
        _size(1024, 2**40),
        32 * 1024**2,
        True,
        False,
        "Bytes of entries that one task reads, about.",
    ),
    Option("password", _anything, None, True, True, "Password of the log's or ledger's ledgers.", secret=True),
    Option("passwordFile", _text, None, True, True, "File, readable in driver and executors, that holds the password."),
    Option("logRoot", _text, "/bk_spark/logs", True, True, "Where logs lie in ZooKeeper."),
    Option("ensembleSize", _whole(1, 64), 3, False, True, "New log: bookies that a ledger is spread over."),
    Option("writeQuorumSize", _whole(1, 64), 3, False, True, "New log: bookies that get each entry."),
    Option("ackQuorumSize", _whole(1, 64), 2, False, True, "New log: bookies that must hold an entry durably."),
    Option("digestType", _choice("CRC32C", "CRC32", "HMAC", "DUMMY"), "CRC32C", False, True, "New log: entry digest."),
    Option("compression", _choice("none", "lz4", "zstd"), "none", False, True, "arrow only: compression of entries."),
    Option("entryBytes", _size(1024, 2**26), 1024**2, False, True, "arrow only: bytes an entry aims at."),
    Option(
        "txnAppId",
        _text,
        None,
        False,
        True,
        "With txnVersion: name under which this write happens once, however often it is repeated.",
    ),
    Option("txnVersion", _whole(0, 2**63 - 1), None, False, True, "Number of the write within txnAppId, increasing."),
)
_QUORUM: Final = ("ensembleSize", "writeQuorumSize", "ackQuorumSize")
_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options of one read or write; ``given`` holds the lower-cased names the user set."""

    metadata_service_uri: str
    log: str | None
    ledger_id: int | None
    entry_format: EntryFormat | None
    include_metadata: bool
    min_partitions: int
    split_bytes: int
    log_root: str
    quorum: Quorum
    digest_type: DigestType
    compression: str | None
    entry_bytes: int
    txn_app_id: str | None
    txn_version: int | None
    given: frozenset[str]
    _password: str | None = field(repr=False)
    _password_file: str | None

    def password(self) -> bytes:
        """The password; empty where none was given. Raises InvalidArgumentError for an unreadable file."""
        if self._password_file is None:
            return (self._password or "").encode()
        try:
            return Path(self._password_file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise InvalidArgumentError(
                f"option passwordFile: {self._password_file} cannot be read ({error.strerror}); it must be "
                "readable where the driver and the executors run"
            ) from error


def parse_options(raw: Mapping[str, str], *, writing: bool) -> SourceOptions:
    """Validate what a user gave. Raises InvalidArgumentError naming the option and the remedy."""
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS}
    given = set()
    for key, text in raw.items():
        lowered = key.lower()
        if lowered in _SPARKS_OWN:
            continue
        option = _BY_KEY.get(lowered)
        if option is None:
            raise InvalidArgumentError(_unknown(key))
        if not (option.write if writing else option.read):
            other, here = ("reading", "write") if writing else ("writing", "read")
            raise InvalidArgumentError(f"option {option.name} is for {other} only: leave it out of this {here}")
        try:
            values[option.name] = option.parse(text)
        except _WrongValueError as wrong:
            shown = "" if option.secret else f" {text!r}"
            raise InvalidArgumentError(f"option {option.name}:{shown} {wrong}") from None
        given.add(lowered)
    _check_together(values, writing)
    return SourceOptions(
        metadata_service_uri=values["metadataServiceUri"],
        log=values["log"],
        ledger_id=values["ledgerId"],
        entry_format=EntryFormat(values["entryFormat"]) if values["entryFormat"] else None,
        include_metadata=values["includeMetadata"],
        min_partitions=values["minPartitions"],
        split_bytes=values["splitBytes"],
        log_root=values["logRoot"],
        quorum=_quorum(values, given),
        digest_type=DigestType[values["digestType"]],
        compression=None if values["compression"] == "none" else values["compression"],
        entry_bytes=values["entryBytes"],
        txn_app_id=values["txnAppId"],
        txn_version=values["txnVersion"],
        given=frozenset(given),
        _password=values["password"],
        _password_file=values["passwordFile"],
    )


def _quorum(values: Mapping[str, Any], given: set[str]) -> Quorum:
    try:
        return Quorum(*(values[name] for name in _QUORUM))
    except InvalidArgumentError as error:
        defaults = [name for name in _QUORUM if name.lower() not in given]
        if not defaults:
            raise
        raise InvalidArgumentError(f"{error.message}; set {' and '.join(defaults)} too, not given here") from None


def _check_together(values: Mapping[str, Any], writing: bool) -> None:
    if values["metadataServiceUri"] is None:
        raise InvalidArgumentError(
            "option metadataServiceUri is missing: say where the cluster is, for example "
            '.option("metadataServiceUri", "zk://localhost:2181/ledgers")'
        )
    if writing and values["log"] is None:
        raise InvalidArgumentError('option log is missing: name the log to write to, .option("log", "…")')
    if not writing and (values["log"] is None) == (values["ledgerId"] is None):
        found = "neither of them is" if values["log"] is None else "both are"
        raise InvalidArgumentError(
            f'name what to read by one of the options log and ledgerId, such as .option("log", "…"): {found} given'
        )
    if values["password"] is not None and values["passwordFile"] is not None:
        raise InvalidArgumentError("give one of the options password and passwordFile, not both")
    if (values["txnAppId"] is None) != (values["txnVersion"] is None):
        raise InvalidArgumentError("options txnAppId and txnVersion go together: give both or neither")


def _unknown(key: str) -> str:
    if key.lower() in ("path", "paths"):
        return 'load() and save() take no path here: name the log with .option("log", "…")'
    names = [option.name for option in OPTIONS]
    nearest = _did_you_mean(key, names) or f"; known are {', '.join(names)}"
    return f"unknown option {key!r}{nearest}"


def _did_you_mean(word: str, names: tuple[str, ...] | list[str]) -> str:
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def reference() -> str:
    """docs/options.md: the table of options."""
    lines = [
        "# Options of the data source",
        "",
        'For `spark.read.format("bookkeeper")` and `df.write.format("bookkeeper")`. Names are not case-sensitive; an',
        "option that does not exist is an error. This page is printed by `python -m bk_spark.datasource.options`.",
        "",
        "| option | for | default | meaning |",
        "|---|---|---|---|",
    ]
    for option in OPTIONS:
        use = "read, write" if option.read and option.write else "read" if option.read else "write"
        default = "" if option.default is None else f"`{_shown(option.default)}`"
        lines.append(f"| `{option.name}` | {use} | {default} | {option.doc} |")
    lines += ["", "Sizes are in bytes; `k`, `m` and `g` multiply by 1024, 1024² and 1024³.", ""]
    return "\n".join(lines)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


if __name__ == "__main__":
    print(reference(), end="")
