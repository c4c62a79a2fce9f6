"""One bounded GET of a bookie's admin API."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from bk_spark.bookie.passwords import password_in
from bk_spark.protocol.errors import InvalidArgumentError

_READ_BYTES: Final = 64 * 1024
_MAX_BYTES: Final = 2 * 1024 * 1024


class NoAnswerError(Exception):
    """There is no usable answer. The message says why."""


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """How bookies are asked.

    Parameters
    ----------
    tls
        What is trusted, and shown. None: bookies with HTTPS are not asked.
    token
        The token for reads. It is not in any text of this object. None: no token is shown.
    timeout_s
        The limit of one call.
    """

    tls: ssl.SSLContext | None = None
    token: _Secret | None = None
    timeout_s: float = 2.0

    def get(self, scheme: str, host: str, port: int, path: str) -> str:
        """Return the content. Raises NoAnswerError."""
        deadline_s = time.monotonic() + self.timeout_s
        try:
            with closing(self._connection(scheme, host, port)) as connection:
                connection.request("GET", path, headers=self._headers())
                arriving = cast(socket.socket, _Arriving(connection.sock, deadline_s))
                answer = http.client.HTTPResponse(arriving, method="GET")
                answer.begin()
                pieces, size = [], 0
                while piece := answer.read1(_READ_BYTES):
                    pieces.append(piece)
                    size += len(piece)
                    if size > _MAX_BYTES:
                        raise NoAnswerError("the answer is too long")
            if answer.status != http.client.OK:
                raise NoAnswerError(f"answers with status {answer.status}")
            return b"".join(pieces).decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise NoAnswerError(f"its certificate is refused: {error.verify_message}") from None
        except TimeoutError:
            raise NoAnswerError("no answer in time") from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: the host is not a valid name
            raise NoAnswerError(f"does not answer: {error}") from None

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        if self.tls is None:
            raise NoAnswerError("serves HTTPS, and no authority is trusted here")
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)

    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.text}"}


class _Arriving:
    """The bytes that arrive until the deadline. A socket alone would begin a new time limit with each byte."""

    def __init__(self, connected: Any, deadline_s: float) -> None:
        self._reading = _Reading(connected, deadline_s)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self._reading)


class _Reading(io.RawIOBase):
    def __init__(self, connected: Any, deadline_s: float) -> None:
        super().__init__()
        self._connected, self._deadline_s = connected, deadline_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connected.settimeout(left_s)
        count: int = self._connected.recv_into(buffer)
        return count


class _Secret:
    """A text that no representation shows."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "..."


def token_in(path: str | Path, setting: str) -> str:
    """Return the token in the file that ``setting`` names. Raises InvalidArgumentError."""
    token = password_in(path, setting).strip()
    if not token or any(not 0x20 < byte < 0x7F for byte in token):
        raise InvalidArgumentError(f"{setting}: {path} must hold one token, of ASCII characters without spaces")
    return token.decode()


def caller(tls: ssl.SSLContext | None = None, token: str = "") -> HttpCaller:
    """Return a caller. ``token``: "" for none."""
    return HttpCaller(tls, _Secret(token) if token else None)
