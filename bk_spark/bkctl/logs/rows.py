"""``bkctl log read`` and ``log append``."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, BinaryIO, Final

import pyarrow as pa

from bk_spark.bkctl.command_line.common import (
    ExitStatus,
    WrongCommandLineError,
    iso_time,
    json_value,
    offset,
    print_json,
    print_json_line,
    unix_time_ms,
)
from bk_spark.bkctl.logs.opening import open_log
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.core.plan import CommitResult, CommitStatus
from bk_spark.log.entries.arrow_format import batches_in
from bk_spark.log.formats.message import CommitMessage, CommitRequest, LedgerRange
from bk_spark.log.formats.settings import EntryFormat
from bk_spark.log.log import Log
from bk_spark.log.reader import LogBlock
from bk_spark.protocol.errors import InvalidArgumentError

#: Bytes of lines from stdin that are appended to the ledger at once.
_BATCH_BYTES: Final = 1024 * 1024
_LINE_COST_BYTES: Final = 100
#: Constant, as in Spark's batch writes, so that a repeated batch counts as done.
_QUERY_ID: Final = "bkctl"


def add_commands(log: Any) -> None:
    """Add ``read`` and ``append``."""
    read = log.add_parser(
        "read", help="write entries to stdout: of raw logs as they are, of arrow logs each row as JSON; a line each"
    )
    read.add_argument("name")
    start = read.add_mutually_exclusive_group()
    start.add_argument("--from", dest="start", type=offset, metavar="OFFSET", help="default: the log's first")
    start.add_argument(
        "--from-time", type=unix_time_ms, metavar="TIME", help="the first offset committed then or later"
    )
    start.add_argument("--last", type=offset, metavar="N", help="begin N entries before the end")
    read.add_argument("--to", dest="end", type=offset, metavar="OFFSET", help="not included; default: the end")
    read.add_argument("--count", type=offset, metavar="N", help="at most N entries")
    read.add_argument("--follow", action="store_true", help="continue with new entries until interrupted")
    read.add_argument("--offsets", action="store_true", help="print offset, commit time and a tab before each line")
    read.set_defaults(run=_read)

    append = log.add_parser("append", help="append each line of stdin as an entry, all or nothing (raw logs)")
    append.add_argument("name")
    append.add_argument(
        "--app", metavar="NAME", help="with --batch: append once, however often the command is repeated"
    )
    append.add_argument("--batch", type=offset, metavar="N", help="must be larger than the previous batch of the --app")
    append.add_argument("--fence-tail", action="store_true", help="fence a log writer that holds the tail open")
    append.set_defaults(run=_append)


def _read(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    if options.follow and options.end is not None:
        raise WrongCommandLineError("--to and --follow contradict each other: give one of them")
    log = open_log(client, options)
    out = sys.stdout.buffer
    is_raw = log.settings.entry_format is EntryFormat.RAW
    left = sys.maxsize if options.count is None else options.count
    with closing(_blocks(log, options)) as blocks:
        while left and (block := next(blocks, None)) is not None:
            payloads = block.payloads.part(0, min(left, len(block)))
            left -= len(payloads)
            for entry_offset, payload in enumerate(payloads, block.base_offset):
                at = {"offset": entry_offset, "time": iso_time(block.commit_time_ms)}
                rows = () if is_raw else rows_in(payload, log.name, entry_offset)
                if options.json:
                    for record in (json_value(payload),) if is_raw else ({"row": row} for row in rows):
                        print_json_line(at | record)
                    continue
                prefix = "{offset}\t{time}\t".format(**at).encode() if options.offsets else b""
                if is_raw:
                    out.writelines((prefix, payload, b"\n"))
                for row in rows:
                    out.write(prefix)
                    print_json_line(row)
            out.flush()
    return ExitStatus.OK


def _blocks(log: Log, options: argparse.Namespace) -> Generator[LogBlock, None, None]:
    reader = log.open_reader()
    snapshot = log.snapshot()
    is_sealed = options.end is not None and options.end <= snapshot.next_offset
    # Sealed entries can be read, whatever happened to the open tail.
    readable_end = snapshot.next_offset if is_sealed else reader.readable_end(snapshot)
    end = readable_end if options.end is None else options.end
    if options.from_time is not None:
        start = snapshot.offset_at(options.from_time)
    elif options.last is not None:
        start = max(snapshot.first_offset, end - options.last)
    else:
        start = snapshot.first_offset if options.start is None else options.start
    if options.follow:
        yield from reader.follow(start)
    elif start > end and end < readable_end:
        raise InvalidArgumentError(
            f"log {log.name}: the read starts at {start}, after its end, {end}: give a larger --to"
        )
    elif start > end:
        raise InvalidArgumentError(f"log {log.name}: --from {start} is after the end of what can be read, {end}")
    elif options.count is not None:
        yield from reader.read(start, min(end, start + options.count))
    else:
        yield from reader.read(start, end)


def rows_in(payload: memoryview, log_name: str, entry_offset: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of an entry of format arrow. Raises CorruptFileError for one that is no Arrow stream."""
    for batch in batches_in(payload, f"log {log_name}: the entry at offset {entry_offset}"):
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError):
            for row in range(batch.num_rows):
                yield {
                    name: _shown(column[row]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
                }


def _shown(value: pa.Scalar) -> object:
    """Return a value, or what stands for it where Python's types cannot hold it: bytes for text that is not UTF-8, the
    number and its unit for a time beyond the years 1 to 9999. Spark has both."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        if isinstance(value, pa.StructScalar):
            return {name: _shown(value[name]) for name in value}
        if isinstance(value, pa.ListScalar):
            if isinstance(value, pa.MapScalar):
                return [[_shown(pair[0]), _shown(pair[1])] for pair in value.values]
            return [_shown(one) for one in value.values]
        if pa.types.is_string(value.type):
            return value.as_buffer().to_pybytes()
        return f"{value.value} {getattr(value.type, 'unit', 'days')}"


def _append(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    if (options.app is None) != (options.batch is None):
        raise WrongCommandLineError("--app and --batch belong together: give both, or none")
    log = open_log(client, options)
    if log.settings.entry_format is not EntryFormat.RAW:
        raise InvalidArgumentError(
            f"log {log.name} has entryFormat {log.settings.entry_format.value}: lines can be appended to raw logs only"
        )
    app, run, batch_id = options.app or str(uuid.uuid4()), str(uuid.uuid4()), options.batch or 0
    before = None if options.app is None else log.application(app)
    # Do not write a batch that is already in the log.
    is_new = before is None or before.batch_id < batch_id
    written = _write_lines(log, app, run, sys.stdin.buffer) if is_new else None
    if is_new and written is None:
        # Commit nothing, so that the batch can still be repeated with rows.
        raise InvalidArgumentError("stdin is empty: there is nothing to append")
    message = CommitMessage(log.log_id, app, run, _QUERY_ID, batch_id, 0, () if written is None else (written,))
    anonymous, fence_tail = options.app is None, options.fence_tail
    request = CommitRequest(
        log.log_id, app, run, _QUERY_ID, batch_id, (message,), anonymous=anonymous, fence_tail=fence_tail
    )
    _print_result(log.commit(request), written, as_json=options.json)
    return ExitStatus.OK


def _print_result(result: CommitResult, written: LedgerRange | None, *, as_json: bool) -> None:
    offsets = "" if result.start_offset is None else f": offsets {result.start_offset} to {result.end_offset}"
    if as_json:
        print_json(
            {
                "status": result.status.value,
                "start_offset": result.start_offset,
                "end_offset": result.end_offset,
                "ledger_id": None if written is None else written.ledger_id,
            }
        )
    elif written is None or result.status is CommitStatus.ALREADY_DONE:
        print(f"the batch is in the log already{offsets}")
    else:
        print(f"appended {written.entries} entries{offsets}")


def _write_lines(log: Log, app: str, run: str, source: BinaryIO) -> LedgerRange | None:
    """Write the lines to a new ledger and close it. None if there are no lines."""
    batches = _batches(source, log.ledgers.client.config.max_payload_bytes(log.settings.digest_type))
    lines = next(batches, None)
    if lines is None:
        return None
    writer = log.create_ledger(app, run)
    try:
        while lines is not None:
            writer.append_many(lines)
            lines = next(batches, None)
        closed = log.ledgers.close(writer.ledger_id)
    finally:
        log.ledgers.abandon(writer.ledger_id)
    entries = closed.last_entry + 1
    return LedgerRange(closed.ledger_id, 0, closed.last_entry, entries, closed.size_bytes)


def _batches(source: BinaryIO, max_line_bytes: int) -> Iterator[list[bytes]]:
    """Yield lines without line feeds, about a megabyte at a time."""
    batch: list[bytes] = []
    size_bytes = number = 0
    # Two extra bytes: for the line feed, and to detect a line that is too long.
    while line := source.readline(max_line_bytes + 2):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > max_line_bytes:
            raise InvalidArgumentError(
                f"line {number} of stdin has more than {max_line_bytes} bytes, the most that an entry holds"
            )
        batch.append(line)
        size_bytes += len(line) + _LINE_COST_BYTES
        if size_bytes >= _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
