"""The ``bookie-server`` command.

``init`` creates a cluster in ZooKeeper, ``start`` runs one bookie, ``autorecovery`` repairs what lost bookies held,
``local`` runs a whole cluster on this machine.
Exit status: 0 ok, 1 invalid arguments or configuration, 2 server failed; ``start`` also has 4 (registration
failed) and 5 (the bookie failed), as in Apache's bookie.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn

from bk_spark.bookie.metadata.cluster_init import init_cluster
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.metadata.zookeeper_access import ZooKeeperAccess
from bk_spark.protocol.errors import BookKeeperError, CallerError, CorruptFileError, InvalidArgumentError
from bk_spark.protocol.metadata.metadata_uri import MetadataServiceUri
from bk_spark.settings.kinds import MAX_INT, WrongValueError, whole
from bookie_server.local import DEFAULT_BOOKIES, MAX_BOOKIES, LocalCluster, certificates
from bookie_server.stop_signals import StopRequestedError, ignore_signals, stop_on_signal

#: How often ``local`` checks that its servers still run.
_WATCH_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _whole(text: str) -> int:
    """Parse a number. Its bounds are checked where it is used."""
    try:
        return int(whole(-MAX_INT, MAX_INT).parse(text))
    except WrongValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


class ExitStatus(IntEnum):
    """The statuses of all commands. ``start`` has more of them."""

    OK = 0
    INVALID_CONF = 1
    SERVER_FAILED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status. Our own errors become one line on standard error."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "start":
            return _start(arguments)
        if arguments.command == "autorecovery":
            return _autorecovery(arguments)
        if arguments.command == "init":
            return _init(arguments)
        return _local(arguments)
    except BookKeeperError as error:
        print(f"bookie-server: {error}", file=sys.stderr)
        invalid = isinstance(error, CallerError | CorruptFileError)
        return ExitStatus.INVALID_CONF if invalid else ExitStatus.SERVER_FAILED


class _Version(argparse.Action):
    """Prints the version of the package. Only this imports what knows it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata

        print(f"bookie-server {importlib.metadata.version('bk-spark')}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bookie-server", description="A bookie, or a whole local cluster.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and end")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="run one bookie until SIGTERM or Ctrl-C")
    start.add_argument("--conf", required=True, metavar="FILE", help="configuration file with Apache's keys")
    autorecovery = commands.add_parser(
        "autorecovery", help="repair ledgers whose bookies are lost, until SIGTERM or Ctrl-C; without a bookie"
    )
    autorecovery.add_argument("--conf", required=True, metavar="FILE", help="as for start")
    init = commands.add_parser("init", help="create a new, empty cluster in ZooKeeper; an existing one is not touched")
    cluster = init.add_mutually_exclusive_group(required=True)
    cluster.add_argument(
        "--metadata-service-uri", metavar="URI", help="for example zk+hierarchical://host:2181/ledgers"
    )
    cluster.add_argument(
        "--conf", metavar="FILE", help="a bookie's configuration file, which also says how to reach ZooKeeper"
    )
    local = commands.add_parser(
        "local", help="run ZooKeeper and bookies on loopback ports until SIGTERM or Ctrl-C; data stays in DIR"
    )
    local.add_argument("--dir", required=True, metavar="DIR", help="directory of the cluster; made where missing")
    local.add_argument("--bookies", type=_whole, metavar="N", help=f"default: as DIR has, or {DEFAULT_BOOKIES}")
    local.add_argument("--zookeepers", type=_whole, choices=(1, 3), help="default: as DIR has, or 1")
    local.add_argument(
        "--base-port", type=_whole, default=0, metavar="PORT", help="first bookie port; default: free ones"
    )
    local.add_argument(
        "--zk-port", type=_whole, default=0, metavar="PORT", help="first ZooKeeper port; default: a free one"
    )
    local.add_argument(
        "--tls", action="store_true", help="make certificates, and encrypt all connections to bookies; for a new DIR"
    )
    local.add_argument(
        "--http-port",
        type=_whole,
        default=0,
        metavar="PORT",
        help="first port of the page of the cluster, which each bookie serves; default: free ones",
    )
    return parser


def _start(arguments: argparse.Namespace) -> int:
    from bookie_server.process import run_from_conf

    return run_from_conf(arguments.conf)


def _autorecovery(arguments: argparse.Namespace) -> int:
    from bookie_server.replication.process import run_from_conf

    return run_from_conf(arguments.conf)


def _init(arguments: argparse.Namespace) -> int:
    if arguments.conf is None:
        uri, access = MetadataServiceUri.parse(arguments.metadata_service_uri), None
    else:
        from bookie_server.config.load import load_config

        config, _ = load_config(arguments.conf)
        uri, access = config.metadata_service_uri, ZooKeeperAccess(config)
    zk = ZooKeeper(uri.servers, access=access)
    zk.start()
    try:
        instance_id = init_cluster(zk, uri.root, uri.layout)
    finally:
        zk.close()
    _tell(f"new cluster at {uri}, instance {instance_id}")
    return ExitStatus.OK


def _local(arguments: argparse.Namespace) -> int:
    if arguments.bookies is not None and arguments.bookies < 1:
        raise InvalidArgumentError(
            f"--bookies must be from 1 to {MAX_BOOKIES}, not {arguments.bookies}: without one nothing can be written"
        )
    if not arguments.dir.strip():
        raise InvalidArgumentError("--dir is empty: name the directory of the cluster")
    directory, settings = Path(arguments.dir).absolute(), {"autoRecoveryDaemonEnabled": "true"}
    if arguments.tls:
        certificates.prepare(directory)
    client_conf = certificates.client_conf_of(directory)
    if client_conf is not None:
        settings |= certificates.bookie_keys(directory)
    cluster = LocalCluster(
        arguments.dir,
        bookies=arguments.bookies,
        zookeepers=arguments.zookeepers,
        zookeeper_port=arguments.zk_port,
        bookie_port=arguments.base_port,
        http_port=arguments.http_port,
        bookie_settings=settings,
    )
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    try:
        with stop_on_signal(_SIGNALS):
            cluster.start(progress=_tell)
            uri = cluster.metadata_service_uri
            _tell(f"ready; data and logs are in {cluster.directory}")
            _tell(f"\nmetadataServiceUri: {uri}")
            _tell(f'in Spark: .option("metadataServiceUri", "{uri}")')
            if client_conf is not None:
                _tell(f'with TLS: .option("clientConf", "{client_conf}"), and bkctl --client-conf {client_conf}')
            pages = [page for bookie in cluster.bookies if (page := bookie.page) is not None]
            if pages:
                _tell(f"in a browser: {pages[0]}")
            _tell("\nCtrl-C stops the cluster and keeps its data")
            _watch(cluster)
    except StopRequestedError:
        _tell("stopping")
    finally:
        # A second Ctrl-C must not leave half a cluster running; the stop has a time limit.
        ignore_signals(_SIGNALS)
        cluster.stop()
    _tell("stopped")
    return ExitStatus.OK


def _watch(cluster: LocalCluster) -> NoReturn:
    """Report every server that ends, until a signal arrives."""
    ended: set[str] = set()
    while True:
        for server in (*cluster.zookeepers, *cluster.bookies):
            if server.name not in ended and not server.running:
                ended.add(server.name)
                print(server.failure("a server ended"), file=sys.stderr, flush=True)
        time.sleep(_WATCH_S)


def _tell(text: str) -> None:
    print(text, flush=True)
