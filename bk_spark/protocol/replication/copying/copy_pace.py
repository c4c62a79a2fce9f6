"""How fast a process copies beside other clients of the bookies.

A busy bookie answers everybody late: the worker that copies, and the clients that write meanwhile. So
the worker measures its own requests. The time of a request at rest is the shortest time that one of its kind has taken.
If more than a few requests take much longer, fewer bytes are copied per second, whoever causes the delay. Otherwise the
pace rises. So requests of a worker hardly ever wait in the queues of bookies, where they would let requests of clients
wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Answers after which the pace is decided anew, and the time that must have passed, too.
_PERIOD_ANSWERS: Final = 64
_PERIOD_MS: Final = 100.0
#: An answer is late if it took this many times as long as at rest.
_LATE: Final = 2.5
#: Copies get slower if more than one in this many answers is late. With half of them, clients' slowest adds took 2.4
#: times as long as without copies.
_ONE_LATE_OF: Final = 20
#: What a decision multiplies the pace by.
_FASTER: Final = 1.1
_SLOWER: Final = 0.8
#: Up to this many bytes that could have been copied, and were not, may be copied later. While a worker changes a
#: ledger's metadata, it copies nothing.
_CREDIT_BYTES: Final = 256 * 1024
#: What requests take at rest is forgotten after one to two of these times: bookies and networks change.
_MEMORY_MS: Final = 300_000.0
#: Kinds of requests whose time at rest is known, at most. Requests of further kinds are not judged.
_MOST_KINDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A request of a copy to a bookie: a write or a read, with the number of entries and of bytes.

    Like requests go to one bookie, are all writes or all reads, and have the same number of entries and bytes up to a
    factor of two.
    """

    bookie_id: str
    write: bool
    entries: int
    size_bytes: int

    @property
    def kind(self) -> tuple[str, bool, int, int]:
        """Equal for like requests, whose times are compared."""
        return self.bookie_id, self.write, self.entries.bit_length(), self.size_bytes.bit_length()


class CopyPace:
    """The bytes per second of a process, decided by the answers to its requests. Without a clock: calls say the time.

    Parameters
    ----------
    least_bytes_per_s
        The pace never falls below it, so a repair always goes on. Copies begin with it. 0 or less: no limit at all.
    """

    def __init__(self, least_bytes_per_s: float = 0) -> None:
        self._least = least_bytes_per_s
        self.bytes_per_s = least_bytes_per_s
        #: The time up to which the pace is used up.
        self._paid_until_ms = 0.0
        #: Whether somebody had to wait in this period. Otherwise a higher pace would change nothing.
        self._waited = False
        self._answers = self._late = 0
        self._period_since_ms = 0.0
        #: The shortest times, those noted now and those noted before.
        self._at_rest: dict[tuple[str, bool, int, int], float] = {}
        self._at_rest_before = self._at_rest
        self._noted_since_ms = 0.0

    def take(self, size_bytes: int, now_ms: float) -> float:
        """Take a batch. Return how long to wait before it may be copied, in milliseconds.

        Callers wait in the order of their calls.
        """
        if self._least <= 0:
            return 0.0
        begin_ms = max(self._paid_until_ms, now_ms - _CREDIT_BYTES * 1000 / self.bytes_per_s)
        self._paid_until_ms = begin_ms + size_bytes * 1000 / self.bytes_per_s
        self._waited |= begin_ms > now_ms
        return max(0.0, begin_ms - now_ms)

    def settle(self, size_bytes: int) -> None:
        """Correct what was taken: a batch turned out to have this many more bytes, or fewer if the number is
        negative."""
        if self._least > 0:
            self._paid_until_ms += size_bytes * 1000 / self.bytes_per_s

    def answered(self, request: CopyRequest, took_ms: float, now_ms: float) -> None:
        """Note how long a bookie took to answer. Failed requests do not count: their time is not that of an answer."""
        if self._least <= 0:
            return
        at_rest_ms = self._note(request.kind, took_ms, now_ms)
        if at_rest_ms is None:
            return
        self._answers += 1
        self._late += took_ms > _LATE * at_rest_ms
        if self._answers >= _PERIOD_ANSWERS and now_ms - self._period_since_ms >= _PERIOD_MS:
            self._decide(now_ms)

    def _note(self, kind: tuple[str, bool, int, int], took_ms: float, now_ms: float) -> float | None:
        """Note a time. Return the shortest one of its kind; None if it is not known."""
        if now_ms - self._noted_since_ms >= _MEMORY_MS:
            self._at_rest_before, self._at_rest = self._at_rest, {}
            self._noted_since_ms = now_ms
        known = [noted[kind] for noted in (self._at_rest, self._at_rest_before) if kind in noted]
        at_rest_ms = min((*known, took_ms))
        if kind in self._at_rest or len(self._at_rest) < _MOST_KINDS:
            self._at_rest[kind] = min(self._at_rest.get(kind, took_ms), took_ms)
        elif not known:
            return None
        return at_rest_ms

    def _decide(self, now_ms: float) -> None:
        if _ONE_LATE_OF * self._late > self._answers:
            self.bytes_per_s = max(self._least, self.bytes_per_s * _SLOWER)
        elif self._waited:
            self.bytes_per_s *= _FASTER
        self._answers = self._late = 0
        self._waited = False
        self._period_since_ms = now_ms
