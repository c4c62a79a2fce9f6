"""The switches of replication and the election of the auditor in a real ZooKeeper."""

from __future__ import annotations

import pytest

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.auditor_election import AuditorElection
from bk_spark.bookie.replication.replication_switches import RecoveryDelay, ReplicationSwitches
from bk_spark.bookie.replication.under_replication_store import UnderReplicationStore
from bk_spark.protocol.errors import InvalidArgumentError, MetadataFormatError, SessionLostError
from bk_spark.protocol.metadata.under_replication import PeriodicCheck
from tests.support.zookeeper_sessions import Bell, expire


@pytest.fixture
def root(zookeeper: ZooKeeper, ledgers_root: str) -> str:
    UnderReplicationStore(zookeeper, ledgers_root).prepare()
    return ledgers_root


def test_disable_and_enable(zookeeper: ZooKeeper, other_session: ZooKeeper, root: str) -> None:
    switches, other = ReplicationSwitches(zookeeper, root), ReplicationSwitches(other_session, root)
    bell = Bell()
    assert not switches.is_disabled(bell)
    assert not switches.enable()
    assert other.disable()
    bell.wait()
    assert switches.is_disabled(bell)
    assert not switches.disable()
    assert other.enable()
    bell.wait()
    assert not switches.is_disabled()


def test_the_delay_is_set_and_watched(zookeeper: ZooKeeper, other_session: ZooKeeper, root: str) -> None:
    switches, other = ReplicationSwitches(zookeeper, root), ReplicationSwitches(other_session, root)
    bell = Bell()
    assert switches.recovery_delay(bell) is None
    other.init_recovery_delay(30)
    bell.wait()
    assert switches.recovery_delay(bell) == RecoveryDelay(30, 0)
    # A new auditor never overwrites what an operator has set, nor triggers an audit.
    other.init_recovery_delay(5)
    assert switches.recovery_delay() == RecoveryDelay(30, 0)
    other.set_recovery_delay(7)
    bell.wait()
    assert switches.recovery_delay(bell) == RecoveryDelay(7, 1)
    found = zookeeper.get(f"{root}/underreplication/lostBookieRecoveryDelay")
    assert found is not None
    assert found.data == b"7"
    # The same value in a new version is how an audit is asked for.
    other.trigger_audit()
    bell.wait()
    assert switches.recovery_delay() == RecoveryDelay(7, 2)
    with pytest.raises(InvalidArgumentError):
        switches.set_recovery_delay(-1)
    assert switches.recovery_delay() == RecoveryDelay(7, 2)


def test_an_audit_where_no_delay_was_ever_set(zookeeper: ZooKeeper, root: str) -> None:
    switches = ReplicationSwitches(zookeeper, root)
    switches.trigger_audit()
    assert switches.recovery_delay() == RecoveryDelay(0, 0)


def test_a_garbled_delay_is_an_error_that_setting_it_mends(zookeeper: ZooKeeper, root: str) -> None:
    switches = ReplicationSwitches(zookeeper, root)
    zookeeper.create(f"{root}/underreplication/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(MetadataFormatError, match="lostBookieRecoveryDelay is not a number"):
        switches.recovery_delay()
    switches.set_recovery_delay(7)
    assert switches.recovery_delay() == RecoveryDelay(7, 1)


def test_times_of_checks(zookeeper: ZooKeeper, root: str) -> None:
    switches = ReplicationSwitches(zookeeper, root)
    for number, check in enumerate(PeriodicCheck):
        assert switches.check_time_ms(check) is None
        for time_ms in (1_800_000_000_000 + number, 5 + number):
            switches.set_check_time_ms(check, time_ms)
            assert switches.check_time_ms(check) == time_ms
    vote = AuditorElection(zookeeper, root).vote("b1:1")
    switches.set_check_time_ms(PeriodicCheck.REPLICAS, 9, proof=vote.path)
    zookeeper.delete(vote.path)
    with pytest.raises(SessionLostError):
        switches.set_check_time_ms(PeriodicCheck.REPLICAS, 10, proof=vote.path)
    assert switches.check_time_ms(PeriodicCheck.REPLICAS) == 9


def test_the_election(zookeeper: ZooKeeper, other_session: ZooKeeper, root: str) -> None:
    first, second = AuditorElection(zookeeper, root), AuditorElection(other_session, root)
    assert first.auditor() is None
    mine = first.vote("b1:3181")
    assert first.vote("b1:3181") == mine
    theirs = second.vote("b2:3181")
    assert (mine.number, theirs.number) == (0, 1)
    assert second.votes() == [mine, theirs]
    assert second.auditor() == mine
    first.write_auditor("b1:3181", proof=mine.path)
    found = zookeeper.get(f"{root}/underreplication/auditorelection")
    assert found is not None
    assert found.data == b'bookieId: "b1:3181"\n'
    bell = Bell()
    assert second.watch_vote(mine, bell)
    first.withdraw(mine)
    first.withdraw(mine)
    bell.wait()
    assert not second.watch_vote(mine, bell)
    assert second.auditor() == theirs
    # The old auditor goes on for a while, and writes nothing.
    with pytest.raises(SessionLostError):
        first.write_auditor("b1:3181", proof=mine.path)


def test_r4_an_auditor_whose_session_ended_marks_nothing(
    zookeeper: ZooKeeper, other_session: ZooKeeper, root: str
) -> None:
    store = UnderReplicationStore(zookeeper, root)
    election, other = AuditorElection(zookeeper, root), AuditorElection(other_session, root)
    vote, _ = election.vote("b1:3181"), other.vote("b2:3181")
    store.mark(1, ["b3:3181"], proof=vote.path)
    expire(zookeeper)
    with pytest.raises(SessionLostError):
        store.mark(2, ["b3:3181"], proof=vote.path)
    with pytest.raises(SessionLostError):
        store.mark(1, ["b4:3181"], proof=vote.path)
    other_session.sync("/")
    auditor = other.auditor()
    assert auditor is not None
    assert auditor.bookie_id == "b2:3181"
    assert list(store.marks()) == [{1: store.read_mark(1)}]
    # It stands again, behind the other.
    assert [one.bookie_id for one in (*other.votes(), election.vote("b1:3181"))] == ["b2:3181", "b1:3181"]


def test_votes_of_others_that_cannot_be_read_count(zookeeper: ZooKeeper, root: str) -> None:
    election = AuditorElection(zookeeper, root)
    path = zookeeper.create(f"{root}/underreplication/auditorelection/V_", b"\xff", sequence=True)
    zookeeper.ensure_path(f"{root}/underreplication/auditorelection/other")
    mine = election.vote("b1:3181")
    assert [vote.path for vote in election.votes()] == [path, mine.path]
    auditor = election.auditor()
    assert auditor is not None
    assert auditor.bookie_id is None
