"""Opening the log that a command names, with the password in ``--password-file``."""

from __future__ import annotations

import argparse

from bk_spark.bkctl.command_line.common import password
from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log.log import Log
from bk_spark.log.store import LogStore
from bk_spark.protocol.errors import UnauthorizedError


def open_log(client: BlockingClient, options: argparse.Namespace) -> Log:
    """Open the log that the command names, with its ledgers. Raises UnauthorizedError."""
    given = password(options)
    try:
        return LogStore.of(client, options.log_root).open_log(options.name, password=given)
    except UnauthorizedError as error:
        raise wrong_password(options) from error


def open_list(client: BlockingClient, options: argparse.Namespace) -> Log:
    """Open the log that the command names. Without ``--password-file``, a log with a password opens without ledgers."""
    try:
        return open_log(client, options)
    except UnauthorizedError:
        if options.password_file is not None:
            raise
        return LogStore.of(client, options.log_root).open_log(options.name)


def wrong_password(options: argparse.Namespace) -> UnauthorizedError:
    """Return the error for a log that refuses the password given, or none. It names ``--password-file``."""
    given = options.password_file
    what = "the log has a password" if given is None else f"{given} does not hold its password"
    return UnauthorizedError(f"log {options.name}: {what}: give the right one with --password-file")
