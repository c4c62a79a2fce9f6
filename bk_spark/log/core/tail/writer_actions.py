"""What machines of a log writer ask for, besides the actions of :mod:`bk_spark.log.core.steps`.

============== ============================================== ==============================================
action         meaning                                        events
============== ============================================== ==============================================
ClaimLedger    make bookies know a ledger's password          Claimed, Failed
UseTail        write to this ledger from now on               Done
SendEntries    hand entries over for sending                  Sent, Failed
FlushLedger    wait until what was sent is acknowledged       Acknowledged, Failed
AskConfirmed   how much of the ledger is acknowledged now     Acknowledged
AskFailure     whether the ledger's writer has ended          Done, Failed
WatchOwner     report changes of the owner's znode            Done, Failed
TakeTurn       wait until no other machine of the writer runs Done
============== ============================================== ==============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bk_spark.protocol.entries.digest import Buffer
from bk_spark.protocol.entries.payloads import Payloads


@dataclass(frozen=True, slots=True)
class ClaimLedger:
    """Of a ledger that this process created, before its first entry."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class UseTail:
    """Entries of ``ledger_id`` get offsets from ``base_offset`` on."""

    ledger_id: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class SendEntries:
    """Hand ``payloads`` over to the writer of the ledger. Nobody waits for their acknowledgement here."""

    ledger_id: int
    payloads: Payloads | Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class FlushLedger:
    """Wait until everything sent to the ledger is acknowledged."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class AskConfirmed:
    """Ask the ledger's writer for the last entry acknowledged so far, without waiting."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class AskFailure:
    """``Failed`` holds the error that ended it. A ledger that is closed, or being closed, has not failed."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class WatchOwner:
    """A watch that is set already stays."""


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Until this machine ends, no other machine of the writer runs."""


WriterAction = ClaimLedger | UseTail | SendEntries | FlushLedger | AskConfirmed | AskFailure | WatchOwner | TakeTurn


@dataclass(frozen=True, slots=True)
class Claimed:
    """Bookies took the password: as many as a recovery needs. Those in ``silent`` did not answer."""

    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sent:
    """``last_entry`` is the id that the ledger gave to the last of the payloads."""

    last_entry: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Entries up to ``last_entry`` are acknowledged; -1: none."""

    last_entry: int


WriterEvent = Claimed | Sent | Acknowledged
