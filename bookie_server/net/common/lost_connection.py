"""Callbacks in place of those of a connection that is lost: what it still had under way may call them."""

from __future__ import annotations

import logging
from typing import Final

_LOG: Final = logging.getLogger(__name__)


def ignore_change() -> None:
    """Nobody has to be told: the connection is gone."""


def log_failure() -> None:
    """Log the exception that is being handled."""
    _LOG.exception("a request failed after its connection was lost")
