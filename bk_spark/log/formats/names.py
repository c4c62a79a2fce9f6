"""Names of logs and the paths of their znodes.

::

    <root>/<log>                              head
    <root>/<log>/id-<log id>                  empty; exists as long as this log does
    <root>/<log>/deleting-<log id>            empty; replaces id-<log id> while the log is being deleted
    <root>/<log>/settings
    <root>/<log>/pages/<n>                    n in 10 decimal digits
    <root>/<log>/apps/<app>
    <root>/<log>/ledgers/<app>/<run>          empty; written whenever a ledger of the run is condemned
    <root>/<log>/ledgers/<app>/<run>/<id>     registration of a ledger, id in decimal
    <root>/<log>/ledgers/+writers/<id>/<id>   the same for log writers: writer's id, ledger's id
    <root>/<log>/ledgers/+index/<id>/<id>     the same for index ledgers: id of the move, ledger's id
    <root>/<log>/appended/<id>                a ledger that is part of the log but was not made for it
    <root>/<log>/owner                        the log writer that holds the tail open, ephemeral
    <root>/<log>/policy                       retention
    <root>/<log>/maintenance                  when maintenance last began
    <root>/<log>/lock                         queue of the advisory lock
    <root>/<log>/lock/<token>-<n>             a place in it, ephemeral; the lowest n holds the lock

The znode named after the log id ties a transaction to one log. A log that is created again under an old name has
another id. So an operation that checks the znode fails, whatever versions the new log's znodes have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.ledger_paths import MAX_LEDGER_ID

DEFAULT_ROOT: Final = "/bk_spark/logs"
#: Key in the custom metadata of every ledger made for a log. The value is the log's name and id, for people. It also
#: keeps other logs from taking the ledger, because its own log deletes it.
MADE_FOR: Final = "bk_spark.log"

#: Used in place of an escaped application name, which never contains a plus sign.
WRITERS: Final = "+writers"
INDEX: Final = "+index"

# Kafka's topic names and a leading underscore are allowed. A leading dot or dash is not: "." and ".." are not valid
# znode names, and a leading dash looks like an option on a command line.
_LOG_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_LEDGER_ID: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_MAX_ID_BYTES: Final = 255


def check_log_name(name: str) -> str:
    """Return ``name``, or raise InvalidArgumentError if it is not a valid log name."""
    if not is_log_name(name):
        raise InvalidArgumentError(
            f"log name {name!r} is not allowed: use 1 to 255 of the characters A-Z a-z 0-9 . _ - "
            "and start with a letter, a digit or an underscore"
        )
    return name


def is_log_name(name: str) -> bool:
    """Whether ``name`` is valid for a log. Children of a root with other names are not logs."""
    return _LOG_NAME.fullmatch(name) is not None


def ledger_id_of(name: str) -> int | None:
    """Return the ledger that a child of a run or of ``appended`` stands for. None if somebody else made the znode: its
    name is not one that :class:`LogPaths` gives for a ledger."""
    ledger_id = int(name) if _LEDGER_ID.fullmatch(name) is not None else MAX_LEDGER_ID + 1
    return ledger_id if ledger_id <= MAX_LEDGER_ID else None


def ledger_ids_of(names: Iterable[str]) -> list[int]:
    """Return the ledgers among the children of a run or of ``appended``. Znodes of others are left out."""
    return [ledger_id for ledger_id in map(ledger_id_of, names) if ledger_id is not None]


def escape_id(kind: str, text: str) -> str:
    """Encode ``text`` (an application's name or a run id: any string) as the name of a znode.

    UTF-8 bytes other than ``A-Z a-z 0-9 _ - ~`` become ``%XX``, including dots, so that no result is ``.`` or
    ``..``. Different texts give different results. ``kind`` is for the error message.
    """
    size_bytes = utf8_length(kind, text)
    if not 1 <= size_bytes <= _MAX_ID_BYTES:
        raise InvalidArgumentError(
            f"{kind} must be 1 to {_MAX_ID_BYTES} bytes of UTF-8, not {size_bytes}: {text[:40]!r}"
        )
    return quote(text, safe="").replace(".", "%2E")


def utf8_length(kind: str, text: str) -> int:
    """Return the length of ``text`` in UTF-8. Raises InvalidArgumentError, naming ``kind``, for lone surrogates."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{kind} {text[:40]!r} is not valid Unicode text") from error


def check_root(root: str) -> str:
    """Return ``root``, or raise InvalidArgumentError if logs cannot be stored under this path."""
    parts = root.split("/")
    if len(parts) < 2 or parts[0] != "" or any(part in ("", ".", "..") for part in parts[1:]):
        raise InvalidArgumentError(
            f"root of logs {root!r} must be an absolute ZooKeeper path below /, without a / at its end"
        )
    return root


def clock_path(root: str) -> str:
    """Return the znode that is written to learn the servers' time. No log can have its name."""
    return f"{root}/+clock"


def readers_path(root: str) -> str:
    """Return the znode that holds the progress of streaming queries. No log can have its name."""
    return f"{root}/+readers"


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Paths of one log. ``log_id`` is a UUID in its usual text form."""

    root: str
    name: str
    log_id: str

    @property
    def head(self) -> str:
        """The log's first znode, message ``Head``. It exists as long as the log does."""
        return head_path(self.root, self.name)

    @property
    def identity(self) -> str:
        """The znode that ties transactions to this log. Its deletion refuses all changes still under way."""
        return f"{self.head}/id-{self.log_id}"

    @property
    def deleting(self) -> str:
        """The znode that exists from the beginning of this log's deletion to its end."""
        return f"{self.head}/deleting-{self.log_id}"

    @property
    def settings(self) -> str:
        """The znode of the settings, message ``Settings``."""
        return settings_path(self.root, self.name)

    @property
    def pages(self) -> str:
        """The parent znode of the pages."""
        return f"{self.head}/pages"

    def page(self, number: int) -> str:
        """Return the znode of page ``number``, message ``SegmentPage``."""
        return f"{self.pages}/{number:010d}"

    @property
    def apps(self) -> str:
        """The parent znode of the applications."""
        return f"{self.head}/apps"

    def app(self, app: str) -> str:
        """Return the znode of what application ``app`` committed last. Raises InvalidArgumentError as
        :func:`escape_id`."""
        return f"{self.apps}/{app_key(app)}"

    @property
    def ledgers(self) -> str:
        """The parent znode of all registrations: below it are applications, runs and ledgers."""
        return f"{self.head}/ledgers"

    def run(self, app: str, run: str) -> str:
        """Return the znode of a run. Raises InvalidArgumentError as :func:`escape_id`."""
        return self.run_at(app_key(app), run_key(run))

    def registration(self, app: str, run: str, ledger_id: int) -> str:
        """Return the znode of a ledger's registration. Raises InvalidArgumentError as :func:`escape_id`."""
        return f"{self.run(app, run)}/{ledger_id}"

    def run_at(self, app_key: str, run_key: str) -> str:
        """Return the znode of the run with these znode names: :func:`app_key` and :func:`run_key`, or ``WRITERS`` or
        ``INDEX`` and a UUID."""
        return f"{self.runs_at(app_key)}/{run_key}"

    def runs_at(self, app_key: str) -> str:
        """Return the parent znode of an application's runs."""
        return f"{self.ledgers}/{app_key}"

    @property
    def appended(self) -> str:
        """The parent znode of the ledgers that are part of the log but were not made for it."""
        return f"{self.head}/appended"

    def appended_ledger(self, ledger_id: int) -> str:
        """Return the znode that records that such a ledger is in the log, message ``Appended``."""
        return f"{self.appended}/{ledger_id}"

    @property
    def owner(self) -> str:
        """The ephemeral znode of the log writer that holds the tail open, message ``Owner``."""
        return f"{self.head}/owner"

    @property
    def policy(self) -> str:
        """The znode of the retention, message ``Policy``. It is created with the log."""
        return f"{self.head}/policy"

    @property
    def maintenance(self) -> str:
        """The znode that is written when maintenance begins, message ``Maintenance``."""
        return f"{self.head}/maintenance"

    @property
    def lock(self) -> str:
        """The parent znode of the places in the advisory lock's queue."""
        return f"{self.head}/lock"

    @property
    def clock(self) -> str:
        """The znode that is written to learn the servers' time. All logs of the root share it."""
        return clock_path(self.root)


def app_key(app: str) -> str:
    """Return the znode name for an application's name."""
    return escape_id("application", app)


def run_key(run: str) -> str:
    """Return the znode name for a run id. Raises InvalidArgumentError as :func:`escape_id`."""
    return escape_id("run", run)


def head_path(root: str, name: str) -> str:
    """Return the path of a log's head, which needs no log id."""
    return f"{root}/{name}"


def settings_path(root: str, name: str) -> str:
    """Return the path of a log's settings, which needs no log id: they hold it."""
    return f"{root}/{name}/settings"
