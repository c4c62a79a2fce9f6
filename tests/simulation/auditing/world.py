"""The model world of self-healing: daemons with election, auditor and worker beside each other on one ZooKeeper.

The machines are the shipped ones, and so is what reads and changes ZooKeeper, on its model: votes, marks, locks, the
progress of checks, the switch and the delay. The repair of one ledger is modelled by its result: a compare-and-set that
replaces lost bookies, under the proof of the worker's session. Bookies come and go, sessions expire long before their
daemon hears of it, and replies are lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import cast

from bk_spark.bookie.metadata.zookeeper import ZooKeeper
from bk_spark.bookie.replication.replication_switches import ReplicationSwitches
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, Segment, encode
from bk_spark.protocol.metadata.under_replication import locked_ledger
from bk_spark.protocol.metadata.znodes import CreateOp, DeleteOp, Znode
from tests.simulation.auditing.cluster import (
    BASE,
    BOOKIES,
    ELECTION,
    LOCKS,
    MANAGER,
    MARKS,
    QUORUM,
    ROOT,
    WORKERS,
    all_bookies,
    decoded,
)
from tests.simulation.auditing.daemon import Daemon
from tests.simulation.outcomes import Counts, InvariantError
from tests.support.zookeeper_model import Changes, ZooKeeperModel
from tests.support.zookeeper_model_session import ModelSession

DELAY_MS = 20_000


class World:
    """All daemons, ledgers and bookies. ``random`` decides everything."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.trace: list[str] = []
        self.counts = Counts()
        self.at_once = random.choice([1, 3])
        #: Chance that an action fails.
        self.weather = random.choice([0.0, 0.02, 0.1])
        self.zk = ZooKeeperModel(lambda: self.now_ms)
        for path in (ROOT, BASE, ELECTION, MARKS, LOCKS, WORKERS):
            self.zk.transact([CreateOp(path)])
        self.zk.on_change = self._on_change
        #: Who marks ledgers, and which.
        self.marking: tuple[Daemon, Mapping[int, frozenset[str]]] | None = None
        self.registered = set(BOOKIES)
        #: What an operator sets. No reply is lost here.
        self.switches = ReplicationSwitches(cast(ZooKeeper, ModelSession(self.zk)), ROOT)
        self.set_delay(random.choice([0, DELAY_MS, DELAY_MS]))
        self.first_lost_ms: dict[str, int] = {}
        self.repairs: dict[int, int] = {}
        #: The version of the mark that the last repair of a ledger saw.
        self.checked_mark: dict[int, int] = {}
        self.ledgers: set[int] = set()
        for _ in range(random.randint(30, 100)):
            self.make_ledger()
        self.daemons = [Daemon(self, f"d{number}") for number in range(random.choice([2, 3, 4]))]

    def set_delay(self, delay_ms: int) -> None:
        """Before anybody waits for it."""
        self.delay_ms = delay_ms
        self.switches.set_recovery_delay(delay_ms // 1000)
        #: Whether marks may come before the delay is over: several were lost, or an operator asked.
        self.impatient = delay_ms == 0

    def proof_of(self, vote: str) -> str:
        return vote

    def tell(self, what: str, count: str = "") -> None:
        self.trace.append(f"{self.now_ms / 1000:9.1f} s  {what}")
        if count:
            self.counts[count] += 1

    def story(self, last: int = 60) -> str:
        return "\n".join(self.trace[-last:])

    @property
    def is_marked(self) -> bool:
        """Whether any ledger may be marked."""
        return bool(self.zk.children(MARKS))

    def loss(self) -> float:
        """The chance that a request of a store, or its reply, is lost."""
        return self.weather / 5

    def _on_change(self, changes: Changes) -> None:
        for path, (before, after) in changes.items():
            if not path.startswith(f"{MARKS}/"):
                continue
            parent, _, name = path.rpartition("/")
            if parent == MARKS:
                self._spread("marks")
            ledger_id = locked_ledger(name)
            if ledger_id is not None and after is not None:
                assert self.marking is not None
                daemon, missing = self.marking
                self.on_mark(daemon, ledger_id, missing[ledger_id])
            elif ledger_id is not None and before is not None:
                self.on_mark_deleted(ledger_id, before)

    # --- invariants ---

    def on_mark(self, daemon: Daemon, ledger_id: int, bookies: frozenset[str]) -> None:
        votes = {int(name[2:]): name for name in self.zk.children(ELECTION) or ()}
        first = self.zk.read(f"{ELECTION}/{votes[min(votes)]}") if votes else None
        if first is None or first.owner_session != daemon.zk.session_id:
            raise InvariantError(f"{daemon.name} marks ledger {ledger_id} and is not the auditor")
        self.tell(f"{daemon.name} marks ledger {ledger_id}: {' '.join(sorted(bookies))}", "marks")
        if not self.impatient:
            for bookie in bookies:
                waited_ms = self.now_ms - self.first_lost_ms[bookie]
                if waited_ms < self.delay_ms:
                    raise InvariantError(f"ledger {ledger_id} is marked after {waited_ms} ms")

    def on_mark_deleted(self, ledger_id: int, mark: Znode) -> None:
        if self.checked_mark.get(ledger_id) != mark.version:
            raise InvariantError(f"the mark of ledger {ledger_id} is deleted, and was made again after the repair")
        self.tell(f"the mark of ledger {ledger_id} is deleted", "finished")

    def check_end(self) -> None:
        """After everything has healed."""
        for ledger_id in sorted(self.ledgers):
            lost = set(all_bookies(self.metadata(ledger_id))) - self.registered
            if lost:
                raise InvariantError(f"ledger {ledger_id} still names {sorted(lost)}")
        # Empty directories of marks may be left.
        names = [path.rpartition("/")[2] for path in self.zk.paths() if path.startswith((f"{MARKS}/", f"{LOCKS}/"))]
        left = sorted(name for name in names if locked_ledger(name) is not None)
        if left:
            raise InvariantError(f"marks or locks are left: {left}")
        if len(self.zk.children(ELECTION) or ()) != len(self.daemons):
            raise InvariantError("votes are left or missing")

    def check_retries(self, span_ms: int, daemons: int) -> None:
        """Repairs that cannot succeed begin less and less often. Each daemon has a count of its own."""
        most = 6 + daemons * (6 + span_ms // 200_000)
        for ledger_id, count in self.repairs.items():
            if count > most:
                raise InvariantError(f"ledger {ledger_id} was tried {count} times in {span_ms} ms")

    # --- what there is ---

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        node = self.zk.read(MANAGER.ledger_path(ROOT, ledger_id))
        assert node is not None
        return decoded(node.data)

    def make_ledger(self) -> None:
        ledger_id = self.random.randrange(40_000)
        if ledger_id in self.ledgers or len(self.registered) < 3:
            return
        ensembles = [tuple(self.random.sample(sorted(self.registered), 3)) for _ in range(self.random.choice([1, 2]))]
        segments = tuple(Segment(number * 10, ensemble) for number, ensemble in enumerate(ensembles))
        path = MANAGER.ledger_path(ROOT, ledger_id)
        parents = path.split("/")[2:-1]
        for depth in range(len(parents)):
            parent = f"{ROOT}/{'/'.join(parents[: depth + 1])}"
            if self.zk.read(parent) is None:
                self.zk.transact([CreateOp(parent)])
        self.zk.transact([CreateOp(path, encode(LedgerMetadata(QUORUM, segments).closed(19, 19)))])
        self.ledgers.add(ledger_id)

    def delete_ledger(self) -> None:
        if self.ledgers:
            ledger_id = self.random.choice(sorted(self.ledgers))
            self.zk.transact([DeleteOp(MANAGER.ledger_path(ROOT, ledger_id))])
            self.ledgers.discard(ledger_id)

    # --- what happens ---

    def step(self) -> bool:
        """One move of a daemon. If there is none, time goes on to the next timer. False if nothing is left."""
        moves = [move for daemon in self.daemons for move in daemon.moves()]
        if not moves:
            due = [daemon.next_due_ms for daemon in self.daemons if daemon.timers]
            due += [daemon.hears_ms for daemon in self.daemons if "session" in daemon.news]
            self.now_ms = int(min(due, default=self.now_ms))
            return bool(due)
        if self.random.random() < 0.02:
            self.now_ms += self.random.randint(1, 5_000)
        self.random.choice(moves)()
        return True

    def lose_bookie(self) -> None:
        if len(self.registered) > 1:
            bookie = self.random.choice(sorted(self.registered))
            self.registered.discard(bookie)
            self.first_lost_ms.setdefault(bookie, self.now_ms)
            self.impatient = self.impatient or len(self.first_lost_ms) > 1
            self.tell(f"bookie {bookie} is lost", "lost bookies")
            self._spread("bookies")

    def return_bookie(self) -> None:
        gone = sorted(set(BOOKIES) - self.registered)
        if gone:
            bookie = self.random.choice(gone)
            self.registered.add(bookie)
            self.tell(f"bookie {bookie} returns", "returned bookies")
            self._spread("bookies")

    def expire_session(self, daemon: Daemon) -> None:
        """The daemon hears of it later, and goes on until then."""
        if daemon.alive:
            self.end_session(daemon, pause_ms=self.random.choice([0, 10, 30_000]))
            self.tell(f"the session of {daemon.name} expires")

    def end_session(self, daemon: Daemon, *, pause_ms: int) -> None:
        """The session is gone; the daemon begins anew after a pause."""
        if daemon.alive:
            self.zk.expire(daemon.zk.session_id)
        daemon.news.add("session")
        daemon.hears_ms = self.now_ms + pause_ms

    def switch(self, disabled: bool) -> None:
        if self.switches.disable() if disabled else self.switches.enable():
            self.tell("replication is disabled" if disabled else "replication is enabled", "switches")
            self._spread("switch")

    def trigger(self) -> None:
        self.switches.trigger_audit()
        self.impatient = True
        self.tell("an operator triggers an audit", "triggers")
        self._spread("delay")

    def _spread(self, kind: str) -> None:
        for daemon in self.daemons:
            daemon.news.add(kind)
