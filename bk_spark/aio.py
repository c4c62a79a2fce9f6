"""One connection to a cluster's logs for an event loop: what :func:`bk_spark.connect_async` returns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.same_docs import documented_as
from bk_spark.bookkeeper import BookKeeper, connect
from bk_spark.log.aio.log import AsyncLog
from bk_spark.log.aio.threads import in_thread
from bk_spark.log.formats.names import DEFAULT_ROOT
from bk_spark.log.gc.deletion import DeletionReport


class AsyncBookKeeper:
    """A connection to a cluster's logs, for an event loop. Made by :func:`bk_spark.connect_async`.

    Use it with ``async with``, or call :meth:`close`. Any number of event loops and threads may use it. Ledgers have an
    asyncio client of their own, :class:`Client`.

    Parameters
    ----------
    blocking
        The connection to use. It is closed with this object.
    """

    def __init__(self, blocking: BookKeeper) -> None:
        self._blocking = blocking

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"

    async def __aenter__(self) -> AsyncBookKeeper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def blocking(self) -> BookKeeper:
        """The connection for callers that block, with all that is not offered here."""
        return self._blocking

    @documented_as(BookKeeper.close)
    async def close(self) -> None:
        await in_thread(self._blocking.close)

    async def create_log(self, name: str, **options: Any) -> AsyncLog:
        """Create an empty log.

        Parameters
        ----------
        name
            The name of the log.
        **options
            As for :meth:`BookKeeper.create_log`.

        Returns
        -------
        AsyncLog
            The new log. Raises as :meth:`BookKeeper.create_log`.
        """
        return AsyncLog(await in_thread(self._blocking.create_log, name, **options))

    async def log(self, name: str) -> AsyncLog:
        """Open a log that exists.

        Parameters
        ----------
        name
            The name of the log.

        Returns
        -------
        AsyncLog
            The log. Raises as :meth:`BookKeeper.log`.
        """
        return AsyncLog(await in_thread(self._blocking.log, name))

    @documented_as(BookKeeper.delete_log)
    async def delete_log(self, name: str) -> DeletionReport:
        return await in_thread(self._blocking.delete_log, name)


async def connect_async(
    metadata_service_uri: str,
    *,
    password: str | bytes = b"",
    password_file: str | Path | None = None,
    config: ClientConfig | Mapping[str, str] | None = None,
    log_root: str = DEFAULT_ROOT,
) -> AsyncBookKeeper:
    """Connect to a cluster's logs from an event loop.

    Parameters
    ----------
    metadata_service_uri, password, password_file, config, log_root
        As for :func:`connect`.

    Returns
    -------
    AsyncBookKeeper
        The connection. Close it after use. Raises as :func:`connect`.
    """
    return AsyncBookKeeper(
        await in_thread(
            connect,
            metadata_service_uri,
            password=password,
            password_file=password_file,
            config=config,
            log_root=log_root,
        )
    )
