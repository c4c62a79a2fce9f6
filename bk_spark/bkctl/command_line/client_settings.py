"""``--client-conf``: the client's settings, for commands that connect."""

from __future__ import annotations

import argparse

from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.errors import InvalidArgumentError


def client_config(options: argparse.Namespace) -> ClientConfig:
    """Return the settings in ``--client-conf``. Raises InvalidArgumentError."""
    if options.client_conf is None:
        return ClientConfig()
    try:
        return ClientConfig.from_file(options.client_conf)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--client-conf: {error}") from error
