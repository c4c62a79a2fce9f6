"""Vocabulary of machines that change a log: actions out, events in. No I/O, no clock, no threads.

A machine is a generator. It yields one action after another and is sent an event for each:

============== ============================================== ==============================================
action         meaning                                        events
============== ============================================== ==============================================
Sync           bring up to date: the server, and the clock    Done, Unavailable
Read           read znodes, one after another                 Found, Unavailable
ListChildren   names of a znode's children                    Listed, Unavailable
Transact       send one transaction                           Done, Conflict, OutcomeUnknown
TakeLock       wait for the log's advisory lock               Done (also where it could not be had)
ReleaseLock    let go of it, or of the place in its queue     Done
ReadTimer      look at a clock that only goes forward         TimerRead
Pause          wait about so long                             Done
CreateLedger   a new ledger, registered as it is made         Created, Conflict, Failed
CloseLedger    drain and close a ledger made by CreateLedger  Closed, Failed
RecoverLedger  fence and close any ledger                     Closed, Failed
WriteLedger    a new closed ledger with these entries         Created, Conflict, Failed
ReadEntry      one entry of a closed ledger                   EntryRead, Failed
============== ============================================== ==============================================

After ``Sync`` a machine may ask for the time: its ``now_ms`` gives Unix time by the cluster's clock, or a little less.

``Conflict`` means that the change was refused as a whole; after ``OutcomeUnknown`` it may have taken effect, or
may still: nothing is sent again before a ``Sync`` and a new reading. After ``Unavailable`` nothing was changed.
``Failed`` holds the ledger client's error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.znodes import TransactionOp, Znode

_T = TypeVar("_T")

#: Operations that register a ledger, to be put into the transaction that makes the ledger.
LedgerRegistrar = Callable[[int], tuple[TransactionOp, ...]]


@dataclass(frozen=True, slots=True)
class Sync:
    path: str


@dataclass(frozen=True, slots=True)
class Read:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListChildren:
    path: str


@dataclass(frozen=True, slots=True)
class Transact:
    operations: tuple[TransactionOp, ...]


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Bounded, whatever its holder does. Repeated, it is asked for again where it was lost."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    pass


@dataclass(frozen=True, slots=True)
class ReadTimer:
    pass


@dataclass(frozen=True, slots=True)
class Pause:
    about_ms: int


@dataclass(frozen=True, slots=True)
class CreateLedger:
    register: LedgerRegistrar


@dataclass(frozen=True, slots=True)
class CloseLedger:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class WriteLedger:
    register: LedgerRegistrar
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReadEntry:
    ledger_id: int
    entry_id: int


Action = (
    Sync
    | Read
    | ListChildren
    | Transact
    | TakeLock
    | ReleaseLock
    | ReadTimer
    | Pause
    | CreateLedger
    | CloseLedger
    | RecoverLedger
    | WriteLedger
    | ReadEntry
)


@dataclass(frozen=True, slots=True)
class Done:
    pass


@dataclass(frozen=True, slots=True)
class Found:
    znodes: Mapping[str, Znode | None]


@dataclass(frozen=True, slots=True)
class Listed:
    """None: there is no such znode."""

    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class TimerRead:
    """Only the difference of two of them means anything."""

    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class Conflict:
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    reason: str


@dataclass(frozen=True, slots=True)
class Created:
    ledger_id: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed at ``last_entry`` (-1: it is empty), with ``size_bytes`` of payload."""

    ledger_id: int
    last_entry: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EntryRead:
    payload: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    error: BookKeeperError


Event = (
    Done | Found | Listed | TimerRead | Conflict | OutcomeUnknown | Unavailable | Created | Closed | EntryRead | Failed
)

#: A machine whose result is a ``_T``.
Steps = Generator[Action, Event, _T]
