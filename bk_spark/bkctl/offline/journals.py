"""``bkctl readjournal``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from bk_spark.bkctl.command_line.common import ExitStatus
from bk_spark.bkctl.offline.common import Report, check_range, place_of, reading
from bk_spark.bkctl.offline.payloads import Payloads
from bk_spark.protocol.errors import CorruptFileError
from bookie_server.offline.directories import DirectoryKind
from bookie_server.offline.journals import FoundRecord, JournalFile, RecordKind, find_journals, total_bytes

#: Records between two updates of the progress bar.
_UPDATE_RECORDS = 1_000


def read_journal(options: argparse.Namespace) -> ExitStatus:
    """Run ``readjournal``."""
    check_range(options.first_entry, options.last_entry, "--first-entry", "--last-entry")
    payloads = Payloads.of(options)
    place, kinds = place_of(options, options.journal, DirectoryKind.JOURNAL)
    with reading(place, options, *kinds) as report:
        paths = find_journals(place, options.journal)
        total, done = total_bytes(paths), 0
        for path in paths:
            journal = JournalFile(path)
            report.record(
                {"kind": "journal", "path": path, "bytes": journal.size_bytes, "sealed": journal.is_ours},
                f"journal\t{path}",
            )
            try:
                for number, record in enumerate(journal.records()):
                    if _is_wanted(record, options):
                        _print(record, payloads, report, os.path.basename(path))
                    if number % _UPDATE_RECORDS == 0:
                        report.progress.update("bytes", done + record.offset, total)
            except CorruptFileError as error:
                report.problem(error.message)
            if journal.torn_at is not None:
                report.warn(
                    f"{path}: no record begins at offset {journal.torn_at}, where the journal ends: a write was "
                    "interrupted there, and nothing after it was acknowledged"
                )
            done += journal.size_bytes
        return report.status


def _is_wanted(record: FoundRecord, options: argparse.Namespace) -> bool:
    if options.ledger is not None and record.ledger_id != options.ledger:
        return False
    if options.first_entry is None and options.last_entry is None:
        return True
    if record.kind not in (RecordKind.ENTRY, RecordKind.LOCATED) or record.entry_id is None:
        return False
    last: int | None = options.last_entry
    return (options.first_entry or 0) <= record.entry_id and (last is None or record.entry_id <= last)


def _print(record: FoundRecord, payloads: Payloads | None, report: Report, journal: str) -> None:
    values: dict[str, Any] = {
        "ledger": record.ledger_id,
        "entry": record.entry_id,
        "offset": record.offset,
        "bytes": record.size_bytes,
    }
    columns = [record.kind.value, *("" if value is None else str(value) for value in values.values())]
    if record.lac is not None:
        values["lac"] = record.lac
        columns.append(str(record.lac))
    if record.group is not None:
        values["group_start"], values["group_end"] = record.group
        columns += map(str, record.group)
    if record.location is not None:
        values["entry_log"], values["entry_log_offset"] = record.location
        columns += map(str, record.location)
    if record.entry is not None and payloads is not None:
        more, text = payloads.shown(record.entry)
        values |= more
        columns.append(text)
    report.record({"kind": record.kind.value, "journal": journal} | values, "\t".join(columns))
