"""Where a read of topics starts and ends: ids of messages, ends and times as numbers of entries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bk_spark.datasource.options.options import SourceOptions
from bk_spark.log.positions.bounds import check_names
from bk_spark.log.positions.texts import Edge, Position as Wanted, Positions, Time
from bk_spark.protocol.errors import InvalidArgumentError, LogRangeGoneError
from bk_spark.protocol.pulsar.message_ids import MessageIdData
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from bk_spark.protocol.pulsar.transactions import Position
from bk_spark.pulsar.entry_numbers import EntryNumbers

_LOG: Final = logging.getLogger(__name__)
#: How far the clocks of producers and brokers may differ, for ledgers to be left out by the time of their closing.
_CLOCKS_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Edges:
    """What tasks leave out of a topic's entries at both ends of a read.

    ``first``: an entry, and the index of the first message of its batch that is read. ``last``: an entry, and the index
    of the first message that is not read. Messages published before ``since_ms``, or at ``until_ms`` or later, are left
    out.
    """

    first: tuple[Position, int] | None = None
    last: tuple[Position, int] | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left out."""
        return self == _NOTHING


_NOTHING: Final = Edges()


@dataclass(frozen=True, slots=True)
class Found:
    """The number of the entry where a read starts or ends, and what is left out there."""

    number: int
    batch: tuple[Position, int] | None = None
    time_ms: int | None = None


def starts_of(
    options: SourceOptions, topics: Mapping[str, EntryNumbers], ends: Mapping[str, int], default: Edge
) -> dict[str, Found]:
    """Return where to start in each topic, whose readable part ends at ``ends``.

    Raises InvalidArgumentError if an option names a topic that is not read, or leaves one out. Raises
    LogRangeGoneError for a message that is not, or no longer, there. If failOnDataLoss is false, uses the nearest one.
    """
    given = options.starting_offsets or options.starting_timestamp or options.starting_times
    return _found(_option(options, "starting"), options, topics, ends, default if given is None else given)


def ends_of(options: SourceOptions, topics: Mapping[str, EntryNumbers], ends: Mapping[str, int]) -> dict[str, Found]:
    """Return where a batch ends in each topic. Raises as :func:`starts_of`."""
    given = options.ending_offsets or options.ending_timestamp or options.ending_times
    return _found(
        _option(options, "ending"), options, topics, ends, Edge.LATEST if given is None else given, is_end=True
    )


def ranges_of(
    options: SourceOptions, topics: Mapping[str, EntryNumbers], ends: Mapping[str, int]
) -> dict[str, tuple[int, int, Edges]]:
    """Return the entries ``[start, end)`` of each topic that a batch reads, and what is left out of them.

    Raises as :func:`starts_of`, and InvalidArgumentError for a start after the end."""
    starts, stops = starts_of(options, topics, ends, Edge.EARLIEST), ends_of(options, topics, ends)
    found = {}
    for name, start in starts.items():
        stop = stops[name]
        end = stop.number + (stop.batch is not None)
        if start.number > end:
            numbers = topics[name]
            raise InvalidArgumentError(
                f"the read of topic {name} starts at {_text(numbers, start.number)}, after its end at "
                f"{_text(numbers, end)}: check {_option(options, 'starting')} and {_option(options, 'ending')}"
            )
        found[name] = (start.number, min(end, ends[name]), Edges(start.batch, stop.batch, start.time_ms, stop.time_ms))
    return found


def stream_edges(options: SourceOptions, name: str, start: Position | None) -> Edges:
    """Return what a batch of a stream leaves out of a topic. ``start``: where the topic's first batch begins."""
    given = options.starting_offsets or options.starting_timestamp or options.starting_times
    if given is None:
        return _NOTHING
    one = _by_full_name(given, {name: EntryNumbers()}).get(name) if isinstance(given, Mapping) else given
    if isinstance(one, Time):
        return Edges(since_ms=one.time_ms)
    if isinstance(one, MessageIdData) and one.batch_index > 0 and start == (one.ledger_id, one.entry_id):
        return Edges(first=(start, one.batch_index))
    return _NOTHING


def _found(
    option: str,
    options: SourceOptions,
    topics: Mapping[str, EntryNumbers],
    ends: Mapping[str, int],
    wanted: Positions,
    *,
    is_end: bool = False,
) -> dict[str, Found]:
    by_name: dict[str, Wanted] = {}
    if isinstance(wanted, Mapping):
        by_name = _by_full_name(wanted, topics)
        check_names(option, by_name, topics, "topic")
    found = {}
    for name, numbers in topics.items():
        one = by_name[name] if isinstance(wanted, Mapping) else wanted
        if isinstance(one, Edge):
            found[name] = Found(numbers.first if one is Edge.EARLIEST else ends[name])
        elif isinstance(one, Time):
            found[name] = _at_time(numbers, ends[name], one.time_ms, is_end)
        else:
            assert isinstance(one, MessageIdData)
            found[name] = _at_message(option, options, name, numbers, ends[name], one)
    return found


def _by_full_name(wanted: Mapping[str, Wanted], topics: Mapping[str, object]) -> dict[str, Wanted]:
    """Return positions by the names of topics as they are read. An end or a time of a partitioned topic is that of all
    its partitions."""
    found: dict[str, Wanted] = {}
    for text, one in wanted.items():
        name = TopicName.parse(text).full
        partitions = [] if name in topics else [topic for topic in topics if topic.startswith(f"{name}-partition-")]
        if partitions and isinstance(one, MessageIdData):
            raise InvalidArgumentError(
                f"topic {name} has partitions, and the message {one} is in one of them: name that, such as "
                f"{partitions[0]}"
            )
        for partition in partitions or [name]:
            found[partition] = one
    return found


def _at_time(numbers: EntryNumbers, end: int, time_ms: int, is_end: bool) -> Found:
    """Return the entry where a read from or to a time starts or ends.

    The list of ledgers says when each was closed, by the broker's clock. Tasks leave out the rest by the times at which
    producers published the messages.
    """
    number = numbers.first
    if is_end:
        number = end
        for one in reversed(numbers.ledgers):
            # Everything after a ledger that was closed later was stored later.
            if one.closed_at_ms is not None and one.closed_at_ms > time_ms + _CLOCKS_MS:
                number = numbers.number(Position(one.ledger_id, one.entries))
    else:
        for one in numbers.ledgers:
            if one.closed_at_ms is not None and one.closed_at_ms < time_ms - _CLOCKS_MS:
                number = numbers.number(Position(one.ledger_id, one.entries))
    return Found(min(number, end), time_ms=time_ms)


def _at_message(
    option: str, options: SourceOptions, name: str, numbers: EntryNumbers, end: int, one: MessageIdData
) -> Found:
    if one.ledger_id < 0 or one.entry_id < 0:
        # Pulsar's MessageId.earliest.
        return Found(numbers.first)
    if one.ledger_id == one.entry_id == (1 << 63) - 1:
        # Pulsar's MessageId.latest.
        return Found(end)
    index = TopicName.parse(name).partition_index
    if one.partition >= 0 and one.partition != index:
        raise InvalidArgumentError(f"option {option} gives topic {name} a message of partition {one.partition}: {one}")
    position = Position(one.ledger_id, one.entry_id)
    number = numbers.number(position)
    if numbers.first <= number < end and numbers.position(number) != position:
        # The end of a ledger, or a ledger that the topic does not have: numbers of others.
        last = next((ledger.entries for ledger in numbers.ledgers if ledger.ledger_id == one.ledger_id), 0)
        if one.entry_id > last:
            raise InvalidArgumentError(
                f"option {option} gives topic {name} the message {one}: the topic has {last} entries in ledger "
                f"{one.ledger_id}"
            )
    if numbers.first <= number <= end:
        batch = (position, one.batch_index) if one.batch_index > 0 else None
        return Found(number, batch)
    nearest = min(max(number, numbers.first), end)
    if number < numbers.first:
        what = f"it is gone, the topic starts at {_text(numbers, numbers.first)}"
    else:
        what = f"it is not there yet, the topic ends before {_text(numbers, end)}"
    if options.fail_on_data_loss:
        raise LogRangeGoneError(
            f"option {option} gives topic {name} the message {one}: {what}; give another, or set failOnDataLoss to "
            "false to read the rest"
        )
    _LOG.warning(
        "option %s gives topic %s the message %s: %s; continuing at %s",
        option,
        name,
        one,
        what,
        _text(numbers, nearest),
    )
    return Found(nearest)


def _text(numbers: EntryNumbers, number: int) -> str:
    position = numbers.position(number)
    return f"{position.ledger_id}:{position.entry_id}"


def _option(options: SourceOptions, kind: str) -> str:
    names = (f"{kind}Timestamp", f"{kind}OffsetsByTimestamp")
    return next((name for name in names if name.lower() in options.given), f"{kind}Offsets")
