"""What every process with a bookie's configuration does first: it logs to stderr and loads the file."""

from __future__ import annotations

import logging
import sys
from typing import Final

from bookie_server.config.config import BookieConfig
from bookie_server.config.load import load_config

_LOG: Final = logging.getLogger(__name__)


def configure_process(path: str) -> BookieConfig:
    """Set up logging, load the configuration file at ``path``, and log its warnings.

    Raises InvalidArgumentError naming key and file.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    config, warnings = load_config(path)
    for warning in warnings:
        _LOG.warning("%s", warning)
    return config
