"""``bkctl bookies`` and ``bkctl ledger …``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bk_spark.bkctl.common import ExitStatus, offset, password
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.registry import BookieRegistry
from bk_spark.protocol.ledger_metadata import LedgerState


def add_commands(groups: Any) -> None:
    groups.add_parser("bookies", help="list the bookies that take writes").set_defaults(run=_bookies)

    ledger = groups.add_parser("ledger", help="one ledger").add_subparsers(required=True, metavar="show|read")
    show = ledger.add_parser("show", help="its metadata")
    show.add_argument("ledger_id", type=offset, metavar="LEDGER")
    show.set_defaults(run=_show)
    read = ledger.add_parser("read", help="write its entries to stdout, each followed by a line feed")
    read.add_argument("ledger_id", type=offset, metavar="LEDGER")
    read.add_argument("--first", type=offset, default=0, metavar="ENTRY")
    read.add_argument("--last", type=offset, metavar="ENTRY", help="default: the last add confirmed")
    read.set_defaults(run=_read)


def _bookies(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    registry = BookieRegistry(client.zookeeper, client.root)
    for bookie_id in registry.writable():
        host, port = registry.address(bookie_id)
        print(f"{bookie_id}\t{host}:{port}")
    return ExitStatus.OK


def _show(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
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
    return ExitStatus.OK


def _read(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    reader = client.open_for_reading(options.ledger_id, password(options))
    last = reader.last_add_confirmed if options.last is None else options.last
    if last < options.first:
        return ExitStatus.OK
    for block in reader.read_blocks(options.first, last):
        for payload in block.payloads:
            sys.stdout.buffer.write(payload)
            sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    return ExitStatus.OK
