"""``bkctl localconsistencycheck``."""

from __future__ import annotations

import argparse

from bk_spark.bkctl.command_line.common import ExitStatus
from bk_spark.bkctl.offline.common import directories_of, reading
from bk_spark.bkctl.offline.payloads import digest_finder
from bookie_server.offline.consistency import ConsistencyCheck, Problem
from bookie_server.offline.directories import DirectoryKind


def check(options: argparse.Namespace) -> ExitStatus:
    """Run ``localconsistencycheck``."""
    directories = directories_of(options, DirectoryKind.LEDGER)
    finder = digest_finder(options)
    with reading(directories, options, DirectoryKind.LEDGER, DirectoryKind.INDEX) as report:
        was_unclean = directories.was_stopped_uncleanly()
        if was_unclean:
            report.warn(
                "the bookie was not shut down cleanly, or it is running. Its next start replays the journal, "
                "which may repair what is reported here. Start and stop it once, then check again"
            )
        checked = ConsistencyCheck(
            directories.index_directories(),
            directories.current(DirectoryKind.LEDGER),
            finder,
            was_unclean=was_unclean,
            only=options.ledger,
        )

        def show(done: int, total: int) -> None:
            report.progress.update("bytes of index files", done, total, f", {report.problems} problems")

        for problem in checked.problems(show):
            report.problems += 1
            report.record(_record(problem), _text(problem))
        counts = checked.counts
        report.record(
            {
                "ledgers": counts.ledgers,
                "entries": counts.entries,
                "digest_unknown": counts.digest_unknown,
                "problems": report.problems,
            },
            f"{counts.ledgers} ledgers and {counts.entries} entries checked, digest unknown of "
            f"{counts.digest_unknown}: {report.problems or 'no'} problems",
        )
        return report.status


def _record(problem: Problem) -> dict[str, object]:
    return {
        "problem": problem.kind.value,
        "ledger": problem.ledger_id,
        "first_entry": problem.first_entry,
        "last_entry": problem.last_entry,
        "path": problem.path,
        "text": problem.text,
    }


def _text(problem: Problem) -> str:
    numbers = (problem.ledger_id, problem.first_entry, problem.last_entry)
    columns = [problem.kind.value, *("" if number is None else str(number) for number in numbers)]
    return "\t".join((*columns, f"{problem.path}: {problem.text}"))
