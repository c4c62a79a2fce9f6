"""What peers may make the native front end hold, in numbers, and what it tells of its requests.

Names in quotes are Apache's configuration keys (compatibility.md §5.13, §7.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bookie_server.disks.open_files import share_open_files

_MIB: Final = 1024 * 1024
#: An operator should hear of fewer.
FEW_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Limits of the native front end. A request that waits counts with its bytes and ``REQUEST_BYTES`` beside."""

    #: Largest frame with its four length bytes ("nettyMaxFrameSizeBytes").
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: Largest answer to a batch read ("maxBatchReadSize").
    max_batch_read_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: Adds (or reads) accepted and not answered, all connections, above which no socket is read; 0: any number
    #: ("maxAddsInProgressLimit", "maxReadsInProgressLimit").
    max_adds_in_progress: int = 0
    max_reads_in_progress: int = 0
    #: Adds (or reads) of one connection that wait. From half of it on the connection is not read; what came
    #: beyond it nevertheless is answered with TOO_MANY_REQUESTS. 0: any number ("maxPendingAddRequestsPerThread",
    #: "maxPendingReadRequestsPerThread").
    max_pending_adds: int = 10_000
    max_pending_reads: int = 10_000
    #: Adds accepted and not answered, all connections, and by how much entries in memory are too many: above the
    #: first no socket is read, until below the second.
    adds_high_bytes: int = 24 * _MIB
    adds_low_bytes: int = 8 * _MIB
    #: Reads that wait: of one connection, before it is not read; of all, before further ones are answered with
    #: TOO_MANY_REQUESTS.
    connection_reads_bytes: int = 1 * _MIB
    max_waiting_reads_bytes: int = 32 * _MIB
    #: Rounds of reads, all connections, whose entries are in memory at once.
    read_slots: int = 8
    #: Answers that one peer has not taken, before its requests are no longer read.
    answers_high_bytes: int = 64 * 1024
    #: Answers that peers have not taken, all connections: the nearer to it, the smaller are rounds of reads; at it,
    #: reads wait; at twice as many no socket is read.
    max_unsent_bytes: int = 64 * _MIB
    #: Where answers or reads of all connections come near their limits, a peer that takes hardly anything for so
    #: long loses its connection.
    stalled_peer_timeout_ms: int = 5_000
    #: The same where reads of others wait already.
    stalled_in_the_way_timeout_ms: int = 1_000
    #: Buffers for what has come of frames that do not fit into the common one, all connections; beyond it, they are
    #: not read until there is room.
    max_large_frames_bytes: int = 48 * _MIB
    #: While one waits for such room, a peer that has some and brings hardly anything for so long loses its connection.
    stalled_frame_timeout_ms: int = 1_000
    #: Beginnings of other frames, and requests that are to be handled later, all connections; beyond it the one that
    #: has them longest loses its connection.
    max_half_frames_bytes: int = 32 * _MIB
    #: A frame that has begun must be whole by then.
    frame_timeout_ms: int = 60_000
    #: Long polls of one connection, and of all; further ones are answered with TOO_MANY_REQUESTS.
    max_polls: int = 1_000
    max_polls_in_total: int = 20_000
    #: A long poll is answered by then, whatever it asked for.
    max_poll_ms: int = 10 * 60_000
    #: Connections. 0: as many as open files allow, 10,000 at most. A further one takes the place of the idlest: of one
    #: that has not asked for anything, else of one that was idle for so long; it is closed where there is none.
    max_connections: int = 0
    idle_before_eviction_ms: int = 1_000
    #: At the end, how long answers to the adds that were accepted are waited for.
    close_timeout_ms: int = 30_000


#: What a waiting request costs beside its bytes.
REQUEST_BYTES: Final = 2 * 1024


def connection_limit(max_connections: int) -> int:
    """``max_connections``, or where that is 0 what the limit of open files leaves."""
    return max_connections or share_open_files().connections


class RequestTimes(Protocol):
    """Told of requests when they are answered."""

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        """``count`` requests of a kind were answered ``seconds`` after they came. Kinds: add, read (batch reads,
        too), fence, long_poll, force, write_lac, read_lac, info, list."""


class NoRequestTimes:
    """For a front end that nobody observes."""

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        pass
