"""The command line as a whole: its options, and how a command ends."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bk_spark.bkctl import ledgers, logs
from bk_spark.bkctl.common import ExitStatus, OneLineParser
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.names import DEFAULT_ROOT
from bk_spark.protocol.errors import BookKeeperError

_URI_VARIABLE: Final = "BK_METADATA_SERVICE_URI"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its :class:`ExitStatus`. Errors are one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        with BlockingClient(options.metadata_service_uri) as client:
            status: ExitStatus = options.run(client, options)
            sys.stdout.flush()
            return status
    except BookKeeperError as error:
        print("bkctl:", " ".join(str(error).split()), file=sys.stderr)
        return ExitStatus.ERROR
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; the interpreter would complain about what it could not flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OK


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="bkctl", description="Look at bookies, ledgers and logs of a cluster, and look after logs."
    )
    uri = os.environ.get(_URI_VARIABLE)
    parser.add_argument(
        "--metadata-service-uri",
        metavar="URI",
        default=uri,
        required=uri is None,
        help=f"where the cluster is, for example zk://localhost:2181/ledgers; default: ${_URI_VARIABLE}",
    )
    parser.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="file with the password of the ledgers or of the log; default: the empty password",
    )
    parser.add_argument("--log-root", default=DEFAULT_ROOT, metavar="PATH", help="where logs lie (%(default)s)")
    groups = parser.add_subparsers(required=True, metavar="bookies|ledger|log")
    ledgers.add_commands(groups)
    logs.add_commands(groups)
    return parser
