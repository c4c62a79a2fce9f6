"""What is counted of gRPC, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grpc import StatusCode

_NOT_ALLOWED: Final = frozenset({StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED})
_TOO_MUCH: Final = frozenset({StatusCode.RESOURCE_EXHAUSTED, StatusCode.DEADLINE_EXCEEDED})


@dataclass(slots=True)
class Counters:
    """Over all services. The bytes do not include messages of health and reflection."""

    #: Calls that began.
    calls: int = 0
    #: Calls that the bookie ended because the caller may not make them, because there were too many or they took too
    #: long, and for other reasons.
    unauthorized: int = 0
    rejected: int = 0
    failed: int = 0
    #: Bytes of messages.
    received_bytes: int = 0
    sent_bytes: int = 0

    def ended(self, status: StatusCode) -> None:
        """The bookie ends a call with ``status``."""
        if status in _NOT_ALLOWED:
            self.unauthorized += 1
        elif status in _TOO_MUCH:
            self.rejected += 1
        else:
            self.failed += 1
