"""Settings of the ledger client, under Apache's client configuration names where they exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bk_spark.protocol.add_frames import EntryPackager
from bk_spark.protocol.codes import DEFAULT_MAX_FRAME_BYTES, DigestType

#: What an answer that carries an entry may have beyond the ADD frame that carried it: a v2 batch read 12
#: bytes, a v3 read some 60. Entries stay that much smaller than a frame, so that every client can read them.
ANSWER_RESERVE_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Limits and timeouts. In parentheses Apache's key, where it has one."""

    #: ``zkTimeout``
    zk_session_timeout_ms: int = 10_000
    #: ``clientConnectTimeoutMillis``
    connect_timeout_ms: int = 10_000
    #: ``addEntryTimeoutSec``: a bookie that leaves an add unanswered so long has failed.
    add_timeout_ms: int = 5_000
    #: ``readEntryTimeoutSec``
    read_timeout_ms: int = 5_000
    #: ``nettyMaxFrameSizeBytes``; must not exceed what the bookies accept.
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    #: Bytes of entries a writer may have unacknowledged.
    max_pending_bytes: int = 16 * 1024 * 1024
    #: Entries that the slowest bookie of a writer's ensemble may have unanswered.
    max_unanswered_entries: int = 20_000
    #: Bytes of entries that a reader asks for ahead of its caller.
    read_ahead_bytes: int = 8 * 1024 * 1024
    #: ``batchReadEnabled``
    batch_read_enabled: bool = True
    #: Tries for a read of which no replica gave an entry, with fresh metadata each time.
    read_attempts: int = 3

    def max_payload_bytes(self, digest_type: DigestType) -> int:
        """The largest payload that every bookie takes and every client can read back."""
        return self.max_frame_bytes - EntryPackager.overhead(digest_type) - ANSWER_RESERVE_BYTES
