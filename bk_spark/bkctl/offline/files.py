"""``bkctl listfilesondisc`` and ``bkctl lastmark``."""

from __future__ import annotations

import argparse
import os
from typing import Final

from bk_spark.bkctl.command_line.common import ExitStatus
from bk_spark.bkctl.offline.common import directories_of, reading
from bookie_server.offline.directories import DirectoryKind
from bookie_server.offline.listing import files_in
from bookie_server.offline.marks import FoundMark, found_marks

_NAMES: Final = {DirectoryKind.JOURNAL: "journal", DirectoryKind.LEDGER: "entrylog", DirectoryKind.INDEX: "index"}


def list_files(options: argparse.Namespace) -> ExitStatus:
    """Run ``listfilesondisc``."""
    kinds = [kind for kind, name in _NAMES.items() if name in (options.kinds or _NAMES.values())]
    directories = directories_of(options, *(kinds if options.kinds else ()))
    if not any(map(directories.of, kinds)):
        directories_of(options, DirectoryKind.LEDGER)
    with reading(directories, options, *kinds) as report:
        for kind in kinds:
            current = directories.index_directories() if kind is DirectoryKind.INDEX else directories.current(kind)
            for found in files_in(current, kind):
                report.record(
                    {
                        "kind": _NAMES[kind],
                        "path": found.path,
                        "bytes": found.size_bytes,
                        "disk_bytes": found.disk_bytes,
                    },
                    found.path,
                )
        return report.status


def last_mark(options: argparse.Namespace) -> ExitStatus:
    """Run ``lastmark``."""
    directories = directories_of(options, DirectoryKind.LEDGER)
    with reading(directories, options, DirectoryKind.LEDGER, DirectoryKind.JOURNAL) as report:
        for found in found_marks(directories):
            report.record(_mark_record(found), _mark_text(found))
            if found.problem:
                report.problem(f"{found.path} {found.problem}")
        return report.status


def _mark_record(found: FoundMark) -> dict[str, object]:
    mark = found.mark
    return {
        "directory": os.path.dirname(found.path),
        "journal": found.journal,
        "journal_id": None if mark is None else mark.journal_id,
        "journal_file": None if mark is None else f"{mark.journal_id:x}.txn",
        "offset": None if mark is None else mark.offset,
        "counts": found.counts,
        "problem": found.problem or None,
    }


def _mark_text(found: FoundMark) -> str:
    if found.mark is None:
        return f"{found.path}\tnone"
    journal_id = found.mark.journal_id
    counts = "counts" if found.counts else "older"
    return f"{found.path}\tjournal {journal_id} ({journal_id:x}.txn)\toffset {found.mark.offset}\t{counts}"
