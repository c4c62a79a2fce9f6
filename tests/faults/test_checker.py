"""The verdict of the fault tests finds what is wrong: the writer claims things that are not so."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
)
from tests.faults.checker import problems_of, unexplained
from tests.faults.clients import CONFIG, Seen, Written
from tests.faults.payloads import payload
from tests.support.proxied_cluster import ProxiedCluster

SEED = 99
ENTRIES = 30


@dataclass
class Claimed:
    ledgers: list[Written]
    create_errors: list[BookKeeperError] = field(default_factory=list)


def honest(cluster: ProxiedCluster, *, close: bool = True) -> Written:
    with BlockingClient(cluster.metadata_service_uri, CONFIG) as client:
        writer = client.create()
        writer.append_many(Payloads.of([payload(SEED, 100 + i) for i in range(ENTRIES)]))
        writer.flush()
        closed = writer.close() if close else None
        return Written(writer.ledger_id, 100, ENTRIES, ENTRIES, closed)


def verdict(cluster: ProxiedCluster, written: Written, seen: int = ENTRIES) -> str:
    claims = Claimed([written])
    return "\n".join(problems_of(cluster, SEED, claims, {written.ledger_id: Seen(seen)}, ()))


@pytest.mark.parametrize("close", [True, False])
def test_nothing_wrong(proxied_cluster: ProxiedCluster, close: bool) -> None:
    assert verdict(proxied_cluster, honest(proxied_cluster, close=close)) == ""


def test_an_acknowledged_entry_that_is_not_there(proxied_cluster: ProxiedCluster) -> None:
    written = honest(proxied_cluster)
    written.appended = written.acknowledged = ENTRIES + 1
    assert f"ends after {ENTRIES} entries, but {ENTRIES + 1} were acknowledged" in verdict(proxied_cluster, written)


def test_an_entry_that_nobody_appended(proxied_cluster: ProxiedCluster) -> None:
    written = honest(proxied_cluster)
    written.appended = written.acknowledged = ENTRIES - 1
    assert f"but {ENTRIES - 1} were appended" in verdict(proxied_cluster, written)


def test_entries_that_are_not_those_that_were_written(proxied_cluster: ProxiedCluster) -> None:
    written = honest(proxied_cluster)
    written.first_number += 1
    text = verdict(proxied_cluster, written)
    assert "entry 0: number 100 of seed 99" in text
    assert f"{ENTRIES} wrong entries in all" in text
    assert "0 of [" in text


def test_a_reader_that_saw_more(proxied_cluster: ProxiedCluster) -> None:
    text = verdict(proxied_cluster, honest(proxied_cluster), ENTRIES + 1)
    assert f"but a reader saw {ENTRIES + 1}" in text


def test_a_ledger_that_cannot_be_read(proxied_cluster: ProxiedCluster) -> None:
    written = honest(proxied_cluster)
    with BlockingClient(proxied_cluster.metadata_service_uri, CONFIG) as client:
        client.delete(written.ledger_id)
    assert "cannot be recovered and read: NoSuchLedgerError" in verdict(proxied_cluster, written)


@pytest.mark.parametrize(
    ("error", "fenced", "zookeeper_went", "explained"),
    [
        (NotEnoughBookiesError("x"), False, False, True),
        (LedgerFencedError("x"), True, False, True),
        (LedgerFencedError("x"), False, True, False),
        (LedgerClosedError("x"), True, False, True),
        (LedgerClosedError("x"), False, True, False),
        (OutcomeUnknownError("x"), False, True, True),
        (MetadataUnavailableError("x"), True, False, False),
        (BookKeeperError("x"), True, True, False),
    ],
)
def test_reasons(error: BookKeeperError, fenced: bool, zookeeper_went: bool, explained: bool) -> None:
    claims = Claimed([Written(7, 0, error=error)])
    found = unexplained(claims, [7] if fenced else [], zookeeper_went=zookeeper_went)
    assert (found == []) == explained
