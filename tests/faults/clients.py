"""Who uses the cluster while things go wrong: one that writes, one that reads along, one that recovers."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from bk_spark.bookie.blocking import BlockingClient, BlockingWriter
from bk_spark.bookie.config import ClientConfig
from bk_spark.protocol.entries.entry import EntryBlock
from bk_spark.protocol.entries.payloads import Payloads
from bk_spark.protocol.errors import BookKeeperError
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata
from bk_spark.protocol.quorum import Quorum
from tests.faults.payloads import number_of, payload
from tests.faults.timeline import Timeline

#: A bookie in trouble is given up quickly. The session outlives a busy machine, not the 20 s without ZooKeeper.
CONFIG: Final = ClientConfig(add_timeout_ms=1_000, read_timeout_ms=1_000, connect_timeout_ms=1_000)
#: After a ledger that failed, or could not be had.
_RETRY_S: Final = 0.2
_POLL_S: Final = 0.05
_READ_ENTRIES: Final = 500
_TAIL_WAIT_MS: Final = 500


@dataclass(slots=True)
class Written:
    """What the writer knows of a ledger of its own. Entry i holds payload number ``first_number + i``."""

    ledger_id: int
    first_number: int
    #: Entries handed over, and entries known to be safe.
    appended: int = 0
    acknowledged: int = 0
    #: What the writer's close returned, or what ended the ledger before.
    closed: LedgerMetadata | None = None
    error: BookKeeperError | None = None
    #: The ensembles it had, in order.
    ensembles: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def changes(self) -> int:
        """How often an ensemble was replaced by another."""
        return len(self.ensembles) - 1


@dataclass(frozen=True, slots=True)
class Load:
    """What a writer writes. ``seed`` decides the payloads and the sizes of batches.

    It begins another ledger after ``roll_entries``, and pauses for up to ``pause_s`` after each batch. A share of the
    ledgers is left open, as if their writer had died.
    """

    seed: int
    quorum: Quorum
    roll_entries: int
    largest_batch: int = 200
    pause_s: float = 0.0
    left_open_share: float = 0.0


class Writer:
    """Writes ledger after ledger: batch after batch, acknowledgements collected on the way."""

    def __init__(self, uri: str, load: Load, timeline: Timeline, name: str = "writer") -> None:
        self._uri = uri
        self._load = load
        self._timeline = timeline
        self._name = name
        self._chance = random.Random(load.seed)
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self.ledgers: list[Written] = []
        #: Errors of create, which leave no ledger known.
        self.create_errors: list[BookKeeperError] = []
        #: Whatever must not happen in this thread.
        self.crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"fault {name}")
        self._thread.start()

    @property
    def seed(self) -> int:
        """Decides the payloads."""
        return self._load.seed

    @property
    def acknowledged(self) -> int:
        return sum(ledger.acknowledged for ledger in self.ledgers)

    def wait_acknowledged(self, more: int, timeout_s: float) -> bool:
        """Wait until ``more`` entries than now are acknowledged."""
        with self._progress:
            wanted = self.acknowledged + more
            return self._progress.wait_for(lambda: self.acknowledged >= wanted or self.crash is not None, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """End the present ledger in order, and the thread; False where it does not end."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with BlockingClient(self._uri, CONFIG) as client:
                number = 0
                while not self._stop.is_set():
                    try:
                        writer = client.create(quorum=self._load.quorum)
                    except BookKeeperError as error:
                        self.create_errors.append(error)
                        self._timeline.note(self._name, f"cannot create a ledger: {error!r}")
                        self._stop.wait(_RETRY_S)
                        continue
                    written = Written(writer.ledger_id, number)
                    self.ledgers.append(written)
                    self._timeline.note(self._name, f"ledger {writer.ledger_id} begins with number {number}")
                    self._write(writer, written)
                    number += written.appended
                    if written.error is not None:
                        self._stop.wait(_RETRY_S)
        except BaseException as error:
            self._timeline.note(self._name, f"ended by {error!r}")
            with self._progress:
                self.crash = error
                self._progress.notify_all()

    def _write(self, writer: BlockingWriter, written: Written) -> None:
        load = self._load
        end = "closed"
        self._note_acknowledged(writer, written)
        try:
            while written.appended < load.roll_entries and not self._stop.is_set():
                count = self._chance.randrange(1, load.largest_batch)
                first = written.first_number + written.appended
                # Whatever comes of it: some of the batch may be on some bookies.
                written.appended += count
                writer.append_many(Payloads.of([payload(load.seed, first + i) for i in range(count)]))
                if self._chance.random() < 0.5:
                    writer.flush()
                self._note_acknowledged(writer, written)
                if load.pause_s:
                    self._stop.wait(self._chance.uniform(0, load.pause_s))
            if load.left_open_share and self._chance.random() < load.left_open_share:
                end = "left open"
                writer.flush()
            else:
                written.closed = writer.close()
        except BookKeeperError as error:
            written.error = error
            end = f"failed: {error!r}"
        finally:
            self._note_acknowledged(writer, written)
            writer.abandon()
        self._timeline.note(
            self._name,
            f"ledger {written.ledger_id} {end}; {written.acknowledged} of {written.appended} acknowledged, "
            f"{written.changes} ensemble changes",
        )

    def _note_acknowledged(self, writer: BlockingWriter, written: Written) -> None:
        with self._progress:
            written.acknowledged = writer.last_add_confirmed + 1
            ensemble = writer.metadata.last_segment.ensemble
            if not written.ensembles or ensemble != written.ensembles[-1]:
                written.ensembles.append(ensemble)
            self._progress.notify_all()


@dataclass(slots=True)
class Seen:
    """What a reader got of a ledger: entries 0 … ``entries`` - 1."""

    entries: int = 0


@dataclass(slots=True)
class Follower:
    """Reads what the writer writes, while it is written: tails every other ledger, polls the rest."""

    uri: str
    writer: Writer
    timeline: Timeline
    #: By ledger id.
    seen: dict[int, Seen] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    errors: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="fault follower")
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with BlockingClient(self.uri, CONFIG) as client:
                while not self._stop.wait(_POLL_S):
                    if self.writer.ledgers:
                        self._follow(client, self.writer.ledgers[-1])
                # Everything works again and the writer has ended: all of its last ledger can be had.
                last = self.writer.ledgers[-1]
                self._follow(client, last)
                if last.closed is not None and self.seen[last.ledger_id].entries <= last.closed.last_entry_id:
                    self.problems.append(
                        f"ledger {last.ledger_id} is closed at entry {last.closed.last_entry_id}, but the follower "
                        f"only got {self.seen[last.ledger_id].entries} entries"
                    )
        except BaseException as error:
            self.problems.append(f"the follower was ended by {error!r}")

    def _follow(self, client: BlockingClient, written: Written) -> None:
        """Read on in a ledger, until nothing more comes."""
        seen = self.seen.setdefault(written.ledger_id, Seen())
        try:
            reader = client.open_for_reading(written.ledger_id)
            if written.ledger_id % 2:
                with closing(reader.tail(seen.entries, max_wait_ms=_TAIL_WAIT_MS)) as blocks:
                    for block in blocks:
                        self._note(written, seen, block)
                return
            while seen.entries <= reader.last_add_confirmed:
                last = min(reader.last_add_confirmed, seen.entries + _READ_ENTRIES - 1)
                with closing(reader.read_blocks(seen.entries, last)) as blocks:
                    for block in blocks:
                        self._note(written, seen, block)
        except BookKeeperError as error:
            self.errors += 1
            self.timeline.note("follower", f"ledger {written.ledger_id}: {error!r}")

    def _note(self, written: Written, seen: Seen, block: EntryBlock) -> None:
        for data in block.payloads:
            if data != payload(self.writer.seed, written.first_number + seen.entries):
                self.problems.append(
                    f"the follower read {number_of(bytes(data))} at entry {seen.entries} of ledger "
                    f"{written.ledger_id}, which begins with number {written.first_number}"
                )
            seen.entries += 1


def recover(uri: str, written: Written, timeline: Timeline) -> None:
    """Take the ledger from its writer. While things go wrong this may fail; the checker takes it then."""
    try:
        with BlockingClient(uri, CONFIG) as client:
            last = client.recover_and_open(written.ledger_id).last_add_confirmed
    except BookKeeperError as error:
        timeline.note("recoverer", f"ledger {written.ledger_id}: {error!r}")
    else:
        timeline.note("recoverer", f"ledger {written.ledger_id} recovered, last entry {last}")
