"""``bkctl ledger …``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from bk_spark.bkctl.common import ExitStatus, json_value, offset, password, print_json, print_json_line
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.metadata.ledger_metadata import LedgerState


def add_commands(groups: Any) -> None:
    ledger = groups.add_parser("ledger", help="one ledger").add_subparsers(required=True, metavar="show|read")
    show = ledger.add_parser("show", help="its metadata")
    show.add_argument("ledger_id", type=offset, metavar="LEDGER")
    show.set_defaults(run=_show)
    read = ledger.add_parser("read", help="write its entries to stdout, each followed by a line feed")
    read.add_argument("ledger_id", type=offset, metavar="LEDGER")
    read.add_argument("--first", type=offset, default=0, metavar="ENTRY")
    read.add_argument("--last", type=offset, metavar="ENTRY", help="default: the last add confirmed")
    read.set_defaults(run=_read)


def _show(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    metadata = client.metadata(options.ledger_id)
    quorum, closed = metadata.quorum, metadata.state is LedgerState.CLOSED
    if options.json:
        print_json(
            {
                "ledger_id": options.ledger_id,
                "state": metadata.state.name,
                "quorum": asdict(quorum),
                "digest_type": metadata.digest_type.name if metadata.digest_type else None,
                "last_entry_id": metadata.last_entry_id if closed else None,
                "length_bytes": metadata.length if closed else None,
                "segments": [{"first_entry_id": s.first_entry_id, "ensemble": s.ensemble} for s in metadata.segments],
                "custom_metadata": {name: json_value(value) for name, value in metadata.custom_metadata.items()},
            }
        )
        return ExitStatus.OK
    print(f"ledger      {options.ledger_id}")
    print(f"state       {metadata.state.name}")
    print(f"quorums     {quorum.ensemble_size}/{quorum.write_quorum_size}/{quorum.ack_quorum_size}")
    print(f"digest      {metadata.digest_type.name if metadata.digest_type else 'not recorded'}")
    if closed:
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
        for entry_id, payload in enumerate(block.payloads, block.first_entry_id):
            if options.json:
                print_json_line({"entry": entry_id} | json_value(payload))
            else:
                sys.stdout.buffer.writelines((payload, b"\n"))
    sys.stdout.buffer.flush()
    return ExitStatus.OK
