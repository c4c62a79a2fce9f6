"""The command lines of the offline commands. What runs is imported then: it brings the formats of the bookie along."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, offset

_KINDS: Final = {"journal": "journals (Apache's -txn)", "entrylog": "entry logs (-log)", "index": "index files (-idx)"}
_JOURNAL: Final = "id as a decimal number, file name (19a0.txn), or a path with a slash; default: all journals"
_LOG: Final = "id of the entry log as a decimal number (12), its file name (c.log), or a path with a slash"


def add_commands(groups: Any) -> None:
    """Add the commands that read files of a stopped bookie, and need no cluster."""
    listing = groups.add_parser("listfilesondisc", help="offline: list a bookie's journals, entry logs and index files")
    for name, meaning in _KINDS.items():
        listing.add_argument(f"--{name}", action="append_const", dest="kinds", const=name, help=f"list {meaning}")
    _add_directories(listing, _list_files)

    mark = groups.add_parser(
        "lastmark", help="offline: print from where a bookie replays its journals, by ledger directory"
    )
    _add_directories(mark, _last_mark)

    log = groups.add_parser(
        "readlog", help="offline: print the entries of an entry log: ledger, entry, offset in the file, bytes"
    )
    log.add_argument("log", metavar="LOG", help=_LOG)
    log.add_argument("--ledger", type=offset, metavar="LEDGER", help="only entries of this ledger (Apache's -l)")
    log.add_argument("--first-entry", type=offset, metavar="ENTRY", help="only entries from this id on (-e)")
    log.add_argument("--last-entry", type=offset, metavar="ENTRY", help="only entries up to this id (-e)")
    log.add_argument("--start-pos", type=offset, metavar="OFFSET", help="only entries from this offset on (-sp)")
    log.add_argument("--end-pos", type=offset, metavar="OFFSET", help="only entries up to this offset (-ep)")
    _add_payloads(log)
    _add_directories(log, _read_log)

    metadata = groups.add_parser(
        "readlogmetadata", help="offline: print the ledgers of an entry log with the bytes of each"
    )
    metadata.add_argument("log", metavar="LOG", help=_LOG)
    _add_directories(metadata, _read_log_metadata)

    journal = groups.add_parser(
        "readjournal", help="offline: print the records of one journal, or of all: kind, ledger, entry, offset, bytes"
    )
    journal.add_argument("journal", nargs="?", metavar="JOURNAL", help=_JOURNAL)
    journal.add_argument("--ledger", type=offset, metavar="LEDGER", help="only records of this ledger")
    journal.add_argument("--first-entry", type=offset, metavar="ENTRY", help="only entries, from this id on")
    journal.add_argument("--last-entry", type=offset, metavar="ENTRY", help="only entries, up to this id")
    _add_payloads(journal)
    _add_directories(journal, _read_journal)

    check = groups.add_parser(
        "localconsistencycheck",
        help="offline: check that every entry in the index is in its entry log, with its ids and a right digest",
    )
    check.add_argument("--ledger", type=offset, metavar="LEDGER", help="only this ledger")
    _add_directories(check, _check)


def _add_payloads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--msg",
        action="store_true",
        help="also the last add confirmed, the digest type if it can be determined, and the payload: as text, or in "
        "hexadecimal digits if it is not text (-m)",
    )
    command.add_argument("--hex", action="store_true", help="as --msg, and every payload in hexadecimal digits")


def _read_log(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.entry_logs import read_log

    return read_log(options)


def _read_log_metadata(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.entry_logs import read_log_metadata

    return read_log_metadata(options)


def _read_journal(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.journals import read_journal

    return read_journal(options)


def _check(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.consistency import check

    return check(options)


def _list_files(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.files import list_files

    return list_files(options)


def _last_mark(options: argparse.Namespace) -> ExitStatus:
    from bk_spark.bkctl.offline.files import last_mark

    return last_mark(options)


def _add_directories(command: argparse.ArgumentParser, run: Callable[[argparse.Namespace], ExitStatus]) -> None:
    """Add the options of all offline commands."""
    where = command.add_argument_group("the directories of the bookie, which must be stopped; nothing there is changed")
    where.add_argument("--conf", metavar="FILE", help="the configuration file of the bookie, ours or Apache's")
    for kind, of in (("journal", "journals"), ("ledger", "entry logs"), ("index", "index files")):
        where.add_argument(
            f"--{kind}-dir",
            action="append",
            default=[],
            dest=f"{kind}_dirs",
            metavar="DIRECTORY",
            help=f"a directory of {of}, as in {kind}Directories; may be repeated, in the bookie's order",
        )
    where.add_argument("--force", action="store_true", help="even if a bookie runs on the directories")
    command.set_defaults(run=run, without_cluster=True, without_uri=True)
