"""``bkctl simpletest`` and ``bkctl bookiesanity``: write a ledger, read it, compare, and delete it.

The names are those of Apache's shell. Its ``bookiesanity`` tests the bookie of the local configuration; this one tests
any bookie.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from bk_spark.bkctl.command_line.client_settings import client_config
from bk_spark.bkctl.command_line.common import ExitStatus, argument, bookie_id, print_json
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bkctl.members import Members
from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.quorum import Quorum
from bk_spark.settings.kinds import whole

_MAX_ENTRIES: Final = 100_000_000
_MAX_TIMEOUT_S: Final = 3_600
_BATCH: Final = 1_000
_ALONE: Final = Quorum(1, 1, 1)
#: Makes each entry of one kilobyte differ from the others.
_FILLER: Final = b"simpletest " * 92


@dataclass(frozen=True, slots=True)
class _Times:
    """How long a test took, in seconds."""

    write_s: float
    read_s: float

    def record(self) -> dict[str, float]:
        return {"write_seconds": round(self.write_s, 3), "read_seconds": round(self.read_s, 3)}

    def __str__(self) -> str:
        return f"written in {self.write_s:.3f} s and read in {self.read_s:.3f} s"


def add_commands(groups: Any) -> None:
    """Add ``simpletest`` and ``bookiesanity``."""
    test = groups.add_parser(
        "simpletest", help="test the cluster by writing and reading a temporary ledger of 1 KB entries"
    )
    quorum = argument(whole(1, 1_000))
    test.add_argument("--ensemble-size", type=quorum, default=3, metavar="N", help="%(default)s")
    test.add_argument("--write-quorum-size", type=quorum, default=2, metavar="N", help="%(default)s")
    test.add_argument("--ack-quorum-size", type=quorum, default=2, metavar="N", help="%(default)s")
    _add_entries(test, 1_000)
    test.set_defaults(run=_test_cluster)

    sanity = groups.add_parser(
        "bookiesanity", help="test one bookie by writing and reading a temporary ledger of 1 KB entries on it alone"
    )
    sanity.add_argument("bookie_id", type=bookie_id, metavar="BOOKIE", help="as bkctl bookies prints it")
    _add_entries(sanity, 10)
    sanity.add_argument(
        "--timeout",
        type=argument(whole(1, _MAX_TIMEOUT_S)),
        default=5,
        metavar="SECONDS",
        help="how long the bookie may take to answer a request (%(default)s)",
    )
    sanity.set_defaults(run=_test_bookie, without_cluster=True)


def _add_entries(command: argparse.ArgumentParser, default: int) -> None:
    command.add_argument(
        "--entries", type=argument(whole(1, _MAX_ENTRIES)), default=default, metavar="N", help="%(default)s"
    )


def _test_cluster(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    quorum = Quorum(options.ensemble_size, options.write_quorum_size, options.ack_quorum_size)
    writer = client.create(quorum=quorum)
    times = _write_and_read(client, writer, options.entries)
    record = {"ledger": writer.ledger_id, "entries": options.entries} | times.record()
    if options.json:
        print_json(record)
    else:
        print(f"{options.entries} entries {times}; ledger {writer.ledger_id} is deleted")
    return ExitStatus.OK


def _test_bookie(options: argparse.Namespace) -> ExitStatus:
    timeout_ms = options.timeout * 1000
    given = client_config(options)
    config = replace(given, connect_timeout_ms=timeout_ms, add_timeout_ms=timeout_ms, read_timeout_ms=timeout_ms)
    with BlockingClient(options.metadata_service_uri, config) as client:
        Members.read(client).check_tested(options.bookie_id)
        writer = client.create(quorum=_ALONE, ensemble=[options.bookie_id])
        times = _write_and_read(client, writer, options.entries, only=options.bookie_id)
    record = {"bookie": options.bookie_id, "ledger": writer.ledger_id, "entries": options.entries} | times.record()
    if options.json:
        print_json(record)
    else:
        print(f"bookie {options.bookie_id}: {options.entries} entries {times}; ledger {writer.ledger_id} is deleted")
    return ExitStatus.OK


def _write_and_read(client: BlockingClient, writer: BlockingWriter, entries: int, *, only: str | None = None) -> _Times:
    """Write, read and compare the entries, and delete the ledger. With ``only``, this bookie must have stored all."""
    began_s = time.monotonic()
    try:
        with Progress() as progress:
            for start in range(0, entries, _BATCH):
                writer.append_many([_payload(n) for n in range(start, min(start + _BATCH, entries))])
                progress.update("writing", start, entries)
            writer.close()
            written_s = time.monotonic()
            if only is not None:
                _check_only(client, writer.ledger_id, only)
            _compare(client, writer.ledger_id, entries, progress)
            return _Times(written_s - began_s, time.monotonic() - written_s)
    finally:
        client.delete(writer.ledger_id)


def _check_only(client: BlockingClient, ledger_id: int, bookie: str) -> None:
    """Raise an error if the writer had to replace the bookie."""
    others = {each for segment in client.metadata(ledger_id).segments for each in segment.ensemble} - {bookie}
    if others:
        raise BookKeeperError(
            f"bookie {bookie} did not store the entries: it refused adds, or did not answer in time, and the writer "
            f"replaced it with {', '.join(sorted(others))}. The bookie's log says why"
        )


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
