"""``bkctl top`` shows the whole cluster, refreshed: what the page of the bookies shows, in a terminal."""

from __future__ import annotations

import argparse
import os
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bk_spark.bkctl.bookies import add_rack_znode, rack_znode
from bk_spark.bkctl.command_line.common import ExitStatus, argument, print_json, printable_json, table_lines
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.placement.racks import Racks, rack_sources
from bk_spark.bookie.tls.contexts import TlsContexts
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo
from bk_spark.settings.kinds import whole

if TYPE_CHECKING:
    from bk_spark.overview.http_call import HttpCaller
    from bk_spark.overview.overview import Overview

TOKEN_VARIABLE: Final = "BK_ADMIN_TOKEN_FILE"
#: Rates need two collections. Without a terminal they are this far apart.
_FIRST_PAUSE_S: Final = 1.0
_DISK_TIMEOUT_MS: Final = 2_000
#: Move to the upper left corner; delete what a shorter line or screen leaves over. The cursor is hidden meanwhile.
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_UNKNOWN: Final = "-"
_BOOKIE_COLUMNS: Final = (
    "BOOKIE", "STATE", "RACK", "DISK", "FREE", "ADDS/S", "WRITTEN/S", "READS/S", "READ/S", "ADD P99",
)  # fmt: skip
_LOG_COLUMNS: Final = ("LOG", "ENTRIES", "GROWS/S", "SEGMENTS", "SIZE", "KEEPS", "COMMIT", "WRITTEN BY")

Record = dict[str, Any]


def add_commands(groups: Any) -> None:
    """Add ``top``."""
    top = groups.add_parser("top", help="the whole cluster at a glance, refreshed until Ctrl-C")
    top.add_argument("--once", action="store_true", help="print the page once, as with --json or without a terminal")
    top.add_argument(
        "--interval",
        type=argument(whole(1, 3600)),
        default=5,
        metavar="SECONDS",
        help="time between two refreshes (%(default)s)",
    )
    top.add_argument(
        "--token-file",
        type=Path,
        default=os.environ.get(TOKEN_VARIABLE) or None,
        metavar="FILE",
        help=f"file with the token that the bookies' admin API asks for; default: ${TOKEN_VARIABLE}",
    )
    add_rack_znode(top)
    top.set_defaults(run=_top)


def _top(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    overview = _overview(client, options)

    def look() -> Record:
        seen = overview.collect()
        _add_disks(client, seen["bookies"] or [])
        return seen

    if options.once or options.json or not sys.stdout.isatty():
        overview.collect()
        time.sleep(_FIRST_PAUSE_S)
        seen = look()
        if options.json:
            print_json(seen)
        else:
            print("\n".join(_lines(seen)))
        return ExitStatus.OK
    sys.stdout.write(_HIDE + _HOME + _END_OF_SCREEN)
    try:
        while True:
            width, height = shutil.get_terminal_size()
            shown = [line[: width - 1] for line in _lines(look())][: height - 1]
            sys.stdout.write(_HOME + "".join(f"{line}{_END_OF_LINE}\n" for line in shown) + _END_OF_SCREEN)
            sys.stdout.flush()
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return ExitStatus.OK
    finally:
        sys.stdout.write(_SHOW)


def _overview(client: BlockingClient, options: argparse.Namespace) -> Overview:
    from bk_spark.overview.http_call import caller, token_in
    from bk_spark.overview.overview import Overview

    config = client.config
    token = "" if options.token_file is None else token_in(options.token_file, "--token-file")

    def racks(address_of: Callable[[str], tuple[str, int]]) -> Racks:
        return Racks(rack_sources(client.zookeeper, config, znode=rack_znode(client, options)), address_of)

    def asking() -> HttpCaller:
        tls = TlsContexts(config, server_side=False).context if config.tls_enabled else ssl.create_default_context()
        return caller(tls, token)

    uri = MetadataServiceUri.parse(options.metadata_service_uri)
    return Overview(client.zookeeper, uri, racks, asking, options.log_root)


def _add_disks(client: BlockingClient, bookies: list[Record]) -> None:
    """Add the sizes of disks of bookies that did not say them over HTTP."""
    silent = [one for one in bookies if one["total_bytes"] is None and one["state"] != "not registered"]
    if not silent:
        return
    found = client.disk_space(_DISK_TIMEOUT_MS)
    for one in silent:
        disk = found.get(one["bookie"])
        if isinstance(disk, BookieInfo):
            one["total_bytes"], one["free_bytes"] = disk.total_disk_bytes, disk.free_disk_bytes


# --- what is printed ---


def _lines(seen: Record) -> Iterator[str]:
    """Yield the lines. Names come from others, so nothing in them can reach the terminal as a command."""
    for line in _all_lines(seen):
        yield printable_json(line)


def _all_lines(seen: Record) -> Iterator[str]:
    now_ms = seen["collected_ms"]
    yield f"{seen['cluster']}  {time.strftime('%H:%M:%S', time.localtime(now_ms / 1000))}"
    for problem in seen["problems"]:
        yield f"! {problem}"
    if seen["ledgers"] is not None:
        yield _ledgers(seen["ledgers"])
    if seen["repair"] is not None:
        yield from _repair(seen["repair"], now_ms)
    if seen["bookies"]:
        yield from _table(_BOOKIE_COLUMNS, [_bookie(one) for one in seen["bookies"]])
        yield from (f"  {one['bookie']}: {one['problem']}" for one in seen["bookies"] if one["problem"])
        yield from _left_out(sum(seen["bookie_states"].values()) - len(seen["bookies"]), "bookies")
    if seen["logs"]:
        yield from _table(_LOG_COLUMNS, [_log(one, now_ms) for one in seen["logs"]])
        yield from _left_out(seen["other_logs"], "logs")
    if seen["readers"]:
        rows = [_reader(reader, one, now_ms) for reader in seen["readers"] for one in reader["logs"]]
        yield from _table(("READER", "LOG", "LAG", "READ TO", "END", "TOLD"), rows)
        for reader in seen["readers"]:
            if reader["problem"]:
                yield f"  {reader['reader']}: {reader['problem']}"
            yield from _left_out(reader["other_logs"], f"logs of {reader['reader']}")
        yield from _left_out(seen["other_readers"], "readers")


def _left_out(count: int, what: str) -> Iterator[str]:
    if count:
        yield f"  and {count} more {what}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield ""
    yield from table_lines(columns, rows)


def _ledgers(ledgers: Record) -> str:
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in ledgers["states"].items() if count)
    unread = f", {ledgers['unread']} not read yet" if ledgers["unread"] else ""
    total = f"more than {ledgers['total']}, of the newest" if ledgers["more"] else ledgers["total"]
    return f"ledgers  {total}: {counts or 'none'}{unread}"


def _repair(repair: Record, now_ms: int) -> Iterator[str]:
    done = f", {repair['most'] - repair['under_replicated']} of {repair['most']} done" if repair["most"] else ""
    more = "more than " if repair["more"] else ""
    state, auditor = "enabled" if repair["enabled"] else "DISABLED", repair["auditor"] or "NONE"
    counts = f"{more}{repair['under_replicated']} under-replicated, {repair['repairing']} being repaired{done}"
    yield f"repair   autorecovery {state}, auditor {auditor}, {counts}"
    for one in repair["ledgers"][:5]:
        fragments = "" if one["fragments"] is None else f", {one['fragments']} of {one['all_fragments']} fragments"
        by = f"by {one['repaired_by']}" if one["repaired_by"] else "by nobody yet"
        missing = ", ".join(one["missing"])
        marked = _ago(one["marked_ms"], now_ms)
        yield f"  ledger {one['ledger']}{fragments}, missing on {missing}, {by}, marked {marked}"


def _bookie(one: Record) -> Sequence[object]:
    used = [disk["used_percent"] for disk in one["disks"]]
    total = one["total_bytes"]
    free = one["free_bytes"]
    most = max(used) if used else 100 * (1 - free / total) if total and free is not None else None
    return (
        one["bookie"], one["state"], one["rack"] or _UNKNOWN, _UNKNOWN if most is None else f"{most:.0f}%",
        _size(free), _number(one["adds_per_s"]), _size(one["written_bytes_per_s"]),
        _number(one["reads_per_s"]), _size(one["read_bytes_per_s"]),
        _UNKNOWN if one["add_p99_ms"] is None else f"{one['add_p99_ms']:.1f} ms",
    )  # fmt: skip


def _log(one: Record, now_ms: int) -> Sequence[object]:
    if one["state"] == "unreadable":
        return (one["log"], *[_UNKNOWN] * 6, one["problem"])
    least = "" if one["complete"] else ">"
    kept = [_duration(one["retention_time_ms"])] if one["retention_time_ms"] else []
    kept += [_size(one["retention_bytes"])] if one["retention_bytes"] else []
    writers = [f"{app['application']} batch {app['batch']}" for app in one["writers"]]
    if one["owner"]:
        writers.insert(0, one["owner"])
    return (
        one["log"], one["next_offset"] - one["first_offset"], _number(one["entries_per_s"]),
        f"{least}{one['segments']}{' open' if one['open_tail'] else ''}", f"{least}{_size(one['bytes'])}",
        " or ".join(kept) or "all", _ago(one["last_commit_ms"], now_ms), "; ".join(writers) or _UNKNOWN,
    )  # fmt: skip


def _reader(reader: Record, one: Record, now_ms: int) -> Sequence[object]:
    told = _ago(reader["told_ms"], now_ms)
    return reader["reader"], one["log"], one["lag_entries"], one["read_to"], one["end"], told


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f}"


def _size(size_bytes: float | None) -> str:
    if size_bytes is None:
        return _UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _duration(ms: float) -> str:
    seconds = max(0.0, ms / 1000)
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _ago(time_ms: int | None, now_ms: int) -> str:
    return _UNKNOWN if time_ms is None else _duration(now_ms - time_ms)
