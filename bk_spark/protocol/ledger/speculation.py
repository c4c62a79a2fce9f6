"""When to ask a second replica while the first may still answer. Source: compatibility.md §4.8, §4.11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Speculation:
    """The first after ``first_ms``, each further one after twice the wait before it, ``max_ms`` at most."""

    first_ms: int
    max_ms: int

    def wait_ms(self, already: int) -> int:
        """How long to wait where ``already`` speculative requests were sent."""
        # Beyond 32 doublings only the bound can count.
        return self.first_ms if already == 0 else min(self.max_ms, self.first_ms << min(already, 32))


class Suspects(Protocol):
    """Bookies that failed or were slow lately, to be asked last. A plain set of ids is one."""

    def add(self, bookie_id: str, /) -> None: ...

    def __contains__(self, bookie_id: object, /) -> bool: ...
