"""``bkctl log list`` and ``log show``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, iso_time, offset, print_facts, print_json, print_table
from bk_spark.bkctl.logs.checkpoint import Checkpoint, read_checkpoint
from bk_spark.bkctl.logs.opening import open_list
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.datasource.stream.offsets import Position
from bk_spark.log.formats.names import LogPaths
from bk_spark.log.formats.schema_history import changed_columns
from bk_spark.log.formats.segment import Segment
from bk_spark.log.formats.settings import LogSettings
from bk_spark.log.formats.znodes import Policy, decode_application, decode_owner
from bk_spark.log.io.snapshot import LogSnapshot
from bk_spark.log.log import Log
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import BookKeeperError

#: A JSON object.
Record = dict[str, Any]
#: Fields of a policy that say which rows to keep.
_KEPT: Final = ("time_ms", "size_bytes")


def add_commands(log: Any) -> None:
    """Add ``list`` and ``show``."""
    list_ = log.add_parser("list", help="names of all logs, one a line")
    list_.add_argument("--long", action="store_true", help="as a table with offsets, last commit and more")
    list_.set_defaults(run=_list)

    show = log.add_parser("show", help="offsets, settings, segments, applications, owner of a log")
    show.add_argument("name")
    show.add_argument(
        "--segments", type=offset, default=20, metavar="N", help="the last N segments (default: %(default)s)"
    )
    show.add_argument(
        "--checkpoint",
        metavar="DIRECTORY",
        help="the checkpointLocation of a streaming query: show how far it has read, and its lag",
    )
    show.set_defaults(run=_show)


def _list(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    store = LogStore.of(client, options.log_root)
    names = store.list_logs()
    if not (options.long or options.json):
        print("\n".join(names), end="\n" if names else "")
        return ExitStatus.OK
    records = [_summary(store, name) for name in names]
    records += [{"name": name, "state": "being deleted"} for name in store.list_logs(deleted=True)]
    if options.json:
        print_json(records)
    elif records:
        columns = ("name", "state", "entry_format", "first_offset", "next_offset", "last_commit_time", "log_id")
        print_table(columns, [[_cell(record.get(column)) for column in columns] for record in records])
    return ExitStatus.OK


def _cell(value: object) -> object:
    return "-" if value is None else value


def _summary(store: LogStore, name: str) -> Record:
    try:
        log = store.open_log(name)
        snapshot = log.snapshot(sync=False)
    except BookKeeperError as error:
        # A log that cannot be opened (just deleted, or of a newer release) must not hide the others.
        return {"name": name, "state": f"cannot be opened: {error.message}"}
    return {
        "name": name,
        "state": "ok",
        "log_id": log.log_id,
        "entry_format": log.settings.entry_format.value,
        "first_offset": snapshot.first_offset,
        "next_offset": snapshot.next_offset,
        "last_commit_time": _time(snapshot.last_commit_time_ms),
    }


def _show(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    checkpoint = None if options.checkpoint is None else read_checkpoint(options.checkpoint)
    log = open_list(client, options)
    snapshot = log.snapshot()
    shown = _Shown(
        facts=_facts(log, snapshot, client.zookeeper),
        segments=[_segment_record(segment) for segment in _last_segments(snapshot, options.segments)],
        applications=_applications(client.zookeeper, log.paths),
        lags=[] if checkpoint is None else list(_lags(log, snapshot, checkpoint)),
        checkpoint=checkpoint,
    )
    if options.json:
        shown.print_json()
    else:
        shown.print_text()
    return ExitStatus.OK


@dataclass(frozen=True, slots=True)
class _Shown:
    facts: Record
    segments: list[Record]
    applications: list[Record]
    lags: list[Record]
    checkpoint: Checkpoint | None

    def print_json(self) -> None:
        more: Record = {"segments": self.segments, "applications": self.applications}
        if self.checkpoint is not None:
            more["checkpoint"] = {
                "last_finished_batch": self.checkpoint.batch_id,
                "last_planned_batch": self.checkpoint.planned_batch_id,
                "sources": self.lags,
            }
        print_json(self.facts | more)

    def print_text(self) -> None:
        facts = self.facts
        quorum, tail, policy = facts["quorum"], facts["open_tail"], facts["retention"]
        lines: dict[str, object] = {
            "log": f"{facts['name']}  ({facts['log_id']})",
            "format": facts["entry_format"],
            "quorums": f"{quorum['ensemble_size']}/{quorum['write_quorum_size']}/{quorum['ack_quorum_size']}",
            "digest": facts["digest_type"],
            "offsets": f"{facts['first_offset']} to {facts['next_offset']}",
            "commit": facts["last_commit_time"] or "none yet",
            "keeps": ", ".join(f"{limit} {policy[limit]}" for limit in ("time_ms", "size_bytes") if policy[limit])
            or "everything",
            "tail": "closed" if tail is None else f"open: ledger {tail['ledger_id']} from offset {tail['base_offset']}",
        }
        if facts["owner"] is not None:
            lines["owner"] = ", ".join(f"{name} {value}" for name, value in facts["owner"].items())
        print_facts(lines)
        versions = facts["schema_versions"]
        if len(versions) > 1:
            print()
            table = [
                [one["version"], one["committed"] or "with the log", ", ".join(one["changes"])] for one in versions
            ]
            print_table(["schema", "committed", "columns"], table)
        if self.segments:
            print()
            # All segments of most logs have version 0 of the schema.
            names = [name for name in self.segments[0] if name != "schema_version" or len(versions) > 1]
            print_table(names, [[record[name] for name in names] for record in self.segments])
        named = [record for record in self.applications if not record["anonymous"]]
        if self.applications:
            print()
            print(f"{len(named)} applications, and {len(self.applications) - len(named)} batch writes without a name")
        if named:
            print_table([*named[0]], [[*record.values()] for record in named])
        if self.checkpoint is not None:
            print()
            batches = self.checkpoint
            print(f"checkpoint: batch {batches.planned_batch_id} begun, batch {batches.batch_id} finished")
            if self.lags:
                print_table([*self.lags[0]], [[*record.values()] for record in self.lags])


def _facts(log: Log, snapshot: LogSnapshot, zk: ZooKeeper) -> Record:
    settings, tail = log.settings, snapshot.open_tail
    owner_znode = zk.get(log.paths.owner)
    owner = None if owner_znode is None else decode_owner(owner_znode.data, log.paths.owner)
    return {
        "name": log.name,
        "log_id": log.log_id,
        "entry_format": settings.entry_format.value,
        "schema": settings.schema_json,
        "schema_versions": _schema_versions(settings),
        "quorum": {
            "ensemble_size": settings.quorum.ensemble_size,
            "write_quorum_size": settings.quorum.write_quorum_size,
            "ack_quorum_size": settings.quorum.ack_quorum_size,
        },
        "digest_type": settings.digest_type.name,
        "first_offset": snapshot.first_offset,
        "next_offset": snapshot.next_offset,
        "last_commit_time": _time(snapshot.last_commit_time_ms),
        "retention": policy_record(log.policy()),
        "open_tail": None
        if tail is None
        else {"ledger_id": tail.ledger_id, "base_offset": tail.base_offset, "since": _time(tail.commit_time_ms)},
        "owner": None
        if owner is None
        else {
            "writer": owner.writer_id,
            "host": owner.host,
            "process": owner.process_id,
            "since": _time(owner.opened_time_ms),
        },
    }


def policy_record(policy: Policy) -> Record:
    """Return the fields of a policy in its JSON form: milliseconds and bytes, where 0 means no limit."""
    return {
        "time_ms": policy.retention_time_ms,
        "size_bytes": policy.retention_size_bytes,
        "orphan_retention_ms": policy.orphan_retention_ms,
        "delete_grace_ms": policy.delete_grace_ms,
        "history_ms": policy.history_ms,
    }


def _last_segments(snapshot: LogSnapshot, count: int) -> list[Segment]:
    """Return the newest ``count`` segments, in order, including an open tail."""
    tail = snapshot.open_tail
    newest_first = ([] if tail is None else [tail]) + [
        segment
        for table in islice(snapshot.tables_from_end(), count)
        for segment in reversed(list(table[-count:] if count else table[:0]))
    ]
    return newest_first[:count][::-1]


def _segment_record(segment: Segment) -> Record:
    return {
        "offset": segment.base_offset,
        "entries": segment.entries,
        "ledger": segment.ledger_id,
        "first_entry": segment.first_entry,
        "last_entry": "open" if segment.last_entry is None else segment.last_entry,
        "rows": segment.rows,
        "bytes": segment.size_bytes,
        "committed": iso_time(segment.commit_time_ms),
        "schema_version": segment.schema_version,
    }


def _schema_versions(settings: LogSettings) -> list[Record]:
    """The versions of the schema, and what each changed."""
    versions = settings.schema_versions()
    return [
        {
            "version": one.number,
            "committed": None if one.time_ms is None else iso_time(one.time_ms),
            "changes": changed_columns(before.schema_json, one.schema_json),
        }
        for before, one in pairwise([*versions[:1], *versions])
    ]


def _applications(zk: ZooKeeper, paths: LogPaths) -> list[Record]:
    names = sorted(zk.children(paths.apps) or ())
    found = zk.get_many([f"{paths.apps}/{name}" for name in names])
    applications = [decode_application(znode.data, path) for path, znode in found.items() if znode is not None]
    return [
        {
            "application": one.app,
            "query": one.query_id or "-",
            "batch": one.batch_id,
            "offsets": f"{one.start_offset}-{one.end_offset}",
            "committed": iso_time(one.commit_time_ms),
            "run": one.run,
            "retired_runs": len(one.retired_runs),
            "ledgers_in_use": len(one.in_use),
            "anonymous": one.anonymous,
        }
        for one in applications
    ]


def _lags(log: Log, snapshot: LogSnapshot, checkpoint: Checkpoint) -> list[Record]:
    return [_lag(snapshot, position) for name, position in checkpoint.positions if name == log.name]


def _lag(snapshot: LogSnapshot, position: Position) -> Record:
    """Return how much of the log is unread. ``behind_since`` is the commit time of the first unread entry."""
    read_to = position.offset
    record: Record = {
        "read_to": read_to,
        "log_end": snapshot.next_offset,
        "lag_entries": max(0, snapshot.next_offset - read_to),
        "behind_since": "-",
        "state": "reading",
    }
    if position.identity != snapshot.log_id:
        return record | {"lag_entries": "-", "state": f"of another log: {position.identity}"}
    gone = snapshot.first_offset - read_to
    if gone > 0:
        record["state"] = f"{gone} entries are gone before they were read"
    elif read_to >= snapshot.next_offset:
        return record | {"state": "at the end"}
    unread = max(read_to, snapshot.first_offset)
    if unread < snapshot.next_offset:
        record["behind_since"] = iso_time(snapshot.segment_at(unread)[1].commit_time_ms)
    return record


def _time(time_ms: int) -> str | None:
    return iso_time(time_ms) if time_ms else None
