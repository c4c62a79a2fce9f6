"""One bounded GET of a bookie's admin API."""

from __future__ import annotations

import http.client
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
        deadline = time.monotonic() + self.timeout_s
        connection = self._connection(scheme, host, port)
        try:
            connection.request("GET", path, headers=self._headers())
            answer = connection.getresponse()
            pieces, size = [], 0
            # Piece by piece: a caller that dripped would otherwise begin a new time limit with each byte.
            while piece := answer.read1(_READ_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > _MAX_BYTES:
                    raise NoAnswerError("the answer is too long")
                if time.monotonic() > deadline:
                    raise NoAnswerError("no answer in time")
            if answer.status != http.client.OK:
                raise NoAnswerError(f"answers with status {answer.status}")
            return b"".join(pieces).decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise NoAnswerError(f"its certificate is refused: {error.verify_message}") from None
        except TimeoutError:
            raise NoAnswerError("no answer in time") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"does not answer: {error}") from None
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        if self.tls is None:
            raise NoAnswerError("serves HTTPS, and no authority is trusted here")
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)

    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.text}"}


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
