"""Lines about peers in the log, few enough that a flood of peers does not fill the disk."""

from __future__ import annotations

import logging
import time
from typing import Final

_LOG: Final = logging.getLogger(__name__)
#: At most one line of a kind is logged in this time.
_TELL_EVERY_S: Final = 1.0


class SparingLog:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        #: For each kind of line: when one was logged, and how many were not since then.
        self._told: dict[str, tuple[float, int]] = {}

    def tell(self, line: str, *values: object) -> None:
        """Log a line about a peer, unless one of this kind was logged just now."""
        told_at, untold = self._told.get(line, (-_TELL_EVERY_S, 0))
        if time.monotonic() - told_at < _TELL_EVERY_S:
            self._told[line] = told_at, untold + 1
            return
        more = f" ({untold} more such connections since the last such line)" if untold else ""
        self._told[line] = time.monotonic(), 0
        _LOG.warning(line + more, *values)
