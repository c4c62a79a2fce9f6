"""Limits on what peers can make the native front end hold, and the interface for observing its requests.

Names in quotes are Apache's configuration keys (compatibility.md §5.13, §7.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES
from bookie_server.disks.open_files import share_open_files

_MIB: Final = 1024 * 1024
#: With fewer possible connections, the operator is warned.
FEW_CONNECTIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Limits of the native front end. A waiting request counts its own bytes plus ``REQUEST_BYTES``."""

    #: Largest frame with its four length bytes ("nettyMaxFrameSizeBytes").
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: Largest answer to a batch read ("maxBatchReadSize").
    max_batch_read_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: Adds (or reads) of all connections that are accepted and not answered. At this number no socket is read. 0: no
    #: limit ("maxAddsInProgressLimit", "maxReadsInProgressLimit").
    max_adds_in_progress: int = 0
    max_reads_in_progress: int = 0
    #: Adds (or reads) of one connection that wait. Above half of it the connection is not read. Requests that arrive
    #: beyond it are answered with TOO_MANY_REQUESTS. 0: no limit ("maxPendingAddRequestsPerThread",
    #: "maxPendingReadRequestsPerThread").
    max_pending_adds: int = 10_000
    max_pending_reads: int = 10_000
    #: Bytes of adds of all connections that are accepted and not answered, plus bytes of entries in memory above their
    #: limit. Above the first number no socket is read, until below the second.
    adds_high_bytes: int = 24 * _MIB
    adds_low_bytes: int = 8 * _MIB
    #: Bytes of waiting reads. Above the first number a connection is not read. Above the second, for all connections,
    #: further reads are answered with TOO_MANY_REQUESTS.
    connection_reads_bytes: int = 1 * _MIB
    max_waiting_reads_bytes: int = 32 * _MIB
    #: Rounds of reads of all connections that have entries in memory at the same time.
    read_slots: int = 8
    #: Answers that one peer has not read. Above this its requests are not read.
    answers_high_bytes: int = 64 * 1024
    #: Answers that the peers of all connections have not read. The nearer to this, the smaller are rounds of reads. At
    #: this number reads wait. At twice the number no socket is read.
    max_unsent_bytes: int = 64 * _MIB
    #: When answers or reads of all connections are near their limits, a peer that reads hardly anything for this long
    #: loses its connection.
    stalled_peer_timeout_ms: int = 5_000
    #: The same when reads of others already wait.
    stalled_in_the_way_timeout_ms: int = 1_000
    #: Buffers for frames that do not fit into the common one, all connections. Further such frames are not read until
    #: there is room.
    max_large_frames_bytes: int = 48 * _MIB
    #: While a frame waits for room, a peer that has room and sends hardly anything for this long loses its connection.
    stalled_frame_timeout_ms: int = 1_000
    #: Other incomplete frames, and requests that wait for their turn, all connections. Above this the one that has
    #: waited longest loses its connection.
    max_half_frames_bytes: int = 32 * _MIB
    #: Time in which a frame must be complete.
    frame_timeout_ms: int = 60_000
    #: Long polls of one connection, and of all. Further ones are answered with TOO_MANY_REQUESTS.
    max_polls: int = 1_000
    max_polls_in_total: int = 20_000
    #: A long poll is answered after at most this time.
    max_poll_ms: int = 10 * 60_000
    #: Number of connections. 0: as many as open files allow, at most 10,000. A new one replaces one that has not sent
    #: anything, or the one idle longest (at least ``idle_before_eviction_ms``). Without such a one it is closed.
    max_connections: int = 0
    idle_before_eviction_ms: int = 1_000
    #: Connections of gRPC, in all lines. Further ones of a line are closed at once.
    max_grpc_connections: int = 4_000
    #: Lines in which callers of gRPC come, by their address. Each has as large a part of the connections.
    grpc_lines: int = 16
    #: Calls of gRPC under way, all connections. A new one replaces the one that has waited longest for a message.
    max_grpc_calls: int = 2_000
    #: A call of gRPC ends if its next message is not complete after this time. The first one has ``frame_timeout_ms``.
    grpc_message_timeout_ms: int = 10 * 60_000
    #: How long a stop waits for answers to accepted adds.
    close_timeout_ms: int = 30_000


#: The memory of a waiting request, in addition to its bytes.
REQUEST_BYTES: Final = 2 * 1024


def connection_limit(max_connections: int) -> int:
    """Return ``max_connections``, or if that is 0, as many as the limit of open files allows."""
    return max_connections or share_open_files().connections


class RequestTimes(Protocol):
    """Told of requests when they are answered."""

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        """``count`` requests of a kind were answered ``seconds`` after they arrived. Kinds: add, read (batch reads,
        too), fence, long_poll, force, write_lac, read_lac, info, list."""


class NoRequestTimes:
    """Observes nothing."""

    def observe(self, kind: str, count: int, seconds: float, ok: bool) -> None:
        """Ignore it."""
