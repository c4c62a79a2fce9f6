"""``bkctl ledger …``, and the same commands by the names of Apache's shell: ``ledgermetadata``, ``readledger``, …"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from bk_spark.bkctl.command_line.common import (
    ExitStatus,
    bookie_id,
    json_value,
    offset,
    password,
    print_json,
    print_json_line,
    print_json_list,
)
from bk_spark.bkctl.logs import consent
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bkctl.members import Members
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.ledger_ids import check_skipped, skip_ledger_ids
from bk_spark.log.formats.names import MADE_FOR
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError
from bk_spark.protocol.metadata import ledger_metadata
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.metadata.ledger_paths import LedgerManager, parse_layout

#: The number of ledgers whose metadata are read at once.
_AT_ONCE: Final = 256


def add_commands(groups: Any) -> None:
    """Add ``ledger``, and its commands under their names in Apache's shell."""
    ledger = groups.add_parser("ledger", help="one ledger").add_subparsers(
        required=True, metavar="show|read|list|delete|skip-ids"
    )
    _add_shared(ledger, show="show", read="read", listing="list", delete="delete")
    # The same commands have the names of Apache's shell, too.
    _add_shared(groups, show="ledgermetadata", read="readledger", listing="listledgers", delete="deleteledger")
    skip = ledger.add_parser("skip-ids", help="let new ledgers have higher ids only, after ZooKeeper was restored")
    skip.add_argument("ledger_id", type=offset, metavar="LEDGER", help="the highest id that any bookie knows")
    skip.add_argument("--dry-run", action="store_true", help="change nothing, print the id of the next ledger")
    skip.set_defaults(run=_skip_ids)


def _add_shared(commands: Any, *, show: str, read: str, listing: str, delete: str) -> None:
    """Add the commands that we and Apache's shell have, by these names."""
    one = commands.add_parser(show, help="the metadata of a ledger")
    one.add_argument("ledger_id", type=offset, metavar="LEDGER")
    one.set_defaults(run=_show)
    one = commands.add_parser(read, help="write the entries of a ledger to stdout, each followed by a line feed")
    one.add_argument("ledger_id", type=offset, metavar="LEDGER")
    one.add_argument("--first", type=offset, default=0, metavar="ENTRY")
    one.add_argument("--last", type=offset, metavar="ENTRY", help="default: the last add confirmed")
    one.set_defaults(run=_read)
    one = commands.add_parser(listing, help="the ids of all ledgers, ascending")
    one.add_argument("--bookie", type=bookie_id, metavar="BOOKIE", help="only ledgers that name this bookie")
    one.add_argument("--state", choices=[state.name for state in LedgerState], help="only ledgers in this state")
    one.add_argument("--long", action="store_true", help="with state, entries, bytes and number of segments")
    one.set_defaults(run=_list)
    one = commands.add_parser(delete, help="delete ledgers with all their entries")
    one.add_argument("ledger_ids", type=offset, metavar="LEDGER", nargs="+")
    one.add_argument("--force", action="store_true", help="even if a ledger belongs to a log")
    consent.add_options(one)
    one.set_defaults(run=_delete)


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


def _list(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    if not (options.long or options.json or options.bookie or options.state):
        for ledger_id in client.list_ledgers():
            print(ledger_id)
        return ExitStatus.OK
    if options.bookie:
        _check_bookie(client, options.bookie)
    records = (
        _record(ledger_id, found)
        for ledger_id, found in all_metadata(client)
        if isinstance(found, MetadataFormatError) or _is_wanted(found, options)
    )
    if options.json:
        print_json_list(records)
        return ExitStatus.OK
    for one in records:
        # Lines are printed as they come, because there may be a million.
        names = ("ledger", "state", "entries", "length_bytes", "segments") if options.long else ("ledger",)
        print(*("" if one[name] is None else one[name] for name in names), sep="\t")
        if one["problem"]:
            print(f"bkctl: ledger {one['ledger']}: {one['problem']}", file=sys.stderr)
    return ExitStatus.OK


def _skip_ids(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    zk, root, manager = client.zookeeper, client.root, _manager(client)
    before = coming = check_skipped(zk, root, manager, options.ledger_id)
    if not options.dry_run:
        with Progress() as progress:
            for coming in skip_ledger_ids(zk, root, manager, options.ledger_id):
                progress.update("ids", coming - before, options.ledger_id + 1 - before)
    if options.json:
        print_json({"dry_run": options.dry_run, "next_id_before": before, "next_id": coming})
    elif options.dry_run:
        print(f"the next ledger would have the id {before}")
    elif coming == before:
        print(f"nothing to skip: the next ledger has the id {coming}")
    else:
        print(f"skipped {coming - before} ids: the next ledger has the id {coming}")
    return ExitStatus.OK


def _manager(client: BlockingClient) -> LedgerManager:
    layout = client.zookeeper.get(f"{client.root}/LAYOUT")
    if layout is None:
        raise InvalidArgumentError(f"{client.root}/LAYOUT does not exist any more: the cluster was deleted")
    return parse_layout(layout.data)


def all_metadata(client: BlockingClient) -> Iterator[tuple[int, LedgerMetadata | MetadataFormatError]]:
    """Yield the metadata of all ledgers. Ledgers that are deleted meanwhile are left out."""
    return metadata_of(client, client.list_ledgers())


def metadata_of(
    client: BlockingClient, ledger_ids: Iterator[int]
) -> Iterator[tuple[int, LedgerMetadata | MetadataFormatError]]:
    """Yield the metadata of these ledgers. Those that do not exist are left out."""
    manager = _manager(client)
    while ids := list(islice(ledger_ids, _AT_ONCE)):
        found = client.zookeeper.get_many([manager.ledger_path(client.root, ledger_id) for ledger_id in ids])
        for ledger_id, node in zip(ids, found.values(), strict=True):
            if node is not None:
                try:
                    yield ledger_id, ledger_metadata.decode(node.data)
                except MetadataFormatError as error:
                    yield ledger_id, error


def _is_wanted(metadata: LedgerMetadata, options: argparse.Namespace) -> bool:
    if options.state not in (None, metadata.state.name):
        return False
    return options.bookie is None or _is_named(metadata, options.bookie)


def _is_named(metadata: LedgerMetadata, bookie: str) -> bool:
    return any(bookie in segment.ensemble for segment in metadata.segments)


def _check_bookie(client: BlockingClient, bookie: str) -> None:
    def is_named() -> bool:
        # Metadata that cannot be read may name it.
        return any(
            isinstance(found, MetadataFormatError) or _is_named(found, bookie) for _, found in all_metadata(client)
        )

    Members.read(client).check_listed(bookie, is_named)


def _record(ledger_id: int, found: LedgerMetadata | MetadataFormatError) -> dict[str, Any]:
    if isinstance(found, MetadataFormatError):
        unknown = dict.fromkeys(("state", "entries", "length_bytes", "segments"))
        return {"ledger": ledger_id} | unknown | {"problem": found.message}
    closed = found.state is LedgerState.CLOSED
    return {
        "ledger": ledger_id,
        "state": found.state.name,
        "entries": found.last_entry_id + 1 if closed else None,
        "length_bytes": found.length if closed else None,
        "segments": len(found.segments),
        "problem": None,
    }


def _delete(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    ledgers = {ledger_id: client.metadata(ledger_id) for ledger_id in options.ledger_ids}
    for ledger_id, metadata in ledgers.items():
        made_for = metadata.custom_metadata.get(MADE_FOR)
        if made_for is not None and not options.force:
            name = made_for.decode(errors="replace").partition(" ")[0]
            raise InvalidArgumentError(
                f"ledger {ledger_id} belongs to log {name}, which would lose its entries. Use bkctl log truncate or "
                "bkctl log delete, or give --force"
            )
    named = ", ".join(f"{ledger_id} ({metadata.state.name})" for ledger_id, metadata in ledgers.items())
    if not options.dry_run:
        consent.require(options, f"ledgers {named} would be deleted with all their entries, for good")
        for ledger_id in ledgers:
            client.delete(ledger_id)
    if options.json:
        print_json({"dry_run": options.dry_run, "ledgers": list(ledgers)})
    else:
        print(f"{'would delete' if options.dry_run else 'deleted'} ledgers {named}")
    return ExitStatus.OK
