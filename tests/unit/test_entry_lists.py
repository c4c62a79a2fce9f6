"""Lists of entries spare reads in the check of replicas (bk_spark/protocol/replication/entry_lists.py)."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Mapping

import numpy as np
import pytest

from bk_spark.protocol.errors import BookieTimeoutError, MetadataUnavailableError, NoSuchLedgerError
from bk_spark.protocol.ledger.reading.read_actions import RequestFailed
from bk_spark.protocol.machine import StartTimer, StopRequest, Succeeded, TimerFired
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.replication.entry_lists import EntriesListed, EntryLists, ListEntries, ListsFound
from bk_spark.protocol.replication.fragments import fragments_of
from bk_spark.protocol.replication.ledger_check import CheckResult, LedgerCheck
from bk_spark.protocol.wire import entry_availability
from bk_spark.protocol.wire.entry_availability import EntryAvailability, decode_availability, encode_availability
from tests.support.ledgers import LEDGER
from tests.support.repair import RepairedCluster, closed

pytestmark = pytest.mark.unit


def listed(*entry_ids: int) -> EntryAvailability:
    return decode_availability(encode_availability(np.array(entry_ids, np.int64)))


def test_what_a_list_lacks_is_what_it_does_not_contain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_availability, "_COMPARED_AT_ONCE", 7)
    source = random.Random(5)
    for _ in range(200):
        here = sorted(source.sample(range(60), source.randint(0, 60)))
        wanted = range(source.randint(0, 20), source.randint(20, 70), source.choice([1, 2, 3]))
        assert list(listed(*here).lacking(wanted)) == [each for each in wanted if each not in here]
    # Striped as bookies store it.
    assert list(listed(*(each for each in range(1000) if each % 3)).lacking(range(1, 1000, 3))) == []


def test_bookies_are_asked_at_once_and_only_silence_is_remembered() -> None:
    machine = EntryLists(["b1", "b2", "b3", "b4"], timeout_ms=5, request_ids=itertools.count(1))
    asked = {each.bookie_id: each.request_id for each in machine.take_actions() if isinstance(each, ListEntries)}
    machine.handle(EntriesListed(asked["b1"], listed(1)))
    # It has no entry of the ledger, and knows the request.
    machine.handle(RequestFailed(asked["b2"], NoSuchLedgerError("no ledger")))
    machine.handle(RequestFailed(asked["b3"], BookieTimeoutError("no answer")))
    assert machine.outcome is None
    machine.handle(TimerFired(asked["b4"]))
    assert StopRequest(asked["b4"]) in machine.take_actions()
    assert isinstance(machine.outcome, Succeeded)
    assert list(machine.outcome.result.lists) == ["b1"]
    assert machine.outcome.result.unanswered == {"b3", "b4"}
    nobody = EntryLists([], timeout_ms=5, request_ids=itertools.count(1))
    assert nobody.outcome == Succeeded(ListsFound({}, frozenset()))


def check(cluster: RepairedCluster, lists: Mapping[str, EntryAvailability], share: float = 0.0) -> CheckResult:
    assert cluster.metadata is not None
    cluster.read.clear()
    machine = LedgerCheck(
        LEDGER,
        cluster.metadata,
        fragments_of(cluster.metadata, 9),
        cluster.writable,
        every=lambda fragment, bookie_id: True,
        share=share,
        random=random.Random(1),
        timeout_ms=5,
        request_ids=itertools.count(1),
        lists=lists,
    )
    todo = deque(machine.take_actions())
    while todo:
        action = todo.popleft()
        event = None if isinstance(action, StartTimer) else cluster.perform(action)
        if event is not None:
            machine.handle(event)
        todo.extend(machine.take_actions())
    assert isinstance(machine.outcome, Succeeded)
    return machine.outcome.result


def faults(result: CheckResult) -> dict[int, object]:
    return {**result.bad, **result.unknown}


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
def test_only_ends_and_what_a_list_lacks_are_read(quorum: Quorum) -> None:
    cluster = RepairedCluster(closed(quorum), ("b1", "b2", "b3"), 9)
    whole = {bookie_id: listed(*entries) for bookie_id, entries in cluster.disks.items()}
    assert not faults(check(cluster, whole))
    assert sorted(cluster.read) == sorted((each, end) for each in whole for end in ends(cluster.disks[each]))
    # Without its list, every entry of a bookie is read.
    assert not faults(check(cluster, {each: whole[each] for each in ("b1", "b3")}))
    assert {entry for bookie_id, entry in cluster.read if bookie_id == "b2"} == set(cluster.disks["b2"])
    # All are read if an operator wants them verified.
    check(cluster, whole, share=1)
    assert set(cluster.read) == {(each, entry) for each, entries in cluster.disks.items() for entry in entries}


def ends(entries: Mapping[int, bytes]) -> tuple[int, int]:
    return min(entries), max(entries)


def test_a_list_alone_makes_no_copy_bad() -> None:
    cluster = RepairedCluster(closed(), ("b1", "b2", "b3"), 9)
    lists = {"b1": listed(*range(10)), "b2": listed(0, 1, 2, 9), "b3": listed()}
    assert not faults(check(cluster, lists))
    assert {entry for bookie_id, entry in cluster.read if bookie_id == "b2"} == {0, 3, 4, 5, 6, 7, 8, 9}
    # A read says so.
    del cluster.disks["b2"][5]
    found = check(cluster, lists)
    assert found.bad == {0: {1: "entry 5: bookie b2 does not have it"}}
    # Nobody knows, if the read has no answer.
    cluster.disks["b2"][5] = cluster.disks["b1"][5]
    read = cluster.perform

    def silent(action: object) -> object:
        if getattr(action, "bookie_id", "") == "b2":
            return RequestFailed(action.request_id, BookieTimeoutError("no answer"))  # type: ignore[attr-defined]
        return read(action)

    cluster.perform = silent  # type: ignore[method-assign]
    found = check(cluster, lists)
    assert not found.bad
    assert list(found.unknown[0]) == [1]


def test_an_unexpected_error_ends_the_lists() -> None:
    machine = EntryLists(["b1"], timeout_ms=5, request_ids=itertools.count(1))
    machine.fail(MetadataUnavailableError("no answer"))
    assert machine.outcome is not None
