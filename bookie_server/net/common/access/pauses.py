"""How long the bookie waits after it refused something.

A handshake or a login costs the bookie milliseconds, and a request that its peer has no right to nearly as much as one
that is obeyed. Without pauses, a hundred peers that guess passwords, or come again as soon as they are refused, take a
whole processor, and the requests of others wait behind theirs.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from typing import Final

#: The pauses after failed handshakes and logins are between half of this and one and a half times this.
_FAILURE_MEAN_S: Final = 1.0
#: The pause after the first refused request of a connection. Each further one is twice as long, up to the longest.
_FIRST_REFUSAL_S: Final = 0.05
_LONGEST_REFUSAL_S: Final = 1.0
#: After so long without a refused request, the next one is the first again.
_FORGOTTEN_AFTER_S: Final = 10.0
#: Connections that are remembered where nobody tells when they end.
_MOST_REMEMBERED: Final = 10_000
#: Multiples of it, without their whole parts, are spread evenly.
_GOLDEN_RATIO: Final = 0.6180339887498949


class Spread:
    """Pauses of different lengths: what came together does not come together again."""

    def __init__(self) -> None:
        self._number = 0

    def of(self, mean_s: float) -> float:
        """Return the next pause, between half of ``mean_s`` and one and a half times it."""
        self._number += 1
        return mean_s * (0.5 + self._number * _GOLDEN_RATIO % 1)

    def failure_s(self) -> float:
        """The pause after the next handshake or login that failed."""
        return self.of(_FAILURE_MEAN_S)


class RefusalPauses:
    """Those of one connection."""

    __slots__ = ("_last_s", "_mean_s", "_spread")

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._mean_s = 0.0
        self._last_s = 0.0

    def next_s(self, now_s: float) -> float:
        """The pause after requests that are refused at ``now_s``."""
        if now_s - self._last_s > _FORGOTTEN_AFTER_S:
            self._mean_s = 0.0
        self._last_s = now_s
        self._mean_s = min(_LONGEST_REFUSAL_S, max(_FIRST_REFUSAL_S, 2 * self._mean_s))
        return self._spread.of(self._mean_s)


class FailedLately:
    """The addresses of those whose handshakes failed. Of too many, those that failed longest ago are forgotten."""

    def __init__(self) -> None:
        self._failed_s: OrderedDict[str | bytes, float] = OrderedDict()

    def note(self, address: str, now_s: float) -> None:
        """A handshake from ``address`` has failed."""
        network = _network_of(address)
        self._failed_s[network] = now_s
        self._failed_s.move_to_end(network)
        if len(self._failed_s) > _MOST_REMEMBERED:
            self._failed_s.popitem(last=False)

    def includes(self, address: str, now_s: float) -> bool:
        """Whether a handshake from ``address`` failed lately."""
        return now_s - self._failed_s.get(_network_of(address), -math.inf) < _FORGOTTEN_AFTER_S


class RefusalsByPeer:
    """Those of connections that are known by name only. Of too many, those that were refused longest ago are
    forgotten."""

    def __init__(self) -> None:
        self._spread = Spread()
        self._pauses: OrderedDict[str, RefusalPauses] = OrderedDict()

    def next_s(self, peer: str, now_s: float) -> float:
        """The pause after a request of ``peer`` that is refused at ``now_s``."""
        pauses = self._pauses.pop(peer, None) or RefusalPauses(self._spread)
        self._pauses[peer] = pauses
        if len(self._pauses) > _MOST_REMEMBERED:
            self._pauses.popitem(last=False)
        return pauses.next_s(now_s)


def _network_of(address: str) -> str | bytes:
    """Return what all addresses of a peer share: of IPv6 the network's half, since whoever has one address has the
    other half for himself."""
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped is not None else found.packed[:8]
