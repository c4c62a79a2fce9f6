"""A commit whose rows need columns that the log's schema lacks: what it reads, writes and refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from bk_spark.log import CommitMessage, CommitRequest, EntryFormat, LedgerRange, LogSettings
from bk_spark.log.core.changes import step_of
from bk_spark.log.core.commit import BatchCommit
from bk_spark.log.core.plan import AlreadyDone, Need, NeedClosed, Plan, Readings, Stale
from bk_spark.log.formats.schema_merge import Names, fields_of, schema_json_of, type_text
from bk_spark.log.formats.settings import decode_settings, encode_settings
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, DeleteOp, SetOp, Znode
from bk_spark.protocol.quorum import Quorum
from tests.support.log_model import LOG_ID, PATHS, ModelLog
from tests.support.zookeeper_model import RefusedError

NOW_MS: Final = 1_736_000_000_000


def columns(**types: str) -> str:
    fields = [{"name": name, "type": one, "nullable": True, "metadata": {}} for name, one in types.items()]
    return schema_json_of(fields)


@pytest.fixture
def zk() -> ModelLog:
    """An arrow log with one column, and a ledger for each of two applications."""
    model = ModelLog()
    settings = LogSettings.create(Quorum(3, 3, 2), DigestType.CRC32C, EntryFormat.ARROW, b"", columns(id="integer"))
    model.transact([SetOp(PATHS.settings, encode_settings(LOG_ID, settings), -1)])
    model.register("a", "run", 10)
    model.register("b", "run", 20)
    return model


def request(
    app: str,
    *,
    batch_id: int = 0,
    merge: str | None = None,
    schema_version: int = 0,
    ranges: tuple[LedgerRange, ...] | None = None,
    case_sensitive: bool = False,
) -> CommitRequest:
    if ranges is None:
        ranges = (LedgerRange({"a": 10, "b": 20}[app], 2 * batch_id, 2 * batch_id + 1, 20, 200),)
    message = CommitMessage(
        LOG_ID, app, "run", "q", batch_id, 0, ranges, schema_version=schema_version, case_sensitive=case_sensitive
    )
    return CommitRequest.from_messages([message], merge_schema=merge)


def plan(zk: ModelLog, asked: CommitRequest) -> Plan:
    znodes: dict[str, Znode | None] = {}
    while True:
        step = step_of(BatchCommit(PATHS, asked), Readings(znodes), NOW_MS)
        assert not isinstance(step, NeedClosed | AlreadyDone | Stale)
        if isinstance(step, Plan):
            return step
        assert isinstance(step, Need)
        znodes |= {path: zk.read(path) for path in step.paths}


def send(zk: ModelLog, one: Plan) -> None:
    for operations in (*one.preparations, one.transaction):
        zk.transact(list(operations))


def settings_of(zk: ModelLog) -> LogSettings:
    znode = zk.read(PATHS.settings)
    assert znode is not None
    return decode_settings(znode.data, PATHS.settings)[1]


def types_of(zk: ModelLog) -> dict[str, str]:
    return {one["name"]: type_text(one["type"]) for one in fields_of(settings_of(zk).schema_json or "")}


def versions_of(zk: ModelLog) -> list[int]:
    return [segment.schema_version for segment in zk.segments()]


def writes_settings(one: Plan) -> bool:
    return any(op.path == PATHS.settings for op in one.transaction)


def test_a_version_is_published_with_the_rows_that_need_it(zk: ModelLog) -> None:
    one = plan(zk, request("a", merge=columns(id="long", at="date")))
    assert not one.preparations
    send(zk, one)
    assert types_of(zk) == {"id": "bigint", "at": "date"}
    assert versions_of(zk) == [1]
    assert settings_of(zk).schema_versions()[1].time_ms == NOW_MS


def test_rows_of_version_0_neither_read_nor_write_the_settings(zk: ModelLog) -> None:
    znodes: dict[str, Znode | None] = {}
    asked = request("a")
    while isinstance(step := step_of(BatchCommit(PATHS, asked), Readings(znodes), NOW_MS), Need):
        assert PATHS.settings not in step.paths
        znodes |= {path: zk.read(path) for path in step.paths}
    assert isinstance(step, Plan)
    assert not writes_settings(step)


def test_what_the_schema_holds_already_makes_no_version(zk: ModelLog) -> None:
    send(zk, plan(zk, request("a", merge=columns(id="long", at="date"))))
    again = plan(zk, request("a", batch_id=1, merge=columns(at="date", id="integer")))
    assert not writes_settings(again)
    send(zk, again)
    assert versions_of(zk) == [1, 1]


def test_of_two_that_grow_the_schema_at_once_one_reads_again_and_merges_into_the_others(zk: ModelLog) -> None:
    mine, theirs = (
        request("a", merge=columns(id="integer", x="date")),
        request("b", merge=columns(id="long", y="float")),
    )
    late = plan(zk, theirs)
    send(zk, plan(zk, mine))
    with pytest.raises(RefusedError):
        send(zk, late)
    assert versions_of(zk) == [1], "nothing of a refused commit is left"
    send(zk, plan(zk, theirs))
    assert types_of(zk) == {"id": "bigint", "x": "date", "y": "float"}
    assert versions_of(zk) == [1, 2]


def test_the_settings_version_alone_refuses_the_late_one(zk: ModelLog) -> None:
    """Even if the head did not change in between."""
    late = plan(zk, request("b", merge=columns(id="long", y="float")))
    grown = settings_of(zk).grown(columns(id="integer", x="date"), NOW_MS, Names(), "flights")
    zk.transact([SetOp(PATHS.settings, encode_settings(LOG_ID, grown), 1)])
    with pytest.raises(RefusedError, match="SetOp of /logs/flights/settings"):
        send(zk, late)


def test_what_would_lose_data_is_refused_and_nothing_is_left(zk: ModelLog) -> None:
    before = zk.zxid
    with pytest.raises(InvalidArgumentError, match="column id is string here and int in log flights"):
        plan(zk, request("a", merge=columns(id="string")))
    with pytest.raises(InvalidArgumentError, match="column id of log flights is missing"):
        plan(zk, request("a", merge=columns(other="string")))
    assert zk.zxid == before


def test_a_batch_without_rows_grows_the_schema_too(zk: ModelLog) -> None:
    send(zk, plan(zk, request("a", ranges=(), merge=columns(id="integer", x="date"))))
    assert types_of(zk) == {"id": "int", "x": "date"}
    assert versions_of(zk) == []


def test_rows_of_an_earlier_version_keep_it(zk: ModelLog) -> None:
    send(zk, plan(zk, request("a", merge=columns(id="long"))))
    send(zk, plan(zk, request("b")))
    send(zk, plan(zk, request("b", batch_id=1, schema_version=1)))
    assert versions_of(zk) == [1, 0, 1]


def test_a_version_that_the_log_does_not_have_is_refused(zk: ModelLog) -> None:
    with pytest.raises(InvalidArgumentError, match="version 1 of the schema .*, which has versions 0 to 0"):
        plan(zk, request("a", schema_version=1))
    for version in (-1, 1000):
        with pytest.raises(InvalidArgumentError, match=f"rows of version {version}"):
            request("a", schema_version=version)


def test_messages_with_different_columns_are_refused() -> None:
    one = CommitMessage(LOG_ID, "a", "run", "q", 0, 0)
    for other in (replace(one, partition=1, schema_version=1), replace(one, partition=1, case_sensitive=True)):
        with pytest.raises(InvalidArgumentError, match="write all partitions with the same"):
            CommitRequest.from_messages([one, other])


def test_names_are_told_apart_by_case_if_the_tasks_say_so(zk: ModelLog) -> None:
    send(zk, plan(zk, request("a", merge=columns(ID="long"))))
    assert types_of(zk) == {"id": "bigint"}
    send(zk, plan(zk, request("b", merge=columns(id="integer", ID="string"), case_sensitive=True)))
    assert types_of(zk) == {"id": "bigint", "ID": "string"}


def test_large_settings_are_written_before_the_transaction(zk: ModelLog) -> None:
    """Otherwise it might be larger than ZooKeeper takes."""
    wide = {f"column_{n}": "string" for n in range(2000)}
    one = plan(zk, request("a", merge=columns(id="integer", **wide)))
    (preparation,) = one.preparations
    assert preparation[0] == CheckOp(PATHS.identity, -1)
    assert CheckOp(PATHS.settings, 2) in one.transaction
    zk.transact(list(preparation))
    assert (len(types_of(zk)), versions_of(zk)) == (2001, []), "a version that no segment names harms nobody"
    other = plan(zk, request("b", merge=columns(id="long")))
    send(zk, other)
    with pytest.raises(RefusedError):
        zk.transact(list(one.transaction))
    send(zk, plan(zk, request("a", merge=columns(id="integer", **wide))))
    assert versions_of(zk) == [2, 2]


def test_settings_of_a_log_that_was_created_again_are_stale(zk: ModelLog) -> None:
    asked = request("a", merge=columns(id="long"))
    settings = settings_of(zk)
    znodes: dict[str, Znode | None] = {}
    zk.transact([DeleteOp(PATHS.settings)])
    while isinstance(step := step_of(BatchCommit(PATHS, asked), Readings(znodes), NOW_MS), Need):
        znodes |= {path: zk.read(path) for path in step.paths}
    assert isinstance(step, Stale)
    other = "1" * 8 + LOG_ID[8:]
    zk.transact([CreateOp(PATHS.settings, encode_settings(other, settings))])
    znodes[PATHS.settings] = zk.read(PATHS.settings)
    step = step_of(BatchCommit(PATHS, asked), Readings(znodes), NOW_MS)
    assert isinstance(step, Stale)
    assert "another log's" in step.reason
