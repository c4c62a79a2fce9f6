"""Apache BookKeeper for Spark and for Python: ledgers, logs, and the way in, :func:`connect`.

Everything that programs need is a name of this package. Modules below it may change with any release.
A name is imported when it is first used, because each of Spark's Python workers imports this package.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bk_spark.aio import AsyncBookKeeper, connect_async
    from bk_spark.bookie.auth import providers as auth
    from bk_spark.bookie.blocking import BlockingClient
    from bk_spark.bookie.client import Client
    from bk_spark.bookie.config import ClientConfig
    from bk_spark.bookkeeper import BookKeeper, connect
    from bk_spark.datasource.stream_metrics import StreamMetrics
    from bk_spark.log.aio.log import AsyncLog
    from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
    from bk_spark.log.formats.settings import EntryFormat, LogSettings
    from bk_spark.log.formats.znodes import Policy
    from bk_spark.log.log import Log
    from bk_spark.log.reader import LogReader
    from bk_spark.log.store import LogStore
    from bk_spark.log.writer import LogWriter
    from bk_spark.protocol import errors
    from bk_spark.protocol.codes import DigestType
    from bk_spark.protocol.quorum import Quorum

# The program decides where the log messages of a library go.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.2.0.dev0"

__all__ = [
    "AsyncBookKeeper",
    "AsyncLog",
    "BlockingClient",
    "BookKeeper",
    "Client",
    "ClientConfig",
    "CommitMessage",
    "CommitRequest",
    "DigestType",
    "EntryFormat",
    "LedgerRange",
    "Log",
    "LogReader",
    "LogSettings",
    "LogStore",
    "LogWriter",
    "Policy",
    "Quorum",
    "StreamMetrics",
    "__version__",
    "auth",
    "connect",
    "connect_async",
    "errors",
]

_MODULE_OF: Final = {
    "AsyncBookKeeper": "aio",
    "AsyncLog": "log.aio.log",
    "BlockingClient": "bookie.blocking",
    "BookKeeper": "bookkeeper",
    "Client": "bookie.client",
    "ClientConfig": "bookie.config",
    "CommitMessage": "log.formats.message",
    "CommitRequest": "log.formats.message",
    "DigestType": "protocol.codes",
    "EntryFormat": "log.formats.settings",
    "LedgerRange": "log.formats.message",
    "Log": "log.log",
    "LogReader": "log.reader",
    "LogSettings": "log.formats.settings",
    "LogStore": "log.store",
    "LogWriter": "log.writer",
    "Policy": "log.formats.znodes",
    "Quorum": "protocol.quorum",
    "StreamMetrics": "datasource.stream_metrics",
    "auth": "bookie.auth.providers",
    "connect": "bookkeeper",
    "connect_async": "aio",
    "errors": "protocol.errors",
}


# Type checkers know the names above. Without this condition they would accept any other name, too.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        return module if name in ("auth", "errors") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
