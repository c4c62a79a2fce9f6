"""``bkctl log verify`` and ``log gc``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, print_json
from bk_spark.bkctl.logs import consent
from bk_spark.bkctl.logs.consent import Dropped
from bk_spark.bkctl.logs.opening import open_log
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.gc.maintenance import MaintenanceReport
from bk_spark.log.gc.reaper import ReapReport
from bk_spark.log.log import Log
from bk_spark.log.verification import Problem, Verification

#: Maximum of problems held in memory.
_MAX_IN_JSON: Final = 10_000


def add_commands(log: Any) -> None:
    """Add ``verify`` and ``gc``."""
    verify = log.add_parser(
        "verify",
        help="compare the list with ledger metadata and bookies; exit status 3 if something is wrong",
    )
    verify.add_argument("name")
    verify.add_argument(
        "--no-entries", action="store_true", help="do not read the entries, which takes most of the time"
    )
    verify.set_defaults(run=_verify)

    gc = log.add_parser(
        "gc", help="run maintenance now: apply retention, move old pages out of ZooKeeper, delete unreferenced ledgers"
    )
    gc.add_argument("name")
    consent.add_options(gc)
    gc.set_defaults(run=_gc)


def _verify(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_log(client, options)
    problems: list[Problem] = []
    found: Counter[str] = Counter()
    with Progress() as progress:
        verification = Verification(log, read_entries=not options.no_entries, on_progress=progress.update)
        for problem in verification.problems():
            found[problem.kind.value] += 1
            if not options.json:
                # Print problems as they are found: reading all entries may take long.
                progress.clear()
                print(
                    f"{problem.kind.value}\toffsets {problem.start} to {problem.end}\tledger {problem.ledger_id}\t"
                    f"{problem.detail}",
                    flush=True,
                )
            elif len(problems) < _MAX_IN_JSON:
                problems.append(problem)
    counts = verification.counts
    if options.json:
        print_json(
            asdict(counts)
            | {
                "problems_by_kind": found,
                "problems": [asdict(problem) | {"kind": problem.kind.value} for problem in problems],
            }
        )
    else:
        read = "not read" if options.no_entries else f"{counts.entries_read} of them read"
        print(
            f"{counts.segments} segments in {counts.ledgers} ledgers, {counts.entries} entries, {read}: "
            f"{found.total() or 'no'} problems"
        )
    return ExitStatus.PROBLEMS_FOUND if found else ExitStatus.OK


def _gc(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_log(client, options)
    with Progress() as progress:

        def tell(done: int, total: int, condemned: int, deleted: int) -> None:
            counts = f", {condemned} ledgers condemned, {deleted} deleted"
            progress.update("applications", done, total, counts)

        if not (options.yes or options.dry_run):
            loss = _loss(log, log.maintain(dry_run=True, on_progress=tell))
            progress.clear()
            if loss:
                consent.require(options, f"log {log.name}: {loss}, for good")
        report = log.maintain(force=True, dry_run=options.dry_run, on_progress=tell)
    reaped = report.reaped or ReapReport(complete=False)
    failed = (*report.failed, *reaped.failed)
    if options.json:
        print_json(
            {
                "dry_run": options.dry_run,
                "first_offset": report.first_offset,
                "moved_pages": report.moved_pages,
                "condemned": [
                    {"ledger_id": one.ledger_id, "run": one.run_path, "reason": one.reason.value}
                    for one in reaped.condemned
                ],
                "deleted": reaped.deleted,
                "waiting": reaped.waiting,
                "refused": reaped.refused,
                "failed": [{"what": what, "why": why} for what, why in failed],
                "complete": reaped.complete,
            }
        )
    else:
        _print_maintenance(report, reaped, failed)
    return ExitStatus.PROBLEMS_FOUND if failed else ExitStatus.OK


def _loss(log: Log, report: MaintenanceReport) -> str:
    """Describe what a round would remove from the log or its ledgers. Empty if nothing."""
    reaped = report.reaped or ReapReport()
    dropped = Dropped.by_beginning_at(log.snapshot(), report.first_offset or 0)
    parts = []
    if dropped.entries:
        parts.append(f"{dropped} would be dropped by its retention")
    if reaped.condemned or reaped.deleted:
        counts = f"{len(reaped.condemned)} ledgers would be condemned, {len(reaped.deleted)} deleted"
        parts.append(f"{counts}, which nothing refers to")
    return "; ".join(parts)


def _print_maintenance(report: MaintenanceReport, reaped: ReapReport, failed: Sequence[tuple[str, str]]) -> None:
    would = "would be " if reaped.dry_run else ""
    for one in reaped.condemned:
        print(f"{would}condemned\tledger {one.ledger_id}\t{one.reason.value}")
    for ledger_id in reaped.deleted:
        print(f"{would}deleted\tledger {ledger_id}")
    for ledger_id in reaped.waiting:
        print(f"waiting\tledger {ledger_id}")
    for ledger_id in reaped.refused:
        print(f"not fenced\tledger {ledger_id}\tbookies refused, because its id was used before, or this user may not")
    for what, why in failed:
        print(f"failed\t{what}\t{' '.join(why.split())}")
    if report.first_offset is not None and reaped.dry_run:
        print(f"the log would begin at offset {report.first_offset}")
    elif report.first_offset is not None:
        print(f"the log begins at offset {report.first_offset}; {report.moved_pages} pages left ZooKeeper")
    print(
        f"{len(reaped.condemned)} ledgers {would}condemned, {len(reaped.deleted)} {would}deleted, "
        f"{len(reaped.waiting)} wait, {len(failed)} failures"
    )
    if not (reaped.complete or failed):
        print("not finished: run it again")
