"""Apache's Java client as a :class:`tests.interop.sides.Side`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.interop.java_client import JavaClient, JavaError, JavaWriter
from tests.interop.payloads import Payloads
from tests.interop.sides import PASSWORD, AdvWriter, Entries, Metadata, Party, Reader, RefusedError, Side, Writer

#: A tail that is to bring a number of entries polls so long at a time; one that is to see the ledger closed polls
#: shorter, since a writer's close says nothing to bookies.
_POLL_TIMEOUT_MS: Final = 5_000
_LAST_POLL_TIMEOUT_MS: Final = 100
_REASONS: Final = {
    -1: "entry is not confirmed",
    -6: "not enough bookies",
    -7: "no such ledger",
    -11: "closed",
    # Closed by another client, elsewhere than this writer would have.
    -17: "fenced",
    -20: "ledger exists",
    -22: "duplicate entry",
    -25: "no such ledger",
    -100: "not possible",
    -101: "fenced",
    -102: "unauthorized",
}


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except JavaError as error:
        if error.code not in _REASONS:
            raise
        raise RefusedError(_REASONS[error.code], str(error)) from error


@dataclass
class _JavaWriter(Writer):
    _handle: JavaWriter

    def __post_init__(self) -> None:
        self.ledger_id = self._handle.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.state().last_add_confirmed

    def append(self, payloads: Payloads | Sequence[bytes]) -> int:
        with _refusals():
            return self._handle.append(payloads).last_entry_id

    def append_one_by_one(self, payloads: Iterable[bytes]) -> None:
        with _refusals():
            self._handle.append(list(payloads), in_flight=1)

    def force(self) -> int:
        return self._handle.force().last_add_confirmed

    def close(self) -> tuple[int, int]:
        with _refusals():
            closed = self._handle.close()
        return closed.last_entry_id, closed.length

    def abandon(self) -> None:
        self._handle.abandon()


@dataclass
class _JavaAdvWriter(AdvWriter):
    _handle: JavaWriter
    _not_awaited: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger_id = self._handle.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.state().last_add_confirmed

    def append(self, entry_ids: Sequence[int], payloads: Sequence[bytes], *, wait: bool = True) -> None:
        with _refusals():
            self._handle.append_adv(
                entry_ids, payloads, awaiting=sorted([*self._not_awaited, *entry_ids]) if wait else []
            )
        self._not_awaited = [] if wait else [*self._not_awaited, *entry_ids]

    def close(self) -> tuple[int, int]:
        with _refusals():
            closed = self._handle.close()
        return closed.last_entry_id, closed.length

    def abandon(self) -> None:
        self._handle.abandon()


@dataclass
class JavaReader(Reader):
    _client: JavaClient
    _handle: str
    _last_add_confirmed: int

    @property
    def last_add_confirmed(self) -> int:
        return self._last_add_confirmed

    def read_last_add_confirmed(self) -> int:
        self._last_add_confirmed = self._client.call("read_lac", reader=self._handle, how="read")["found"]
        return self._last_add_confirmed

    def try_read_last_add_confirmed(self) -> int:
        """Java's other way: the best of the answers, without waiting for a covering part of the bookies."""
        found: int = self._client.call("read_lac", reader=self._handle, how="try")["found"]
        return found

    def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        with _refusals():
            answer = self._client.call(
                "read_entries",
                reader=self._handle,
                first_entry_id=first,
                last_entry_id=last,
                unconfirmed=unconfirmed,
                with_payloads=True,
            )
        return [base64.b64decode(payload) for payload in answer["payloads"]]

    def tail(self, first: int, count: int | None = None) -> list[bytes]:
        limit = {} if count is None else {"count": count}
        answer = self._client.call(
            "tail",
            reader=self._handle,
            first_entry_id=first,
            poll_timeout_ms=_LAST_POLL_TIMEOUT_MS if count is None else _POLL_TIMEOUT_MS,
            with_payloads=True,
            **limit,
        )
        assert count is not None or answer["closed"]
        self._last_add_confirmed = answer["last_add_confirmed"]
        return [base64.b64decode(payload) for payload in answer["payloads"]]

    def long_poll(self, entry_id: int, timeout_ms: int, *, parallel: bool = False) -> tuple[int, bytes | None]:
        """Last add confirmed, and the entry if it was confirmed in time."""
        with _refusals():
            answer = self._client.call(
                "long_poll", reader=self._handle, entry_id=entry_id, poll_timeout_ms=timeout_ms, parallel=parallel
            )
        if "payload" not in answer:
            return answer["last_add_confirmed"], None
        assert answer["entry_id"] == entry_id
        return answer["last_add_confirmed"], base64.b64decode(answer["payload"])

    def close(self) -> None:
        self._client.call("close_reader", reader=self._handle)


@dataclass
class JavaSide(Side):
    client: JavaClient
    uri: str
    party: Party

    def create(
        self,
        *,
        quorums: tuple[int, int, int] = (3, 3, 2),
        digest: str = "CRC32C",
        custom_metadata: Mapping[str, bytes] | None = None,
        deferred_sync: bool = False,
        explicit_lac_interval_ms: int = 0,
    ) -> Writer:
        settings = {"explicitLacInterval": str(explicit_lac_interval_ms)} if explicit_lac_interval_ms else None
        with _refusals():
            handle = self.client.create(
                self.uri,
                digest=digest,
                password=PASSWORD,
                quorums=quorums,
                wire=self.party.wire,
                deferred_sync=deferred_sync,
                custom_metadata=custom_metadata,
                settings=settings,
            )
        return _JavaWriter(handle)

    def create_adv(self, *, quorums: tuple[int, int, int] = (3, 3, 2), ledger_id: int | None = None) -> AdvWriter:
        with _refusals():
            handle = self.client.create(
                self.uri, password=PASSWORD, quorums=quorums, wire=self.party.wire, adv=True, ledger_id=ledger_id
            )
        return _JavaAdvWriter(handle)

    def open(self, ledger_id: int) -> JavaReader:
        with _refusals():
            answer = self.client.call(
                "open_reader",
                uri=self.uri,
                wire=self.party.wire,
                ledger_id=ledger_id,
                recovery=False,
                digest="CRC32C",
                password=PASSWORD,
            )
        return JavaReader(self.client, answer["reader"], answer["last_add_confirmed"])

    def read(self, ledger_id: int, *, recovery: bool = False) -> Entries:
        with _refusals():
            read = self.client.read(self.uri, ledger_id, recovery=recovery, password=PASSWORD, wire=self.party.wire)
        return Entries(read.count, read.fingerprint, read.last_add_confirmed)

    def read_in_batches(self, ledger_id: int) -> Entries:
        assert self.party.wire == 2, "Apache's client has batch reads over v2 only"
        read = self.client.read(self.uri, ledger_id, recovery=False, password=PASSWORD, wire=2, batch=True)
        return Entries(read.count, read.fingerprint, read.last_add_confirmed)

    def metadata(self, ledger_id: int) -> Metadata:
        with _refusals():
            found = self.client.metadata(self.uri, ledger_id)
        assert found.ledger_id == ledger_id
        assert found.has_password
        return Metadata(
            found.state,
            (found.ensemble_size, found.write_quorum_size, found.ack_quorum_size),
            found.last_entry_id,
            found.length,
            found.digest,
            found.custom_metadata,
            found.segments,
        )

    def delete(self, ledger_id: int) -> None:
        self.client.delete(self.uri, ledger_id)
