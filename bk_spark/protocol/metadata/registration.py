"""The content of a bookie's registration znode. Source: compatibility.md §3.4.

``available/<bookie id>`` holds a ``BookieServiceInfoFormat`` in protobuf: endpoints and properties. An old bookie's
znode is empty, and its id is ``host:port``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.metadata.proto import data_formats_pb2 as pb

NATIVE_ENDPOINT: Final = "bookie"
NATIVE_PROTOCOL: Final = "bookie-rpc"
#: Our own. Apache's clients look for the protocol above, and ignore others.
GRPC_ENDPOINT: Final = "grpc"
GRPC_PROTOCOL: Final = "bk_spark.v1+grpc"
_PORT: Final = re.compile("[0-9]{1,5}")
_MAX_PORT: Final = 65_535
#: Apache's pattern, with its range from ":" to "_": letters in upper case and : ; < = > ? @ [ \\ ] ^ _, too.
_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+", re.ASCII)
#: The first is the parent of the read-only bookies. ZooKeeper takes no path with the others.
_NO_BOOKIE_IDS: Final = ("readonly", ".", "..")


def is_bookie_id(text: str) -> bool:
    """Return whether a bookie may have this id, and a znode of this name."""
    return _BOOKIE_ID.fullmatch(text) is not None and text.lower() not in _NO_BOOKIE_IDS


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address and protocol of a bookie."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """What a bookie announces about itself: where it listens, and free properties."""

    endpoints: Sequence[Endpoint]
    properties: Mapping[str, str] = field(default_factory=dict)

    def endpoint(self, protocol: str) -> Endpoint | None:
        """Return the first endpoint that speaks ``protocol``."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)

    def encode(self) -> bytes:
        """Return the content of the registration znode. Equal infos have equal content."""
        message = pb.BookieServiceInfoFormat(properties=dict(self.properties))
        for endpoint in self.endpoints:
            message.endpoints.add(
                id=endpoint.id,
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, content: bytes, bookie_id: str) -> BookieServiceInfo:
        """Parse a registration. Raises MetadataFormatError, which names the bookie."""
        if not content:
            host, colon, port = bookie_id.rpartition(":")
            if not colon or not _PORT.fullmatch(port):
                raise MetadataFormatError(
                    "registration without an address, and the id is not host:port", bookie_id=bookie_id
                )
            _check_port(int(port), bookie_id)
            return cls((Endpoint(NATIVE_ENDPOINT, host, int(port), NATIVE_PROTOCOL),))
        try:
            message = pb.BookieServiceInfoFormat.FromString(content)
        except DecodeError as error:
            raise MetadataFormatError("registration is not a BookieServiceInfoFormat", bookie_id=bookie_id) from error
        if not message.IsInitialized():
            raise MetadataFormatError("registration lacks required fields", bookie_id=bookie_id)
        for each in message.endpoints:
            _check_port(each.port, bookie_id)
        endpoints = tuple(
            Endpoint(e.id, e.host, e.port, e.protocol, tuple(e.auth), tuple(e.extensions)) for e in message.endpoints
        )
        return cls(endpoints, dict(message.properties))


def _check_port(port: int, bookie_id: str) -> None:
    """Sockets raise OverflowError for any other port."""
    if not 0 <= port <= _MAX_PORT:
        raise MetadataFormatError(f"registration with port {port}, which no address has", bookie_id=bookie_id)


def native_service_info(host: str, port: int) -> BookieServiceInfo:
    """Return the registration of a bookie with only the native front end."""
    return BookieServiceInfo((Endpoint(NATIVE_ENDPOINT, host, port, NATIVE_PROTOCOL),))
