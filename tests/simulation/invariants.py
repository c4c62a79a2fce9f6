"""What must hold after every step. Violations raise :class:`InvariantError`.

* An acknowledged entry is on the disks of an ack quorum of the bookies to which the published metadata sends readers,
  except for lost disks (fewer than an ack quorum: drivers ensure that).
* So is every entry of a closed ledger. Its end and its length never change. No writer gets an acknowledgement past the
  end; no reader gets an entry past it; no bookie tells readers of one.
* No reader gets an entry that is neither acknowledged nor in a closed ledger. A tail gives each entry once, in order,
  and ends as done only with the last entry of a closed ledger.
* A ledger is fenced only if its metadata say that it is in recovery. Otherwise its writer could continue at other
  bookies.
* Where no message is lost, no entry is acknowledged for which readers may ask a bookie that knows the ledger with
  another password: it would give them entries of somebody else.
* Entries are acknowledged in order. What bookies store, and what readers see, is what was appended.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from bk_spark.protocol.codes import DigestType
from bk_spark.protocol.entries.entry import Entry
from bk_spark.protocol.metadata.ledger_metadata import LedgerMetadata, LedgerState
from tests.simulation.bytes_cache import entry_in, length_of, metadata_in
from tests.simulation.events import Acknowledged, Ended, Fenced, Followed, Forgot, MetadataChanged, Saw, Stored
from tests.simulation.outcomes import InvariantError
from tests.support.ledgers import payload_of

if TYPE_CHECKING:
    from tests.simulation.world import World


class Watch:
    """Watches what happens in a world. Its own state is small."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: The highest entry that the writer's user was told to be safe, and the highest that a reader was given.
        self.acknowledged = -1
        self.seen = -1
        #: The next entry of each tail.
        self.followed: dict[str, int] = {}

    def on_acknowledged(self, effect: Acknowledged) -> None:
        before, self.acknowledged = self.acknowledged, effect.last_add_confirmed
        if self.acknowledged <= before:
            raise InvariantError(f"{effect.actor} is acknowledged {self.acknowledged} after {before}")
        metadata = self._world.metadata
        self._check_end(metadata)
        self._check_copies(metadata, before + 1, self.acknowledged)
        self._check_passwords(metadata, before + 1, self.acknowledged)

    def on_metadata(self, effect: MetadataChanged) -> None:
        before, metadata = metadata_in(effect.before), metadata_in(effect.after)
        if before.state is LedgerState.CLOSED:
            ends = [(value.state, value.last_entry_id, value.length) for value in (before, metadata)]
            if ends[0] != ends[1]:
                raise InvariantError(f"a closed ledger changed from {ends[0]} to {ends[1]}")
        elif metadata.state is LedgerState.CLOSED:
            self._check_end(metadata)
            if metadata.length != length_of(metadata.last_entry_id):
                raise InvariantError(f"closed with length {metadata.length}, not {length_of(metadata.last_entry_id)}")
            for bookie in self._world.bookies:
                for entry_id, stored in bookie.memory.items():
                    self._check_told(bookie.name, metadata, self._content(entry_id, stored))
        self._check_all_copies(metadata)

    def on_stored(self, effect: Stored) -> None:
        content = self._content(effect.entry_id, effect.stored)
        metadata = self._world.metadata
        if metadata.state is LedgerState.CLOSED:
            self._check_told(effect.bookie, metadata, content)

    def on_fenced(self, effect: Fenced) -> None:
        if self._world.metadata.state is LedgerState.OPEN:
            raise InvariantError(f"{effect.bookie} is fenced, the metadata say OPEN")

    def on_forgot(self, effect: Forgot) -> None:
        self._check_all_copies(self._world.metadata)

    def on_saw(self, effect: Saw) -> None:
        self.seen = max(self.seen, effect.entry_id)
        if effect.payload != payload_of(effect.entry_id):
            raise InvariantError(f"{effect.actor} read {effect.payload!r} as entry {effect.entry_id}")
        metadata = self._world.metadata
        self._check_end(metadata)
        if effect.entry_id > max(self.acknowledged, metadata.last_entry_id):
            raise InvariantError(f"{effect.actor} was given entry {effect.entry_id}, which is not confirmed")

    def on_followed(self, effect: Followed) -> None:
        expected = self.followed.get(effect.actor, 0)
        if effect.entry_id != expected:
            raise InvariantError(f"{effect.actor} gave entry {effect.entry_id}, not {expected}")
        self.followed[effect.actor] = expected + 1
        self.on_saw(effect)

    def on_ended(self, effect: Ended) -> None:
        if effect.last_entry_id is None:
            return
        metadata = self._world.metadata
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id != effect.last_entry_id:
            raise InvariantError(f"{effect.actor} takes the ledger to be closed at {effect.last_entry_id}")
        if self.followed.get(effect.actor, effect.last_entry_id + 1) != effect.last_entry_id + 1:
            raise InvariantError(f"{effect.actor} ended before entry {self.followed[effect.actor]}")

    def _check_end(self, metadata: LedgerMetadata) -> None:
        if metadata.state is not LedgerState.CLOSED:
            return
        end = metadata.last_entry_id
        if self.acknowledged > end:
            raise InvariantError(f"entry {self.acknowledged} is acknowledged, the ledger closed at {end}")
        if self.seen > end:
            raise InvariantError(f"a reader was given entry {self.seen}, the ledger closed at {end}")

    def _check_all_copies(self, metadata: LedgerMetadata) -> None:
        end = metadata.last_entry_id if metadata.state is LedgerState.CLOSED else self.acknowledged
        self._check_copies(metadata, 0, end)

    def _check_copies(self, metadata: LedgerMetadata, first: int, last: int) -> None:
        quorum = metadata.quorum
        for entry_id in range(first, last + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            bookies = [self._world.bookie(ensemble[index]) for index in quorum.write_set(entry_id)]
            copies = sum(bookie.copies(entry_id) for bookie in bookies)
            lost = sum(entry_id in bookie.lost for bookie in bookies)
            if copies + lost < quorum.ack_quorum_size or not copies:
                names = ", ".join(bookie.name for bookie in bookies)
                raise InvariantError(f"of {names}, where readers look for entry {entry_id}, {copies} hold it")

    def _check_passwords(self, metadata: LedgerMetadata, first: int, last: int) -> None:
        for entry_id in range(first, last + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in metadata.quorum.write_set(entry_id):
                if self._world.bookie(ensemble[index]).usurped:
                    raise InvariantError(f"{ensemble[index]} gives readers another's entry {entry_id}")

    @staticmethod
    def _check_told(bookie: str, metadata: LedgerMetadata, content: Entry) -> None:
        if content.last_add_confirmed > metadata.last_entry_id:
            raise InvariantError(
                f"{bookie} tells readers of entry {content.last_add_confirmed}, the ledger closed at "
                f"{metadata.last_entry_id}"
            )

    def _content(self, entry_id: int, stored: bytes) -> Entry:
        digest_type = self._world.metadata.digest_type
        assert digest_type is not None
        return _checked(entry_id, stored, digest_type)


@lru_cache(200_000)
def _checked(entry_id: int, stored: bytes, digest_type: DigestType) -> Entry:
    content = entry_in(stored, entry_id, digest_type)
    if content.payload != payload_of(entry_id):
        raise InvariantError(f"entry {entry_id} was stored as {bytes(content.payload)!r}")
    if content.length != length_of(entry_id):
        raise InvariantError(f"entry {entry_id} was stored with length {content.length}, not {length_of(entry_id)}")
    return content
