"""Ledger managers: flat, hierarchical with ids above 2³¹, long hierarchical; ensembles of one bookie of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bookie_server.local import LocalCluster
from tests.interop.apache import MixedBookies
from tests.interop.java_client import JavaClient
from tests.interop.matrix import Sides, create_on
from tests.interop.our_side import DIGESTS
from tests.interop.payloads import Payloads
from tests.interop.sides import PARTIES, Entries, Party, RefusedError, Writer

#: Of 2/1/1 every second entry is on one kind of bookie only; of 2/2/2 all are on both.
STRIPED, ON_BOTH = (2, 1, 1), (2, 2, 2)


def _path(uri: MetadataServiceUri, ledger_id: int) -> str:
    if uri.layout == "flat":
        return f"{uri.root}/L{ledger_id:010d}"
    digits = f"{ledger_id:019d}"
    return f"{uri.root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


@pytest.fixture(scope="module", params=["flat", "longhierarchical", "hierarchical"])
def cluster_of_layout(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    zk_only: LocalCluster,
    java_client: JavaClient,
) -> Iterator[MixedBookies]:
    if request.param == "hierarchical":
        yield request.getfixturevalue("mixed_cluster")
        return
    servers = MetadataServiceUri.parse(zk_only.metadata_service_uri).servers
    uri = MetadataServiceUri(servers, f"/{request.param}-ledgers", request.param)
    if request.param == "flat":
        java_client.init_cluster(str(uri))
    else:
        zookeeper = ZooKeeper(servers)
        zookeeper.start()
        init_cluster(zookeeper, uri.root, uri.layout)
        zookeeper.close()
    with MixedBookies(tmp_path_factory.mktemp(request.param), str(uri), ours=1, apaches=1) as cluster:
        yield cluster
        java_client.forget(str(uri))


@pytest.fixture
def sides(cluster_of_layout: MixedBookies, java_client: JavaClient) -> Iterator[Sides]:
    with Sides(java_client, cluster_of_layout.metadata_service_uri) as sides:
        yield sides


@pytest.mark.parametrize(("writer", "digest"), list(zip(PARTIES, DIGESTS, strict=True)), ids=str)
def test_written_recovered_read_deleted(
    cluster_of_layout: MixedBookies, sides: Sides, writer: Party, digest: str
) -> None:
    apaches = {bookie.id for bookie in cluster_of_layout.apaches}

    def create(quorums: tuple[int, int, int]) -> Writer:
        return create_on(sides[writer], lambda bookies: len(bookies & apaches) == 1, quorums=quorums, digest=digest)[0]

    uri = MetadataServiceUri.parse(sides.uri)
    other = sides.of_other_language(writer)
    payloads = Payloads.varied(40)
    closed = create(STRIPED)
    closed.append(payloads)
    closed.close()
    sides.assert_closed(closed.ledger_id, payloads)

    left_open = create(ON_BOTH)
    left_open.append(payloads)
    assert other.recover(left_open.ledger_id) == Entries(40, payloads.fingerprint, 39)
    sides.assert_closed(left_open.ledger_id, payloads)
    with pytest.raises(RefusedError) as raised:
        left_open.append([b"too late"])
    assert raised.value.reason == "fenced"
    left_open.abandon()

    zookeeper = sides.ours().client().zookeeper
    for ledger_id in (closed.ledger_id, left_open.ledger_id):
        assert (ledger_id >= 2**31) == (uri.layout == "hierarchical")
        path = _path(uri, ledger_id)
        assert zookeeper.exists(path) is not None
        other.delete(ledger_id)
        assert zookeeper.exists(path) is None
        for side in sides:
            with pytest.raises(RefusedError) as raised:
                side.read(ledger_id)
            assert raised.value.reason == "no such ledger"
