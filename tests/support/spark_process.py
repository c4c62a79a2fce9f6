"""What a process of Spark keeps between tasks: its clients and logs. Only this module knows where."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from bk_spark.datasource import connections


@contextlib.contextmanager
def own_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients of a process that has just begun, closed in the end."""
    clients = connections._Shared[Any, Any]()
    monkeypatch.setattr(connections, "_CLIENTS", clients)
    monkeypatch.setattr(connections, "_LOGS", connections._Shared[Any, Any](2))
    yield
    for slot in clients._slots.values():
        slot.value.close()
