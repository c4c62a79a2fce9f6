"""Paths of ledgers and LAYOUT, against the znodes that Apache made."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.ledger_paths import FIRST_LONG_ID, LedgerManager, parse_layout
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from tests.support.fixtures import golden

LAYOUTS = golden("zk-layouts")
WITH_LEDGERS = [one for one in LAYOUTS if "ledgers" in one]


def test_paths_in_every_layout() -> None:
    ids = (7, FIRST_LONG_ID - 1, FIRST_LONG_ID, 2**40 + 7)
    paths = {manager: [manager.ledger_path("/r", ledger_id) for ledger_id in ids] for manager in LedgerManager}
    assert paths == {
        LedgerManager.FLAT: ["/r/L0000000007", "/r/L2147483646", "/r/L2147483647", "/r/L1099511627783"],
        LedgerManager.HIERARCHICAL: [
            "/r/00/0000/L0007",
            "/r/21/4748/L3646",
            "/r/000/0000/0021/4748/L3647",
            "/r/000/0001/0995/1162/L7783",
        ],
        LedgerManager.LONG_HIERARCHICAL: [
            "/r/000/0000/0000/0000/L0007",
            "/r/000/0000/0021/4748/L3646",
            "/r/000/0000/0021/4748/L3647",
            "/r/000/0001/0995/1162/L7783",
        ],
    }


@pytest.mark.parametrize("one", WITH_LEDGERS, ids=lambda one: one["uri"])
def test_apache_put_its_ledgers_where_we_look(one: dict[str, Any]) -> None:
    uri = MetadataServiceUri.parse(one["uri"])
    nodes = {node["path"]: node for node in one["nodes"]}
    manager = parse_layout(bytes.fromhex(nodes[f"{uri.root}/LAYOUT"]["hex"]))
    assert manager.value == uri.layout
    ledger_ids = [made["ledgerId"] for made in one["ledgers"]]
    assert {2**31, 2**63 - 1} <= set(ledger_ids)
    paths = {manager.ledger_path(uri.root, ledger_id) for ledger_id in ledger_ids}
    assert paths == {path for path, node in nodes.items() if re.search(r"/L\d+$", path) and node["length"]}


def test_the_hierarchical_ledgers_of_the_metadata_fixture() -> None:
    for one in golden("metadata"):
        path = LedgerManager.HIERARCHICAL.ledger_path("/ledgers", one["means"]["ledgerId"])
        assert path == one["path"]


@pytest.mark.parametrize("one", [one for one in LAYOUTS if one.get("nodes")], ids=lambda one: one["uri"])
def test_layout_is_read_and_written_as_apache_does(one: dict[str, Any]) -> None:
    (node,) = [node for node in one["nodes"] if node["path"].endswith("/LAYOUT")]
    content = bytes.fromhex(node["hex"])
    manager = parse_layout(content)
    assert manager.layout == content
    wanted = MetadataServiceUri.parse(one["uri"]).layout
    # Apache makes a hierarchical cluster where the URI leaves it open.
    assert manager.value == (wanted or "hierarchical")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"2",
        b"1\nhierarchical:1",
        b"1\nflat:1",
        b"3\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:2",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory",
        b"2\nFlatLedgerManagerFactory:1",
        b"2\n\xff\xfe:1",
    ],
)
def test_other_layouts_are_refused(content: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="this release knows"):
        parse_layout(content)


def test_an_unknown_manager_is_named() -> None:
    with pytest.raises(MetadataFormatError, match="LegacyHierarchicalLedgerManagerFactory; this release knows Flat"):
        parse_layout(b"2\norg.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory:1")


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ids_out_of_range(ledger_id: int) -> None:
    for manager in LedgerManager:
        with pytest.raises(InvalidArgumentError, match=str(ledger_id)):
            manager.ledger_path("/ledgers", ledger_id)


def test_no_two_ledgers_share_a_path() -> None:
    ids = {0, 1, 9999, 10_000, FIRST_LONG_ID - 1, FIRST_LONG_ID, 10**10 - 1, 10**10, 2**62, 2**63 - 1}
    for manager in LedgerManager:
        paths = [manager.ledger_path("", ledger_id) for ledger_id in ids]
        assert len(set(paths)) == len(ids)
        for one, other in itertools.permutations(paths, 2):
            assert not other.startswith(one + "/")
