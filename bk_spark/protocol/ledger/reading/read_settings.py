"""Settings for reading and following ledgers. Source of defaults: docs/design/compatibility.md §4.8, §4.11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

#: The intended size of an answer in bytes. Two entries of 1 MiB fit.
REQUEST_BYTES: Final = 2 * 1024 * 1024
#: The same over gRPC, where a message costs more than its bytes do. Three entries of 1 MiB fit.
GRPC_REQUEST_BYTES: Final = 13 * 256 * 1024


@dataclass(frozen=True, slots=True)
class Speculation:
    """When to ask another replica while earlier ones may still answer: the first after ``first_ms``, each further one
    after twice the previous wait, at most ``max_ms``."""

    first_ms: int
    max_ms: int

    def wait_ms(self, already: int) -> int:
        """Return the wait after ``already`` speculative requests."""
        # After 32 doublings the limit always applies.
        return self.first_ms if already == 0 else min(self.max_ms, self.first_ms << min(already, 32))


class Suspects(Protocol):
    """Bookies that failed or were slow lately, and are asked last. A plain set of ids fits."""

    def add(self, bookie_id: str, /) -> None:
        """Note that a bookie failed or was slow."""

    def __contains__(self, bookie_id: object, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings for reading ranges.

    Parameters
    ----------
    attempts
        Attempts to read an entry that no replica returned, each with fresh metadata.
    timeout_ms
        A bookie that does not answer a read for this long has failed.
    requests_ahead
        The number of requests, of about ``request_bytes`` each, under way or answered ahead of the caller.
    request_bytes
        The intended size of an answer in bytes.
    max_answer_bytes
        The largest answer that a connection accepts. None: entries are read one by one, not in batches.
    speculation
        When the next replica is asked too. The default is that of Apache's ``firstSpeculativeReadTimeout`` and
        ``maxSpeculativeReadTimeout``.
    first_request_entries, max_request_entries
        Entries of a request: while their size is unknown, and at most.
    """

    attempts: int = 3
    timeout_ms: int = 5_000
    speculation: Speculation = Speculation(2_000, 2_000)
    requests_ahead: int = 8
    request_bytes: int = REQUEST_BYTES
    max_answer_bytes: int | None = None
    first_request_entries: int = 64
    max_request_entries: int = 10_000


@dataclass(frozen=True, slots=True)
class TailSettings:
    """Settings for following a ledger.

    Parameters
    ----------
    attempts
        The number of consecutive failures allowed.
    max_wait_ms
        The tail ends when nothing new was confirmed for this long. None: it never does.
    poll_ms
        How long a bookie is asked to wait for news.
    timeout_ms
        A bookie whose answer to a poll is overdue by this long has failed.
    speculation
        When another bookie is asked too. The default is that of Apache's ``firstSpeculativeReadLACTimeout`` and
        ``maxSpeculativeReadLACTimeout``.
    """

    attempts: int = 10
    max_wait_ms: int | None = None
    poll_ms: int = 4_000
    timeout_ms: int = 5_000
    speculation: Speculation = Speculation(1_500, 5_000)
