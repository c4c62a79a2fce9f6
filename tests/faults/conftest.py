"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.plan import BOOKIES
from tests.support.proxied_cluster import ProxiedCluster


@pytest.fixture(scope="session")
def proxied_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Five bookies behind proxies and one ZooKeeper; every test heals what it broke."""
    with ProxiedCluster(tmp_path_factory.mktemp("proxied"), BOOKIES, {"zkTimeout": "2000"}) as cluster:
        yield cluster
