"""How much of a request must have come before it gets a connection of aiohttp's. No I/O."""

from __future__ import annotations

import re
from typing import Final

#: The most that the head of a request may have: its line and its headers.
MAX_HEAD_BYTES: Final = 16 * 1024
_END: Final = re.compile(rb"\n\r?\n")
#: A method, or the beginning of one.
_METHOD: Final = re.compile(rb"[A-Z-]+ |[A-Z-]*\Z")


def wanted_head_bytes(first: bytes) -> int:
    """Return how many bytes there must be, given the first ones, so that aiohttp can answer the request or refuse it.

    Until the head is whole, that is one more than there are. What begins as no request is refused at once, and so is a
    head that is too long.
    """
    is_ready = len(first) >= MAX_HEAD_BYTES or _is_whole(first) or _METHOD.match(first.lstrip(b"\r\n")) is None
    return len(first) + (not is_ready)


def is_too_long(received: bytes) -> bool:
    """Whether ``received``, which begins with all that :func:`wanted_head_bytes` was given, is a head that is too
    long."""
    return len(received) >= MAX_HEAD_BYTES and not _is_whole(received[:MAX_HEAD_BYTES])


def _is_whole(received: bytes) -> bool:
    # Empty lines before a request are ignored.
    return _END.search(received.lstrip(b"\r\n")) is not None
