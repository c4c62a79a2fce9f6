"""Entry point of the command line: runs a command and returns its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from bk_spark.bkctl.command_line.common import ExitStatus, WrongCommandLineError
from bk_spark.bkctl.command_line.parser import URI_VARIABLE, make_parser
from bk_spark.protocol.errors import BookKeeperError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its :class:`ExitStatus`. Errors are one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    status: ExitStatus
    try:
        # What the command needs is imported in here, where Ctrl-C is expected.
        parser = make_parser(words)
        options = parser.parse_args(words)
        if options.metadata_service_uri is None and not options.without_uri:
            parser.error(f"where is the cluster? Give --metadata-service-uri URI, or set {URI_VARIABLE}")
        if options.without_cluster:
            status = options.run(options)
        else:
            from bk_spark.bkctl.command_line.client_settings import client_config
            from bk_spark.bookie.blocking import BlockingClient

            with BlockingClient(options.metadata_service_uri, client_config(options)) as client:
                status = options.run(client, options)
        sys.stdout.flush()
        return status
    except BookKeeperError as error:
        print("bkctl:", " ".join(str(error).split()), file=sys.stderr)
        return ExitStatus.WRONG_COMMAND_LINE if isinstance(error, WrongCommandLineError) else ExitStatus.ERROR
    except KeyboardInterrupt:
        return ExitStatus.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has quit. Without this the interpreter would complain that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.OK
