"""Cookies and registrations, byte for byte as Apache's bookies write them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.cookie import Cookie, decode_directories, encode_directories
from bk_spark.protocol.metadata.registration import BookieServiceInfo, Endpoint, native_service_info
from tests.support.fixtures import golden

_NODES = golden("zk-nodes")
_COOKIES = [node for node in _NODES if "/cookies/" in node["path"]]
_REGISTRATIONS = [node for node in _NODES if "/available/" in node["path"] and node["hex"]]

COOKIE = Cookie("b:1", "/j", "1\t/l", "some-instance")


@pytest.mark.parametrize("node", _COOKIES, ids=lambda node: node["path"])
def test_apaches_cookies(node: dict[str, str]) -> None:
    content = bytes.fromhex(node["hex"])
    cookie = Cookie.decode(content, node["path"])
    assert cookie.bookie_id == node["path"].rpartition("/")[2]
    assert cookie.ledger_directories == encode_directories([cookie.ledger_directories.partition("\t")[2]])
    assert cookie.encode() == content


@pytest.mark.parametrize("node", _REGISTRATIONS, ids=lambda node: f"{node['path']} {node['stage']}")
def test_apaches_registrations(node: dict[str, str]) -> None:
    content = bytes.fromhex(node["hex"])
    host, _, port = node["path"].rpartition("/")[2].rpartition(":")
    info = BookieServiceInfo.decode(content, "x")
    assert info == native_service_info(host, int(port))
    assert info.encode() == content
    assert info.endpoint("bookie-rpc") == Endpoint("bookie", host, int(port), "bookie-rpc")
    assert info.endpoint("http") is None


def test_there_were_fixtures() -> None:
    assert _COOKIES
    assert _REGISTRATIONS


def test_all_fields_survive() -> None:
    cookie = Cookie("häuschen:1", '/j "x",/k', encode_directories(["/a b", "/c\\d"]), None, encode_directories(["/i"]))
    assert Cookie.decode(cookie.encode(), "here") == cookie
    assert encode_directories(["/a", "/b"]) == "2\t/a\t/b"


def test_version_3_has_plain_lines() -> None:
    assert Cookie.decode(b"3\nb:1\n/j\n1\t/l\n", "here") == replace(COOKIE, instance_id=None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a cookie"),
        (b"\xff\xfe", "not a cookie"),
        (b"5_0\nx: 1", "not a number"),
        (b"6\nx: 1", "version 6"),
        (b"2\n", "version 2"),
        (b"3\na\nb", "3 lines"),
        (b"5\nwhat is this", "not a cookie"),
        (b'5\nbookieHost: "x"', "without"),
        (b"5" + b"\n" * 2_000_000, "too many"),
    ],
)
def test_garbage_is_refused_by_name(content: bytes, says: str) -> None:
    with pytest.raises(MetadataFormatError, match=f"here.*{says}"):
        Cookie.decode(content, "here")


def test_differences_name_every_field() -> None:
    other = Cookie("b:2", "/k", "1\t/m", "other-instance", "1\t/i")
    assert COOKIE.differences(other) == [
        "bookieHost: 'b:1' / 'b:2'",
        "journalDir: '/j' / '/k'",
        "ledgerDirs: '1\\t/l' / '1\\t/m'",
        "indexDirs: '1\\t/l' / '1\\t/i'",
        "instanceId: 'some-instance' / 'other-instance'",
    ]
    assert COOKIE.differences(COOKIE) == []
    assert COOKIE.differences(replace(COOKIE, instance_id=None)) == []
    assert COOKIE.differences(replace(COOKIE, index_directories=COOKIE.ledger_directories)) == []


def test_an_empty_registration_means_the_address_is_the_id() -> None:
    assert BookieServiceInfo.decode(b"", "host:3181") == native_service_info("host", 3181)
    with pytest.raises(MetadataFormatError, match="without an address"):
        BookieServiceInfo.decode(b"", "some-name")
    with pytest.raises(MetadataFormatError, match="not a BookieServiceInfoFormat"):
        BookieServiceInfo.decode(b"\x32\xff", "host:3181")


def test_properties_and_further_endpoints_survive() -> None:
    info = BookieServiceInfo(
        (*native_service_info("h", 1).endpoints, Endpoint("httpserver", "h", 8080, "http", ("a",), ("b",))), {"x": "y"}
    )
    assert BookieServiceInfo.decode(info.encode(), "h:1") == info


def test_an_expansion_may_add_ledger_and_index_directories() -> None:
    old = Cookie("b:1", "/j", encode_directories(["/l"]), "some-instance")
    new = replace(old, ledger_directories=encode_directories(["/k", "/l"]))
    assert new.differences(old) == ["ledgerDirs: '2\\t/k\\t/l' / '1\\t/l'", "indexDirs: '2\\t/k\\t/l' / '1\\t/l'"]
    assert new.differences(old, expanding=True) == []
    assert len(old.differences(new, expanding=True)) == 2
    separate = replace(new, index_directories=encode_directories(["/i"]))
    assert separate.differences(old, expanding=True) == ["indexDirs: '1\\t/i' / '1\\t/l'"]
    assert replace(new, journal_directories="/j,/k").differences(old, expanding=True) == ["journalDir: '/j,/k' / '/j'"]
    assert separate.storage_directories() == {"/k", "/l", "/i"}
    assert decode_directories(separate.ledger_directories) == ["/k", "/l"]
