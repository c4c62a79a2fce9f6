"""Performs the actions of the election and of the auditor."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from random import Random, SystemRandom
from typing import Any, Final

from bk_spark.bookie.placement.placement import Spread
from bk_spark.bookie.reading.performer import Performer, read_lac
from bk_spark.bookie.replication.auditor_election import AuditorVote
from bk_spark.bookie.runners import AsyncRunner
from bk_spark.protocol.codes import NO_ENTRY, DigestType
from bk_spark.protocol.entries.digest import digest_function
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.ledger.reading.ledger_view import LedgerKey
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from bk_spark.protocol.replication.entry_lists import EntryLists, ListsFound
from bk_spark.protocol.replication.fragments import fragments_of
from bk_spark.protocol.replication.ledger_check import CheckResult, LedgerCheck
from bk_spark.protocol.replication.verification import key_of
from bk_spark.protocol.wire.entry_availability import EntryAvailability
from bookie_server.replication.access import ReplicationAccess
from bookie_server.replication.actions import (
    AuditedDelayRead,
    Check,
    CheckLedgers,
    CheckTimeRead,
    CookiesRead,
    CreateVote,
    DisabledRead,
    Done,
    EndCheck,
    LedgersChecked,
    ReadAuditedDelay,
    ReadCheckTime,
    ReadCookies,
    ReadFailed,
    ReadProgress,
    ReadVotes,
    ScanAction,
    Step,
    StepDone,
    StepFailed,
    Watch,
    WatchVote,
    WithdrawVote,
    WriteAuditor,
)
from bookie_server.replication.auditing.auditor_store import AuditorStore
from bookie_server.replication.auditing.list_turns import ListTurns
from bookie_server.replication.auditing.scans import bookies_of
from bookie_server.replication.replication_metrics import ReplicationMetrics

_LOG: Final = logging.getLogger(__name__)
#: How often a candidate looks for the vote before its own though no watch was called.
_VOTE_POLL_S: Final = 60.0


class ElectionPerformer:
    """Performs the actions of the election."""

    def __init__(self, access: ReplicationAccess) -> None:
        self._access = access
        self._store = AuditorStore(access)

    def __call__(self, action: Any) -> Coroutine[Any, Any, Any]:
        """The coroutine whose result is the action's event."""
        access = self._access
        match action:
            case ReadVotes():
                return access.call(self._store.read_votes)
            case CreateVote():
                return self._done(access.election.vote, access.bookie_id)
            case WithdrawVote(path):
                return self._done(access.election.withdraw, _vote(path))
            case WatchVote(path):
                return self._watch(path)
            case WriteAuditor():
                return self._done(self._store.write_auditor)
        raise AssertionError(action)

    async def _done(self, function: Callable[..., object], *arguments: object) -> Done:
        # Not given a coroutine: nobody would close that one if this were cancelled before it begins.
        await self._access.call(function, *arguments)
        return Done()

    async def _watch(self, path: str) -> Done:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        there = await self._access.call(
            self._access.election.watch_vote, _vote(path), lambda _: loop.call_soon_threadsafe(gone.set)
        )
        if there:
            try:
                async with asyncio.timeout(_VOTE_POLL_S):
                    await gone.wait()
            except TimeoutError:
                pass
        return Done()


def _vote(path: str) -> AuditorVote:
    return AuditorVote(path, 0, None, 0)


class AuditorPerformer:
    """Performs the actions of the auditor.

    Parameters
    ----------
    tell
        Receives what the auditor watches.
    verified_share
        The share of entries that a check of all ledgers reads besides the first and last of each fragment.
    metrics
        Told of checks.
    """

    def __init__(
        self,
        access: ReplicationAccess,
        tell: Callable[[Any], None],
        verified_share: float,
        metrics: ReplicationMetrics,
    ) -> None:
        self._access = access
        self._store = AuditorStore(access)
        self._metrics = metrics
        self._list_turns = ListTurns()
        #: When each running check began.
        self._began: dict[Check, float] = {}
        self._tell = tell
        self._share = verified_share
        self._random: Random = SystemRandom()

    def __call__(self, action: Any) -> Coroutine[Any, Any, Any]:
        """The coroutine whose result is the action's event. That of :class:`Watch` never ends."""
        match action:
            case Watch():
                return self._watch()
            case ReadCookies() | ReadAuditedDelay() | ReadCheckTime():
                return self._read_once(action)
            case Step(request_id, scan_action):
                return self._step(request_id, scan_action)
        raise AssertionError(action)

    async def _watch(self) -> None:
        access = self._access
        async with asyncio.TaskGroup() as group:
            group.create_task(access.follow(self._store.read_bookies, self._tell))
            group.create_task(access.follow(lambda watch: DisabledRead(access.switches.is_disabled(watch)), self._tell))
            group.create_task(access.follow(self._store.read_delay, self._tell))

    async def _read_once(
        self, action: ReadCookies | ReadAuditedDelay | ReadCheckTime
    ) -> CookiesRead | AuditedDelayRead | CheckTimeRead | ReadFailed:
        access = self._access
        try:
            if isinstance(action, ReadCookies):
                return CookiesRead(frozenset(await access.call(self._store.read_cookies)))
            if isinstance(action, ReadAuditedDelay):
                return await access.call(self._store.read_audited_delay)
            return await access.call(self._store.read_check_time, action.check)
        except BookKeeperError as error:
            return ReadFailed(action, error)

    # --- scans ---

    async def _step(self, request_id: int, action: ScanAction) -> StepDone | StepFailed:
        try:
            if isinstance(action, CheckLedgers):
                check = self._check_placement if action.check is Check.PLACEMENT else self._check
                return StepDone(request_id, await check(action))
            done = StepDone(request_id, await self._access.call(self._store.do, action))
            if isinstance(action, ReadProgress | EndCheck):
                self._time(action)
            return done
        except Exception as error:
            return StepFailed(request_id, error)

    def _time(self, action: ReadProgress | EndCheck) -> None:
        """A check begins and ends with these. After its end, another round of it may follow at once."""
        now = time.monotonic()
        if isinstance(action, EndCheck):
            self._metrics.check_ended(action.check, now - self._began[action.check])
        self._began[action.check] = now
        if action.check is Check.REPLICAS:
            self._list_turns.begin_check()

    async def _check_placement(self, action: CheckLedgers) -> LedgersChecked:
        """No bookie is bad in a ledger that breaks the placement policy."""
        owners = [(each, segment.ensemble) for each, found in action.ledgers.items() for segment in found.segments]
        ensembles = [(action.ledgers[each].quorum, ensemble) for each, ensemble in owners]
        judged = await self._access.session.services.judge_spread(ensembles)
        found: dict[Spread, set[int]] = {each: set() for each in Spread}
        for (ledger_id, _), spread in zip(owners, judged, strict=True):
            found[spread].add(ledger_id)
        bad = (found[Spread.MISPLACED] | found[Spread.UNMOVABLE]) - found[Spread.UNKNOWN]
        unknown = dict.fromkeys(found[Spread.UNKNOWN], "no source of racks knows the rack of a member")
        return LedgersChecked(dict.fromkeys(bad, frozenset()), unknown, frozenset(bad - found[Spread.MISPLACED]))

    # --- checks at bookies ---

    async def _check(self, action: CheckLedgers) -> LedgersChecked:
        bad: dict[int, frozenset[str]] = {}
        unknown: dict[int, str] = {}

        async def check(ledger_id: int, metadata: LedgerMetadata) -> None:
            try:
                result, members = await self._check_ledger(ledger_id, metadata, action)
            except BookKeeperError as error:
                unknown[ledger_id] = str(error)
                return
            if members:
                bad[ledger_id] = members
            elif result.unknown:
                unknown[ledger_id] = "; ".join(
                    reason for reasons in result.unknown.values() for reason in reasons.values()
                )

        async with asyncio.TaskGroup() as group:
            for ledger_id, metadata in action.ledgers.items():
                group.create_task(check(ledger_id, metadata))
        for metadata in action.ledgers.values():
            self._metrics.ledger_checked(len(metadata.segments), len(bookies_of(metadata)))
        return LedgersChecked(bad, unknown)

    async def _check_ledger(
        self, ledger_id: int, metadata: LedgerMetadata, action: CheckLedgers
    ) -> tuple[CheckResult, frozenset[str]]:
        key = key_of(ledger_id, metadata) or LedgerKey(
            ledger_id, DigestType.DUMMY, digest_function(DigestType.DUMMY, b"")
        )
        last_add_confirmed = NO_ENTRY
        if metadata.state is not LedgerState.CLOSED:
            last_add_confirmed = await read_lac(key, metadata, self._access.reads)
        fragments = fragments_of(metadata, last_add_confirmed)
        performer = Performer(key, self._access.reads)
        every, asked = action.check is Check.REPLICAS, bookies_of(metadata) - action.lost
        lists = await self._lists_of(asked, performer) if every and self._share < 1 else {}
        check = LedgerCheck(
            ledger_id,
            metadata,
            fragments,
            asked,
            every=lambda fragment, bookie_id: every,
            share=self._share,
            random=self._random,
            timeout_ms=self._access.session.config.read_timeout_ms,
            request_ids=itertools.count(1),
            lists=lists,
        )
        result: CheckResult = await _run(check, performer, f"check of ledger {ledger_id}")
        members = {fragment.first_entry_id: fragment.ensemble for fragment in fragments}
        return result, frozenset(
            members[first][position] for first, positions in result.bad.items() for position in positions
        )

    async def _lists_of(self, bookies: frozenset[str], performer: Performer) -> Mapping[str, EntryAvailability]:
        """Return the lists of entries of those of the bookies that give one."""
        timeout_ms = self._access.session.config.read_timeout_ms

        async def ask(bookie_id: str) -> ListsFound:
            machine = EntryLists([bookie_id], timeout_ms=timeout_ms, request_ids=itertools.count(1))
            found: ListsFound = await _run(machine, performer, "lists of entries")
            return found

        return await self._list_turns.lists_of(bookies, ask)


async def _run(machine: Any, performer: Performer, what: str) -> Any:
    runner: AsyncRunner[Any, Any, Any] = AsyncRunner(machine, performer, what=what)
    return await runner.complete()
