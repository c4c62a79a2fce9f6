"""``bkctl log create``, ``append-ledger``, ``truncate``, ``give-up-tail``, ``retention`` and ``delete``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, argument, offset, password, print_json
from bk_spark.bkctl.logs import consent
from bk_spark.bkctl.logs.consent import Dropped
from bk_spark.bkctl.logs.opening import open_list, open_log, wrong_password
from bk_spark.bkctl.logs.show import policy_record
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.client import DEFAULT_QUORUM
from bk_spark.bookie.metadata.cluster_init import read_instance_id
from bk_spark.log.core.tail.give_up import MAX_LOST_ENTRIES
from bk_spark.log.formats.settings import EntryFormat, LogSettings
from bk_spark.log.store import LogStore
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import UnauthorizedError
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import Kind, duration, size, whole

_MAX: Final = (1 << 63) - 1
#: More than a ledger of a log writer often has.
_LOST_ENTRIES: Final = 1_000_000


def add_commands(log: Any) -> None:
    """Add the subcommands that change a log's list or settings."""
    create = log.add_parser("create", help="create an empty raw log, in which each entry is a row")
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

    truncate = log.add_parser("truncate", help="drop all segments before the one that holds an offset")
    truncate.add_argument("name")
    truncate.add_argument(
        "offset", type=offset, metavar="OFFSET", help="the log's end drops everything; a larger offset is refused"
    )
    consent.add_options(truncate)
    truncate.set_defaults(run=_truncate)

    give_up = log.add_parser("give-up-tail", help="let a log continue although the ledger at its open end was deleted")
    give_up.add_argument("name")
    give_up.add_argument(
        "--entries",
        type=argument(whole(0, MAX_LOST_ENTRIES)),
        default=_LOST_ENTRIES,
        metavar="N",
        help="offsets to give up, at least as many as any reader has seen there (default: %(default)s)",
    )
    consent.add_options(give_up)
    give_up.set_defaults(run=_give_up_tail)

    retention = log.add_parser("retention", help="show or set what maintenance keeps of a log")
    retention.add_argument("name")
    retention.add_argument(
        "--time", type=_or_all(duration(1, _MAX)), metavar="DURATION", help="such as 36h or 7d; all: without limit"
    )
    retention.add_argument(
        "--size", type=_or_all(size(1, _MAX)), metavar="BYTES", help="such as 500m or 20g; all: without limit"
    )
    retention.add_argument(
        "--orphan-retention",
        type=argument(duration(0, _MAX)),
        metavar="DURATION",
        help="delete unreferenced ledgers of a run that may still be active after this age (7d)",
    )
    retention.add_argument(
        "--delete-grace",
        type=argument(duration(0, _MAX)),
        metavar="DURATION",
        help="wait this long between condemning and deleting a ledger, so that readers can finish (1h)",
    )
    retention.add_argument(
        "--history",
        type=argument(duration(0, _MAX)),
        metavar="DURATION",
        help="keep earlier states readable for this long after they were overwritten or truncated (0s)",
    )
    retention.add_argument("--apply", action="store_true", help="drop rows now instead of at the next maintenance")
    consent.add_options(retention)
    retention.set_defaults(run=_retention)

    delete = log.add_parser("delete", help="delete a log and its ledgers, or finish a deletion that stopped")
    delete.add_argument("name")
    consent.add_options(delete)
    delete.set_defaults(run=_delete)


def _or_all(kind: Kind) -> Any:
    parsed = argument(kind)
    return lambda value: 0 if value == "all" else parsed(value)


def _create(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    quorum = Quorum(options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    settings = LogSettings.create(quorum, DigestType[options.digest_type], EntryFormat.RAW, password(options))
    log = LogStore.of(client, options.log_root).create_log(options.name, settings)
    writable = sum(not bookie.read_only for bookie in client.bookies())
    if writable < quorum.ensemble_size:
        # Not an error: bookies may start later.
        print(
            f"bkctl: log {log.name} can be written once {quorum.ensemble_size} writable bookies are registered (now: "
            f"{writable}): start more, or create another log with a smaller --ensemble-size",
            file=sys.stderr,
        )
    if options.json:
        print_json({"name": log.name, "log_id": log.log_id})
    else:
        print(f"made log {log.name}  ({log.log_id})")
    return ExitStatus.OK


def _append_ledger(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    offsets = open_log(client, options).append_ledger(options.ledger_id)
    if options.json:
        print_json({"start_offset": offsets.start, "end_offset": offsets.stop})
    else:
        print(f"appended {len(offsets)} entries: offsets {offsets.start} to {offsets.stop}")
    return ExitStatus.OK


def _truncate(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_log(client, options)
    dropped = Dropped.by_beginning_at(log.snapshot(), log.truncate(options.offset, dry_run=True))
    if not options.dry_run and dropped.entries:
        consent.require(options, f"log {log.name}: {dropped} would be dropped, for good")
        log.truncate(options.offset)
    if options.json:
        print_json({"dry_run": options.dry_run, "first_offset": dropped.end, "dropped": dropped.record()})
    elif options.dry_run:
        print(f"the log would begin at offset {dropped.end}: {dropped} would be dropped")
    else:
        print(f"the log begins at offset {dropped.end}: {dropped.entries} entries dropped")
    return ExitStatus.OK


def _give_up_tail(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_log(client, options)
    lost = log.give_up_tail(options.entries, dry_run=True)
    if not options.dry_run:
        consent.require(
            options,
            f"log {log.name}: whatever its open end held is lost, for good. Offsets {lost.start} to {lost.stop} would "
            f"be given up, and new entries would follow from {lost.stop} on",
        )
        lost = log.give_up_tail(options.entries)
    if options.json:
        print_json({"dry_run": options.dry_run, "lost_start": lost.start, "lost_end": lost.stop})
    else:
        would, goes = ("would be", "would go") if options.dry_run else ("are", "goes")
        print(f"offsets {lost.start} to {lost.stop} {would} lost; the log {goes} on at offset {lost.stop}")
    return ExitStatus.OK


def _retention(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    given = {
        name: value
        for name, value in (
            ("retention_time_ms", options.time),
            ("retention_size_bytes", options.size),
            ("orphan_retention_ms", options.orphan_retention),
            ("delete_grace_ms", options.delete_grace),
            ("history_ms", options.history),
        )
        if value is not None
    }
    changes = bool(given)
    looks_on = not (changes or options.apply or options.dry_run)
    log = open_list(client, options) if looks_on else open_log(client, options)
    policy = log.policy()
    if changes:
        policy = replace(policy, **given)
    snapshot = log.snapshot()
    first_offset = snapshot.first_offset
    record: dict[str, Any] = {}
    if not looks_on:
        dropped = Dropped.by_beginning_at(snapshot, log.apply_retention(policy, dry_run=True))
        record = {"dry_run": options.dry_run, "dropped" if options.apply else "to_drop": dropped.record()}
        if not options.dry_run:
            if dropped.entries:
                # Without --apply, maintenance does it minutes later.
                consent.require(options, f"log {log.name}: {dropped} would be dropped, for good")
            if changes:
                log.set_policy(policy)
            if options.apply:
                first_offset = log.apply_retention()
    if options.json:
        print_json(policy_record(policy) | {"first_offset": first_offset} | record)
        return ExitStatus.OK
    print(f"time    {f'{policy.retention_time_ms} ms' if policy.retention_time_ms else 'all'}")
    print(f"size    {f'{policy.retention_size_bytes} bytes' if policy.retention_size_bytes else 'all'}")
    print(f"orphan  {policy.orphan_retention_ms} ms")
    print(f"grace   {policy.delete_grace_ms} ms")
    print(f"history {policy.history_ms} ms")
    print(f"begins  {first_offset}")
    if options.dry_run:
        print(f"would drop {dropped}")
    return ExitStatus.OK


def _delete(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    store = LogStore.of(client, options.log_root)
    if options.dry_run or not options.yes:
        ledgers, other_cluster = "with its ledgers", None
        if options.name not in store.list_logs(deleted=True):
            # The store is opened without a client, so that a log of a cluster that was created again can be deleted.
            log = LogStore(client.zookeeper, options.log_root).open_log(options.name)
            snapshot = log.snapshot()
            what = f"offsets {snapshot.first_offset} to {snapshot.next_offset}"
            if not log.settings.may_be_in(read_instance_id(client.zookeeper, client.root)):
                other_cluster = log.settings.instance_id
                ledgers = f"without its ledgers, which are in another cluster ({other_cluster})"
        else:
            what = "its deletion has begun"
        loss = f"log {options.name} ({what}) would be deleted {ledgers}, for good"
        if options.dry_run:
            if options.json:
                print_json({"dry_run": True, "name": options.name, "what": what, "other_cluster": other_cluster})
            else:
                print(loss)
            return ExitStatus.OK
        consent.require(options, loss)
    try:
        report = store.delete_log(options.name, password(options))
    except UnauthorizedError as error:
        raise wrong_password(options) from error
    if options.json:
        deleted = {"name": options.name, "ledgers": report.ledgers, "not_fenced": report.not_fenced}
        print_json({"dry_run": False} | deleted)
        return ExitStatus.OK
    print(f"deleted log {options.name} and {report.ledgers} ledgers")
    if report.not_fenced:
        why = "too few bookies answered, or bookies know their ids with another password"
        print(f"not fenced, because {why}: ledgers {', '.join(map(str, report.not_fenced))}")
    return ExitStatus.OK
