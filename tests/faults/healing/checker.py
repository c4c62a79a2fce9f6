"""The verdict on a cluster that has healed itself: every entry has its full write quorum on live bookies.

It knows only what writers were told. It asks each bookie for each entry over plain connections, and reads znodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.codes import Code
from bk_spark.protocol.entries.digest import DigestFunction, digest_function
from bk_spark.protocol.entries.entry import verify_entry
from bk_spark.protocol.errors import BookKeeperError, DigestMismatchError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, decode, encode
from tests.faults.checker import content_problems, end_problems, final_of
from tests.faults.clients import CONFIG, Seen, Written
from tests.faults.healing.cluster import HealingCluster
from tests.faults.healing.entries import read_entries
from tests.faults.healing.load import Claim
from tests.faults.healing.watcher import Servers, Watcher
from tests.faults.payloads import payload
from tests.support.bookie import Connection

_WHOLE_TIMEOUT_S: Final = 300.0
#: All metadata are read each time.
_POLL_S: Final = 1.0
_SHOWN: Final = 5
#: A check that ends may have begun too early, so the next one counts.
_CHECKS: Final = 2


def problems_of(cluster: Servers, watcher: Watcher, claims: Sequence[Claim], seen: Mapping[int, Seen]) -> list[str]:
    """Everything that is wrong, one line each. Writers have ended, and all bookies that are not lost run."""
    found: list[str] = []
    finals: dict[int, LedgerMetadata] = {}
    with BlockingClient(cluster.direct_uri, CONFIG) as client:
        for written in _all(claims):
            try:
                finals[written.ledger_id] = final_of(client, written)
            except BookKeeperError as error:
                found.append(f"ledger {written.ledger_id} cannot be recovered: {error!r}")
        # Ledgers whose creator never heard of them.
        for ledger_id in watcher.all_metadata().keys() - finals.keys():
            client.recover_and_open(ledger_id)
        found += unhealed(cluster, watcher)
        stored = watcher.all_metadata()
        for claim in claims:
            for written in claim.ledgers:
                final = stored.get(written.ledger_id)
                if final is None:
                    found.append(f"ledger {written.ledger_id} is gone")
                    continue
                found += end_problems(written, final, seen.get(written.ledger_id, Seen()), fenced=True)
                found += metadata_problems(written.ledger_id, (written.closed, finals.get(written.ledger_id)), final)
                found += content_problems(client, claim.seed, written)
    expected = {written.ledger_id: (claim.seed, written) for claim in claims for written in claim.ledgers}
    found += copy_problems(cluster, stored, expected)
    return found


def unhealed(cluster: Servers, watcher: Watcher, timeout_s: float = _WHOLE_TIMEOUT_S) -> list[str]:
    """Wait until nothing is left to repair, and every entry was checked since. Return what is left in the end."""
    deadline = time.monotonic() + timeout_s
    checks = None
    while True:
        left = left_to_do(cluster, watcher)
        if left:
            checks = None
        elif checks is None:
            checks = watcher.checks_ended()
        elif watcher.checks_ended() >= checks + _CHECKS:
            return []
        if time.monotonic() > deadline:
            return left or [f"no {_CHECKS} checks of all ledgers ended in {timeout_s:g} s"]
        # The end of a check calls no watch that would tell that all else is at rest, too.
        time.sleep(_POLL_S)


def left_to_do(cluster: Servers, watcher: Watcher) -> list[str]:
    """What is not at rest: members, marks, locks, reasons, and znodes of sessions that nobody has."""
    live = {bookie.id for bookie in cluster.bookies if bookie.running} & watcher.registered()
    left = []
    for ledger_id, metadata in watcher.all_metadata().items():
        members = {each for segment in metadata.segments for each in segment.ensemble}
        if not members <= live:
            left.append(f"ledger {ledger_id} names lost bookies: {sorted(members - live)}")
        if metadata.state is not LedgerState.CLOSED:
            left.append(f"ledger {ledger_id} is {metadata.state.name}")
    left += [f"ledger {ledger_id} is marked: {mark}" for ledger_id, mark in watcher.marks().items()]
    left += [f"ledger {ledger_id} is locked: {lock}" for ledger_id, lock in watcher.store.locks().items()]
    left += [f"{name} has a reason: {reason}" for name, reason in watcher.reasons().items()]
    votes, daemons = watcher.election.votes(), cluster.daemons()
    if {vote.bookie_id for vote in votes} != daemons or len(votes) != len(daemons):
        left.append(f"votes are {votes}, but daemons are {sorted(daemons)}")
    workers = watcher.workers()
    if sorted(workers.values()) != sorted(vote.session_id for vote in votes):
        left.append(f"workers are {workers}, but votes are {votes}")
    return left


def remains(cluster: HealingCluster, watcher: Watcher) -> Iterator[str]:
    """Stop all processes, and return what they leave behind."""
    for name in cluster.stop_daemons():
        yield f"{name} did not stop in order"
    for what, found in (
        ("locks", watcher.store.locks()),
        ("votes", watcher.election.votes()),
        ("workers", watcher.workers()),
        ("registrations", watcher.registered()),
    ):
        if found:
            yield f"all processes have stopped, and left {what}: {found}"


def copy_problems(
    cluster: Servers, stored: Mapping[int, LedgerMetadata], expected: Mapping[int, tuple[int, Written]]
) -> Iterator[str]:
    """Read every entry at each bookie of its write set, and compare: with its digest, with what was written, and with
    the other copies. Ledgers that are not ``expected`` are compared with their other copies only."""
    with ExitStack() as open_connections:
        connections = {
            bookie.id: open_connections.enter_context(Connection(bookie.port))
            for bookie in cluster.bookies
            if bookie.running
        }
        for ledger_id, metadata in stored.items():
            wrong = list(_wrong_copies(ledger_id, metadata, connections, expected.get(ledger_id)))
            yield from wrong[:_SHOWN]
            if len(wrong) > _SHOWN:
                yield f"ledger {ledger_id}: {len(wrong)} copies are wrong in all"


def _wrong_copies(
    ledger_id: int,
    metadata: LedgerMetadata,
    connections: Mapping[str, Connection],
    expected: tuple[int, Written] | None,
) -> Iterator[str]:
    assert metadata.digest_type is not None
    digest = digest_function(metadata.digest_type, metadata.password or b"")
    wanted: dict[str, list[int]] = {}
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.segment_of(entry_id).ensemble
        holders = {ensemble[index] for index in metadata.quorum.write_set(entry_id)}
        if len(holders) != metadata.quorum.write_quorum_size:
            yield f"ledger {ledger_id}, entry {entry_id}: one bookie counts twice in {ensemble}"
        for holder in holders:
            wanted.setdefault(holder, []).append(entry_id)
    first: dict[int, bytes] = {}
    for bookie_id, entry_ids in wanted.items():
        where = f"ledger {ledger_id} at {bookie_id}"
        if bookie_id not in connections:
            yield f"{where}: the bookie does not run"
            continue
        for entry_id, found in read_entries(connections[bookie_id], ledger_id, entry_ids):
            problem = _problem(ledger_id, entry_id, found, metadata, digest, expected)
            if problem is not None:
                yield f"{where}, entry {entry_id}: {problem}"
            elif first.setdefault(entry_id, bytes(found)) != found:
                yield f"{where}, entry {entry_id}: another bookie stores other bytes"


def _problem(
    ledger_id: int,
    entry_id: int,
    found: bytes | Code,
    metadata: LedgerMetadata,
    digest: DigestFunction,
    expected: tuple[int, Written] | None,
) -> str | None:
    if isinstance(found, Code):
        return found.name
    assert metadata.digest_type is not None
    try:
        entry = verify_entry(found, ledger_id, entry_id, metadata.digest_type, digest)
    except DigestMismatchError as error:
        return error.message
    if expected is not None:
        seed, written = expected
        if entry.payload != payload(seed, written.first_number + entry_id):
            return "not what was written"
    return None


def metadata_problems(ledger_id: int, closed: Sequence[LedgerMetadata | None], final: LedgerMetadata) -> Iterator[str]:
    """Repairs change members only, and both formats of Apache can express what they leave."""
    for before in closed:
        if before is not None and _but_members(before) != _but_members(final):
            yield f"ledger {ledger_id} changed after it was closed: {before} became {final}"
    for version in (2, 3):
        written = replace(final, format_version=version, creator_token=None)
        if decode(encode(written)) != written:
            yield f"ledger {ledger_id} cannot be written in format version {version}: {final}"


def _but_members(metadata: LedgerMetadata) -> tuple[object, ...]:
    return (
        metadata.quorum, metadata.state, metadata.last_entry_id, metadata.length, metadata.digest_type,
        metadata.password, metadata.creation_time_ms, metadata.custom_metadata, metadata.format_version,
        [segment.first_entry_id for segment in metadata.segments],
    )  # fmt: skip


def _all(claims: Sequence[Claim]) -> Iterator[Written]:
    for claim in claims:
        yield from claim.ledgers
