"""Schemas that grow in a real ZooKeeper: at once from many sides, and what operators see of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from bk_spark.bkctl import main
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.log import CommitRequest, EntryFormat, LogSettings, LogStore
from bk_spark.log.formats.schema_merge import fields_of, schema_json_of
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalCluster

WRITERS = 12


def columns(**types: str) -> str:
    return schema_json_of({"name": n, "type": one, "nullable": True, "metadata": {}} for n, one in types.items())


SETTINGS = LogSettings.create(Quorum(1, 1, 1), DigestType.CRC32C, EntryFormat.ARROW, b"", columns(id="integer"))


def test_all_who_add_columns_at_once_end_right(zookeeper: ZooKeeper, fresh_root: str) -> None:
    """Each adds a column of its own and some make one wider. Nobody's is lost, and versions follow one another."""
    store = LogStore(zookeeper, f"{fresh_root}/logs")
    log = store.create_log("flights", SETTINGS)

    def add(number: int) -> None:
        merge = columns(id="long" if number % 3 == 0 else "short", **{f"c{number}": "date"})
        request = CommitRequest(log.log_id, f"app{number}", "run", "batch", 0, merge_schema=merge)
        store.open_log("flights").commit(request)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(add, range(WRITERS)))
    settings = store.open_log("flights").settings
    found = {one["name"]: one["type"] for one in fields_of(settings.schema_json or "")}
    assert found == {"id": "long", **{f"c{number}": "date" for number in range(WRITERS)}}
    assert settings.schema_version == WRITERS
    times = [one.time_ms for one in settings.schema_versions()[1:]]
    assert times == sorted(time_ms or 0 for time_ms in times)
    with pytest.raises(InvalidArgumentError, match="column c3 is string here and date in log flights"):
        log.commit(CommitRequest(log.log_id, "late", "run", "b", 0, merge_schema=columns(id="byte", c3="string")))


def test_versions_are_shown(
    zk_only: LocalCluster, zookeeper: ZooKeeper, fresh_root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"{fresh_root}/logs"
    log = LogStore(zookeeper, root).create_log("flights", SETTINGS)
    for number, merge in enumerate((columns(id="long"), columns(id="short", at="date"))):
        log.commit(CommitRequest(log.log_id, "app", "run", "b", number, merge_schema=merge))
    show = ["log", "show", "flights", "--metadata-service-uri", zk_only.metadata_service_uri, "--log-root", root]
    assert main(show) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    at = lines.index(["schema", "committed", "columns"])
    assert lines[at + 1] == ["0", "with", "the", "log"]
    assert lines[at + 2][:1] + lines[at + 2][-4:] == ["1", "id", "int", "->", "bigint"]
    assert lines[at + 3][:1] + lines[at + 3][-2:] == ["2", "at", "date"]
    assert main([*show, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["changes"] for one in shown["schema_versions"]] == [[], ["id int -> bigint"], ["at date"]]
    assert json.loads(shown["schema"])["fields"][0]["type"] == "long"
