"""Metadata service URIs, in Apache's syntax."""

from __future__ import annotations

from typing import Any

import pytest

from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from tests.support.fixtures import golden


@pytest.mark.parametrize(
    ("text", "servers", "root", "layout"),
    [
        ("zk://h", "h:2181", "/ledgers", None),
        ("zk://h/", "h:2181", "/ledgers", None),
        ("zk+null://h:1/a", "h:1", "/a", None),
        ("zk+flat://h:1/a/b/", "h:1", "/a/b", "flat"),
        ("zk+hierarchical://h1:1;h2;h3:3/ledgers", "h1:1,h2:2181,h3:3", "/ledgers", "hierarchical"),
        ("zk+longhierarchical://h1:1,h2:2/ledgers", "h1:1,h2:2", "/ledgers", "longhierarchical"),
        ("  zk://[::1]:2182;[::2]/x ", "[::1]:2182,[::2]:2181", "/x", None),
    ],
)
def test_parse(text: str, servers: str, root: str, layout: str | None) -> None:
    uri = MetadataServiceUri.parse(text)
    assert (uri.servers, uri.root, uri.layout) == (servers, root, layout)
    assert MetadataServiceUri.parse(str(uri)) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:2181/ledgers",
        "zk:/h/ledgers",
        "http://h/ledgers",
        "zk:///ledgers",
        "zk://;,/ledgers",
        "zk://h:x/ledgers",
        "zk://h:0/ledgers",
        "zk://h:65536/ledgers",
        pytest.param("zk://h:" + "9" * 5_000 + "/ledgers", id="a port of many digits"),
        "zk://:2181/ledgers",
        "zk://h//ledgers",
        "zk://[::1:2181/ledgers",
        "zk://[h]:2181/ledgers",
        "zk://h h:2181/ledgers",
        "zk://user@h:2181/ledgers",
        "zk://h..example.org/ledgers",
        pytest.param(f"zk://{'h' * 64}:2181/ledgers", id="a label of many letters"),
        "zk://h/a//b",
        "zk+FLAT://h/ledgers",
        None,
        b"zk://h/ledgers",
    ],
)
def test_refused(text: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="metadataServiceUri"):
        MetadataServiceUri.parse(text)


@pytest.mark.parametrize("server", ["::1:2181", "::1", "fe80::1%eth0:2181"])
def test_an_ipv6_address_needs_brackets(server: str) -> None:
    """kazoo raised an error of its own, when the client or the bookie had begun."""
    with pytest.raises(InvalidArgumentError, match=r"in brackets, as in \[::1\]:2181"):
        MetadataServiceUri.parse(f"zk://{server}/ledgers")


@pytest.mark.parametrize("layout", ["ms", "legacyhierarchical", "nonsense"])
def test_an_unknown_ledger_manager_is_named_with_the_remedy(layout: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{layout}' is unknown; use one of zk.flat"):
        MetadataServiceUri.parse(f"zk+{layout}://h/ledgers")


def test_uris_that_apache_was_given() -> None:
    accepted = [one["uri"] for one in golden("zk-layouts") if one.get("nodes")]
    assert len(accepted) >= 6
    for text in accepted:
        uri = MetadataServiceUri.parse(text)
        assert uri.servers.startswith("127.0.0.1:2183")
        assert text.endswith(uri.root)
