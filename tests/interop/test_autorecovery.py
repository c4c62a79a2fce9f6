"""A bookie is lost, and its copies are made again: by Apache's daemon, by ours, and by both at once, on clusters with
bookies of both kinds. Afterwards each entry is read from each bookie of its write set."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import ApacheBookie
from tests.interop.autorecovery import ApacheAutoRecovery, AutoRecovery, daemons_of
from tests.interop.java_client import JavaClient
from tests.interop.repaired import PASSWORD, Repaired, cluster_of, payload

OURS, APACHES = LocalBookie, ApacheBookie


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("healers", "kinds", "lost"),
    [
        pytest.param([ApacheAutoRecovery], [OURS] * 4, OURS, id="apaches-daemon-our-bookies"),
        pytest.param([AutoRecovery], [APACHES] * 4, APACHES, id="our-daemon-apaches-bookies"),
        pytest.param([AutoRecovery], [OURS, OURS, APACHES, APACHES], APACHES, id="our-daemon-mixed-bookies"),
        pytest.param(
            [AutoRecovery, ApacheAutoRecovery, AutoRecovery],
            [OURS, OURS, APACHES, APACHES],
            OURS,
            id="both-daemons-mixed-bookies",
        ),
    ],
)
def test_a_lost_bookies_copies_are_made_again(
    healers: list[type[AutoRecovery]],
    kinds: list[type[LocalBookie]],
    lost: type[LocalBookie],
    tmp_path: Path,
    zk_only: LocalCluster,
    java_client: JavaClient,
    request: pytest.FixtureRequest,
) -> None:
    root = f"/healed-{request.node.callspec.id}"
    with cluster_of(kinds, tmp_path, zk_only, java_client, root) as cluster:
        cluster.write()
        victim = cluster.busiest(lost)
        with daemons_of(healers, tmp_path / "daemons", cluster.uri) as daemons, _writing(cluster):
            cluster.lose(victim)
            cluster.wait_repaired(victim.id, daemons)
        cluster.assert_whole()


@contextmanager
def _writing(cluster: Repaired) -> Iterator[None]:
    """A client writes ledgers all the while, and loses none of them."""
    stop = threading.Event()
    errors: list[BookKeeperError] = []
    written: dict[int, int] = {}

    def run() -> None:
        with BlockingClient(cluster.uri) as client:
            while not stop.is_set():
                try:
                    with closing(client.create(quorum=Quorum(3, 3, 2), password=PASSWORD)) as ledger:
                        ledger.append_many([payload(entry_id) for entry_id in range(10)])
                        time.sleep(0.05)
                    written[ledger.ledger_id] = 10
                except BookKeeperError as error:
                    errors.append(error)
                stop.wait(0.2)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not errors, errors
    assert written
    cluster.written.update(written)
