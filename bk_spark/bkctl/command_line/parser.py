"""The parser of the command line. :mod:`commands` finds the commands; :func:`_share` adds the common options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from bk_spark import __version__
from bk_spark.bkctl.command_line.commands import add_commands
from bk_spark.bkctl.command_line.common import OneLineParser
from bk_spark.log.formats.names import DEFAULT_ROOT

URI_VARIABLE: Final = "BK_METADATA_SERVICE_URI"
CONF_VARIABLE: Final = "BK_CLIENT_CONF"


def make_parser(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Make the parser of a command line with these words, or of any."""
    parser = OneLineParser(
        prog="bkctl",
        description="Inspect and maintain a cluster: bookies, replication, ledgers and logs.",
        epilog="Options of all commands may come before or after the command.",
    )
    parser.add_argument("--version", action="version", version=f"bkctl {__version__}")
    parser.set_defaults(metadata_service_uri=os.environ.get(URI_VARIABLE) or None, log_root=DEFAULT_ROOT)
    parser.set_defaults(client_conf=os.environ.get(CONF_VARIABLE) or None)
    parser.set_defaults(password_file=None, json=False, without_cluster=False, without_uri=False)
    groups = parser.add_subparsers(required=True, metavar="COMMAND")
    add_commands(groups, words)
    for one in parsers_of(parser):
        _share(one)
    return parser


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser and those of its commands."""
    yield parser
    for command in commands_of(parser).values():
        yield from parsers_of(command)


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the subcommands and their parsers."""
    return {name: one for action in subcommands_of(parser) for name, one in (action.choices or {}).items()}


def subcommands_of(parser: argparse.ArgumentParser) -> list[Any]:
    """Return what argparse keeps of the subcommands, with their helps."""
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


class _Refused(argparse.Action):
    """A password on the command line, which other users of the machine could see."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            "a password is not given on the command line: write it into a file, and name it: --password-file FILE"
        )


def _share(parser: argparse.ArgumentParser) -> None:
    """Add the common options. They may also precede the command, so each parser stores only the ones it was given."""
    options: Any = parser.add_argument_group("options of all commands", argument_default=argparse.SUPPRESS)
    options.add_argument(
        "--metadata-service-uri",
        metavar="URI",
        help=f"where the cluster is, for example zk://localhost:2181/ledgers; default: ${URI_VARIABLE}",
    )
    options.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="file with the password of the ledgers or of the log; default: the empty password",
    )
    # Otherwise argparse takes it for the option above, and the error shows the password.
    options.add_argument("--password", action=_Refused, help=argparse.SUPPRESS)
    options.add_argument(
        "--client-conf",
        metavar="FILE",
        help="settings of the client with Apache's keys, such as those of TLS (docs/client-config.md); default: "
        f"${CONF_VARIABLE}",
    )
    options.add_argument("--log-root", metavar="PATH", help=f"znode of the logs ({DEFAULT_ROOT})")
    options.add_argument("--json", action="store_true", help="print JSON")
