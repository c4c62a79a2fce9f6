"""What bookies write into their registration znodes."""

from __future__ import annotations

import pytest

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.registration import (
    NATIVE_PROTOCOL,
    BookieServiceInfo,
    Endpoint,
    is_bookie_id,
    native_service_info,
)
from tests.support.fixtures import golden

REGISTERED = [
    (one["path"], bytes.fromhex(one["hex"]))
    for one in golden("zk-nodes")
    if one["path"].startswith("/ledgers/available/")
]


@pytest.mark.parametrize(("path", "content"), REGISTERED, ids=lambda one: one if isinstance(one, str) else "")
def test_captured_registrations(path: str, content: bytes) -> None:
    bookie_id = path.rpartition("/")[2]
    host, _, port = bookie_id.partition(":")
    info = BookieServiceInfo.decode(content, bookie_id)
    assert info == native_service_info(host, int(port))
    assert info.endpoint(NATIVE_PROTOCOL) == Endpoint("bookie", host, int(port), "bookie-rpc")
    assert info.encode() == content


def test_captures_hold_writable_and_read_only_bookies() -> None:
    assert len(REGISTERED) == 5
    assert any("/readonly/" in path for path, _ in REGISTERED)


def test_several_endpoints_and_properties() -> None:
    native = Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc", ("sasl",), ("x", "y"))
    endpoints = (Endpoint("httpserver", "h", 8080, "http"), native, Endpoint("grpc", "h", 3182, "bk-spark-grpc"))
    info = BookieServiceInfo(endpoints, {"b": "2", "a": "1"})
    assert BookieServiceInfo.decode(info.encode(), "some-id") == info
    assert info.endpoint(NATIVE_PROTOCOL) == native
    assert BookieServiceInfo(endpoints, {"a": "1", "b": "2"}).encode() == info.encode()


def test_an_empty_registration_stands_for_its_id() -> None:
    native = BookieServiceInfo.decode(b"", "host.example:3181").endpoint(NATIVE_PROTOCOL)
    assert native is not None
    assert (native.host, native.port) == ("host.example", 3181)
    for bookie_id in ("custom-id", "host:port", "host:", "3181", "host:" + "9" * 5_000):
        with pytest.raises(MetadataFormatError, match=bookie_id):
            BookieServiceInfo.decode(b"", bookie_id)


def test_no_native_endpoint() -> None:
    info = BookieServiceInfo((Endpoint("httpserver", "h", 8080, "http"),))
    assert info.endpoint(NATIVE_PROTOCOL) is None


@pytest.mark.parametrize("content", [b"\xff", b"\x32\x05\x0a", b"no protobuf", b"\x32\x00", b"\x32\x02\x0a\x00"])
def test_malformed(content: bytes) -> None:
    with pytest.raises(MetadataFormatError, match="b1:3181"):
        BookieServiceInfo.decode(content, "b1:3181")


def test_ids_of_bookies_are_apaches() -> None:
    """Apache's pattern has a range from ":" to "_". ZooKeeper takes no path with "." or ".."."""
    taken = "".join(chr(code) for code in range(0x20, 0x180) if is_bookie_id(f"a{chr(code)}"))
    assert taken == "-.0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_abcdefghijklmnopqrstuvwxyz"
    assert not any(map(is_bookie_id, ("", ".", "..", "readonly", "ReadOnly", "a\n", "a/b", "a b", "\u0663")))
    assert all(map(is_bookie_id, ("...", "readonly-1", "10.0.0.11:3181")))
