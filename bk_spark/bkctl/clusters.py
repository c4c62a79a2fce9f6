"""``bkctl initnewcluster``, ``whatisinstanceid`` and ``cookie``."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from bk_spark.bkctl.bookie_ledgers import find_ledgers
from bk_spark.bkctl.command_line.client_settings import client_config
from bk_spark.bkctl.command_line.common import ExitStatus, bookie_id, print_facts, print_json
from bk_spark.bkctl.logs import consent
from bk_spark.bkctl.logs.progress import Progress
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.cluster_init import init_cluster, ledger_manager, read_instance_id, require_no_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.protocol.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
)
from bk_spark.protocol.metadata.cookie import Cookie, decode_directories
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.protocol.metadata.znodes import Znode


def add_commands(groups: Any) -> None:
    """Add ``initnewcluster``, ``whatisinstanceid`` and ``cookie``."""
    new = groups.add_parser(
        "initnewcluster", help="create the znodes of a new cluster at --metadata-service-uri; an existing one stays"
    )
    new.add_argument("--dry-run", action="store_true", help="change nothing, print what would be created")
    new.set_defaults(run=_init, without_cluster=True)

    groups.add_parser("whatisinstanceid", help="print the id of the cluster").set_defaults(run=_instance_id)

    cookie = groups.add_parser("cookie", help="the identity of one bookie").add_subparsers(
        required=True, metavar="show|create|delete"
    )
    show = cookie.add_parser("show", help="print the directories and the cluster that the bookie belongs to")
    show.add_argument("bookie_id", type=bookie_id, metavar="BOOKIE")
    show.set_defaults(run=_show)
    create = cookie.add_parser("create", help="create a lost cookie again, from a file of the bookie")
    create.add_argument("bookie_id", type=bookie_id, metavar="BOOKIE")
    create.add_argument(
        "file", type=Path, metavar="FILE", help="current/VERSION in a directory of the bookie, which holds its cookie"
    )
    create.add_argument("--dry-run", action="store_true", help="change nothing, print what would be created")
    create.set_defaults(run=_create)
    delete = cookie.add_parser("delete", help="delete the cookie of a bookie that will not return")
    delete.add_argument("bookie_id", type=bookie_id, metavar="BOOKIE")
    delete.add_argument("--force", action="store_true", help="even if the bookie is registered, or ledgers name it")
    consent.add_options(delete)
    delete.set_defaults(run=_delete)


def _init(options: argparse.Namespace) -> ExitStatus:
    uri = MetadataServiceUri.parse(options.metadata_service_uri)
    manager = ledger_manager(uri.layout)
    instance_id = None
    with closing(ZooKeeper(uri.servers, access=ZooKeeperAccess(client_config(options)))) as zk:
        zk.start()
        if options.dry_run:
            require_no_cluster(zk, uri.root)
        else:
            instance_id = init_cluster(zk, uri.root, uri.layout)
    if options.json:
        record = {"dry_run": options.dry_run, "uri": str(uri), "layout": manager.value, "instance_id": instance_id}
        print_json(record)
    elif options.dry_run:
        print(f"a new cluster would be created at {uri}, with the layout {manager.value}")
    else:
        print(f"new cluster at {uri}, instance {instance_id}")
    return ExitStatus.OK


def _instance_id(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    instance_id = read_instance_id(client.zookeeper, client.root)
    if instance_id is None:
        raise MetadataError(f"{client.root}/INSTANCEID does not exist: the cluster was made by a very old release")
    print_json({"instance_id": instance_id}) if options.json else print(instance_id)
    return ExitStatus.OK


def _path(client: BlockingClient, options: argparse.Namespace) -> str:
    return f"{client.root}/cookies/{options.bookie_id}"


def _read_cookie(client: BlockingClient, options: argparse.Namespace) -> Znode:
    path = _path(client, options)
    found = client.zookeeper.get_latest(path)
    if found is None:
        raise InvalidArgumentError(
            f"bookie {options.bookie_id} has no cookie ({path} does not exist); bkctl bookies lists all that have one"
        )
    return found


def _record(cookie: Cookie) -> dict[str, Any]:
    return {
        "bookie": cookie.bookie_id,
        "journal_directories": cookie.journal_directories.split(","),
        "ledger_directories": decode_directories(cookie.ledger_directories),
        "index_directories": decode_directories(cookie.index_directories) if cookie.index_directories else None,
        "instance_id": cookie.instance_id,
    }


def _print(cookie: Cookie) -> None:
    print_facts(
        {
            "bookie": cookie.bookie_id,
            "journals": cookie.journal_directories,
            "ledgers": ",".join(decode_directories(cookie.ledger_directories)),
            "index": ",".join(decode_directories(cookie.index_directories)) if cookie.index_directories else "ledgers",
            "cluster": cookie.instance_id or "not recorded",
        }
    )


def _show(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    found = _read_cookie(client, options)
    cookie = Cookie.decode(found.data, f"znode {_path(client, options)}")
    print_json(_record(cookie)) if options.json else _print(cookie)
    return ExitStatus.OK


def _create(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    path, source = _path(client, options), f"file {options.file}"
    try:
        content = options.file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{source} cannot be read: {error.strerror}") from error
    cookie = Cookie.decode(content, source)
    if cookie.bookie_id != options.bookie_id:
        raise InvalidArgumentError(
            f"{source} is the cookie of {cookie.bookie_id}, not of {options.bookie_id}; give a file of that bookie"
        )
    instance_id = read_instance_id(client.zookeeper, client.root)
    if cookie.instance_id not in (None, instance_id):
        raise InvalidArgumentError(
            f"{source} belongs to the cluster {cookie.instance_id}, and this one is {instance_id}; correct "
            "--metadata-service-uri"
        )
    exists = NodeExistsError(f"bookie {options.bookie_id} has a cookie already ({path}); nothing was changed")
    if options.dry_run:
        if client.zookeeper.get_latest(path) is not None:
            raise exists
    else:
        try:
            client.zookeeper.create(path, content, make_parents=True)
        except NodeExistsError as error:
            raise exists from error
    if options.json:
        print_json({"dry_run": options.dry_run} | _record(cookie))
    else:
        print(f"{'would create' if options.dry_run else 'created'} the cookie of bookie {options.bookie_id}")
    return ExitStatus.OK


def _delete(client: BlockingClient, options: argparse.Namespace) -> ExitStatus:
    found = _read_cookie(client, options)
    name, zk = options.bookie_id, client.zookeeper
    paths = [f"{client.root}/available/{name}", f"{client.root}/available/readonly/{name}"]
    registered = any(zk.exists(path) is not None for path in paths)
    if registered and not options.force:
        raise InvalidArgumentError(
            f"bookie {name} is registered: it runs, and could not start again without its cookie. Stop it first, or "
            "give --force"
        )
    if not options.force:
        _check_unneeded(client, name)
    if not options.dry_run:
        consent.require(
            options,
            f"bookie {name} could not start with its directories any more. Entries that only this bookie has would be "
            "lost, for good",
        )
        try:
            zk.delete(_path(client, options), found.version)
        except NoNodeError:
            # Another client did it, or this one before a lost reply.
            pass
        except MetadataConflictError as error:
            raise MetadataConflictError(f"the cookie of bookie {name} was changed meanwhile; try again") from error
    if options.json:
        print_json({"dry_run": options.dry_run, "bookie": name, "registered": registered})
    else:
        print(f"{'would delete' if options.dry_run else 'deleted'} the cookie of bookie {name}")
    return ExitStatus.OK


def _check_unneeded(client: BlockingClient, name: str) -> None:
    """Refuse to delete the cookie of a bookie that ledgers name. Without it the bookie could start with empty disks,
    and would answer that it never had their entries."""
    with Progress() as progress:
        search = find_ledgers(client, frozenset([name]), progress)
    if search.ledgers:
        raise InvalidArgumentError(
            f"{len(search.ledgers)} ledgers name bookie {name} (the first is {search.ledgers[0].ledger}), and without "
            f"its cookie it could start empty: run bkctl decommission {name} or bkctl recover {name} first, or give "
            "--force"
        )
    if search.unreadable:
        raise InvalidArgumentError(
            f"the metadata of {len(search.unreadable)} ledgers cannot be read (the first is "
            f"{next(iter(search.unreadable))}), and they may name bookie {name}: examine them, or give --force"
        )
