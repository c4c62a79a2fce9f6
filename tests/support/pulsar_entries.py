"""Entries as Pulsar's clients and brokers write them, made by hand: metadata is given as numbered fields."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import crc32c
import pyarrow as pa

from bk_spark.protocol.pulsar.fields import varint

Value = int | bytes | Sequence[bytes]
NOW: Final = 1_795_350_406_607


def message(fields: Mapping[int, Value]) -> bytes:
    """A protobuf message. A list of bytes is a repeated field."""
    out = b""
    for number, value in fields.items():
        if isinstance(value, int):
            out += varint(number << 3) + varint(value & (1 << 64) - 1)
        else:
            for one in [value] if isinstance(value, bytes) else value:
                out += varint(number << 3 | 2) + varint(len(one)) + one
    return out


def metadata(more: Mapping[int, Value] | None = None, /) -> dict[int, Value]:
    """Fields that every message has: producer, sequence id and time; and others."""
    return {1: b"producer", 2: 7, 3: NOW, **(more or {})}


def properties(pairs: Iterable[tuple[str, str]]) -> list[bytes]:
    return [message({1: key.encode(), 2: value.encode()}) for key, value in pairs]


def entry(
    fields: Mapping[int, Value], payload: bytes = b"", *, checksum: bool = True, broker: bytes | None = None
) -> bytes:
    """An entry. ``broker`` is the broker's metadata."""
    head = message(fields)
    body = len(head).to_bytes(4, "big") + head + payload
    if checksum:
        body = b"\x0e\x01" + crc32c.crc32c(body).to_bytes(4, "big") + body
    return body if broker is None else b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker + body


def single(value: bytes, fields: Mapping[int, Value] | None = None) -> bytes:
    """A message of a batch. Its fields are in the order of their numbers, as clients write them."""
    head = message(dict(sorted({3: len(value), **(fields or {})}.items())))
    return len(head).to_bytes(4, "big") + head + value


def batch(
    messages: Sequence[bytes],
    fields: Mapping[int, Value] | None = None,
    *,
    codec: int = 0,
    broker: bytes | None = None,
) -> bytes:
    """An entry with a batch of what :func:`single` made."""
    payload = b"".join(messages)
    more: dict[int, Value] = {9: len(payload), 11: len(messages)}
    if codec:
        more = {8: codec, **more}
    return entry({**metadata(), **more, **(fields or {})}, compressed(codec, payload), broker=broker)


def compressed(codec: int, payload: bytes) -> bytes:
    """A payload as Pulsar compresses it: ZLIB without an end."""
    if codec == 0:
        return payload
    if codec == 2:
        stream = zlib.compressobj()
        return stream.compress(payload) + stream.flush(zlib.Z_SYNC_FLUSH)
    found: bytes = pa.Codec({1: "lz4_raw", 3: "zstd", 4: "snappy"}[codec]).compress(payload, asbytes=True)
    return found


def chunks(payload: bytes, uuid: bytes, count: int, fields: Mapping[int, Value] | None = None) -> list[bytes]:
    """The entries of a chunked message."""
    size = -(-len(payload) // count)
    more = {26: uuid, 27: count, 28: len(payload), 9: len(payload), **(fields or {})}
    return [
        entry(metadata({**more, 29: number}), payload[number * size : (number + 1) * size]) for number in range(count)
    ]
