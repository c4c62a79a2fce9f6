"""The verdict: what the ledgers hold afterwards, against what the writer was told and the follower saw.

It knows nothing of how they were written: it recovers what is open with a client of its own, reads everything, and
asks bookies for single entries over plain connections.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.errors import (
    AddQuorumTimeoutError,
    BookieUnavailableError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from tests.faults.clients import CONFIG, Seen, Written
from tests.faults.payloads import number_of, payload
from tests.support.bookie import Connection
from tests.support.proxied_cluster import ProxiedCluster

#: Entries of a ledger that bookies are asked for one by one.
_SAMPLE: Final = 12
_SHOWN: Final = 3


class Claims(Protocol):
    """What a writer says it did."""

    ledgers: list[Written]
    #: Errors of create, which leave no ledger known.
    create_errors: list[BookKeeperError]


def problems_of(
    cluster: ProxiedCluster, seed: int, writer: Claims, seen: dict[int, Seen], fenced: Collection[int]
) -> list[str]:
    """Everything that is wrong, one line each. The cluster is whole again, the writer has ended."""
    found: list[str] = []
    finals: dict[int, LedgerMetadata] = {}
    with BlockingClient(cluster.metadata_service_uri, CONFIG) as client:
        for written in writer.ledgers:
            try:
                finals[written.ledger_id] = final_of(client, written)
                found += content_problems(client, seed, written)
            except BookKeeperError as error:
                found.append(f"ledger {written.ledger_id} cannot be recovered and read: {error!r}")
    for written in writer.ledgers:
        if (final := finals.get(written.ledger_id)) is not None:
            found += end_problems(written, final, seen.get(written.ledger_id, Seen()), written.ledger_id in fenced)
    found += _replicas(cluster, seed, writer.ledgers, finals)
    # Somebody who comes later finds the same ends.
    with BlockingClient(cluster.metadata_service_uri, CONFIG) as client:
        for ledger_id, final in finals.items():
            again = client.recover_and_open(ledger_id).metadata
            # The creator's token means nothing any more: updates drop it.
            if again != final:
                found.append(f"ledger {ledger_id} changed after it was closed: {final} became {again}")
    return found


def unexplained(writer: Claims, fenced: Collection[int], *, zookeeper_went: bool) -> list[str]:
    """Errors for which nothing in the plan is a reason."""
    found = []
    for error, ledger_id in [(one.error, one.ledger_id) for one in writer.ledgers] + [
        (error, None) for error in writer.create_errors
    ]:
        match error:
            case None | NotEnoughBookiesError() | AddQuorumTimeoutError() | BookieUnavailableError():
                continue
            case MetadataUnavailableError() if zookeeper_went:
                continue
            # The metadata may tell the writer before a bookie does.
            case LedgerFencedError() | LedgerClosedError() | MetadataConflictError() if ledger_id in fenced:
                continue
        where = "create" if ledger_id is None else f"ledger {ledger_id}"
        found.append(f"{where} failed for no reason of the plan: {error!r}")
    return found


def final_of(client: BlockingClient, written: Written) -> LedgerMetadata:
    """Return the metadata of a closed ledger. Recover it if nobody has closed it."""
    metadata = client.metadata(written.ledger_id)
    if metadata.state is not LedgerState.CLOSED:
        metadata = client.recover_and_open(written.ledger_id).metadata
    return metadata


def content_problems(client: BlockingClient, seed: int, written: Written) -> Iterator[str]:
    """What a reader finds wrong with the entries of a closed ledger."""
    reader = client.open_for_reading(written.ledger_id)
    if reader.last_add_confirmed < 0:
        return
    entry_id = wrong = 0
    for block in reader.read_blocks(0, reader.last_add_confirmed):
        for data in block.payloads:
            expected = payload(seed, written.first_number + entry_id)
            if data != expected:
                wrong += 1
                if wrong <= _SHOWN:
                    yield (
                        f"ledger {written.ledger_id}, entry {entry_id}: {number_of(bytes(data))}, "
                        f"not number {written.first_number + entry_id}"
                    )
            entry_id += 1
    if wrong > _SHOWN:
        yield f"ledger {written.ledger_id}: {wrong} wrong entries in all"
    if entry_id != reader.last_add_confirmed + 1:
        yield f"ledger {written.ledger_id}: {entry_id} entries read, {reader.last_add_confirmed + 1} are there"


def end_problems(written: Written, final: LedgerMetadata, seen: Seen, fenced: bool) -> Iterator[str]:
    """What is wrong with the end of a ledger that is closed as ``final``, given what its writer and a reader know."""
    name, entries = f"ledger {written.ledger_id}", final.last_entry_id + 1
    if final.state is not LedgerState.CLOSED:
        yield f"{name} is {final.state.name} after recovery"
    if entries < written.acknowledged:
        yield f"{name} ends after {entries} entries, but {written.acknowledged} were acknowledged"
    if entries > written.appended:
        yield f"{name} ends after {entries} entries, but {written.appended} were appended"
    if seen.entries > entries:
        yield f"{name} ends after {entries} entries, but a reader saw {seen.entries}"
    if written.closed is not None:
        if written.acknowledged != written.appended:
            yield f"{name} was closed with {written.acknowledged} of {written.appended} entries acknowledged"
        if (written.closed.last_entry_id, written.closed.length) != (final.last_entry_id, final.length):
            yield f"{name} was closed as {written.closed} and is {final}"
    if isinstance(written.error, LedgerFencedError) and not fenced:
        yield f"{name} was fenced, and nobody recovered it"


def _replicas(
    cluster: ProxiedCluster, seed: int, ledgers: Sequence[Written], finals: dict[int, LedgerMetadata]
) -> Iterator[str]:
    """An ack quorum holds each entry (of a sample), where the metadata say."""
    chance = random.Random(seed)
    with ExitStack() as open_connections:
        connections = {
            bookie.id: open_connections.enter_context(Connection(bookie.port)) for bookie in cluster.local.bookies
        }
        for written in ledgers:
            final = finals.get(written.ledger_id)
            if final is None or final.last_entry_id < 0:
                continue
            last = final.last_entry_id
            sample = {0, last, *(chance.randrange(last + 1) for _ in range(_SAMPLE))}
            sample |= {segment.first_entry_id for segment in final.segments if segment.first_entry_id <= last}
            for entry_id in sorted(sample):
                ensemble = max(
                    (segment for segment in final.segments if segment.first_entry_id <= entry_id),
                    key=lambda segment: segment.first_entry_id,
                ).ensemble
                write_set = [ensemble[(entry_id + i) % len(ensemble)] for i in range(final.quorum.write_quorum_size)]
                expected = payload(seed, written.first_number + entry_id)
                holding = 0
                for bookie_id in write_set:
                    stored = connections[bookie_id].read(written.ledger_id, entry_id)
                    holding += isinstance(stored, bytes) and stored.endswith(expected)
                if holding < final.quorum.ack_quorum_size:
                    yield (
                        f"ledger {written.ledger_id}, entry {entry_id}: {holding} of {write_set} hold it, "
                        f"{final.quorum.ack_quorum_size} are the ack quorum"
                    )
