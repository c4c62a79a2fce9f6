"""How ledgers are read and followed. Source of defaults: docs/design/compatibility.md §4.8, §4.11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

#: Answer bytes aimed at for a request.
REQUEST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Speculation:
    """When to ask another replica while the one before may still answer: the first after ``first_ms``, each further one
    after twice the wait before it, ``max_ms`` at most."""

    first_ms: int
    max_ms: int

    def wait_ms(self, already: int) -> int:
        """How long to wait where ``already`` speculative requests were sent."""
        # Beyond 32 doublings only the bound can count.
        return self.first_ms if already == 0 else min(self.max_ms, self.first_ms << min(already, 32))


class Suspects(Protocol):
    """Bookies that failed or were slow lately, to be asked last. A plain set of ids is one."""

    def add(self, bookie_id: str, /) -> None: ...

    def __contains__(self, bookie_id: object, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How ranges are read.

    Parameters
    ----------
    attempts
        Tries for an entry that no replica gave, with fresh metadata each time.
    timeout_ms
        A bookie that leaves a read unanswered so long has failed.
    requests_ahead
        Requests, of about :data:`REQUEST_BYTES` each, that may be under way or answered ahead of the caller.
    max_answer_bytes
        The largest answer that a connection takes. None: entries are read one by one, not in batches.
    speculation
        When the next replica is asked too. The default is that of Apache's ``firstSpeculativeReadTimeout`` and
        ``maxSpeculativeReadTimeout``.
    first_request_entries, max_request_entries
        Entries of a request: where nothing is known of their size, and at most.
    """

    attempts: int = 3
    timeout_ms: int = 5_000
    speculation: Speculation = Speculation(2_000, 2_000)
    requests_ahead: int = 8
    max_answer_bytes: int | None = None
    first_request_entries: int = 64
    max_request_entries: int = 10_000


@dataclass(frozen=True, slots=True)
class TailSettings:
    """How a ledger is followed.

    Parameters
    ----------
    attempts
        How often in a row something may fail.
    max_wait_ms
        The tail ends when nothing new was confirmed for so long. None: it never does.
    poll_ms
        How long a bookie is asked to wait for news.
    timeout_ms
        A bookie that leaves a poll unanswered so long after it should have answered has failed.
    speculation
        When another bookie is asked too. The default is that of Apache's ``firstSpeculativeReadLACTimeout`` and
        ``maxSpeculativeReadLACTimeout``.
    """

    attempts: int = 10
    max_wait_ms: int | None = None
    poll_ms: int = 4_000
    timeout_ms: int = 5_000
    speculation: Speculation = Speculation(1_500, 5_000)
