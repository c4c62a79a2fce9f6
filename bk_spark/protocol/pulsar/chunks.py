"""Chunked messages. Source: docs/design/pulsar.md §2.5."""

from __future__ import annotations


class ChunksMissing(Exception):  # noqa: N818 (a signal, not an error)
    """Entries have chunks of messages whose first chunks the decoder has not seen.

    Parameters
    ----------
    uuids
        The ids of these messages.
    """

    def __init__(self, uuids: frozenset[bytes]) -> None:
        super().__init__(f"{len(uuids)} chunked messages began before these entries")
        self.uuids = uuids
