"""How long the answer to a failed login waits.

A login costs the bookie a millisecond. Without a pause, a hundred peers that guess passwords, each as soon as the last
guess has failed, take a whole processor, and newcomers wait behind them.
"""

from __future__ import annotations

from typing import Final

#: The pauses are between half of this and one and a half times this.
_MEAN_S: Final = 0.5
#: Multiples of it, without their whole parts, are spread evenly.
_GOLDEN_RATIO: Final = 0.6180339887498949


class LoginPauses:
    """Pauses of different lengths: guesses that came together do not come together again."""

    def __init__(self) -> None:
        self._number = 0

    def next_s(self) -> float:
        """The pause after the next failed login."""
        self._number += 1
        return _MEAN_S * (0.5 + self._number * _GOLDEN_RATIO % 1)
