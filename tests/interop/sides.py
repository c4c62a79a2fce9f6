"""One face for both clients, so that a test can be said once and played by either language against the other.

A :class:`Side` is one client of one language over one wire protocol in one cluster. What a client refuses is a
:class:`RefusedError` with the same word on both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.interop.payloads import Payloads

PASSWORD: Final = "open sesame"


class RefusedError(Exception):
    """A client said no; ``reason`` is the same word for both languages."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Party:
    """Which client, over which wire protocol."""

    language: str
    wire: int

    def __str__(self) -> str:
        return f"{self.language}-v{self.wire}"

    @property
    def other_language(self) -> str:
        return "ours" if self.language == "java" else "java"


JAVA_V2, JAVA_V3, OURS_V2, OURS_V3 = (Party(language, wire) for language in ("java", "ours") for wire in (2, 3))
PARTIES: Final = (JAVA_V2, JAVA_V3, OURS_V2, OURS_V3)


@dataclass(frozen=True, slots=True)
class Metadata:
    """Ledger metadata as either language reads them; ``segments`` are (first entry id, bookie ids)."""

    state: str
    quorums: tuple[int, int, int]
    last_entry_id: int
    length: int
    digest: str
    custom_metadata: dict[str, bytes]
    segments: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """What a client read from the beginning to the last add confirmed it knew when it opened the ledger."""

    count: int
    fingerprint: str
    last_add_confirmed: int


class Writer(ABC):
    """A ledger open for writing."""

    ledger_id: int

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int: ...

    @abstractmethod
    def append(self, payloads: Payloads | Sequence[bytes]) -> int:
        """Append in a pipeline; the last id, when all are acknowledged."""

    def append_one_by_one(self, payloads: Iterable[bytes]) -> None:
        """Each is acknowledged before the next is sent, which thus carries its id as last add confirmed."""
        for payload in payloads:
            self.append([payload])

    @abstractmethod
    def force(self) -> int:
        """Sync what was appended with deferred sync; the last add confirmed."""

    @abstractmethod
    def close(self) -> tuple[int, int]:
        """Last entry id and length."""

    @abstractmethod
    def abandon(self) -> None:
        """Let go without closing the ledger."""


class AdvWriter(ABC):
    """A ledger open for writing, whose entries get ids from the caller."""

    ledger_id: int

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int: ...

    @abstractmethod
    def append(self, entry_ids: Sequence[int], payloads: Sequence[bytes], *, wait: bool = True) -> None:
        """Add; ``wait`` until these, and all that were added before, are acknowledged."""

    @abstractmethod
    def close(self) -> tuple[int, int]: ...

    @abstractmethod
    def abandon(self) -> None: ...


class Reader(ABC):
    """A ledger open for reading, without having been fenced."""

    @property
    @abstractmethod
    def last_add_confirmed(self) -> int:
        """As known when the ledger was opened, or found since."""

    @abstractmethod
    def read_last_add_confirmed(self) -> int: ...

    @abstractmethod
    def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]: ...

    @abstractmethod
    def tail(self, first: int, count: int | None = None) -> list[bytes]:
        """Follow the ledger from ``first`` until ``count`` entries came, or until it is closed."""

    @abstractmethod
    def close(self) -> None: ...


class Side(ABC):
    """One client of one cluster."""

    party: Party

    @abstractmethod
    def create(
        self,
        *,
        quorums: tuple[int, int, int] = (3, 3, 2),
        digest: str = "CRC32C",
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        explicit_lac_interval_ms: int = 0,
    ) -> Writer: ...

    @abstractmethod
    def create_adv(self, *, quorums: tuple[int, int, int] = (3, 3, 2), ledger_id: int | None = None) -> AdvWriter: ...

    @abstractmethod
    def open(self, ledger_id: int) -> Reader:
        """Open for reading without fencing."""

    @abstractmethod
    def read(self, ledger_id: int, *, recovery: bool = False) -> Entries:
        """Open with or without recovery, read all that is confirmed, close."""

    @abstractmethod
    def metadata(self, ledger_id: int) -> Metadata: ...

    @abstractmethod
    def delete(self, ledger_id: int) -> None: ...

    def recover(self, ledger_id: int) -> Entries:
        """Fence, close, read all."""
        return self.read(ledger_id, recovery=True)
