"""Reads as of a commit, the history of a log, and what the reaper leaves of the past, with ZooKeeper and bookies."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_spark.bkctl import main
from bk_spark.bkctl.command_line.common import iso_time
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import CommitMessage, CommitRequest, LedgerRange, Log, LogSnapshot, LogStore
from bk_spark.log.formats.commits import CommitKind
from bk_spark.log.formats.segment import COMMIT_TIME_LAG_MS
from bk_spark.log.formats.znodes import Head, Policy, encode_head
from bk_spark.log.positions.texts import AsOf, Time, Transaction
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError, NoSuchLedgerError
from bk_spark.protocol.metadata.znodes import SetOp
from tests.support.logs import PASSWORD, RAW, TELLING

HOUR_MS = 3_600_000
#: The age of ledgers is measured by ZooKeeper's times, so the clock of these tests begins there.
START_MS = int(time.time() * 1000)


class Clock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(metadata_service_uri: str) -> Iterator[BlockingClient]:
    with BlockingClient(metadata_service_uri, TELLING) as running:
        yield running


@pytest.fixture
def log(client: BlockingClient, fresh_root: str, clock: Clock) -> Log:
    store = LogStore(client.zookeeper, f"{fresh_root}/logs", client=client, now_ms=clock)
    return store.create_log("events", RAW, PASSWORD)


def write(log: Log, batch_id: int, *rows: str, app: str = "nightly", overwrite: bool = False) -> int:
    """Commit a batch and return its ledger."""
    writer = log.create_ledger(app, f"{app}-{batch_id}")
    writer.append_many([row.encode() for row in rows])
    writer.close()
    parts = (LedgerRange(writer.ledger_id, 0, len(rows) - 1, len(rows), 5 * len(rows)),) if rows else ()
    message = CommitMessage(log.log_id, app, f"{app}-{batch_id}", "batch", batch_id, 0, parts)
    log.commit(CommitRequest.from_messages([message], overwrite=overwrite))
    return writer.ledger_id


def rows_of(log: Log, snapshot: LogSnapshot) -> list[str]:
    found = []
    for segment in snapshot.segments():
        part = segment.clip(snapshot.first_offset, snapshot.next_offset)
        assert part.last_entry is not None
        found += [
            bytes(row).decode() for row in log.ledgers.reader(part.ledger_id).read(part.first_entry, part.last_entry)
        ]
    return found


def rows_as_of(log: Log, as_of: int | str | datetime.datetime | AsOf) -> list[str]:
    return rows_of(log, log.as_of(as_of))


def fill(log: Log, clock: Clock) -> list[int]:
    """Two appends, an overwrite, an append, and a truncation, an hour apart. Returns the ledgers."""
    ledgers = [write(log, 1, "a", "b")]
    clock.now_ms += HOUR_MS
    ledgers.append(write(log, 2, "c"))
    clock.now_ms += HOUR_MS
    ledgers.append(write(log, 3, "d", "e", "f", overwrite=True))
    clock.now_ms += HOUR_MS
    ledgers.append(write(log, 4, "g"))
    clock.now_ms += HOUR_MS
    log.truncate(6)
    return ledgers


def test_a_log_as_of_each_commit(log: Log, clock: Clock) -> None:
    fill(log, clock)
    assert rows_of(log, log.snapshot()) == ["g"]
    assert rows_as_of(log, 0) == rows_as_of(log, 1) == rows_as_of(log, "nightly:1") == ["a", "b"]
    assert rows_as_of(log, 2) == rows_as_of(log, Transaction("nightly", 2)) == ["a", "b", "c"]
    assert rows_as_of(log, 5) == rows_as_of(log, "txn:nightly:3") == ["d", "e", "f"]
    assert rows_as_of(log, 6) == ["d", "e", "f", "g"]
    moments = ["a b", "a b c", "d e f", "d e f g", "g"]
    for hours, rows in enumerate(moments[:-1]):
        moment = datetime.datetime.fromtimestamp((START_MS + hours * HOUR_MS) / 1000, datetime.UTC)
        assert rows_as_of(log, moment) == rows_as_of(log, moment.isoformat()) == rows.split()
        assert rows_as_of(log, Time(START_MS + (hours + 1) * HOUR_MS - 1)) == rows.split()
    past = log.as_of(2)
    assert (past.first_offset, past.next_offset, past.open_tail, past.was_sealed) == (0, 3, None, True)
    assert past.offset_at(START_MS + 1) == 2
    with pytest.raises(LogRangeGoneError, match=r"\[3, 4\) are not written yet"):
        list(past.segments(2, 4))


def test_a_time_must_be_past_and_settled(log: Log, clock: Clock) -> None:
    fill(log, clock)
    last_ms = clock.now_ms
    with pytest.raises(InvalidArgumentError, match="is in the future"):
        log.as_of(Time(last_ms + 1))
    with pytest.raises(InvalidArgumentError, match="less than 2 minutes ago"):
        log.as_of(Time(last_ms))
    clock.now_ms += COMMIT_TIME_LAG_MS
    assert rows_as_of(log, Time(last_ms)) == ["g"]
    with pytest.raises(InvalidArgumentError, match="no commit at 20.*Z or before"):
        log.as_of(Time(START_MS - 1))
    with pytest.raises(InvalidArgumentError, match="no commit of version 5 by application 'nightly'"):
        log.as_of("nightly:5")
    with pytest.raises(InvalidArgumentError, match="must be an offset such as 100"):
        log.as_of("yesterday")


def test_the_reaper_leaves_the_past_as_long_as_the_policy_says(log: Log, clock: Clock, client: BlockingClient) -> None:
    log.set_policy(Policy(history_ms=24 * HOUR_MS, delete_grace_ms=0))
    ledgers = fill(log, clock)
    overwritten_ms, truncated_ms = START_MS + 2 * HOUR_MS, START_MS + 4 * HOUR_MS

    def maintain() -> list[int]:
        # The second round deletes what the first one condemned.
        for _ in range(2):
            report = log.maintain(force=True)
            assert report.failed == ()
        return [ledger for ledger in ledgers if not _is_gone(client, ledger)]

    clock.now_ms = overwritten_ms + 24 * HOUR_MS + COMMIT_TIME_LAG_MS - 1
    assert maintain() == ledgers
    assert rows_as_of(log, "nightly:1") == ["a", "b"]
    clock.now_ms += 1
    # The dry run says what the real one does.
    planned = log.maintain(force=True, dry_run=True)
    assert planned.reaped is not None
    assert {one.ledger_id for one in planned.reaped.condemned} == {*ledgers[:2]}
    assert maintain() == ledgers[2:]
    assert log.snapshot().kept_from == 3
    for as_of in (1, "nightly:2", Time(overwritten_ms - 1)):
        with pytest.raises(LogRangeGoneError, match="bkctl log retention events --history"):
            log.as_of(as_of)
    assert rows_as_of(log, "nightly:3") == ["d", "e", "f"]
    clock.now_ms = truncated_ms + 24 * HOUR_MS + COMMIT_TIME_LAG_MS
    assert maintain() == ledgers[3:]
    with pytest.raises(LogRangeGoneError, match=r"\[3, 6\) are gone|offset 5 is gone"):
        log.as_of(5)
    with pytest.raises(LogRangeGoneError, match=r"held offsets \[3, 7\), of which \[3, 6\) are gone"):
        log.as_of("nightly:4")
    assert rows_of(log, log.snapshot()) == ["g"]


def _is_gone(client: BlockingClient, ledger_id: int) -> bool:
    try:
        client.open_for_reading(ledger_id, PASSWORD)
    except NoSuchLedgerError:
        return True
    return False


def test_a_log_writer_and_the_past(log: Log, clock: Clock) -> None:
    write(log, 1, "a")
    with log.open_writer() as writer:
        writer.append_many([b"b", b"c", b"d"])
        writer.flush()
        assert rows_of(log, log.as_of(0)) == ["a"]
        with pytest.raises(InvalidArgumentError, match="no commit with offset 2 yet"):
            log.as_of(2)
        clock.now_ms += HOUR_MS
    assert rows_as_of(log, 2) == ["a", "b", "c"]
    write(log, 2, "e")
    assert rows_as_of(log, 4) == ["a", "b", "c", "d", "e"]
    # The ledger counts from when it was sealed.
    assert rows_as_of(log, Time(START_MS + HOUR_MS - 1)) == ["a"]
    _, commits = log.history()
    assert [commit.kind for commit in commits] == [CommitKind.APPEND, CommitKind.WRITER, CommitKind.APPEND]


def test_a_log_of_the_first_release(log: Log, clock: Clock) -> None:
    """Its head has no field for the past: this one is made such by hand."""
    log.zookeeper.transaction([SetOp(log.paths.head, encode_head(Head(log.log_id)), -1)])
    write(log, 1, "a", "b")
    assert rows_as_of(log, 1) == ["a", "b"]
    clock.now_ms += HOUR_MS
    log.set_policy(Policy(history_ms=HOUR_MS))
    write(log, 2, "c", overwrite=True)
    assert rows_as_of(log, 1) == ["a", "b"]
    kept_from, commits = log.history()
    assert kept_from == 0
    assert [(one.kind, one.app, one.batch, one.first_offset) for one in commits] == [
        (CommitKind.OVERWRITE, "nightly", 2, 2),
        (CommitKind.UNKNOWN, None, None, None),
    ]


def test_bkctl_log_history(
    log: Log,
    clock: Clock,
    metadata_service_uri: str,
    fresh_root: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(log, clock)
    password_file = tmp_path / "password"
    password_file.write_bytes(PASSWORD)
    common = ["--metadata-service-uri", metadata_service_uri, "--log-root", f"{fresh_root}/logs"]

    def bkctl(*arguments: str) -> str:
        assert main([*common, "--password-file", str(password_file), *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    records = json.loads(bkctl("--json", "log", "history", "events"))
    assert [(one["what"], one["start_offset"], one["end_offset"], one["batch"]) for one in records] == [
        ("truncate", 7, 7, None),
        ("append", 6, 7, 4),
        ("overwrite", 3, 6, 3),
        ("append", 2, 3, 2),
        ("append", 0, 2, 1),
    ]
    assert [(one["log_begins"], one["rows"], one["bytes"], one["readable"]) for one in records] == [
        (6, 0, 0, True),
        (3, 1, 5, True),
        (3, 3, 15, True),
        (0, 1, 5, True),
        (0, 2, 10, True),
    ]
    assert records[-1]["committed"] == iso_time(START_MS)
    lines = bkctl("log", "history", "events", "--commits", "2").splitlines()
    assert lines[0].split()[:3] == ["what", "start_offset", "end_offset"]
    assert [line.split()[0] for line in lines[1:]] == ["truncate", "append"]
    shown = bkctl("log", "retention", "events", "--history", "7d")
    assert "history 604800000 ms" in shown
    assert log.policy().history_ms == 604_800_000
