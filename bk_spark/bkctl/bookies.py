"""``bkctl bookies`` (Apache's ``listbookies``) lists bookies. ``bkctl bookieinfo`` sums up their disks."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from bk_spark.bkctl.command_line.common import ExitStatus, print_json, print_table
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.placement.racks import RackZnode
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.wire.v3.wire_v3 import BookieInfo

_RACK_ZNODE: Final = "/bookies"
_UNKNOWN: Final = "unknown"
_WRITABLE: Final = "writable"
_READ_ONLY: Final = "read-only"


def add_commands(groups: Any) -> None:
    """Add ``bookies``, its Apache name ``listbookies``, and ``bookieinfo``."""
    for name in ("bookies", "listbookies"):
        bookies = groups.add_parser(name, help="list all bookies with their state, rack and disks")
        states = bookies.add_mutually_exclusive_group()
        for short, long, state in (("-rw", "--readwrite", _WRITABLE), ("-ro", "--readonly", _READ_ONLY)):
            states.add_argument(
                short, long, action="store_const", const=state, dest="state", help=f"only bookies that are {state}"
            )
        states.add_argument("-a", "--all", action="store_const", const=None, dest="state", help="all bookies (default)")
        add_rack_znode(bookies)
        bookies.set_defaults(run=_bookies)
    groups.add_parser(
        "bookieinfo", help="free and total disk space of the registered bookies and of all of them together"
    ).set_defaults(run=_disks)


def add_rack_znode(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where racks are."""
    parser.add_argument(
        "--rack-znode",
        metavar="PATH",
        help=f"where racks are, in Pulsar's format (default: rackMappingZnode in --client-conf, or {_RACK_ZNODE})",
    )


def rack_znode(client: BlockingClient, options: argparse.Namespace) -> str:
    """Return where racks are."""
    return options.rack_znode or client.config.rack_mapping_znode or _RACK_ZNODE


def _bookies(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    registered = {bookie.bookie_id: bookie for bookie in client.bookies()}
    # A bookie creates its cookie on its first start. The cookie remains while the bookie is down.
    known = {*registered, *(client.zookeeper.children(f"{client.root}/cookies") or ())}
    disks = client.disk_space()
    racks = _racks(client, rack_znode(client, options), known, registered)
    records = [
        _record(bookie_id, registered.get(bookie_id), racks.get(bookie_id), disks.get(bookie_id))
        for bookie_id in sorted(known)
        if options.state in (None, _state(registered.get(bookie_id)))
    ]
    if options.json:
        print_json(records)
    elif records:
        columns = ("bookie", "address", "state", "rack", "disk", "free")
        print_table(columns, [_row(record) for record in records])
    return ExitStatus.OK


def _disks(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    found = client.disk_space()
    records = [{"bookie": bookie_id} | _disk_record(found[bookie_id]) for bookie_id in sorted(found)]
    known = [record for record in records if "disk_unknown" not in record]
    total = {
        "bookies": len(known),
        "disk_bytes": sum(record["disk_bytes"] for record in known),
        "free_bytes": sum(record["free_bytes"] for record in known),
    }
    if options.json:
        print_json({"bookies": records, "total": total})
        return ExitStatus.OK
    name = "total" if len(known) == len(records) else f"total of {len(known)} of {len(records)}"
    rows = [[record["bookie"], *_sizes(record)] for record in records]
    print_table(("bookie", "disk", "free"), [*rows, [name, *_sizes(total)]])
    for record in records:
        if "disk_unknown" in record:
            print(f"bkctl: bookie {record['bookie']}: {record['disk_unknown']}", file=sys.stderr)
    return ExitStatus.OK


def _racks(
    client: BlockingClient, path: str, known: set[str], registered: dict[str, RegisteredBookie]
) -> dict[str, str]:
    addresses = {bookie_id: bookie.address for bookie_id, bookie in registered.items()}
    hosts = {}
    for bookie_id in known:
        address = addresses.get(bookie_id)
        hosts[bookie_id] = bookie_id.rpartition(":")[0] or bookie_id if address is None else address[0]
    znode = RackZnode(client.zookeeper, path)
    try:
        return dict(znode.racks(hosts))
    finally:
        znode.close()


def _record(
    bookie_id: str, bookie: RegisteredBookie | None, rack: str | None, disk: BookieInfo | BookKeeperError | None
) -> dict[str, Any]:
    address = None if bookie is None or bookie.address is None else "{}:{}".format(*bookie.address)
    return {"bookie": bookie_id, "address": address, "state": _state(bookie), "rack": rack} | _disk_record(disk)


def _state(bookie: RegisteredBookie | None) -> str:
    return "not registered" if bookie is None else _READ_ONLY if bookie.read_only else _WRITABLE


def _disk_record(disk: BookieInfo | BookKeeperError | None) -> dict[str, Any]:
    if not isinstance(disk, BookieInfo):
        why = "the bookie is not registered" if disk is None else disk.message
        return {"disk_bytes": None, "free_bytes": None, "disk_unknown": why}
    record: dict[str, Any] = {"disk_bytes": disk.total_disk_bytes, "free_bytes": disk.free_disk_bytes}
    return record if None not in record.values() else record | {"disk_unknown": "the bookie does not say"}


def _row(record: dict[str, Any]) -> list[str]:
    state, rack = record["state"], record["rack"] or _UNKNOWN
    return [record["bookie"], record["address"] or _UNKNOWN, state, rack, *_sizes(record)]


def _sizes(record: dict[str, Any]) -> list[str]:
    disk, free = record["disk_bytes"], record["free_bytes"]
    if disk is None or free is None:
        return [_UNKNOWN if value is None else _gib(value) for value in (disk, free)]
    return [_gib(disk), f"{_gib(free)} ({100 * free // disk if disk else 0}%)"]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
