"""Apache's client recovers a ledger of many unconfirmed entries: it reads ahead with fencing reads, and waits for the
oldest. The time, beside Apache's bookies in the same run, goes to the log."""

from __future__ import annotations

import logging
import time

import pytest

from bookie_server.local import LocalCluster
from tests.interop.apache import ApacheBookies
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides
from tests.interop.payloads import Payloads
from tests.interop.sides import JAVA_V3, OURS_V3, Entries

_LOG = logging.getLogger(__name__)
COUNT = 500


def recovery_s(sides: Sides) -> float:
    """How long Java takes to recover a ledger of which no entry was ever confirmed."""
    payloads = Payloads.of_size(COUNT, 1024)
    ledger = sides[OURS_V3].create(deferred_sync=True)
    ledger.append(payloads)
    ledger.abandon()
    begun = time.monotonic()
    recovered = sides[JAVA_V3].recover(ledger.ledger_id)
    took_s = time.monotonic() - begun
    assert recovered == Entries(COUNT, payloads.fingerprint, COUNT - 1)
    return took_s


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
            took_s.append(recovery_s(sides))
    _LOG.warning("Java recovers %d unconfirmed entries: %.1f s on our bookies, %.1f s on Apache's", COUNT, *took_s)
