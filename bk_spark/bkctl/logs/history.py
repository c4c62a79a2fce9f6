"""``bkctl log history``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, iso_time, offset, print_json, print_table
from bk_spark.bkctl.logs.opening import open_list
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.history.commits import Commit

_MOST: Final = 100_000


def add_commands(log: Any) -> None:
    """Add ``history``."""
    history = log.add_parser("history", help="commits of a log, the newest first: what, when, and by whom")
    history.add_argument("name")
    history.add_argument(
        "--commits", type=_count, default=20, metavar="N", help=f"the last N commits, at most {_MOST} (%(default)s)"
    )
    history.set_defaults(run=_history)


def _count(value: str) -> int:
    count = offset(value)
    if not 1 <= count <= _MOST:
        raise argparse.ArgumentTypeError(f"{value!r} is not from 1 to {_MOST}")
    return count


def _history(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    log = open_list(client, options)
    kept_from, commits = log.history(options.commits)
    records = [_record(commit, kept_from) for commit in commits]
    if options.json:
        print_json(records)
    elif records:
        print_table([*records[0]], [["-" if one is None else one for one in record.values()] for record in records])
    return ExitStatus.OK


def _record(commit: Commit, kept_from: int) -> dict[str, Any]:
    """``log_begins`` is where the log began after the commit; ``readable`` whether that state can still be read."""
    begins = commit.first_offset
    return {
        "what": commit.kind.value,
        "start_offset": commit.start_offset,
        "end_offset": commit.end_offset,
        "committed": iso_time(commit.time_ms),
        "rows": commit.rows,
        "bytes": commit.size_bytes,
        "application": commit.app,
        "batch": commit.batch,
        "log_begins": begins,
        "readable": (0 if begins is None else begins) >= kept_from,
    }
