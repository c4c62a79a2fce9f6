"""How much of a request must have come before the admin API serves it."""

from __future__ import annotations

import pytest

from bookie_server.admin.heads import MAX_HEAD_BYTES, is_too_long, wanted_head_bytes

_LONG = b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * MAX_HEAD_BYTES


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\r\n\r\n",
        b"G",
        b"GET ",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: b\r\nX: x",
        b"GET / HTTP/2.0\r\nX: x",
        b"GET /\r\nX: x",  # HTTP/0.9, which has no headers: whoever sends some waits for nothing
        b"M-SEARCH / HTTP/1.1\r\nX: x",
        b"\r\nPUT / HTTP/1.1\r\n",
        _LONG[: MAX_HEAD_BYTES - 1],
    ],
)
def test_a_head_that_is_not_whole_is_waited_for(first: bytes) -> None:
    """A method that aiohttp knows would be enough for its parser to wait, whatever comes behind it."""
    assert wanted_head_bytes(first) == len(first) + 1


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: b\n\n",
        b"\r\n\r\nPUT / HTTP/1.1\r\nHost: b\r\n\r\nbody",
        b"\x16\x03\x01",
        b"get / HTTP/1.1\r\n",
        b"nonsense\r\n",
        _LONG[:MAX_HEAD_BYTES],
    ],
)
def test_what_is_whole_too_long_or_no_request_is_handled_at_once(first: bytes) -> None:
    assert wanted_head_bytes(first) == len(first)


def test_what_is_too_long() -> None:
    assert is_too_long(_LONG)
    assert is_too_long(_LONG[:MAX_HEAD_BYTES])
    assert not is_too_long(_LONG[: MAX_HEAD_BYTES - 1])
    assert not is_too_long(b"PUT / HTTP/1.1\r\n\r\n" + bytes(MAX_HEAD_BYTES))
