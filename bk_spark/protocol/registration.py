"""What a bookie writes into its registration znode: BookieServiceInfoFormat. Source: facts §3.4.

An old bookie leaves the znode empty; its id then is its address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from bk_spark.protocol.errors import MetadataFormatError
from bk_spark.protocol.proto.data_formats_pb2 import BookieServiceInfoFormat

#: Protocol name of the native (v2 and v3) endpoint.
NATIVE_PROTOCOL: Final = "bookie-rpc"
_NATIVE_ID: Final = "bookie"
#: Apache's rule for bookie ids, ``:`` to ``_`` being a range of its regular expression.
_BOOKIE_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a bookie serves ``protocol``."""

    id: str
    host: str
    port: int
    protocol: str


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """The endpoints of a bookie, and free-form properties."""

    endpoints: tuple[Endpoint, ...]
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def native_address(self) -> tuple[str, int]:
        """Host and port of the native endpoint. Raises MetadataFormatError where there is none."""
        for endpoint in self.endpoints:
            if endpoint.protocol == NATIVE_PROTOCOL:
                return endpoint.host, endpoint.port
        raise MetadataFormatError(f"the bookie's registration has no endpoint of protocol {NATIVE_PROTOCOL}")


def native_service_info(host: str, port: int) -> ServiceInfo:
    """What a bookie with only a native endpoint publishes."""
    return ServiceInfo((Endpoint(_NATIVE_ID, host, port, NATIVE_PROTOCOL),))


def encode_service_info(info: ServiceInfo) -> bytes:
    message = BookieServiceInfoFormat(properties=info.properties)
    for endpoint in info.endpoints:
        message.endpoints.add(id=endpoint.id, port=endpoint.port, host=endpoint.host, protocol=endpoint.protocol)
    return message.SerializeToString(deterministic=True)


def parse_service_info(data: bytes, bookie_id: str) -> ServiceInfo:
    """Read a registration; an empty one stands for the address in the id. Raises MetadataFormatError."""
    if not data:
        host, colon, port = bookie_id.rpartition(":")
        if not colon or not port.isdecimal():
            raise MetadataFormatError(f"bookie {bookie_id} registered no address and its id is not host:port")
        return native_service_info(host, int(port))
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"the registration of bookie {bookie_id} cannot be parsed") from error
    endpoints = tuple(Endpoint(one.id, one.host, one.port, one.protocol) for one in message.endpoints)
    return ServiceInfo(endpoints, dict(message.properties))


def valid_bookie_id(bookie_id: str) -> bool:
    """Whether Apache accepts ``bookie_id``."""
    return _BOOKIE_ID.fullmatch(bookie_id) is not None and bookie_id.lower() != "readonly"
