"""How fast a flush writes entry logs.

A flush that writes as fast as the disk can makes all who sync on that disk wait: the journals of this bookie, and of
others. Nobody waits for the flush itself, as long as the write cache has room. So it may take its time: it writes in
small steps, and pauses between them. How much is due follows the clock and the write cache: everything after
``span_s``, and everything before the half of the cache that fills meanwhile is ``MOST_FILLED`` full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Size of the steps of what nobody waits for: flushes that take their time, and compaction. Each is synced before the
#: next, so that the journal's syncs wait for one step at most.
PACED_STEP_BYTES: Final = 1024 * 1024
#: Everything is due when the other half of the write cache is so full.
MOST_FILLED: Final = 0.5
#: The write cache is looked at again after so long.
_LONGEST_PAUSE_S: Final = 0.05
#: Headers of ledgers without new entries are written so many at a time.
HEADERS_STEP: Final = 16
#: The pause after these, relative to the time that they took, and at most. So it is a second for 2,048 new ledgers, for
#: which further fences wait.
_HEADERS_PAUSE: Final = 2.0
_LONGEST_HEADERS_PAUSE_S: Final = 0.008


def headers_pause_s(took_s: float, filled: float) -> float:
    """Return how long to pause after ``HEADERS_STEP`` headers, in seconds.

    Most of these ledgers were fenced before the bookie had an entry of them, and get their files now. Whoever asks for
    thousands of such fences waits for the flush. Without pauses all others would wait for its disk and its processor.

    Parameters
    ----------
    took_s
        What these headers took.
    filled
        Share of the write cache's other half that is in use.
    """
    return 0.0 if filled >= MOST_FILLED else min(_HEADERS_PAUSE * took_s, _LONGEST_HEADERS_PAUSE_S)


@dataclass(frozen=True, slots=True)
class FlushPace:
    """The pace of one flush. Without a clock: calls say the time.

    Parameters
    ----------
    total_bytes
        What the flush writes.
    span_s
        How long it may take.
    """

    total_bytes: int
    span_s: float

    def pause_s(self, written_bytes: int, elapsed_s: float, filled: float) -> float:
        """Return how long to pause, in seconds; then ask again. 0: write the next step now.

        Parameters
        ----------
        written_bytes
            What is written.
        elapsed_s
            Since the flush began.
        filled
            Share of the write cache's other half that is in use.
        """
        due = max(elapsed_s / self.span_s, filled / MOST_FILLED)
        ahead = written_bytes / self.total_bytes - due
        return min(max(0.0, ahead * self.span_s), _LONGEST_PAUSE_S)
