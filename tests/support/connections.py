"""What connections to bookies must not leave behind, and what they send. Only this module knows where they keep it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bk_spark.bookie.connection.base import FramedConnection
from bk_spark.bookie.connection.interface import LedgerConnection
from bk_spark.bookie.connection.pool import ConnectionPool
from bk_spark.bookie.connection.v2 import BookieConnection
from bk_spark.bookie.connection.v3 import BookieConnectionV3
from tests.support.served_bookie import ServedBookie


def live(pool: ConnectionPool[Any], bookies: Iterable[ServedBookie]) -> Iterator[Any]:
    """The pool's connections to these bookies."""
    for bookie in bookies:
        connection = pool.existing(bookie.bookie_id)
        if connection is not None:
            yield connection


def assert_no_requests(connection: FramedConnection) -> None:
    """No request is under way, waits, or is remembered."""
    assert connection.closed or connection.outstanding == 0
    assert not connection._admissions
    if isinstance(connection, BookieConnection):
        assert connection._reads == {} == connection._batches
    elif isinstance(connection, BookieConnectionV3):
        assert connection._waiting == {}


def listens(connection: LedgerConnection) -> bool:
    """Whether a writer listens to the connection."""
    assert connection._add_listeners.keys() == connection._loss_listeners.keys()
    return bool(connection._add_listeners)


def count_writes(connection: FramedConnection) -> list[int]:
    """The size of each write from now on, which is one system call if the kernel has room."""
    transport, sizes = connection._transport, list[int]()
    assert transport is not None
    write = transport.write

    def counted(data: memoryview) -> None:
        sizes.append(len(data))
        write(data)

    transport.write = counted  # type: ignore[method-assign, assignment]
    return sizes
