"""One of Apache's bookies and two of ours under one writer: one of each dies, and one of each takes its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.apache import MixedBookies
from tests.interop.java_client import ALL_OF_THREE, JavaClient
from tests.interop.matrix import Sides, create_on
from tests.interop.payloads import Payloads, fingerprint
from tests.interop.sides import PARTIES, Entries, Party, RefusedError, Writer

TWO_OF_THREE = (3, 3, 2)


@pytest.fixture
def killable(mixed_cluster: MixedBookies, java_client: JavaClient) -> Iterator[MixedBookies]:
    yield mixed_cluster
    mixed_cluster.start()
    java_client.forget(mixed_cluster.metadata_service_uri)


@pytest.mark.parametrize("language", ["java", "ours"])
def test_each_kind_replaces_the_other(killable: MixedBookies, mixed_sides: Sides, language: str) -> None:
    """Over both protocols at once, since a bookie takes its time to come back."""
    apaches = {bookie.id for bookie in killable.apaches}
    parts = [Payloads.varied(100, seed=number) for number in range(3)]
    payloads = [payload for part in parts for payload in part]
    parties = [party for party in PARTIES if party.language == language]
    closed: dict[Party, Writer] = {}
    left_open: dict[Party, Writer] = {}
    early: dict[Party, Writer] = {}
    _, ensemble = create_on(mixed_sides[parties[0]], lambda bookies: len(bookies & apaches) == 1)
    for party in parties:
        # Where each entry needs all three bookies, the first after a bookie died begins a new segment.
        for ledgers, quorums in ((closed, ALL_OF_THREE), (left_open, ALL_OF_THREE), (early, TWO_OF_THREE)):
            ledgers[party], _ = create_on(mixed_sides[party], lambda bookies: bookies == {*ensemble}, quorums=quorums)
    for ledger in early.values():
        ledger.append(parts[0])

    for part, victims in zip(parts, ([], killable.ours, killable.apaches), strict=True):
        for victim in [bookie for bookie in victims if bookie.id in ensemble][:1]:
            killable.kill(victim)
        for ledger in (*closed.values(), *left_open.values()):
            killable.append(ledger, part)
        if part is parts[1]:
            # Recovery writes back, and one of the three is gone.
            for party, ledger in early.items():
                recovered = mixed_sides.of_other_language(party).recover(ledger.ledger_id)
                assert recovered == Entries(100, parts[0].fingerprint, 99), party
                ledger.abandon()

    running = {bookie.id for bookie in killable.bookies if bookie.running}
    (survivor,) = running & {*ensemble}
    for party in parties:
        assert closed[party].close() == (299, sum(map(len, payloads)))
        for ledger in (closed[party], left_open[party]):
            metadata = mixed_sides.metadata(ledger.ledger_id)
            assert [first_entry_id for first_entry_id, _ in metadata.segments] == [0, 100, 200], party
            assert {*metadata.segments[2][1]} == running, party
            assert len({bookies.index(survivor) for _, bookies in metadata.segments}) == 1
        mixed_sides.assert_closed(closed[party].ledger_id, payloads)

        recovered = mixed_sides.of_other_language(party).recover(left_open[party].ledger_id)
        assert recovered == Entries(300, fingerprint(payloads), 299)
        mixed_sides.assert_closed(left_open[party].ledger_id, payloads)
        with pytest.raises(RefusedError) as raised:
            left_open[party].append([b"too late"])
        assert raised.value.reason == "fenced"
        left_open[party].abandon()

    killable.start()
    for ledger in early.values():
        mixed_sides.assert_closed(ledger.ledger_id, parts[0])
