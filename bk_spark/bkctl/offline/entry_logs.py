"""``bkctl readlog`` and ``bkctl readlogmetadata``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from bk_spark.bkctl.command_line.common import ExitStatus, print_facts, print_json
from bk_spark.bkctl.offline.common import Report, check_range, place_of, reading
from bk_spark.bkctl.offline.payloads import Payloads
from bookie_server.offline.directories import DirectoryKind
from bookie_server.offline.entry_logs import EntryFilter, EntryLogFile, OnProgress, find_log


def read_log(options: argparse.Namespace) -> ExitStatus:
    """Run ``readlog``."""
    wanted = EntryFilter(options.ledger, options.first_entry, options.last_entry, options.start_pos, options.end_pos)
    check_range(wanted.first_entry, wanted.last_entry, "--first-entry", "--last-entry")
    check_range(wanted.first_offset, wanted.last_offset, "--start-pos", "--end-pos")
    payloads = Payloads.of(options)
    with _opened(options) as (log, report):
        for entry in log.entries(wanted, _progress(report)):
            record: dict[str, Any] = {
                "ledger": entry.ledger_id,
                "entry": entry.entry_id,
                "offset": entry.offset,
                "bytes": entry.size_bytes,
            }
            text = f"{entry.ledger_id}\t{entry.entry_id}\t{entry.offset}\t{entry.size_bytes}"
            if payloads is not None:
                more, more_text = payloads.shown(log.content(entry))
                record, text = record | more, f"{text}\t{more_text}"
            report.record(record, text)
        return report.status


def read_log_metadata(options: argparse.Namespace) -> ExitStatus:
    """Run ``readlogmetadata``."""
    with _opened(options) as (log, report):
        ledger_bytes, from_map = log.ledger_bytes(_progress(report))
        report.progress.clear()
        total = sum(ledger_bytes.values())
        if options.json:
            ledgers = [{"ledger": ledger_id, "bytes": size} for ledger_id, size in ledger_bytes.items()]
            print_json({"path": log.path, "from_map": from_map, "total_bytes": total, "ledgers": ledgers})
            return report.status
        source = "the map in the file" if from_map else "a scan: the file has no map, as while it is written"
        print_facts({"log": log.path, "from": source, "ledgers": len(ledger_bytes), "bytes": total})
        for ledger_id, size in ledger_bytes.items():
            print(ledger_id, size, sep="\t")
        return report.status


@contextlib.contextmanager
def _opened(options: argparse.Namespace) -> Iterator[tuple[EntryLogFile, Report]]:
    """Open the entry log that the command names, and keep bookies from its directory within the ``with`` block."""
    place, kinds = place_of(options, options.log, DirectoryKind.LEDGER)
    with reading(place, options, *kinds) as report, EntryLogFile(find_log(place, options.log), report.problem) as log:
        yield log, report


def _progress(report: Report) -> OnProgress:
    return lambda done, total: report.progress.update("bytes", done, total)
