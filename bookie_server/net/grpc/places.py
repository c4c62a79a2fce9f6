"""Which call ends when there are too many. No I/O.

A call that waits for a message can go: first one that never got any, the oldest of them; then the one that has been
quiet for longest. So whoever begins calls and sends nothing, or only parts of messages, keeps nobody out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: A caller that has sent a message may be quiet for this long at least.
_LEAST_QUIET_S: Final = 1.0


class Place:
    """The place of one call."""

    __slots__ = ("end", "is_busy", "since_s")

    def __init__(self, now_s: float) -> None:
        #: Since when it has been as it is: begun, or with its last message.
        self.since_s = now_s
        #: Ends its wait for a message. None: it does not wait for one.
        self.end: Callable[[], None] | None = None
        #: Whether the bookie still owes it answers.
        self.is_busy: Callable[[], bool] = lambda: False


class Places:
    """At most ``most`` calls."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: Those that no message came for, the oldest first, and the others, the quietest first.
        self._silent: dict[Place, None] = {}
        self._heard: dict[Place, None] = {}
        #: Calls that had to go.
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._silent) + len(self._heard)

    def enter(self, now_s: float) -> Place | None:
        """Return the place of a new call. None if all are taken and none of their calls may be ended."""
        if len(self) >= self._most:
            leaving = self._who_may_go(now_s)
            if leaving is None or leaving.end is None:
                return None
            self.evicted += 1
            self.leave(leaving)
            leaving.end()
        place = Place(now_s)
        self._silent[place] = None
        return place

    def on_message(self, place: Place, now_s: float) -> None:
        """A whole message has come."""
        place.since_s = now_s
        self.leave(place)
        self._heard[place] = None

    def leave(self, place: Place) -> None:
        """The call is over."""
        self._silent.pop(place, None)
        self._heard.pop(place, None)

    def _who_may_go(self, now_s: float) -> Place | None:
        silent = next((place for place in self._silent if place.end is not None), None)
        if silent is not None:
            return silent
        for place in self._heard:
            if now_s - place.since_s < _LEAST_QUIET_S:
                return None
            if place.end is not None and not place.is_busy():
                return place
        return None
