"""Logs: named, ordered, append-only sequences of entries, kept as a list of ranges of ledgers.

The list and everything else about a log is in ZooKeeper; entries are in ledgers. Start with :class:`LogStore`.
Formats and rules: docs/design/log.md.

Names are imported when they are first used: a Spark task that reads entries needs little of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bk_spark.log.core.plan import CommitResult, CommitStatus
    from bk_spark.log.core.steps import LedgerRegistrar
    from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
    from bk_spark.log.formats.names import DEFAULT_ROOT, check_log_name
    from bk_spark.log.formats.segment import Segment, SegmentTable
    from bk_spark.log.formats.settings import EntryFormat, LogSettings
    from bk_spark.log.formats.znodes import Policy
    from bk_spark.log.io.snapshot import LogSnapshot
    from bk_spark.log.log import Log
    from bk_spark.log.reader import LogBlock, LogReader
    from bk_spark.log.store import LogStore
    from bk_spark.log.writer import LogWriter

__all__ = [
    "DEFAULT_ROOT",
    "CommitMessage",
    "CommitRequest",
    "CommitResult",
    "CommitStatus",
    "EntryFormat",
    "LedgerRange",
    "LedgerRegistrar",
    "Log",
    "LogBlock",
    "LogReader",
    "LogSettings",
    "LogSnapshot",
    "LogStore",
    "LogWriter",
    "Policy",
    "Segment",
    "SegmentTable",
    "check_log_name",
]

_MODULE_OF: Final = {
    "DEFAULT_ROOT": "formats.names",
    "CommitMessage": "formats.message",
    "CommitRequest": "formats.message",
    "CommitResult": "core.plan",
    "CommitStatus": "core.plan",
    "EntryFormat": "formats.settings",
    "LedgerRange": "formats.message",
    "LedgerRegistrar": "core.steps",
    "Log": "log",
    "LogBlock": "reader",
    "LogReader": "reader",
    "LogSettings": "formats.settings",
    "LogSnapshot": "io.snapshot",
    "LogStore": "store",
    "LogWriter": "writer",
    "Policy": "formats.znodes",
    "Segment": "formats.segment",
    "SegmentTable": "formats.segment",
    "check_log_name": "formats.names",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
