"""How an option of the data source is declared: a setting, the uses in which it may be given, and its chapter."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from bk_spark.settings.kinds import Kind
from bk_spark.settings.setting import Setting, declare


class Use(enum.Flag):
    """Ways in which Spark uses the data source."""

    BATCH_READ = enum.auto()
    STREAM_READ = enum.auto()
    BATCH_WRITE = enum.auto()
    STREAM_WRITE = enum.auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE


class Group(enum.Enum):
    """Chapters of the page of documentation."""

    WHERE = "Where the data is"
    SOURCE = "What is read"
    RANGE = "Where a read starts and ends"
    FORM = "Entry format"
    PULSAR = "Topics of Apache Pulsar"
    TASKS = "Tasks of a read"
    PACE = "Size of micro-batches"
    NEW_LOG = "New logs"
    WRITING = "Writing"


@dataclass(frozen=True, slots=True)
class Option(Setting):
    """A setting, the uses in which it may be given, and its chapter."""

    uses: Use = Use.ALL
    group: Group = Group.WHERE


def option(
    name: str,
    default: str | None,
    kind: Kind,
    uses: Use,
    group: Group,
    doc: str,
    secret: bool = False,
) -> Any:
    """Declare an option as a field of a dataclass. ``default`` is text, as users give it; None: there is no default."""
    return declare(Option(name, default, kind, doc, secret=secret, uses=uses, group=group))
