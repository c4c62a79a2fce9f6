"""Claims of ledgers' ids at bookies that are restarted: ours keep them, Apache's do not, and what a log writer makes of
that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.log import EntryFormat, Log, LogSettings
from bk_spark.protocol.codes import Code, DigestType
from bk_spark.protocol.errors import NotEnoughBookiesError, UnauthorizedError
from bk_spark.protocol.quorum import Quorum
from bookie_server.local import LocalBookie, LocalCluster
from tests.interop.apache import STOP_TIMEOUT_MS, ApacheBookies
from tests.interop.java_client import JavaClient
from tests.interop.matrix import answer_of
from tests.support.bookie import add_frame
from tests.support.logs import PASSWORD, TELLING, entries, new_log
from tests.support.registrations import forget, mend


@pytest.fixture
def apaches(apache_cluster: ApacheBookies, java_client: JavaClient) -> Iterator[ApacheBookies]:
    apache_cluster.start()
    yield apache_cluster
    apache_cluster.start()
    # Java's client would find out at its next add that bookies were killed.
    java_client.forget(apache_cluster.metadata_service_uri)


def add_as_another(bookie_id: str, ledger_id: int, entry_id: int = 0) -> Code:
    """What a bookie answers to an add by somebody who has another password."""
    answer = answer_of(bookie_id, add_frame(ledger_id, entry_id, size=100))
    return Code.from_v2(int.from_bytes(answer[4:8], "big", signed=True))


def claimed_ledgers(uri: str, bookie: LocalBookie) -> tuple[int, int]:
    """Ledgers on this bookie: one that was only claimed, and one with an entry."""
    found: list[int] = []
    with BlockingClient(uri, TELLING) as client:
        while len(found) < 2:
            writer = client.create(quorum=Quorum(1, 1, 1), password=PASSWORD)
            if writer.metadata.last_segment.ensemble == (bookie.id,):
                writer.claim()
                if found:
                    writer.append(b"first")
                    writer.flush()
                found.append(writer.ledger_id)
            writer.abandon()
    assert [add_as_another(bookie.id, ledger_id, 1) for ledger_id in found] == [Code.UNAUTHORIZED] * 2
    return found[0], found[1]


def answers_after_restart(uri: str, bookie: LocalBookie, *, killed: bool) -> list[Code]:
    ledgers = claimed_ledgers(uri, bookie)
    if killed:
        bookie.kill()
        forget(uri, [bookie.id])
    else:
        assert bookie.terminate(STOP_TIMEOUT_MS), bookie.failure("the bookie did not stop in order")
    bookie.start()
    bookie.wait_registered(STOP_TIMEOUT_MS)
    return [add_as_another(bookie.id, ledger_id, 1) for ledger_id in ledgers]


@pytest.mark.parametrize("killed", [True, False], ids=["kill -9", "stopped"])
def test_our_bookie_keeps_a_claim(cluster: LocalCluster, killed: bool) -> None:
    answers = answers_after_restart(cluster.metadata_service_uri, cluster.bookies[0], killed=killed)
    mend(cluster)
    assert answers == [Code.UNAUTHORIZED, Code.UNAUTHORIZED]


@pytest.mark.parametrize("killed", [True, False], ids=["kill -9", "stopped"])
def test_apaches_bookie_loses_a_claim(apaches: ApacheBookies, killed: bool) -> None:
    claimed, with_entry = answers_after_restart(apaches.metadata_service_uri, apaches.bookies[0], killed=killed)
    assert claimed is Code.OK
    # The password is in the journal, of which a start after a stop in order may replay nothing.
    assert with_entry is Code.UNAUTHORIZED or not killed


def lose_claims(apaches: ApacheBookies, bookies: Sequence[LocalBookie], ledger_id: int) -> None:
    """Kill bookies and start them again. Then somebody else uses the id."""
    for bookie in bookies:
        apaches.kill(bookie)
    for bookie in bookies:
        apaches.start_one(bookie)
    assert added_as_another(apaches.bookies, ledger_id) == {bookie.id for bookie in bookies}


def added_as_another(bookies: Iterable[LocalBookie], ledger_id: int) -> set[str]:
    """Which bookies take an entry of somebody who has another password."""
    return {bookie.id for bookie in bookies if add_as_another(bookie.id, ledger_id) is Code.OK}


def tail_ledger(log: Log) -> int:
    tail = log.snapshot().open_tail
    assert tail is not None
    return tail.ledger_id


@pytest.mark.parametrize("lives", [True, False], ids=["lives", "died"])
def test_a_log_goes_on_if_fewer_bookies_than_an_ack_quorum_lost_the_claim(apaches: ApacheBookies, lives: bool) -> None:
    with BlockingClient(apaches.metadata_service_uri, TELLING) as client:
        # The bookie keeps the other's entries and stays in the ensemble. Only a digest with a key tells readers.
        settings = LogSettings.create(Quorum(3, 3, 2), DigestType.HMAC, EntryFormat.RAW, PASSWORD)
        log = new_log(client, settings)
        writer = log.open_writer()
        ledger_id = tail_ledger(log)
        assert not added_as_another(apaches.bookies, ledger_id)
        if not lives:
            writer.abandon()
        lose_claims(apaches, apaches.bookies[:1], ledger_id)
        if not lives:
            writer = log.open_writer()
        for entry in (b"one", b"two"):
            writer.append(entry)
            writer.flush()
        writer.close()
        assert entries(log) == [b"one", b"two"]


def test_if_more_lost_it_an_operator_deletes_the_ledger_and_gives_up_the_tail(apaches: ApacheBookies) -> None:
    with BlockingClient(apaches.metadata_service_uri, TELLING) as client:
        log = new_log(client)
        with log.open_writer() as before:
            before.append(b"one")
        writer = log.open_writer()
        ledger_id = tail_ledger(log)
        lose_claims(apaches, apaches.bookies[:2], ledger_id)
        writer.append(b"lost")
        with pytest.raises(NotEnoughBookiesError, match="no writable bookie is left to replace"):
            writer.flush()
        writer.abandon()
        with pytest.raises(UnauthorizedError, match="recovery: the bookie answered UNAUTHORIZED"):
            log.open_writer()
        assert log.snapshot().next_offset == 1
        client.delete(ledger_id)
        assert log.give_up_tail(0) == range(1, 1)
        with log.open_writer() as following:
            following.append(b"two")
        assert entries(log) == [b"one", b"two"]
