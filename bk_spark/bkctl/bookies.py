"""``bkctl bookies``: lists the cluster's bookies with state, rack and disks."""

from __future__ import annotations

import argparse
from typing import Any, Final

from bk_spark.bkctl.common import ExitStatus, print_json, print_table
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.placement.racks import RackZnode
from bk_spark.bookie.placement.registry import RegisteredBookie
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.wire.wire_v3 import BookieInfo

_RACK_ZNODE: Final = "/bookies"
_UNKNOWN: Final = "unknown"


def add_commands(groups: Any) -> None:
    bookies = groups.add_parser("bookies", help="list all bookies with their state, rack and disks")
    bookies.add_argument(
        "--rack-znode", default=_RACK_ZNODE, metavar="PATH", help="where racks are, in Pulsar's format (%(default)s)"
    )
    bookies.set_defaults(run=_bookies)


def _bookies(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    registered = {bookie.bookie_id: bookie for bookie in client.bookies()}
    # A bookie creates its cookie on its first start. The cookie remains while the bookie is down.
    known = {*registered, *(client.zookeeper.children(f"{client.root}/cookies") or ())}
    disks = client.disk_space()
    racks = _racks(client, options.rack_znode, known, registered)
    records = [
        _record(bookie_id, registered.get(bookie_id), racks.get(bookie_id), disks.get(bookie_id))
        for bookie_id in sorted(known)
    ]
    if options.json:
        print_json(records)
    elif records:
        columns = ("bookie", "address", "state", "rack", "disk", "free")
        print_table(columns, [_row(record) for record in records])
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
    state = "not registered" if bookie is None else "read-only" if bookie.read_only else "writable"
    record: dict[str, Any] = {"bookie": bookie_id, "address": address, "state": state, "rack": rack}
    if isinstance(disk, BookieInfo):
        return record | {"disk_bytes": disk.total_disk_bytes, "free_bytes": disk.free_disk_bytes}
    why = "the bookie is not registered" if disk is None else disk.message
    return record | {"disk_bytes": None, "free_bytes": None, "disk_unknown": why}


def _row(record: dict[str, Any]) -> list[str]:
    disk, free = record["disk_bytes"], record["free_bytes"]
    if disk is None or free is None:
        sizes = [_UNKNOWN if value is None else _gib(value) for value in (disk, free)]
    else:
        sizes = [_gib(disk), f"{_gib(free)} ({100 * free // disk if disk else 0}%)"]
    return [record["bookie"], record["address"] or _UNKNOWN, record["state"], record["rack"] or _UNKNOWN, *sizes]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
