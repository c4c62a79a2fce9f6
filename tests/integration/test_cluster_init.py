"""``init_cluster`` against the znodes that Apache's ``initnewcluster`` made."""

from __future__ import annotations

import uuid

import pytest

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.errors import InvalidArgumentError, NodeExistsError
from tests.support.fixtures import golden


def _tree(zk: ZooKeeper, path: str) -> dict[str, bytes]:
    node = zk.get(path)
    assert node is not None
    assert node.owner_session == 0
    found = {path: node.data}
    for name in zk.children(path) or []:
        found |= _tree(zk, f"{path}/{name}")
    return found


def _golden_tree(layout: str | None) -> tuple[str, dict[str, bytes]]:
    scheme = "zk" if layout is None else f"zk+{layout}"
    scene = next(scene for scene in golden("zk-layouts") if scene.get("uri", "").startswith(f"{scheme}://"))
    root: str = scene["nodes"][0]["path"]
    return root, {node["path"].removeprefix(root): bytes.fromhex(node["hex"]) for node in scene["nodes"]}


@pytest.mark.parametrize("layout", [None, "flat", "hierarchical", "longhierarchical"])
def test_makes_the_znodes_that_apache_makes(zookeeper: ZooKeeper, fresh_root: str, layout: str | None) -> None:
    instance_id = init_cluster(zookeeper, fresh_root, layout)

    made = {path.removeprefix(fresh_root): data for path, data in _tree(zookeeper, fresh_root).items()}
    _, expected = _golden_tree(layout)
    assert str(uuid.UUID(made["/INSTANCEID"].decode())) == instance_id
    assert len(expected["/INSTANCEID"]) == len(made["/INSTANCEID"])
    expected["/INSTANCEID"] = instance_id.encode()
    assert made == expected


def test_makes_parents_of_a_deep_root(zookeeper: ZooKeeper, fresh_root: str) -> None:
    root = f"{fresh_root}/one/two"
    init_cluster(zookeeper, root)
    assert zookeeper.get(f"{root}/LAYOUT") is not None


def test_refuses_an_existing_root_and_leaves_it_alone(zookeeper: ZooKeeper, ledgers_root: str) -> None:
    before = _tree(zookeeper, ledgers_root)
    with pytest.raises(NodeExistsError, match=f"znode {ledgers_root} already exists"):
        init_cluster(zookeeper, ledgers_root, "flat")
    assert _tree(zookeeper, ledgers_root) == before


def test_refuses_an_unknown_layout_before_anything_is_made(zookeeper: ZooKeeper, fresh_root: str) -> None:
    with pytest.raises(InvalidArgumentError, match="layout 'ms' is unknown; use one of flat, hierarchical"):
        init_cluster(zookeeper, fresh_root, "ms")
    assert zookeeper.exists(fresh_root) is None
