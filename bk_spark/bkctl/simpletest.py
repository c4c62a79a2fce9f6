"""``bkctl simpletest``: writes a ledger, reads it, compares, and deletes it."""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

from bk_spark.bkctl.common import ExitStatus, argument, print_json
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import whole

_MAX_ENTRIES: Final = 100_000_000
_BATCH: Final = 1_000
#: Makes each entry of one kilobyte differ from the others.
_FILLER: Final = b"simpletest " * 92


def add_commands(groups: Any) -> None:
    test = groups.add_parser(
        "simpletest", help="test the cluster by writing and reading a temporary ledger of 1 KB entries"
    )
    quorum = argument(whole(1, 1_000))
    test.add_argument("--ensemble-size", type=quorum, default=3, metavar="N", help="%(default)s")
    test.add_argument("--write-quorum-size", type=quorum, default=2, metavar="N", help="%(default)s")
    test.add_argument("--ack-quorum-size", type=quorum, default=2, metavar="N", help="%(default)s")
    test.add_argument(
        "--entries", type=argument(whole(1, _MAX_ENTRIES)), default=1_000, metavar="N", help="%(default)s"
    )
    test.set_defaults(run=_run)


def _run(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    quorum = Quorum(options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    began_s = time.monotonic()
    writer = client.create(quorum=quorum)
    try:
        with Progress() as progress:
            for start in range(0, options.entries, _BATCH):
                writer.append_many([_payload(n) for n in range(start, min(start + _BATCH, options.entries))])
                progress.update("writing", start, options.entries)
            writer.close()
            written_s = time.monotonic()
            _compare(client, writer.ledger_id, options.entries, progress)
            read_s = time.monotonic()
    finally:
        client.delete(writer.ledger_id)
    record = {
        "ledger": writer.ledger_id,
        "entries": options.entries,
        "write_seconds": round(written_s - began_s, 3),
        "read_seconds": round(read_s - written_s, 3),
    }
    if options.json:
        print_json(record)
    else:
        print(
            f"{options.entries} entries written in {record['write_seconds']} s and read in {record['read_seconds']} s; "
            f"ledger {writer.ledger_id} is deleted"
        )
    return ExitStatus.OK


def _payload(number: int) -> bytes:
    return b"%010d %s" % (number, _FILLER)


def _compare(client: BlockingClient, ledger_id: int, entries: int, progress: Progress) -> None:
    reader = client.open_for_reading(ledger_id)
    done = 0
    for block in reader.read_blocks(0, entries - 1):
        for payload in block.payloads:
            if bytes(payload) != _payload(done):
                raise BookKeeperError("an entry differs from what was written", ledger_id=ledger_id, entry_id=done)
            done += 1
        progress.update("reading", done, entries)
    if done != entries:
        raise BookKeeperError(f"{entries} entries were written, {done} were read", ledger_id=ledger_id)
