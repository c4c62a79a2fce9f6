"""The largest payload that fits into a bookie's frame limit."""

from __future__ import annotations

import numpy as np

from bk_spark.protocol.arrays import Int64s
from bk_spark.protocol.errors import InvalidArgumentError


class PayloadLimit:
    """Refuses entries of one ledger that are too large. The methods raise InvalidArgumentError."""

    def __init__(self, ledger_id: int, max_payload_bytes: int) -> None:
        self._ledger_id = ledger_id
        self._max_payload_bytes = max_payload_bytes

    def check(self, size_bytes: int) -> None:
        """Check one entry."""
        if size_bytes > self._max_payload_bytes:
            self.check_all(np.array([0, size_bytes]))

    def check_all(self, offsets: Int64s) -> None:
        """Check the entries between ``offsets``."""
        sizes, limit = np.diff(offsets), self._max_payload_bytes
        if len(sizes) and int(sizes.max()) > limit:
            index = int(np.argmax(sizes > limit))
            raise InvalidArgumentError(
                f"entry of {int(sizes[index])} bytes (number {index} of this batch) is larger than a bookie's frame "
                f"limit allows: at most {limit} bytes of payload; split it, or raise nettyMaxFrameSizeBytes on bookies "
                "and client",
                ledger_id=self._ledger_id,
            )
