"""``bkctl autorecovery``, ``listunderreplicated``, ``whoisauditor``, ``triggeraudit``, ``forceauditchecks`` and
``lostbookierecoverydelay``.

The names are those of Apache's shell. The commands work with Apache's auditor and workers and with ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bk_spark.bkctl.command_line.common import (
    ExitStatus,
    WrongCommandLineError,
    argument,
    bookie_id,
    iso_time,
    print_facts,
    print_json,
    print_json_list,
)
from bk_spark.bkctl.members import Members
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.replication.auditor_election import AuditorElection, AuditorVote
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import LedgerLock, UnderReplicationStore
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata.replication_notes import RepairFailure, reason_path
from bk_spark.protocol.metadata.under_replication import MAX_RECOVERY_DELAY_S, Mark, PeriodicCheck, check_layout
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.settings.kinds import whole

NO_AUDITOR: Final = "no auditor is elected"
_UNKNOWN: Final = "unknown"
_CHECKS: Final = {
    "all-ledgers": PeriodicCheck.ALL_LEDGERS,
    "placement-policy": PeriodicCheck.PLACEMENT_POLICY,
    "replicas": PeriodicCheck.REPLICAS,
}
_MEANINGS: Final = {
    PeriodicCheck.ALL_LEDGERS: "the check of all ledgers' copies",
    PeriodicCheck.PLACEMENT_POLICY: "the check whether copies lie as the placement policy wants",
    PeriodicCheck.REPLICAS: "the check of the list of entries at each bookie",
}
#: Marks that ``autorecovery status`` counts. ``listunderreplicated --count`` counts all.
MAX_COUNTED_MARKS: Final = 10_000
#: A time so long ago that every check is due.
_LONG_AGO_MS: Final = 0


def add_commands(groups: Any) -> None:
    """Add the commands about under-replication and the auditor."""
    autorecovery = groups.add_parser("autorecovery", help="whether lost copies are made again")
    switches = autorecovery.add_subparsers(required=True, metavar="enable|disable|status")
    for name, meaning in (("enable", "let lost copies be made again"), ("disable", "stop it in the whole cluster")):
        switch = switches.add_parser(name, help=meaning)
        add_dry_run(switch)
        switch.set_defaults(run=_switch, enable=name == "enable")
    for commands, name in ((switches, "status"), (groups, "queryautorecoverystatus")):
        commands.add_parser(
            name, help="whether lost copies are made again, the auditor, and the ledgers marked and under repair"
        ).set_defaults(run=_status)

    listing = groups.add_parser("listunderreplicated", help="list the ledgers that are marked as under-replicated")
    listing.add_argument("--missing", type=bookie_id, metavar="BOOKIE", help="only ledgers that lack copies of it")
    listing.add_argument("--excluding", type=bookie_id, metavar="BOOKIE", help="no ledgers that lack copies of it")
    listing.add_argument("--count", action="store_true", help="print only how many there are")
    listing.set_defaults(run=_list)

    groups.add_parser("whoisauditor", help="print the bookie whose auditor is elected").set_defaults(run=_auditor)

    trigger = groups.add_parser("triggeraudit", help="let the auditor look for lost bookies now")
    add_dry_run(trigger)
    trigger.set_defaults(run=_trigger)

    for name in ("forceauditchecks", "forceautorecoverychecks"):
        force = groups.add_parser(
            name, help="let the next auditor that starts do checks at once, instead of when they are due"
        )
        for option, check in _CHECKS.items():
            force.add_argument(f"--{option}", action="append_const", dest="checks", const=check, help=_MEANINGS[check])
        add_dry_run(force)
        force.set_defaults(run=_force_checks)

    delay = groups.add_parser(
        "lostbookierecoverydelay", help="how long the auditor waits for a lost bookie to return"
    ).add_subparsers(required=True, metavar="get|set")
    delay.add_parser("get", help="print the delay in seconds").set_defaults(run=_get_delay)
    setting = delay.add_parser("set", help="set the delay")
    setting.add_argument("seconds", type=argument(whole(0, MAX_RECOVERY_DELAY_S)), metavar="SECONDS")
    add_dry_run(setting)
    setting.set_defaults(run=_set_delay)


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """Add ``--dry-run``."""
    command.add_argument("--dry-run", action="store_true", help="change nothing, print what would be done")


def open_store(client: BlockingClient) -> UnderReplicationStore:
    """Return the cluster's store of under-replicated ledgers.

    Raises MetadataFormatError for a layout that this release does not know.
    """
    store = UnderReplicationStore(client.zookeeper, client.root)
    layout = client.zookeeper.get(store.paths.layout)
    if layout is not None:
        check_layout(layout.data, store.paths.layout)
    return store


def _switch(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    switches = ReplicationSwitches(client.zookeeper, client.root)
    state = "enabled" if options.enable else "disabled"
    if options.dry_run:
        changed = switches.is_disabled() == options.enable
        text = f"autorecovery would be {state}" if changed else f"autorecovery is {state} already"
    else:
        UnderReplicationStore(client.zookeeper, client.root).prepare()
        changed = switches.enable() if options.enable else switches.disable()
        text = f"autorecovery is {state}{'' if changed else ' already'}"
    if options.json:
        print_json({"dry_run": options.dry_run, "enabled": options.enable, "changed": changed})
    else:
        print(text)
    return ExitStatus.OK


def _status(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    store = open_store(client)
    enabled = not ReplicationSwitches(client.zookeeper, client.root).is_disabled()
    auditor = AuditorElection(client.zookeeper, client.root).auditor()
    # A bookie's garbage collection locks ledgers, too, but none that is marked.
    locks = store.locks()
    repairing = {i: lock for i, lock in sorted(locks.items()) if store.read_mark(i) is not None}
    marked, more = _count_marks(store)
    if options.json:
        print_json(
            {
                "enabled": enabled,
                "auditor": None if auditor is None else auditor.bookie_id,
                "marked": marked,
                "marked_more": more,
                "locked": len(locks),
                "repairing": [{"ledger": i} | _lock_record(lock) for i, lock in repairing.items()],
            }
        )
        return ExitStatus.OK
    print_facts(
        {
            "autorecovery": "enabled" if enabled else "disabled",
            "auditor": NO_AUDITOR if auditor is None else auditor.bookie_id or _UNKNOWN,
            "marked": f"{'more than ' if more else ''}{marked} ledgers",
            "locked": f"{len(locks)} ledgers",
            "under repair": f"{len(repairing)} ledgers",
        }
    )
    for ledger_id, lock in repairing.items():
        print(f"ledger {ledger_id}  by {lock.holder or _UNKNOWN} since {iso_time(lock.since_ms)}")
    return ExitStatus.OK


def _count_marks(store: UnderReplicationStore) -> tuple[int, bool]:
    """Return how many ledgers are marked, up to a bound, and whether there are more."""
    count = 0
    for page in store.marks():
        count += len(page)
        if count > MAX_COUNTED_MARKS:
            return MAX_COUNTED_MARKS, True
    return count, False


def _list(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    store = open_store(client)
    for bookie in (options.missing, options.excluding):
        if bookie is not None:
            _check_bookie(client, store, bookie)
    pages = _marks(store, options)
    if options.count:
        count = sum(map(len, pages))
        print_json({"count": count}) if options.json else print(count)
        return ExitStatus.OK
    locks = store.locks()
    records = (
        _mark_record(ledger_id, mark, locks.get(ledger_id), failures.get(ledger_id))
        for page in pages
        for failures in [repair_failures(store, page)]
        for ledger_id, mark in page.items()
    )
    if options.json:
        print_json_list(records)
        return ExitStatus.OK
    for one in records:
        lock = one["lock"]
        marked = "" if one["marked_ms"] is None else iso_time(one["marked_ms"])
        holder = "" if lock is None else lock["holder"] or _UNKNOWN
        # Lines are printed as they come, because there may be a million.
        failure = "" if one["failure"] is None else " ".join(one["failure"]["reason"].split())
        print(one["ledger"], ",".join(one["missing"]) or one["problem"] or "", marked, holder, failure, sep="\t")
    return ExitStatus.OK


def _check_bookie(client: BlockingClient, store: UnderReplicationStore, bookie: str) -> None:
    def is_named() -> bool:
        return any(bookie in mark.missing for page in store.marks() for mark in page.values())

    Members.read(client).check_listed(bookie, is_named, by="mark")


def _marks(store: UnderReplicationStore, options: argparse.Namespace) -> Iterator[dict[int, Mark]]:
    for page in store.marks():
        yield {
            ledger_id: mark
            for ledger_id, mark in page.items()
            if options.missing in (None, *mark.missing) and options.excluding not in mark.missing
        }


def repair_failures(store: UnderReplicationStore, ledger_ids: Iterable[int]) -> dict[int, RepairFailure]:
    """Return why our workers could not repair these ledgers, as far as they say so."""
    paths = {reason_path(store.paths.root, ledger_id): ledger_id for ledger_id in ledger_ids}
    found = store.zk.get_many(list(paths))
    return {paths[path]: _failure(node) for path, node in found.items() if node is not None}


def _failure(node: Znode) -> RepairFailure:
    try:
        return RepairFailure.decode(node.data)
    except MetadataFormatError as error:
        return RepairFailure(error.message, 0)


def _mark_record(ledger_id: int, mark: Mark, lock: LedgerLock | None, failure: RepairFailure | None) -> dict[str, Any]:
    return {
        "ledger": ledger_id,
        "missing": list(mark.missing),
        "marked_ms": mark.ctime_ms,
        "problem": mark.problem,
        "lock": None if lock is None else _lock_record(lock),
        "failure": None if failure is None else {"reason": failure.reason, "attempts": failure.attempts},
    }


def _lock_record(lock: LedgerLock) -> dict[str, Any]:
    return {"holder": lock.holder, "session": f"0x{lock.session_id & 2**64 - 1:x}", "since_ms": lock.since_ms}


def _auditor(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    votes = AuditorElection(client.zookeeper, client.root).votes()
    if options.json:
        print_json({"auditor": votes[0].bookie_id if votes else None, "candidates": [vote.bookie_id for vote in votes]})
    else:
        print((votes[0].bookie_id or f"{_UNKNOWN} ({votes[0].path})") if votes else NO_AUDITOR)
    return ExitStatus.OK if votes else ExitStatus.PROBLEMS_FOUND


def _trigger(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    switches = ReplicationSwitches(client.zookeeper, client.root)
    auditor = AuditorElection(client.zookeeper, client.root).auditor()
    if switches.is_disabled():
        raise InvalidArgumentError("autorecovery is disabled: enable it first (bkctl autorecovery enable)")
    if auditor is None:
        raise InvalidArgumentError(
            f"{NO_AUDITOR}: start autorecovery on some host, or set autoRecoveryDaemonEnabled=true for the bookies"
        )
    if not options.dry_run:
        switches.trigger_audit()
    if options.json:
        print_json({"dry_run": options.dry_run, "auditor": auditor.bookie_id})
    else:
        print(f"{_asked(auditor, options)} to look for lost bookies now")
    return ExitStatus.OK


def _force_checks(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    if not options.checks:
        raise WrongCommandLineError(f"no check is named: give {', '.join(f'--{option}' for option in _CHECKS)}")
    if not options.dry_run:
        UnderReplicationStore(client.zookeeper, client.root).prepare()
        switches = ReplicationSwitches(client.zookeeper, client.root)
        for check in options.checks:
            switches.set_check_time_ms(check, _LONG_AGO_MS)
    names = [name for name, check in _CHECKS.items() if check in options.checks]
    if options.json:
        print_json({"dry_run": options.dry_run, "checks": names})
    else:
        print(f"the next auditor {'would do' if options.dry_run else 'does'} at its start: {', '.join(names)}")
    return ExitStatus.OK


def _asked(auditor: AuditorVote, options: argparse.Namespace) -> str:
    return f"the auditor of {auditor.bookie_id or _UNKNOWN} {'would be' if options.dry_run else 'was'} asked"


def _get_delay(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    delay = ReplicationSwitches(client.zookeeper, client.root).recovery_delay()
    if options.json:
        print_json({"seconds": None if delay is None else delay.seconds})
    else:
        print("not set: the auditor sets it from its configuration" if delay is None else delay.seconds)
    return ExitStatus.OK


def _set_delay(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    switches = ReplicationSwitches(client.zookeeper, client.root)
    before = switches.recovery_delay()
    was = None if before is None else before.seconds
    if not options.dry_run:
        UnderReplicationStore(client.zookeeper, client.root).prepare()
        switches.set_recovery_delay(options.seconds)
    if options.json:
        print_json({"dry_run": options.dry_run, "seconds": options.seconds, "seconds_before": was})
    else:
        verb = "would be" if options.dry_run else "is"
        before_text = "" if was is None else f" (before: {was} s)"
        print(f"the auditor {verb} told to wait {options.seconds} s for a lost bookie{before_text}")
    return ExitStatus.OK
