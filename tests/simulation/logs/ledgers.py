"""Model ledgers. The protocol of one ledger is tested elsewhere (tests/simulation); here a ledger is one object.

Its metadata is a znode of the model ZooKeeper. Entries that were sent may be acknowledged later. Until then a recovery
may or may not find them; after a recovery no more entries are acknowledged. A writer's adds may fail at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any

from bk_spark.log.core.steps import (
    AbandonLedger,
    Action,
    Answered,
    Closed,
    CloseLedger,
    Conflict,
    Created,
    CreateLedger,
    Done,
    EntryRead,
    Event,
    Failed,
    IsLedgerOpen,
    LedgerRegistrar,
    OutcomeUnknown,
    ReadEntry,
    Recovered,
    RecoverLedger,
    RecoverLedgers,
    WriteLedger,
)
from bk_spark.log.core.tail.writer_actions import (
    Acknowledged,
    AskConfirmed,
    AskFailure,
    Claimed,
    ClaimLedger,
    FlushLedger,
    SendEntries,
    Sent,
    TakeTurn,
    UseTail,
    WatchOwner,
)
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.errors import (
    BookieUnavailableError,
    BookKeeperError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    OutcomeUnknownError,
    UnauthorizedError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment, decode, encode
from bk_spark.protocol.metadata.znodes import CheckOp, CreateOp, SetOp, TransactionOp
from bk_spark.protocol.quorum import Quorum
from tests.simulation.logs.zookeeper import LogsZooKeeper, Session
from tests.support.zookeeper_model import RefusedError

ROOT = "/ledgers"
ENTRY_BYTES = 100
_NEW = LedgerMetadata(
    Quorum(1, 1, 1),
    (Segment(0, ("b1",)),),
    digest_type=DigestType.CRC32C,
    password=b"secret",
)
OPEN = encode(_NEW)
IN_RECOVERY = encode(replace(_NEW, state=LedgerState.IN_RECOVERY))


@lru_cache(maxsize=4096)
def closed_metadata(end: int, size_bytes: int) -> bytes:
    return encode(replace(_NEW, state=LedgerState.CLOSED, last_entry_id=end, length=size_bytes))


def ledger_path(ledger_id: int) -> str:
    return f"{ROOT}/L{ledger_id}"


@dataclass(slots=True)
class ModelLedger:
    """``entries`` were sent; the first ``acknowledged`` of them were confirmed to the writer. ``end`` is the last
    entry of a closed ledger."""

    ledger_id: int
    entries: list[object] = field(default_factory=list)
    acknowledged: int = 0
    fenced: bool = False
    end: int | None = None
    #: Bookies know its id with another password.
    used_before: bool = False

    def size_bytes(self) -> int:
        assert self.end is not None
        return sum(len(entry) if isinstance(entry, bytes) else ENTRY_BYTES for entry in self.entries[: self.end + 1])


class ModelLedgers:
    """All ledgers of a world."""

    def __init__(self, zk: LogsZooKeeper, random: Random) -> None:
        self.zk = zk
        self.all: dict[int, ModelLedger] = {}
        self._random = random
        self._next = 100
        zk.transact([CreateOp(ROOT)])

    def perform(self, session: Session, action: Action) -> Event:
        fails = self._random.random() < session.weather.ledgers
        match action:
            case CreateLedger(register):
                return self._create(session, register, fails=fails)
            case ClaimLedger(ledger_id):
                return self._claim(ledger_id, fails=fails)
            case WriteLedger(register, entries):
                return self._write(session, register, entries, fails=fails)
            case SendEntries(ledger_id, payloads):
                return self._send(self.all[ledger_id], payloads)
            case FlushLedger(ledger_id):
                return self._drain(self.all[ledger_id], fails=fails)
            case AskConfirmed(ledger_id):
                return Acknowledged(self.all[ledger_id].acknowledged - 1)
            case IsLedgerOpen(ledger_id):
                return self._is_open(ledger_id, fails=fails)
            case CloseLedger(ledger_id):
                return self._close(self.all[ledger_id], fails=fails)
            case AbandonLedger() | AskFailure() | UseTail() | WatchOwner() | TakeTurn():
                return Done()
            case RecoverLedger(ledger_id):
                return self._recover(ledger_id, fails=fails)
            case RecoverLedgers(ledger_ids):
                return self._recover_all(session, ledger_ids)
            case ReadEntry(ledger_id, entry_id):
                return self._read(ledger_id, entry_id, fails=fails)
        raise AssertionError(f"nobody performs {action}")

    def exists(self, ledger_id: int) -> bool:
        return self.zk.read(ledger_path(ledger_id)) is not None

    # --- a writer's ---

    def _create(self, session: Session, register: LedgerRegistrar, *, fails: bool) -> Event:
        ledger_id = self._next = self._next + 1
        if fails:
            return Failed(BookieUnavailableError("model: not enough bookies"))
        # Added before the transaction, because the watch looks the ledger up during it.
        self.all[ledger_id] = ModelLedger(ledger_id)
        operations: tuple[TransactionOp, ...] = (CreateOp(ledger_path(ledger_id), OPEN), *register(ledger_id))
        event = session.transact(operations)
        match event:
            case OutcomeUnknown(reason):
                # The client finds out by reading, if it can; if its ledger is there, it owns it.
                if self._random.random() < 0.5:
                    return Failed(OutcomeUnknownError(reason))
                if not self.exists(ledger_id):
                    return Failed(MetadataUnavailableError(reason))
            case Done():
                pass
            case Conflict():
                return event
            case _:
                return Failed(MetadataUnavailableError("model"))
        return Created(ledger_id)

    def _claim(self, ledger_id: int, *, fails: bool) -> Claimed | Failed:
        if fails:
            if ledger_id % 2:
                return Claimed(("b3",))
            self.all[ledger_id].used_before = True
            return Failed(UnauthorizedError("model: its id was used before", ledger_id=ledger_id))
        return Claimed()

    def _write(self, session: Session, register: LedgerRegistrar, entries: tuple[bytes, ...], *, fails: bool) -> Event:
        created = self._create(session, register, fails=fails)
        if not isinstance(created, Created):
            return created
        ledger = self.all[created.ledger_id]
        if self._random.random() < session.weather.ledgers:
            return Failed(BookieUnavailableError("model: entries were not all written"))
        ledger.entries += entries
        closed = self._close(ledger, fails=self._random.random() < session.weather.ledgers)
        return created if isinstance(closed, Closed) else closed

    def _send(self, ledger: ModelLedger, payloads: Sequence[Any]) -> Sent | Failed:
        if ledger.fenced:
            return Failed(LedgerFencedError("model", ledger_id=ledger.ledger_id))
        ledger.entries += payloads
        return Sent(len(ledger.entries) - 1)

    def _drain(self, ledger: ModelLedger, *, fails: bool) -> Acknowledged | Failed:
        if ledger.fenced:
            return Failed(LedgerFencedError("model", ledger_id=ledger.ledger_id))
        if fails:
            ledger.acknowledged = self._random.randint(ledger.acknowledged, len(ledger.entries))
            return Failed(BookieUnavailableError("model: no ensemble to go on with", ledger_id=ledger.ledger_id))
        ledger.acknowledged = len(ledger.entries)
        return Acknowledged(ledger.acknowledged - 1)

    def _close(self, ledger: ModelLedger, *, fails: bool) -> Event:
        if not self.exists(ledger.ledger_id):
            return Failed(NoSuchLedgerError("model", ledger_id=ledger.ledger_id))
        if ledger.end is not None and ledger.end == ledger.acknowledged - 1 == len(ledger.entries) - 1:
            return Closed(ledger.ledger_id, ledger.end, ledger.size_bytes())
        drained = self._drain(ledger, fails=fails)
        if isinstance(drained, Failed):
            return drained
        return self._close_at(ledger, ledger.acknowledged - 1)

    # --- anybody's ---

    def _is_open(self, ledger_id: int, *, fails: bool) -> Event:
        znode = self.zk.read(ledger_path(ledger_id))
        if fails:
            return Failed(MetadataUnavailableError("model"))
        if znode is None:
            return Failed(NoSuchLedgerError("model", ledger_id=ledger_id))
        return Answered(decode(znode.data).state is LedgerState.OPEN)

    def _recover(self, ledger_id: int, *, fails: bool) -> Event:
        if not self.exists(ledger_id):
            return Failed(NoSuchLedgerError("model", ledger_id=ledger_id))
        ledger = self.all[ledger_id]
        if ledger.end is not None:
            return Closed(ledger_id, ledger.end, ledger.size_bytes())
        if ledger.used_before:
            return Failed(UnauthorizedError("model: its id was used before", ledger_id=ledger_id))
        if fails:
            if not ledger.fenced and self._random.random() < 0.5:
                self._set(ledger_id, IN_RECOVERY)
                ledger.fenced = True
            return Failed(BookieUnavailableError("model: recovery needs more bookies", ledger_id=ledger_id))
        return self._close_at(ledger, self._random.randint(ledger.acknowledged, len(ledger.entries)) - 1)

    def _recover_all(self, session: Session, ledger_ids: tuple[int, ...]) -> Recovered:
        """Some ledgers may not be closed in time."""
        failed: dict[int, BookKeeperError] = {}
        in_time = len(ledger_ids)
        if self._random.random() < session.weather.ledgers:
            in_time = self._random.randint(0, in_time)
        for ledger_id in ledger_ids[:in_time]:
            event = self._recover(ledger_id, fails=self._random.random() < session.weather.ledgers)
            if isinstance(event, Failed) and not isinstance(event.error, NoSuchLedgerError):
                failed[ledger_id] = event.error
        return Recovered(failed, ledger_ids[in_time:])

    def _read(self, ledger_id: int, entry_id: int, *, fails: bool) -> Event:
        if not self.exists(ledger_id):
            return Failed(NoSuchLedgerError("model", ledger_id=ledger_id))
        if fails:
            return Failed(BookieUnavailableError("model", ledger_id=ledger_id))
        ledger = self.all[ledger_id]
        if ledger.end is None or entry_id > ledger.end:
            return Failed(NoSuchEntryError("model", ledger_id=ledger_id))
        payload = ledger.entries[entry_id]
        assert isinstance(payload, bytes)
        return EntryRead(payload)

    def _close_at(self, ledger: ModelLedger, end: int) -> Event:
        ledger.fenced, ledger.end = True, end
        self._set(ledger.ledger_id, closed_metadata(end, ledger.size_bytes()))
        return Closed(ledger.ledger_id, end, ledger.size_bytes())

    def _set(self, ledger_id: int, state: bytes) -> None:
        try:
            self.zk.transact([CheckOp(ledger_path(ledger_id), -1), SetOp(ledger_path(ledger_id), state, -1)])
        except RefusedError as error:  # pragma: no cover - the caller has looked
            raise AssertionError(error) from error
