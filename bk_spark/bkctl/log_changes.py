"""``bkctl log create``, ``append-ledger``, ``truncate``, ``retention`` and ``delete``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from bk_spark.bkctl.common import (
    ExitStatus,
    argument,
    offset,
    open_list,
    open_log,
    password,
    print_json,
    wrong_password,
)
from bk_spark.bkctl.log_show import policy_record
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import DEFAULT_QUORUM
from bk_spark.datasource.option_values import duration, size
from bk_spark.log.formats import Policy
from bk_spark.log.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import InvalidArgumentError, UnauthorizedError
from bk_spark.protocol.quorum import Quorum

_MAX: Final = (1 << 63) - 1


def add_commands(log: Any) -> None:
    create = log.add_parser("create", help="make an empty raw log, whose entries are rows")
    create.add_argument("name")
    for option, default in (
        ("--ensemble-size", DEFAULT_QUORUM.ensemble_size),
        ("--write-quorum-size", DEFAULT_QUORUM.write_quorum_size),
        ("--ack-quorum-size", DEFAULT_QUORUM.ack_quorum_size),
    ):
        create.add_argument(option, type=offset, default=default, metavar="N", help="of its ledgers (%(default)s)")
    create.add_argument(
        "--digest-type",
        choices=[kind.name for kind in DigestType],
        default=DigestType.CRC32C.name,
        help="of its ledgers (%(default)s)",
    )
    create.set_defaults(run=_create)

    append = log.add_parser("append-ledger", help="append a closed ledger that was not made for the log (raw logs)")
    append.add_argument("name")
    append.add_argument("ledger_id", type=offset, metavar="LEDGER")
    append.set_defaults(run=_append_ledger)

    truncate = log.add_parser("truncate", help="let the log begin at the segment that holds an offset")
    truncate.add_argument("name")
    truncate.add_argument(
        "offset", type=offset, metavar="OFFSET", help="the log's end drops everything; one beyond it is refused"
    )
    truncate.set_defaults(run=_truncate)

    retention = log.add_parser("retention", help="show or set what maintenance keeps of a log")
    retention.add_argument("name")
    retention.add_argument(
        "--time", type=_or_all(duration(1, _MAX)), metavar="DURATION", help="such as 36h or 7d; all: without limit"
    )
    retention.add_argument(
        "--size", type=_or_all(size(1, _MAX)), metavar="BYTES", help="such as 500m or 20g; all: without limit"
    )
    retention.add_argument("--apply", action="store_true", help="truncate now; else the next maintenance does")
    retention.add_argument("--json", action="store_true", help="as JSON")
    retention.set_defaults(run=_retention)

    delete = log.add_parser("delete", help="delete a log and its ledgers, or finish a deletion that stopped")
    delete.add_argument("name")
    delete.add_argument("--yes", action="store_true", help="without it nothing is deleted")
    delete.set_defaults(run=_delete)


def _or_all(parse: Any) -> Any:
    parsed = argument(parse)
    return lambda value: 0 if value == "all" else parsed(value)


def _create(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    quorum = Quorum(options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    settings = LogSettings.create(quorum, DigestType[options.digest_type], EntryFormat.RAW, password(options))
    log = LogStore.of(client, options.log_root).create_log(options.name, settings)
    print(f"made log {log.name}  ({log.log_id})")
    return ExitStatus.OK


def _append_ledger(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    offsets = open_log(client, options).append_ledger(options.ledger_id)
    print(f"appended {len(offsets)} entries: offsets {offsets.start} to {offsets.stop}")
    return ExitStatus.OK


def _truncate(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_log(client, options)
    before = log.snapshot().first_offset
    after = log.truncate(options.offset)
    print(f"the log begins at offset {after}: {max(0, after - before)} entries dropped")
    return ExitStatus.OK


def _retention(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    changes = options.time is not None or options.size is not None
    log = open_log(client, options) if changes or options.apply else open_list(client, options)
    policy = log.policy()
    if changes:
        policy = Policy(
            policy.retention_time_ms if options.time is None else options.time,
            policy.retention_size_bytes if options.size is None else options.size,
        )
        log.set_policy(policy)
    first_offset = log.apply_retention() if options.apply else log.snapshot().first_offset
    if options.json:
        print_json(policy_record(policy) | {"first_offset": first_offset})
    else:
        print(f"time    {f'{policy.retention_time_ms} ms' if policy.retention_time_ms else 'all'}")
        print(f"size    {f'{policy.retention_size_bytes} bytes' if policy.retention_size_bytes else 'all'}")
        print(f"begins  {first_offset}")
    return ExitStatus.OK


def _delete(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    store = LogStore.of(client, options.log_root)
    if not options.yes:
        if options.name not in store.list_logs(deleted=True):
            snapshot = store.open_log(options.name).snapshot()
            what = f"offsets {snapshot.first_offset} to {snapshot.next_offset}"
        else:
            what = "its deletion has begun"
        raise InvalidArgumentError(
            f"log {options.name} ({what}) would be deleted with its ledgers, for good: give --yes to do so"
        )
    try:
        report = store.delete_log(options.name, password(options))
    except UnauthorizedError as error:
        raise wrong_password(options) from error
    print(f"deleted log {options.name} and {report.ledgers} ledgers")
    if report.not_fenced:
        print(f"not fenced, for lack of bookies: ledgers {', '.join(map(str, report.not_fenced))}")
    return ExitStatus.OK
