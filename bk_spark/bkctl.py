"""``bkctl``: look at bookies, ledgers and logs of a cluster from the command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.registry import BookieRegistry
from bk_spark.log.names import DEFAULT_ROOT
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import BookKeeperError, InvalidArgumentError
from bk_spark.protocol.ledger_metadata import LedgerState

_URI_VARIABLE = "BK_METADATA_SERVICE_URI"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0, or 1 with one line on stderr, or 2 for a wrong command line."""
    options = _parser().parse_args(arguments)
    try:
        with BlockingClient(options.metadata_service_uri) as client:
            options.run(client, options)
    except BookKeeperError as error:
        print(f"bkctl: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        sys.stderr.close()
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bkctl", description=__doc__)
    uri = os.environ.get(_URI_VARIABLE)
    parser.add_argument(
        "--metadata-service-uri",
        metavar="URI",
        default=uri,
        required=uri is None,
        help=f"where the cluster is, for example zk://localhost:2181/ledgers; default: ${_URI_VARIABLE}",
    )
    parser.add_argument("--password-file", type=Path, help="file with the password of the ledgers")
    parser.add_argument("--log-root", default=DEFAULT_ROOT, help="where logs lie in ZooKeeper (%(default)s)")
    groups = parser.add_subparsers(required=True, metavar="bookies|ledger|log")

    groups.add_parser("bookies", help="list the bookies that take writes").set_defaults(run=_bookies)

    ledger = groups.add_parser("ledger", help="one ledger").add_subparsers(required=True, metavar="show|read")
    show = ledger.add_parser("show", help="its metadata")
    show.add_argument("ledger_id", type=int)
    show.set_defaults(run=_show_ledger)
    read = ledger.add_parser("read", help="write its entries to stdout, each followed by a line feed")
    read.add_argument("ledger_id", type=int)
    read.add_argument("--first", type=int, default=0, metavar="ENTRY")
    read.add_argument("--last", type=int, metavar="ENTRY", help="default: the last add confirmed")
    read.set_defaults(run=_read_ledger)

    log = groups.add_parser("log", help="logs").add_subparsers(required=True, metavar="list|show")
    log.add_parser("list", help="names of all logs").set_defaults(run=_list_logs)
    show = log.add_parser("show", help="offsets, settings and segments of a log")
    show.add_argument("name")
    show.set_defaults(run=_show_log)
    return parser


def _password(options: argparse.Namespace) -> bytes:
    path: Path | None = options.password_file
    if path is None:
        return b""
    try:
        return path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise InvalidArgumentError(f"--password-file: {path} cannot be read ({error.strerror})") from error


def _bookies(client: BlockingClient, options: argparse.Namespace) -> None:
    registry = BookieRegistry(client.zookeeper, client.root)
    for bookie_id in registry.writable():
        host, port = registry.address(bookie_id)
        print(f"{bookie_id}\t{host}:{port}")


def _show_ledger(client: BlockingClient, options: argparse.Namespace) -> None:
    metadata = client.metadata(options.ledger_id)
    quorum = metadata.quorum
    print(f"ledger      {options.ledger_id}")
    print(f"state       {metadata.state.name}")
    print(f"quorums     {quorum.ensemble_size}/{quorum.write_quorum_size}/{quorum.ack_quorum_size}")
    print(f"digest      {metadata.digest_type.name if metadata.digest_type else 'not recorded'}")
    if metadata.state is LedgerState.CLOSED:
        print(f"last entry  {metadata.last_entry_id}")
        print(f"length      {metadata.length}")
    for segment in metadata.segments:
        print(f"from {segment.first_entry_id:>6} {', '.join(segment.ensemble)}")


def _read_ledger(client: BlockingClient, options: argparse.Namespace) -> None:
    reader = client.open_for_reading(options.ledger_id, _password(options))
    last = reader.last_add_confirmed if options.last is None else options.last
    if last < options.first:
        return
    for block in reader.read_blocks(options.first, last):
        for payload in block.payloads:
            sys.stdout.buffer.write(payload)
            sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def _list_logs(client: BlockingClient, options: argparse.Namespace) -> None:
    for name in LogStore(client.zookeeper, options.log_root).list_logs():
        print(name)


def _show_log(client: BlockingClient, options: argparse.Namespace) -> None:
    log = LogStore(client.zookeeper, options.log_root).open_log(options.name)
    settings, snapshot = log.settings, log.snapshot()
    quorum = settings.quorum
    print(f"log      {log.name}  ({log.log_id})")
    print(f"format   {settings.entry_format.value}")
    print(f"quorums  {quorum.ensemble_size}/{quorum.write_quorum_size}/{quorum.ack_quorum_size}")
    print(f"digest   {settings.digest_type.name}")
    print(f"offsets  {snapshot.first_offset} to {snapshot.next_offset}")
    print(f"{'offset':>12} {'ledger':>12} {'entries':>22} {'rows':>12} {'bytes':>14}  committed")
    for segment in snapshot.segments():
        last = "open" if segment.last_entry is None else segment.last_entry
        committed = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(segment.commit_time_ms / 1000))
        print(
            f"{segment.base_offset:>12} {segment.ledger_id:>12} {f'{segment.first_entry}..{last}':>22} "
            f"{segment.rows:>12} {segment.size_bytes:>14}  {committed} UTC"
        )


if __name__ == "__main__":
    sys.exit(main())
