"""The verdict of the healing runs finds what is wrong: single copies, metadata, and what is left in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.digest import digest_function, master_key
from bk_spark.protocol.entries.entry import pack_entry
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState, Segment
from bk_spark.protocol.metadata.replication_notes import RepairFailure, reason_path
from bk_spark.protocol.metadata.under_replication import encode_vote
from bk_spark.protocol.quorum import Quorum
from bk_spark.protocol.wire import wire_v2
from bk_spark.protocol.wire.framing import frame
from bookie_server.local import LocalBookie
from tests.faults.clients import CONFIG, Written
from tests.faults.healing.checker import copy_problems, left_to_do, metadata_problems, unhealed
from tests.faults.healing.inspector import Inspector
from tests.faults.healing.watcher import Watcher
from tests.faults.payloads import payload
from tests.support.bookie import Connection
from tests.support.proxied_cluster import ProxiedCluster
from tests.support.streams import wait_until

SEED = 77
ENTRIES = 20


@dataclass
class Servers:
    """The shared cluster, whose bookies do not heal."""

    bookies: list[LocalBookie]
    direct_uri: str
    lost: set[str] = field(default_factory=set)

    def works(self, name: str) -> bool:
        return True

    def daemons(self) -> set[str]:
        return set()

    def http_port(self, name: str) -> int:
        raise AssertionError(name)


class Room:
    """The cluster, and one closed ledger of three bookies."""

    def __init__(self, servers: Servers, watcher: Watcher) -> None:
        self.servers = servers
        self.watcher = watcher
        with BlockingClient(servers.direct_uri, CONFIG) as client:
            # Other tests leave ledgers open.
            for ledger_id in list(client.list_ledgers()):
                client.delete(ledger_id)
            writer = client.create(quorum=Quorum(3, 3, 2))
            # One batch: the last add confirmed of all its entries is -1.
            writer.append_many(Payloads.of([payload(SEED, 100 + i) for i in range(ENTRIES)]))
            self.closed = writer.close()
        self.written = Written(writer.ledger_id, 100, ENTRIES, ENTRIES, self.closed)
        # The third copy of the last entries may be on its way.
        wait_until(lambda: not self.copies(), "third copy")

    @property
    def ledger_id(self) -> int:
        return self.written.ledger_id

    def change(self, change: Callable[[LedgerMetadata], LedgerMetadata]) -> LedgerMetadata:
        return self.watcher.ledgers.update(self.ledger_id, change).metadata

    def outsider(self) -> LocalBookie:
        return next(each for each in self.servers.bookies if each.id not in self.closed.last_segment.ensemble)

    def name_outsider(self) -> LedgerMetadata:
        """Replace a member, and copy nothing."""
        ensemble = (self.outsider().id, *self.closed.last_segment.ensemble[1:])
        return self.change(lambda before: replace(before, segments=(Segment(0, ensemble),)))

    def copies(self) -> str:
        expected = {self.ledger_id: (SEED, self.written)}
        return "\n".join(copy_problems(self.servers, self.watcher.all_metadata(), expected))

    def left(self) -> str:
        return "\n".join(left_to_do(self.servers, self.watcher))


@pytest.fixture
def room(proxied_cluster: ProxiedCluster) -> Iterator[Room]:
    servers = Servers(proxied_cluster.local.bookies, proxied_cluster.metadata_service_uri)
    watcher = Watcher(servers)
    try:
        watcher.store.prepare()
        made = Room(servers, watcher)
        yield made
        watcher.ledgers.delete(made.ledger_id)
    finally:
        watcher.close()


def test_nothing_wrong(room: Room) -> None:
    assert room.copies() == ""
    assert room.left() == ""
    assert list(metadata_problems(room.ledger_id, [room.closed, None], room.closed)) == []


def test_metadata_that_name_a_bookie_before_it_has_a_copy(room: Room) -> None:
    room.name_outsider()
    text = room.copies()
    assert f"at {room.outsider().id}, entry 0: NO_LEDGER" in text or "entry 0: NO_ENTRY" in text
    assert f"{ENTRIES} copies are wrong in all" in text


def test_the_inspector_sees_it_at_once(room: Room) -> None:
    inspector = Inspector(room.servers)
    try:
        wait_until(lambda: inspector.looks > 1, "first look")
        room.name_outsider()
        wait_until(lambda: inspector.inspected > 0, "inspection")
    finally:
        inspector.stop()
    (problem,) = inspector.problems
    assert f"{room.outsider().id} was named from entry 0 on, before it had {ENTRIES} of {ENTRIES} entries" in problem


def test_a_copy_that_is_not_equal_to_the_others(room: Room) -> None:
    metadata = room.name_outsider()
    assert metadata.digest_type is not None
    digest = digest_function(metadata.digest_type, b"")
    header = wire_v2.header_int(wire_v2.OpV2.ADD, 0).to_bytes(4, "big") + master_key(b"")
    length = 0
    with Connection(room.outsider().port) as connection:
        for entry_id in range(ENTRIES):
            data = payload(SEED, 100 + entry_id)
            length += len(data)
            # As the writer added it, but with another last add confirmed.
            connection.send(frame(header + pack_entry(room.ledger_id, entry_id, entry_id - 1, length, data, digest)))
            connection.body()
    text = room.copies()
    assert "another bookie stores other bytes" in text
    assert "NO_" not in text


def test_a_copy_of_something_else(room: Room) -> None:
    room.written.first_number += 1
    assert "entry 0: not what was written" in room.copies()


def test_a_digest_that_does_not_match(room: Room) -> None:
    room.change(lambda before: replace(before, digest_type=DigestType.HMAC, password=b"other"))
    assert "digest does not match" in room.copies()


def test_one_bookie_for_two_copies(room: Room) -> None:
    first, second, _ = room.closed.last_segment.ensemble
    room.change(lambda before: replace(before, segments=(Segment(0, (first, second, second)),)))
    assert "one bookie counts twice" in room.copies()


def test_a_lost_bookie_in_the_metadata(room: Room) -> None:
    members = room.closed.last_segment.ensemble[:2]
    room.change(lambda before: replace(before, segments=(Segment(0, ("gone:1", *members)),)))
    assert f"ledger {room.ledger_id} names lost bookies: ['gone:1']" in room.left()
    assert "at gone:1: the bookie does not run" in room.copies()
    assert "names lost bookies" in "\n".join(unhealed(room.servers, room.watcher, timeout_s=0.1))


def test_a_ledger_that_is_not_closed(room: Room) -> None:
    room.change(lambda before: replace(before, state=LedgerState.IN_RECOVERY))
    assert "is IN_RECOVERY" in room.left()


def test_a_repair_that_changes_more_than_members(room: Room) -> None:
    for changed in (
        replace(room.closed, length=1),
        replace(room.closed, format_version=2),
        replace(room.closed, segments=(*room.closed.segments, Segment(5, room.closed.last_segment.ensemble))),
    ):
        (problem,) = metadata_problems(room.ledger_id, [None, room.closed], changed)
        assert "changed after it was closed" in problem


def test_znodes_that_are_left(room: Room, proxied_cluster: ProxiedCluster) -> None:
    store, zk = room.watcher.store, ZooKeeper(proxied_cluster.local.zookeepers[0].id)
    zk.start()
    reason = reason_path(store.paths.root, room.ledger_id)
    proof = f"{store.paths.workers}/dead"
    try:
        store.mark(room.ledger_id, ["gone:1"])
        zk.create(proof, b"{}", ephemeral=True)
        zk.create(f"{store.paths.locks}/urL{room.ledger_id:010d}", b"", ephemeral=True)
        zk.create(store.paths.vote_prefix, encode_vote("dead"), ephemeral=True, sequence=True)
        zk.create(reason, RepairFailure("no bookie", 1).encode(), make_parents=True)
        text = room.left()
    finally:
        zk.delete(reason)
        zk.delete(store.paths.mark(room.ledger_id))
        zk.close()
    assert f"ledger {room.ledger_id} is marked" in text
    assert f"ledger {room.ledger_id} is locked" in text
    assert "has a reason: no bookie" in text
    assert "votes are [AuditorVote" in text
    assert room.left() == ""


def test_a_worker_of_a_dead_session(room: Room, proxied_cluster: ProxiedCluster) -> None:
    zk = ZooKeeper(proxied_cluster.local.zookeepers[0].id)
    zk.start()
    try:
        zk.create(f"{room.watcher.store.paths.workers}/dead", b"{}", ephemeral=True)
        assert "workers are {'dead'" in room.left()
    finally:
        zk.close()
