"""What every process with a bookie's configuration does first: it logs to stderr and loads the file."""

from __future__ import annotations

import logging
import os
import pwd
import sys
from collections.abc import Collection
from typing import Final

from bk_spark.protocol.errors import InvalidArgumentError
from bookie_server.config.config import BookieConfig
from bookie_server.config.load import load_config

_LOG: Final = logging.getLogger(__name__)


def configure_process(path: str) -> BookieConfig:
    """Set up logging, load the configuration file at ``path``, log its warnings, and check who runs this process.

    Raises InvalidArgumentError naming key and file.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    config, warnings = load_config(path)
    for warning in warnings:
        _LOG.warning("%s", warning)
    _check_user(config.permitted_startup_users, path)
    return config


def _check_user(permitted: Collection[str], path: str) -> None:
    """Raise InvalidArgumentError if the user of this process may not start a bookie with this configuration."""
    user_id = os.geteuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        # A container may run as a user that its files do not name.
        name = str(user_id)
    if permitted and name not in permitted:
        raise InvalidArgumentError(
            f"{path}: permittedStartupUsers does not name {name}, the user of this process: "
            f"start it as {' or '.join(permitted)}, or add {name}"
        )
