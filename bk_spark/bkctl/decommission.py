"""``bkctl decommission``: waits until no ledger names a bookie any more, so that it can go for good."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bk_spark.bkctl.bookie_ledgers import Search, find_ledgers
from bk_spark.bkctl.command_line.common import ExitStatus, argument, bookie_id, print_json
from bk_spark.bkctl.ledgers import metadata_of
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bkctl.members import Members
from bk_spark.bkctl.recover import add_limits, print_plan, print_unreadable, recover_ledgers
from bk_spark.bkctl.replication import NO_AUDITOR, add_dry_run, open_store, repair_failures
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.ledger_marks import MARKS_PER_PAGE
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.settings.kinds import whole

#: Ledgers are checked again after at least this pause, and checks take at most this share of the time.
_PAUSE_S: Final = 1.0
_SHARE: Final = 0.2
#: The auditor is asked again after this time, if it has not marked all ledgers.
_ASK_AGAIN_S: Final = 15.0
#: The command gives up when every ledger that is left has failed this many times since it began.
_ATTEMPTS: Final = 2
_MAX_PATIENCE_S: Final = 604_800


def add_commands(groups: Any) -> None:
    """Add ``decommission``."""
    command = groups.add_parser(
        "decommission", help="have all copies of a stopped bookie made again, and wait until no ledger names it"
    )
    command.add_argument("bookie_id", type=bookie_id, metavar="BOOKIE")
    command.add_argument(
        "--force",
        action="store_true",
        help="even if the bookie still runs: this command copies all that it has, as bkctl recover --force does",
    )
    command.add_argument(
        "--patience",
        type=argument(whole(1, _MAX_PATIENCE_S)),
        default=600,
        metavar="SECONDS",
        help="give up if no ledger was finished for this long (%(default)s)",
    )
    add_limits(command)
    add_dry_run(command)
    command.set_defaults(run=_decommission)


@dataclass(frozen=True, slots=True)
class _Left:
    """A ledger that still names the bookie, and why."""

    ledger: int
    reason: str


def _decommission(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    name = options.bookie_id
    bookies = frozenset([name])
    store = open_store(client)
    members = Members.read(client)
    members.check_lost(bookies, force=options.force, otherwise="copy what it has, and fence what is written to it")
    runs = name in members.registered
    with Progress() as progress:
        search = find_ledgers(client, bookies, progress)
        members.check_known(bookies, search.named)
        _check_enough(members, search, name)
        if search.ledgers and not runs:
            _check_auditor(client, members, name)
        if options.dry_run:
            print_plan(options, bookies, search)
            return ExitStatus.PROBLEMS_FOUND if search.unreadable else ExitStatus.OK
        #: What named the bookie, or may have done so, at any time of this command.
        seen = {*(each.ledger for each in search.ledgers), *search.unreadable}
        left: list[_Left] = []
        if runs:
            ended = recover_ledgers(client, options, bookies, search.ledgers, progress)
            left = [_Left(each.ledger_id, each.reason) for each in ended if each.reason is not None]
        elif search.ledgers:
            left = _Wait(client, store, options, search).run(progress)
            _print_left(options, left)
        if not left:
            # A writer may have chosen the bookie meanwhile.
            search = find_ledgers(client, bookies, progress)
            left = [_Left(each.ledger, "began to name the bookie meanwhile; try again") for each in search.ledgers]
            seen.update(search.unreadable, (each.ledger for each in left))
            _print_left(options, left)
    _print(options, search, left, len(seen), runs=runs)
    return ExitStatus.PROBLEMS_FOUND if left or search.unreadable else ExitStatus.OK


def _check_auditor(client: BlockingClient, members: Members, name: str) -> None:
    if ReplicationSwitches(client.zookeeper, client.root).is_disabled():
        raise InvalidArgumentError(
            f"autorecovery is disabled: enable it first (bkctl autorecovery enable), or use bkctl recover {name}"
        )
    if AuditorElection(client.zookeeper, client.root).auditor() is None:
        raise InvalidArgumentError(
            f"{NO_AUDITOR}, so nobody would copy anything: use bkctl recover {name}, or start "
            "bookie-server autorecovery on some host"
        )
    if name not in members.with_cookie:
        raise InvalidArgumentError(
            f"bookie {name} has no cookie, so no auditor knows that it is lost: use bkctl recover {name}"
        )


def _check_enough(members: Members, search: Search, name: str) -> None:
    writable = len(members.writable - {name})
    most = max(search.ledgers, key=lambda each: each.write_quorum, default=None)
    if most is not None and writable < most.write_quorum:
        raise InvalidArgumentError(
            f"without bookie {name} {writable} writable bookies are left, and ledger {most.ledger} needs "
            f"{most.write_quorum} for its write quorum: start more bookies first"
        )


class _Wait:
    """Asks the auditor for an audit, and waits until it and the workers are done."""

    def __init__(
        self, client: BlockingClient, store: UnderReplicationStore, options: argparse.Namespace, search: Search
    ) -> None:
        self._client = client
        self._switches = ReplicationSwitches(client.zookeeper, client.root)
        self._store = store
        self._options = options
        self._ids = [each.ledger for each in search.ledgers]
        self._attempts_before = {i: each.attempts for i, each in repair_failures(store, self._ids).items()}

    def run(self, progress: Progress) -> list[_Left]:
        """Return the ledgers that still name the bookie."""
        total, changed_s = len(self._ids), time.monotonic()
        asked_s = -math.inf
        while True:
            began_s = time.monotonic()
            if began_s - asked_s > _ASK_AGAIN_S and self._some_unmarked():
                self._switches.trigger_audit()
                asked_s = began_s
            left = self._named()
            failures = repair_failures(self._store, left)
            now_s = time.monotonic()
            if len(left) < len(self._ids):
                self._ids, changed_s = left, now_s
            failing = f", {len(failures)} cannot be repaired so far" if failures else ""
            progress.update("ledgers", total - len(left), total, failing)
            fails = [failures[i].attempts - self._attempts_before.get(i, 0) for i in left if i in failures]
            hopeless = len(fails) == len(left) and min(fails, default=_ATTEMPTS) >= _ATTEMPTS
            if hopeless or now_s - changed_s > self._options.patience:
                progress.clear()
                reasons = {i: each.reason for i, each in failures.items()}
                locks = self._store.locks() if left else {}
                return [_Left(i, reasons.get(i) or self._state(i, i in locks)) for i in left]
            time.sleep(max(_PAUSE_S, (now_s - began_s) / _SHARE))

    def _named(self) -> list[int]:
        """Return those of the ledgers that still name the bookie, or may do so."""
        return [
            ledger_id
            for ledger_id, found in metadata_of(self._client, iter(self._ids))
            if isinstance(found, MetadataFormatError)
            or any(self._options.bookie_id in segment.ensemble for segment in found.segments)
        ]

    def _some_unmarked(self) -> bool:
        """Whether some ledger is not marked yet. An auditor that was elected after the request does not know about
        it."""
        pages = (self._ids[start : start + MARKS_PER_PAGE] for start in range(0, len(self._ids), MARKS_PER_PAGE))
        paths = ([self._store.paths.mark(ledger_id) for ledger_id in page] for page in pages)
        return any(None in self._store.zk.get_many(page).values() for page in paths)

    def _state(self, ledger_id: int, locked: bool) -> str:
        if locked:
            return "still under repair"
        if self._store.read_mark(ledger_id) is None:
            return "the auditor has not marked it as under-replicated"
        return "marked as under-replicated, but no worker repairs it: start bookie-server autorecovery on more hosts"


def _print_left(options: argparse.Namespace, left: Sequence[_Left]) -> None:
    if not options.json:
        for each in left:
            print(f"{each.ledger}\tnot recovered\t{' '.join(each.reason.split())}")


def _print(options: argparse.Namespace, search: Search, left: Sequence[_Left], total: int, *, runs: bool) -> None:
    name = options.bookie_id
    if options.json:
        print_json(
            {
                "dry_run": False,
                "bookie": name,
                "registered": runs,
                "ledgers": total,
                "left": [{"ledger": each.ledger, "reason": each.reason} for each in left],
                "unreadable": [{"ledger": i, "problem": problem} for i, problem in search.unreadable.items()],
            }
        )
        return
    print_unreadable(search)
    if left or search.unreadable:
        print(f"{len(left) + len(search.unreadable)} of {total} ledgers still need bookie {name}: keep its directories")
    else:
        stop = "stop it, and then delete" if runs else "delete"
        print(f"no ledger names bookie {name} any more: {stop} its cookie with bkctl cookie delete {name}")
