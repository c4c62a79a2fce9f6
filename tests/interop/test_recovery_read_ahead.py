"""Apache's client recovers a ledger of many unconfirmed entries: it reads ahead with fencing reads, and waits for the
oldest. The time, beside Apache's bookies in the same run, goes to the log."""

from __future__ import annotations

import logging

import pytest

from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides, recovery_s, unconfirmed_ledger
from tests.interop.sides import JAVA_V3

_LOG = logging.getLogger(__name__)
COUNT = 500


@pytest.mark.timeout(600)
def test_java_recovers_many_unconfirmed_entries(
    cluster: LocalCluster, apache_cluster: ApacheBookies, java_client: JavaClient
) -> None:
    cluster.heal()
    apache_cluster.start()
    took_s = []
    for uri in (cluster.metadata_service_uri, apache_cluster.metadata_service_uri):
        java_client.forget(uri)
        with Sides(java_client, uri) as sides:
            took_s.append(recovery_s(sides, JAVA_V3, *unconfirmed_ledger(sides, COUNT)))
    _LOG.warning("Java recovers %d unconfirmed entries: %.1f s on our bookies, %.1f s on Apache's", COUNT, *took_s)
