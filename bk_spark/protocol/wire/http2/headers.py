"""The headers of one connection of HTTP/2. Sources: RFC 9113, section 4.3, and RFC 7541 (the package ``hpack``)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hpack import Decoder, Encoder, HeaderTuple, HPACKError

from bk_spark.protocol.errors import WireFormatError
from bk_spark.protocol.wire.http2.frames import Flag, without_padding

#: The most bytes that the headers of one answer may have: compressed, and decoded.
MOST_BLOCK_BYTES: Final = 64 * 1024
MOST_HEADERS_BYTES: Final = 32 * 1024
#: Changes of the table's size that a block may begin with: RFC 7541, section 4.2.
_MOST_TABLE_CHANGES: Final = 2
#: What RFC 9113, section 6.5.2, counts for each header beside its bytes.
_HEADER_BYTES: Final = 32
#: A deadline has eight digits at most: "gRPC over HTTP2" of gRPC's documentation.
_MOST_TIMEOUT_MS: Final = 10**8 - 1
#: A header that is in no table, and whose name is not either: RFC 7541, section 6.2.3.
_NEVER_INDEXED: Final = b"\x10"


class TooManyHeadersError(Exception):
    """The peer does not take as many bytes of headers as a call needs. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers that arrived for one stream. ``ends``: nothing follows them."""

    stream: int
    fields: dict[bytes, bytes]
    ends: bool


class OutgoingHeaders:
    """The headers of calls that begin."""

    def __init__(self, authority: str, *, is_secure: bool) -> None:
        self._before = [
            HeaderTuple(b":method", b"POST"),
            HeaderTuple(b":scheme", b"https" if is_secure else b"http"),
            HeaderTuple(b":authority", authority.encode("ascii", "replace")),
        ]
        self._behind = [
            HeaderTuple(b"te", b"trailers"),
            HeaderTuple(b"content-type", b"application/grpc"),
            HeaderTuple(b"user-agent", b"bk_spark"),
        ]
        self._encoder = Encoder()

    def block(
        self,
        path: str,
        metadata: Iterable[tuple[str, bytes]],
        timeout_ms: int | None,
        *,
        most_table_bytes: int,
        most_bytes: int,
    ) -> bytes:
        """Return the headers of a call.

        Parameters
        ----------
        timeout_ms
            The peer may give the call up after this long. None: it goes on as long as it takes.
        most_table_bytes
            Of the peer's table, which never grows.
        most_bytes
            What the peer takes of headers without compression. Raises TooManyHeadersError.
        """
        fields = [*self._before, HeaderTuple(b":path", path.encode()), *self._behind]
        if timeout_ms is not None:
            fields.append(HeaderTuple(b"grpc-timeout", b"%dm" % min(timeout_ms, _MOST_TIMEOUT_MS)))
        secrets = [(name.encode(), base64.b64encode(value).rstrip(b"=")) for name, value in metadata]
        size = sum(len(name) + len(value) + _HEADER_BYTES for name, value in (*fields, *secrets))
        if size > most_bytes:
            raise TooManyHeadersError(f"the headers of a call have {size} bytes, and the peer takes {most_bytes}")
        # Set only here: the peer may change the size many times, and hpack would keep each change.
        self._encoder.header_table_size = min(self._encoder.header_table_size, most_table_bytes)
        block = self._encoder.encode(fields, huffman=False)
        return block + b"".join(_secret(*secret) for secret in secrets)


def _secret(name: bytes, value: bytes) -> bytes:
    # Encoded here, because hpack logs what it encodes.
    return b"".join((_NEVER_INDEXED, _text(name), _text(value)))


def _text(text: bytes) -> bytes:
    """Return a text with its length: RFC 7541, sections 5.1 and 5.2."""
    if len(text) < 127:
        return bytes((len(text),)) + text
    rest, length = len(text) - 127, bytearray(b"\x7f")
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    length.append(rest)
    return bytes(length) + text


class IncomingHeaders:
    """Blocks of headers, which come in one frame or in more."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MOST_HEADERS_BYTES)
        #: Headers that are not whole: their bytes, stream and flags.
        self._block: tuple[bytearray, int, int] | None = None

    @property
    def is_within(self) -> bool:
        """Whether the next frame has to be the rest of headers."""
        return self._block is not None

    def begin(self, payload: bytes, flags: int, stream: int) -> Headers | None:
        """Take a HEADERS frame. Return headers if they are whole. Raises WireFormatError."""
        return self._take(bytearray(without_padding(payload, flags)), flags, stream)

    def go_on(self, payload: bytes, flags: int, stream: int) -> Headers | None:
        """Take a CONTINUATION frame. Otherwise as :meth:`begin`."""
        if self._block is None or self._block[1] != stream:
            raise WireFormatError("the rest of headers that have not begun")
        if not payload and not flags & Flag.END_HEADERS:
            # It could go on for ever.
            raise WireFormatError("the rest of headers is empty and not the last")
        block, _, first_flags = self._block
        block += payload
        return self._take(block, first_flags | (flags & Flag.END_HEADERS), stream)

    def _take(self, block: bytearray, flags: int, stream: int) -> Headers | None:
        if len(block) > MOST_BLOCK_BYTES:
            raise WireFormatError("too many headers")
        if not flags & Flag.END_HEADERS:
            self._block = block, stream, flags
            return None
        self._block = None
        _check_table_changes(block)
        try:
            fields = {bytes(name): bytes(value) for name, value in self._decoder.decode(bytes(block), raw=True)}
        except HPACKError as error:
            raise WireFormatError(f"headers that cannot be decoded ({type(error).__name__})") from None
        return Headers(stream, fields, bool(flags & Flag.END_STREAM))


def _check_table_changes(block: bytearray) -> None:
    """Check how often the table changes. hpack takes any number, at the cost of a header each."""
    at = count = 0
    while at < len(block) and block[at] >> 5 == 1:
        goes_on = block[at] == 0x3F
        at += 1
        while goes_on and at < len(block):
            goes_on = block[at] >= 128
            at += 1
        count += 1
        if count > _MOST_TABLE_CHANGES:
            raise WireFormatError("headers change the size of their table too often")
