"""What a client counts of its own work, for metrics of programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClientCounts:
    """What one client has done since it was made. The client changes its own; callers get a copy.

    Parameters
    ----------
    ledgers_opened
        Ledgers that were opened for reading, also by a recovery. A ledger whose reader is still open counts once.
    ledgers_created
        Ledgers that were created.
    read_retries
        Reads that were sent to one more bookie, because the one before failed or had not answered soon.
    bookies_replaced
        Bookies that were replaced in ledgers under way: what they had not acknowledged is sent to others.
    """

    ledgers_opened: int = 0
    ledgers_created: int = 0
    read_retries: int = 0
    bookies_replaced: int = 0
