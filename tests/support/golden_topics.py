"""Topics of Pulsar that a broker wrote once (tests/fixtures/pulsar), put into a cluster as the broker had left them.

Their ledgers get new ids, so positions in what a Java reader got are changed alike.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bk_spark.bookie.blocking import BlockingClient
from bk_spark.protocol.pulsar.fields import varint
from bk_spark.protocol.pulsar.topics.topic_names import TopicName
from tests.support.fixtures import golden

#: When a broker closed the ledgers, by its clock.
CLOSED_AT_MS: Final = 1_800_000_000_000


@dataclass
class GoldenTopics:
    """Writes topics into the cluster of ``client``, in ``namespace``."""

    client: BlockingClient
    namespace: str
    _ledgers: dict[int, int] = field(default_factory=dict)

    def full(self, name: str) -> str:
        return f"persistent://{self.namespace}/{name}"

    def write(self, name: str) -> str:
        """Write a topic of the fixtures, and its schema if it has one. Returns its full name."""
        stored = golden("pulsar/topics")
        ledgers = []
        for ledger in stored["topics"][name]["ledgers"]:
            entries = [base64.b64decode(entry) for entry in ledger["entries"]]
            ledger_id = self._ledgers[ledger["ledger"]] = self.write_ledger(entries)
            ledgers.append((ledger_id, entries))
        self.write_list(name, ledgers)
        self._write_schema(name, stored["schemas"])
        return self.full(name)

    def write_ledger(self, entries: Sequence[bytes]) -> int:
        writer = self.client.create(password=b"")
        if entries:
            writer.append_many(entries)
        writer.close()
        return writer.ledger_id

    def write_list(self, name: str, ledgers: Sequence[tuple[int, Sequence[bytes]]], extra: bytes = b"") -> str:
        """Write the list of a topic's ledgers, all closed. ``extra``: more fields of each."""
        found = b""
        for ledger_id, entries in ledgers:
            size = sum(map(len, entries))
            one = number(1, ledger_id) + number(2, len(entries)) + number(3, size) + number(4, CLOSED_AT_MS) + extra
            found += bytes_field(1, one)
        self.put(TopicName.parse(self.full(name)).managed_ledger_path, found)
        return self.full(name)

    def put(self, path: str, data: bytes) -> None:
        zookeeper = self.client.zookeeper
        zookeeper.ensure_path(path)
        zookeeper.set(path, data, -1)

    def java_rows(self, name: str) -> list[dict[str, Any]]:
        """What a Java reader got, with the ids of these ledgers."""
        rows = golden("pulsar/topics")["topics"][name]["java"]
        return [{**row, "ledger": self._ledgers[row["ledger"]]} for row in rows]

    def _write_schema(self, name: str, schemas: dict[str, Any]) -> None:
        base = TopicName.parse(self.full(name)).base_local
        known = schemas.get(f"/schemas/golden/ns1/{base}")
        if known is None:
            return
        locator = b""
        for version in known["versions"]:
            ledger_id = self.write_ledger([base64.b64decode(entry) for entry in version["entries"]])
            position = number(1, ledger_id) + number(2, 0)
            locator += bytes_field(2, number(1, version["version"]) + bytes_field(2, position))
        self.put(TopicName.parse(self.full(name)).schema_path, locator)


def number(tag: int, value: int) -> bytes:
    """A field of protobuf with a whole number."""
    return varint(tag << 3) + varint(value)


def bytes_field(tag: int, value: bytes) -> bytes:
    """A field of protobuf with bytes, or with a message."""
    return varint(tag << 3 | 2) + varint(len(value)) + value
