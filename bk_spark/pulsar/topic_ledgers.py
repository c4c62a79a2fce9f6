"""Reads what is readable of topics: their lists of ledgers, and the last add confirmed of the open ones.

The open ledger is opened without recovery, which would fence it while its broker writes to it. Entries beyond its last
add confirmed are not promised, so they are not read. See docs/design/pulsar.md §3.2.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from bk_spark.bookie.blocking import BlockingClient, BlockingReader
from bk_spark.protocol.errors import BookKeeperError, NoSuchLedgerError, PeerError
from bk_spark.protocol.metadata.ledger_metadata import LedgerState
from bk_spark.protocol.metadata.znodes import Znode
from bk_spark.protocol.pulsar.topics.managed_ledgers import ManagedLedger, Offload, TopicLedger
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.pulsar.entry_numbers import EntryNumbers, ReadableLedger
from bk_spark.pulsar.stores import Store

_LOG: Final = logging.getLogger(__name__)
#: Seconds between two requests for the end of an open ledger. The second applies after an unanswered request.
_LAC_S: Final = 0.05
_LAC_RETRY_S: Final = 1.0
#: If an open ledger hides entries for this long, its writer does not publish its end.
_HIDDEN_S: Final = 3.0
#: The assumed size of an entry if neither an earlier ledger nor the bookies tell it.
_ENTRY_BYTES: Final = 1024
#: Topics opened at the same time.
_AT_ONCE: Final = 16
#: Attempts in a row to read a list whose last ledger is dropped meanwhile.
_MAX_LOOKS: Final = 5
#: Topics that a warning names.
_SHOWN: Final = 5

#: Properties of a copy in tiered storage that say where it is.
_PLACES: Final = ("bucket", "region", "container", "serviceEndpoint")

Clock = Callable[[], float]


class FollowedTopic:
    """One topic, or partition, as it grows. For one thread at a time.

    Parameters
    ----------
    topic
        Its name.
    store
        Pulsar's local metadata store.
    client
        The client of the bookies.
    password
        The password of the topic's ledgers (``managedLedgerPassword`` of the brokers).
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self, topic: TopicName, store: Store, client: BlockingClient, password: bytes, clock: Clock = time.monotonic
    ) -> None:
        self.topic = topic
        self.numbers = EntryNumbers()
        self.managed = ManagedLedger()
        #: Whether the topic has a znode.
        self.exists = False
        self._path = topic.managed_ledger_path
        self._store, self._client, self._password, self._clock = store, client, password, clock
        self._version: tuple[int, int] | None = None
        self._tail: BlockingReader | None = None
        self._ask_at = 0.0
        #: Entries and bytes of the tail when its size was last asked for.
        self._sample = (0, 0)
        #: The end at which the open ledger stands, and since when. Whether users were warned that it hides entries.
        self._stands: tuple[int, float] | None = None
        self._said = False

    @property
    def path(self) -> str:
        """The topic's znode."""
        return self._path

    @property
    def is_open(self) -> bool:
        """Whether the end comes from the bookies of a ledger that is still being written."""
        return self._tail is not None and self._tail.metadata.state is not LedgerState.CLOSED

    @property
    def is_behind(self) -> bool:
        """Whether the list must be read again soon: its last ledger was closed, so another follows it."""
        return self._tail is not None and self._tail.metadata.state is LedgerState.CLOSED

    @property
    def is_due(self) -> bool:
        """Whether the end of the open ledger is to be asked for."""
        return self.is_open and self._clock() >= self._ask_at

    def look(self, znode: Znode | None, *, latest: bool = False) -> None:
        """Take over the list in ``znode``, and ask for the end of the open ledger if that is due.

        Parameters
        ----------
        znode
            What the store has at :attr:`path` now.
        latest
            Include everything confirmed before the call, and raise if the bookies cannot tell.

        Raises
        ------
        MetadataFormatError, UnauthorizedError, EntryUnknownError, MetadataUnavailableError
        """
        for _ in range(_MAX_LOOKS):
            try:
                self._take(znode)
                self._count(latest)
                return
            except NoSuchLedgerError:
                # The last ledger was dropped since the list was read: it had no entries.
                self._version, self._tail = None, None
                (znode,) = self._store.latest([self._path])
        _LOG.warning("topic %s: its last ledger goes again and again while it is read", self.topic.full)

    def ask(self) -> None:
        """Ask for the end of the open ledger if that is due, without the list. Raises as :meth:`look`."""
        try:
            self._count(latest=False)
        except NoSuchLedgerError:
            # The list, which is read soon, will say what happened to it.
            self._version, self._tail = None, None

    def _take(self, znode: Znode | None) -> None:
        self.exists = znode is not None
        version = None if znode is None else (znode.created_zxid, znode.version)
        if version == self._version:
            return
        self.managed = ManagedLedger() if znode is None else ManagedLedger.parse(znode.data, self._path)
        self._version = version
        last = self.managed.ledgers[-1] if self.managed.ledgers else None
        if last is None or last.entries is not None:
            self._tail = None
        elif self._tail is None or self._tail.ledger_id != last.ledger_id:
            self._tail = None
            self._tail = self._client.open_for_reading(last.ledger_id, self._password)
            self._sample = (0, 0)
            self._ask_at = self._clock() + _LAC_S

    def _count(self, latest: bool) -> None:
        tail = self._tail
        if tail is not None and (self.is_due or (latest and self.is_open)):
            self._ask(tail, latest)
        if tail is None:
            self.numbers.update(readable(self.managed, None))
            return
        entries = tail.last_add_confirmed + 1
        self._measure(tail, entries)
        self.numbers.update(readable(self.managed, entries, self._sample))

    def _measure(self, tail: BlockingReader, entries: int) -> None:
        """Learn how large entries of the tail are: when there are some, and whenever they have become twice as many."""
        if entries >= max(1, 2 * self._sample[0]):
            length = tail.read_length()
            # Without an answer the next look asks again. Sizes only decide how reads are cut.
            if length is not None:
                self._sample = (entries, length)

    def _ask(self, tail: BlockingReader, latest: bool) -> None:
        self._ask_at = self._clock() + _LAC_S
        try:
            tail.read_last_add_confirmed()
        except PeerError as error:
            if latest or not error.retriable:
                raise
            _LOG.warning(
                "topic %s: its end cannot be determined now, so nothing new is read: %s", self.topic.full, error
            )
            self._ask_at = self._clock() + _LAC_RETRY_S

    def hides(self, *, now: bool = False) -> bool:
        """Whether the open ledger has entries that its broker does not announce to readers. True once at most.

        ``now``: do not wait until the end has stayed the same for some seconds."""
        tail = self._tail
        if self._said or tail is None or tail.metadata.state is LedgerState.CLOSED:
            return False
        end, since = tail.last_add_confirmed + 1, self._clock()
        if self._stands is None or self._stands[0] != end:
            self._stands = (end, since)
            if not now:
                return False
        elif since - self._stands[1] < _HIDDEN_S:
            return False
        self._stands = (end, since)
        try:
            # The end is asked for again: the entry may have been confirmed just now.
            self._said = _has_entry(tail, end) and tail.read_last_add_confirmed() < end
        except PeerError:
            return False
        return self._said


def warn_of_hidden(topics: Iterable[FollowedTopic], *, now: bool = False) -> None:
    """Warn, once for each topic, if the ends of ``topics`` hide messages. ``now`` is that of ``hides``."""
    names = [one.topic.full for one in topics if one.hides(now=now)]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        _LOG.warning(
            "the newest messages of %s%s are not shown yet: bookies have them, but the brokers do not say that they "
            "are confirmed. They come with the next message of the topic, or when its ledger is closed. Set "
            "bookkeeperExplicitLacIntervalInMills of the brokers, for example to 100, to see them at once",
            ", ".join(names[:_SHOWN]),
            more,
        )


def _has_entry(tail: BlockingReader, entry_id: int) -> bool:
    """Whether a bookie has an entry that may not be confirmed."""
    try:
        with closing(tail.read_unconfirmed(entry_id, entry_id)) as blocks:
            return any(len(block.payloads) for block in blocks)
    except BookKeeperError:
        return False


def look_at_topics(topics: Sequence[FollowedTopic], store: Store, *, latest: bool) -> None:
    """Look at all ``topics``, whose znodes are read together. Raises what :meth:`FollowedTopic.look` raises."""
    znodes = store.latest([one.path for one in topics]) if topics else []
    _at_once([functools.partial(one.look, znode, latest=latest) for one, znode in zip(topics, znodes, strict=True)])


def ask_topics(topics: Sequence[FollowedTopic]) -> None:
    """Ask for the ends of the open ledgers of ``topics``, where that is due."""
    _at_once([one.ask for one in topics if one.is_due])


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    if len(calls) < 2:
        for call in calls:
            call()
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(calls)), "pulsar-topics") as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def readable(
    managed: ManagedLedger, tail_entries: int | None, sample: tuple[int, int] = (0, 0)
) -> list[ReadableLedger]:
    """Return what is readable of a topic, if its open ledger, the last one, has ``tail_entries``.

    ``sample`` has a number of its first entries and their bytes, as far as known.
    """
    found: list[ReadableLedger] = []
    entry_bytes = _ENTRY_BYTES
    for one in managed.ledgers:
        if one.entries is not None:
            found.append(_closed(one))
            if one.entries and one.size_bytes:
                entry_bytes = max(1, one.size_bytes // one.entries)
        elif tail_entries is not None and one is managed.ledgers[-1]:
            if sample[0]:
                entry_bytes = max(1, sample[1] // sample[0])
            found.append(ReadableLedger(one.ledger_id, tail_entries, tail_entries * entry_bytes, None))
        else:
            # A ledger that a broker made and lost before it wrote to it.
            found.append(ReadableLedger(one.ledger_id, 0, 0, None))
    return found


def _closed(one: TopicLedger) -> ReadableLedger:
    where = None
    if one.offload is not None and one.offload.deleted_from_bookies:
        where = _place(one.offload)
    return ReadableLedger(one.ledger_id, one.entries or 0, one.size_bytes or 0, one.closed_at_ms, where)


def _place(copy: Offload) -> str:
    """Say where an offloaded ledger is. Only names of places are shown: other properties may be secret."""
    shown = [f"{name} {copy.properties[name]}" for name in _PLACES if name in copy.properties]
    return ", ".join([f"driver {copy.driver or 'unknown'}", *shown])
