"""Racks from settings, from Pulsar's JSON and from scripts, malformed and hanging ones too."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bk_spark.bookie.config import ClientConfig
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.placement import racks as racks_module
from bk_spark.bookie.placement.placement import DEFAULT_RACK
from bk_spark.bookie.placement.rack_names import parse_rack_mapping, parse_rack_table
from bk_spark.bookie.placement.racks import Racks, RackTable, RackZnode, rack_sources
from bk_spark.bookie.placement.topology_script import TopologyScript
from bk_spark.protocol.errors import BookieUnavailableError, InvalidArgumentError, MetadataFormatError


def test_the_table() -> None:
    assert parse_rack_table(" h1=/a, h2 = b ,,10.0.0.1:3181=/dc1/r7 ") == {
        "h1": "/a",
        "h2": "/b",
        "10.0.0.1:3181": "/dc1/r7",
    }
    for text in ("h1", "h1=", "=/a", "h1=/"):
        with pytest.raises(InvalidArgumentError, match="not of the form host=/rack"):
            ClientConfig(bookie_racks=text)


def test_the_mapping_as_pulsar_writes_it() -> None:
    """As `pulsar-admin bookies set-bookie-rack` leaves it: groups of bookies, each with rack and hostname."""
    data = {
        "group2": {"b3:3181": {"rack": "rack3", "hostname": "b3.example.org"}, "b1:3181": {"rack": "/elsewhere"}},
        "default": {
            "b1:3181": {"rack": "/rack1", "hostname": None},
            "b2:3181": {"rack": "/region/rack2"},
            "b4:3181": {"rack": "/"},
            "b5:3181": {"hostname": "b5.example.org"},
        },
    }
    found = parse_rack_mapping(json.dumps(data).encode())
    assert found == {"b1:3181": "/rack1", "b2:3181": "/region/rack2", "b3:3181": "/rack3"}
    assert parse_rack_mapping(b"{}") == parse_rack_mapping(b"") == {}


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b'{"g": []}', b'{"g": {"b1:1": "/rack"}}', b"\xff", b"[" * 100_000, b'"' + b"x" * 10],
    ids=range(7),
)
def test_malformed_mappings(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        parse_rack_mapping(data)


def test_a_table_knows_ids_and_hosts() -> None:
    table = RackTable({"h1:1": "/a", "h1:2": "/b", "h2": "/c"})
    hosts = {"h1:1": "h1", "h1:2": "h1", "h1:3": "h1", "name": "h2", "other": "h3"}
    assert table.racks(hosts) == {"h1:1": "/a", "h1:2": "/b", "h1:3": "/a", "name": "/c"}


def test_sources_are_asked_in_turn() -> None:
    addresses = {"b1": ("h1", 1), "b2": ("h2", 1), "b3": ("h3", 1)}

    def address_of(bookie_id: str) -> tuple[str, int]:
        if bookie_id not in addresses:
            raise BookieUnavailableError("gone", bookie_id=bookie_id)
        return addresses[bookie_id]

    racks = Racks([RackTable({"h1": "/a"}), RackTable({"h1": "/x", "h2": "/b", "h9": "/z"})], address_of)
    assert racks.of(["b1", "b2", "b3", "h9:7"]) == {"b1": "/a", "b2": "/b", "b3": DEFAULT_RACK, "h9:7": "/z"}
    # Where a bookie was is remembered when it has gone.
    del addresses["b2"]
    assert racks.of(["b2"]) == {"b2": "/b"}
    assert Racks([], address_of).of(["nobody"]) == {"nobody": DEFAULT_RACK}


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "topology.sh"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_a_script_is_asked_for_twenty_hosts_at_a_time_and_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    source = TopologyScript(
        script(tmp_path, f'echo "$#" >> {calls}\nfor host in "$@"; do echo "/rack-${{host#h}}"; done\n')
    )
    hosts = {f"b{number}": f"h{number}" for number in range(45)}
    expected = {f"b{number}": f"/rack-{number}" for number in range(45)}
    assert source.racks(hosts) == expected
    assert calls.read_text().split() == ["20", "20", "5"]
    assert source.racks(hosts) == expected
    assert source.racks({"x": "h1", "y": "h99"}) == {"x": "/rack-1", "y": "/rack-99"}
    assert calls.read_text().split() == ["20", "20", "5", "1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo /a; exit 3\n", "status 3"),
        ("echo /a; echo /b\n", "2 racks for 1 hosts"),
        ("true\n", "0 racks for 1 hosts"),
        ("while true; do echo /aaaaaaaaaaaaaaaa; done\n", "more than 65536 bytes"),
        ("printf '\\377'\n", "utf-8"),
        ("sleep 60\n", "too long"),
        # The script ends, a child keeps its output open.
        ("sleep 60 &\necho /a\n", "too long"),
        # Output closed, the script goes on.
        ("echo /a; exec >&-; sleep 60\n", "too long"),
    ],
)
def test_scripts_that_fail_are_bounded_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    source = TopologyScript(script(tmp_path, text), timeout_ms=1_000)
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert source.racks({"b1": "h1"}) == {}
        assert source.racks({"b1": "h1"}) == {}
    assert time.monotonic() - began < 55  # the script takes 60 s
    assert len(caplog.records) == 1
    assert reason in caplog.text


def test_a_script_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert TopologyScript(str(tmp_path / "none")).racks({"b1": "h1"}) == {}
    assert "No such file" in caplog.text


def test_hosts_are_no_options(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = TopologyScript(script(tmp_path, "echo /a\n"))
    with caplog.at_level(logging.WARNING):
        assert source.racks({"b1": "-rf"}) == {}
    assert "dash" in caplog.text


def test_the_sources_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = cast(ZooKeeper, SimpleNamespace(add_state_listener=lambda listener: None))
    assert rack_sources(zookeeper, ClientConfig()) == []
    config = ClientConfig(
        bookie_racks="h1=/a",
        rack_mapping_znode="/bookies",
        network_topology_script="/script",
        network_topology_script_timeout_ms=300,
    )
    scripts: list[tuple[str, int]] = []
    monkeypatch.setattr(racks_module, "TopologyScript", lambda *given: scripts.append(given))
    assert [type(one) for one in rack_sources(zookeeper, config, znode="")] == [RackTable, type(None)]
    table, znode, _ = rack_sources(zookeeper, config)
    assert (table.racks({"b1": "h1"}), type(znode)) == ({"b1": "/a"}, RackZnode)
    assert scripts == [("/script", 300)] * 2


def test_enforcing_needs_a_source() -> None:
    with pytest.raises(InvalidArgumentError, match="needs to know the racks"):
        ClientConfig.from_properties({"enforceMinNumRacksPerWriteQuorum": "true"})
    config = ClientConfig.from_properties({"enforceMinNumRacksPerWriteQuorum": "true", "rackMappingZnode": "/bookies"})
    assert config.rack_mapping_znode == "/bookies"
