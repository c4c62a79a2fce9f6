"""``bkctl recover``: makes the copies of lost bookies again on other bookies, now and without an auditor."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from bk_spark.bkctl.bookie_ledgers import BookieLedger, Search, find_ledgers
from bk_spark.bkctl.command_line.common import ExitStatus, argument, bookie_id, print_json
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bkctl.members import Members
from bk_spark.bkctl.replication import add_dry_run, open_store
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.replication.bookie_recovery import RecoveredLedger, RecoverySettings, recover_bookies
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.settings.kinds import whole

_MAX_AT_ONCE: Final = 64
_MAX_WAIT_S: Final = 86_400


def add_commands(groups: Any) -> None:
    """Add ``recover``."""
    recover = groups.add_parser(
        "recover", help="make the copies of lost bookies again on other bookies, now and without an auditor"
    )
    recover.add_argument("bookies", type=bookie_id, nargs="+", metavar="BOOKIE")
    recover.add_argument(
        "--to", type=bookie_id, nargs="+", metavar="BOOKIE", help="only these bookies take copies; default: any"
    )
    recover.add_argument(
        "--force",
        action="store_true",
        help="even if a bookie still runs: copy all that it has, and fence ledgers that are being written to it",
    )
    add_limits(recover)
    add_dry_run(recover)
    recover.set_defaults(run=_recover)


def add_limits(command: argparse.ArgumentParser) -> None:
    """Add the options that bound the repair of ledgers. ``decommission`` has them, too."""
    command.add_argument(
        "--ledgers-at-once",
        type=argument(whole(1, _MAX_AT_ONCE)),
        default=4,
        metavar="N",
        help="how many ledgers are repaired at the same time (%(default)s)",
    )
    command.add_argument(
        "--replication-rate",
        type=argument(whole(0)),
        default=0,
        metavar="BYTES",
        help="how many bytes are copied per second, at most; 0: no limit (%(default)s)",
    )
    command.add_argument(
        "--lock-wait",
        type=argument(whole(0, _MAX_WAIT_S)),
        default=60,
        metavar="SECONDS",
        help="how long to wait for a ledger that another worker has locked (%(default)s)",
    )
    command.add_argument(
        "--open-ledger-grace",
        type=argument(whole(0, _MAX_WAIT_S)),
        default=30,
        metavar="SECONDS",
        help="how long a writer may take to replace a lost bookie itself, before its ledger is fenced (%(default)s)",
    )


def _recover(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    bookies, targets = frozenset(options.bookies), options.to and frozenset(options.to)
    open_store(client)
    members = Members.read(client)
    members.check_lost(bookies, force=options.force, otherwise="copy what it has and take it out of all ledgers")
    members.check_targets(targets or (), bookies)
    with Progress() as progress:
        search = find_ledgers(client, bookies, progress)
        members.check_known(bookies, search.named)
        if options.dry_run:
            print_plan(options, bookies, search)
            return ExitStatus.PROBLEMS_FOUND if search.unreadable else ExitStatus.OK
        ended = recover_ledgers(client, options, bookies, search.ledgers, progress, targets=targets)
    left = [each for each in ended if each.reason is not None]
    running = sorted(bookies & members.registered)
    if options.json:
        print_json(_summary(bookies, ended, search) | {"still_registered": running})
    else:
        print_unreadable(search)
        entries, size_bytes = sum(each.entries for each in ended), sum(each.size_bytes for each in ended)
        print(
            f"{len(ended) - len(left)} ledgers recovered, {len(left) + len(search.unreadable)} not; {entries} entries, "
            f"{size_bytes} bytes copied"
        )
        if running:
            print(f"bookie {', '.join(running)} is still registered, and may be chosen for new ledgers: stop it")
    return ExitStatus.PROBLEMS_FOUND if left or search.unreadable else ExitStatus.OK


def recover_ledgers(
    client: BlockingClient,
    options: argparse.Namespace,
    bookies: frozenset[str],
    ledgers: Sequence[BookieLedger],
    progress: Progress,
    *,
    targets: frozenset[str] | None = None,
) -> list[RecoveredLedger]:
    """Recover ledgers and show the progress. Print the outcome of each, unless JSON is wanted."""
    settings = RecoverySettings(
        bookies,
        registered_too=options.force,
        targets=targets,
        at_once=options.ledgers_at_once,
        lock_wait_s=options.lock_wait,
        bytes_per_s=options.replication_rate,
        grace_ms=options.open_ledger_grace * 1000,
    )
    ended: list[RecoveredLedger] = []

    def tell(one: RecoveredLedger) -> None:
        ended.append(one)
        if not options.json:
            progress.clear()
            print(_line(one), flush=True)
        progress.update("ledgers", len(ended), len(ledgers))

    if ledgers:
        uri = MetadataServiceUri.parse(client.metadata_service_uri)
        progress.update("ledgers", 0, len(ledgers))
        asyncio.run(recover_bookies(uri, client.config, settings, [each.ledger for each in ledgers], tell))
        progress.clear()
    return ended


def print_plan(options: argparse.Namespace, bookies: frozenset[str], search: Search) -> None:
    """Print what a dry run found."""
    if options.json:
        print_json(
            {
                "dry_run": True,
                "bookies": sorted(bookies),
                "ledgers": [asdict(each) for each in search.ledgers],
                "entries": search.entries,
                "size_bytes": search.size_bytes,
                "unreadable": _unreadable(search),
            }
        )
        return
    for each in search.ledgers:
        print(f"{each.ledger}\t{each}")
    print_unreadable(search)
    print(f"would be copied: {search.total()}")


def print_unreadable(search: Search) -> None:
    """Print a line for each ledger of which nobody can tell whether the bookies have it."""
    for ledger_id, problem in search.unreadable.items():
        print(f"{ledger_id}\tnot recovered\tmetadata cannot be read: {' '.join(problem.split())}")


def _unreadable(search: Search) -> list[dict[str, Any]]:
    return [{"ledger": ledger_id, "problem": problem} for ledger_id, problem in search.unreadable.items()]


def _summary(bookies: frozenset[str], ended: Sequence[RecoveredLedger], search: Search) -> dict[str, Any]:
    return {
        "dry_run": False,
        "bookies": sorted(bookies),
        "ledgers": [_ledger_record(each) for each in ended],
        "recovered": sum(each.reason is None for each in ended),
        "not_recovered": sum(each.reason is not None for each in ended) + len(search.unreadable),
        "unreadable": _unreadable(search),
    }


def _ledger_record(one: RecoveredLedger) -> dict[str, Any]:
    record = asdict(one)
    return {"ledger": record.pop("ledger_id"), "recovered": one.reason is None} | record


def _line(one: RecoveredLedger) -> str:
    if one.reason is not None:
        return f"{one.ledger_id}\tnot recovered\t{' '.join(one.reason.split())}"
    fenced = ", fenced and closed" if one.fenced else ""
    return f"{one.ledger_id}\trecovered\t{one.entries} entries, {one.size_bytes} bytes copied{fenced}"
